//! Kernels of packages for plans that are made at run time: `EGLU_KERNELS` names packages, and what they hold need not be compiled.

use super::Package;
use crate::cuda::Cubin;
use std::sync::OnceLock;

/// The kernel for a source, by its digest (see [`source_digest`](crate::cuda::source_digest)), from the packages that `EGLU_KERNELS` names.
///
/// A package that cannot be used is warned of, once, and left out.
pub(crate) fn find(arch: &str, digest: impl FnOnce() -> String) -> Option<Cubin> {
    static PACKAGES: OnceLock<Vec<Package>> = OnceLock::new();
    let open = || {
        let named = std::env::var_os("EGLU_KERNELS").unwrap_or_default();
        let paths = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
        paths.filter_map(|path| Package::open(&path).map_err(|error| log::warn!("EGLU_KERNELS: {error}")).ok()).collect()
    };
    let packages = PACKAGES.get_or_init(open);
    if packages.is_empty() {
        return None;
    }
    let digest = digest();
    packages.iter().find_map(|package| package.kernel(arch, &digest))
}

impl Package {
    /// The kernel for a source, if the package has it.
    pub(crate) fn kernel(&self, arch: &str, digest: &str) -> Option<Cubin> {
        let entry = self.manifest.kernels.get(arch)?.get(digest)?;
        // The seal vouches for the entry.
        self.entry(entry).ok().map(|image| Cubin { image: image.into(), log: "".into() })
    }
}

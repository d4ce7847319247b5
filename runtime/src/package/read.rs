//! Opening a package: seal, version, manifest.

use super::{
    PackageError,
    draft::{folder_of, reference_to},
    manifest::{FORMAT, Header, MANIFEST, Manifest, ProgramRecord, ReferenceRecord, VERSION},
    seal,
};
use crate::inputs::Bound;
use eglu_ir::{TensorType, archive::Archive, weights::Weights};
use indexmap::IndexMap;
use std::{
    borrow::Cow,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
    sync::Arc,
};

/// An open package: mapped, its seal verified.
#[derive(Debug)]
pub struct Package {
    pub(super) archive: Arc<Archive>,
    pub(super) manifest: Manifest,
}

/// One program of a package.
#[derive(Clone, Copy, Debug)]
pub struct ProgramInfo<'a> {
    pub(super) package: &'a Package,
    pub(super) record: &'a ProgramRecord,
}

/// True for a file named `.eglu`, and for one that ends as a package does.
pub fn is_package(path: &Path) -> bool {
    let sealed = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-(seal::LENGTH as i64)))?;
        let mut end = vec![];
        file.read_to_end(&mut end)?;
        Ok::<bool, std::io::Error>(seal::is_seal(&end))
    };
    path.extension().is_some_and(|extension| extension == "eglu") || sealed().unwrap_or(false)
}

impl Package {
    /// Opens a package; refuses one that is damaged, cut short, or of a version that this code does not know.
    pub fn open(path: &Path) -> Result<Package, PackageError> {
        let file = File::open(path).and_then(|file| {
            // SAFETY: the map is only read, here; whoever writes into the file meanwhile breaks it for every reader of files by map.
            unsafe { memmap2::Mmap::map(&file) }
        });
        let file = file.map_err(|source| PackageError::Open { path: path.into(), source })?;
        match seal::verify(&file) {
            None => return Err(PackageError::Unsealed { path: path.into() }),
            Some(false) => return Err(PackageError::Damaged { path: path.into(), part: damaged_part(path) }),
            Some(true) => {}
        }
        let archive = Arc::new(Archive::open(path)?);
        let contents = |why: String| PackageError::Contents { path: path.into(), why };
        let text = archive.read(MANIFEST)?.ok_or_else(|| contents(format!("it has no `{MANIFEST}`")))?;
        let syntax = |error: serde_json::Error| contents(format!("`{MANIFEST}`: {error}"));
        let header: Header = serde_json::from_slice(&text).map_err(syntax)?;
        match (header.format.as_deref(), header.version) {
            (Some(FORMAT), Some(VERSION)) => {}
            (Some(FORMAT), Some(found)) => {
                let by = header.eglu.map_or_else(String::new, |eglu| format!(", written by eglu {eglu}"));
                return Err(PackageError::Version { path: path.into(), found, by });
            }
            _ => return Err(contents(format!("`{MANIFEST}` is that of no `{FORMAT}`"))),
        }
        let manifest = serde_json::from_slice(&text).map_err(syntax)?;
        Ok(Package { archive, manifest })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.archive.path()
    }

    /// The version of eglu that wrote it.
    pub fn writer(&self) -> &str {
        &self.manifest.eglu
    }

    /// Its programs, in order.
    pub fn programs(&self) -> impl Iterator<Item = ProgramInfo<'_>> {
        self.manifest.programs.iter().map(|record| ProgramInfo { package: self, record })
    }

    /// The program of that name; without a name the only one.
    pub fn program(&self, name: Option<&str>) -> Result<ProgramInfo<'_>, PackageError> {
        let has = || self.programs().map(|program| program.name().to_owned()).collect::<Vec<_>>().join(", ");
        let path = || self.path().to_path_buf();
        match (name, self.manifest.programs.as_slice()) {
            (None, [_]) => {}
            (None, _) => return Err(PackageError::WhichProgram { path: path(), has: has() }),
            (Some(_), _) => {}
        }
        let found = self.programs().find(|program| name.is_none_or(|name| program.name() == name));
        found.ok_or_else(|| PackageError::NoProgram { path: path(), wanted: name.unwrap_or_default().into(), has: has() })
    }

    /// The contents of an entry that the manifest names.
    pub(super) fn entry(&self, name: &str) -> Result<Cow<'_, [u8]>, PackageError> {
        let missing = || PackageError::Contents { path: self.path().into(), why: format!("it has no `{name}`") };
        self.archive.read(name)?.ok_or_else(missing)
    }
}

impl<'a> ProgramInfo<'a> {
    /// By which it is asked for.
    pub fn name(&self) -> &'a str {
        &self.record.name
    }

    /// Name and type of each input, in signature order.
    pub fn inputs(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.record.inputs.iter().map(|(name, input)| (&**name, input.ty.as_str()))
    }

    /// What the model says of its integer inputs, in signature order.
    pub fn bounds(&self) -> Vec<Vec<Bound>> {
        self.record.inputs.values().map(|input| input.bounds.clone()).collect()
    }

    /// Type of each output, in signature order.
    pub fn outputs(&self) -> &'a [String] {
        &self.record.outputs
    }

    /// Architectures that it has a plan for, and what compiled the kernels.
    pub fn targets(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
        self.record.targets.iter().map(|target| (target.arch.as_str(), target.compiler.as_deref()))
    }

    /// Names of the weights that it holds or refers to.
    pub fn weight_names(&self) -> impl Iterator<Item = &'a str> {
        self.record.weights.keys().map(|name| &**name)
    }

    /// The archive that its weights are in, as a path from the package's folder; `None` where the package holds them.
    pub fn refers_to(&self) -> Option<&'a str> {
        self.record.reference.as_ref().map(|reference| reference.path.as_str())
    }

    /// Weights that it needs and that came without contents.
    pub fn absent(&self) -> &'a IndexMap<Arc<str>, TensorType> {
        &self.record.absent
    }

    /// Its weights, where they lie; nothing is read until it is asked for. Absent ones are for the caller to add.
    pub fn weights(&self) -> Result<Weights, PackageError> {
        let archive = match &self.record.reference {
            None => self.package.archive.clone(),
            Some(reference) => Arc::new(self.referred(reference)?),
        };
        let mut weights = Weights::default();
        for (name, weight) in &self.record.weights {
            weights.insert_placed(name, &archive, &weight.file, &weight.place)?;
        }
        Ok(weights)
    }

    /// The archive referred to, if it is the one that the package was made of.
    fn referred(&self, reference: &ReferenceRecord) -> Result<Archive, PackageError> {
        let path = folder_of(self.package.path()).join(&reference.path);
        let refused = |why: String| PackageError::Reference { path: self.package.path().into(), archive: path.clone(), why };
        let archive = Archive::open(&path).map_err(|error| refused(error.to_string()))?;
        match reference_to(&archive, reference.path.clone()) == *reference {
            true => Ok(archive),
            false => Err(refused("it is another file than the one that was compiled".into())),
        }
    }
}

/// Which part of a package is damaged, as far as zip's own checks tell.
fn damaged_part(path: &Path) -> String {
    let Ok(Ok(mut zip)) = File::open(path).map(zip::ZipArchive::new) else { return "its directory".into() };
    for i in 0..zip.len() {
        let Ok(mut file) = zip.by_index(i) else { return "its directory".into() };
        let name = file.name().map_or_else(|_| format!("entry {i}"), |name| name.into_owned());
        if std::io::copy(&mut file, &mut std::io::sink()).is_err() {
            return format!("its entry `{name}`");
        }
    }
    "a name, a date or the checksum itself".into()
}

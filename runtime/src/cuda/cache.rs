//! Compiled kernels on disk: one file per source, architecture and compiler, written whole or not at all.

use super::python::Env;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Names an entry: a hash of everything that decides what the compiler makes.
pub(crate) type Key = [u8; 32];

/// File format: magic, SHA-256 of the rest, length of the log (u64, little-endian), log, cubin.
const MAGIC: &[u8; 12] = b"eglu-cubin-1";

/// The folder of compiled kernels.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// `None` where the user wants none, or has no home.
    folder: Option<PathBuf>,
}

/// What the cache holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct CacheReport {
    /// Where it is; `None` if there is none.
    pub folder: Option<PathBuf>,
    /// Entries in it.
    pub entries: u64,
    /// Their size.
    pub bytes: u64,
    /// What is wrong with it; results do not suffer, only start-up does.
    pub problem: Option<String>,
}

/// The key of these parts; their lengths are hashed with them, so that no two lists share a key by running together.
pub(crate) fn key(parts: &[&str]) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

impl Cache {
    /// `EGLU_CACHE_DIR` (empty: no cache), else `eglu` in `XDG_CACHE_HOME` or `~/.cache`.
    pub(crate) fn from_env(env: Env<'_>) -> Cache {
        let chosen = env("EGLU_CACHE_DIR").map(|folder| (!folder.is_empty()).then(|| PathBuf::from(folder)));
        let usual = || {
            let xdg = env("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
            let caches = xdg.or_else(|| Some(PathBuf::from(env("HOME").filter(|home| !home.is_empty())?).join(".cache")))?;
            Some(caches.join("eglu"))
        };
        Cache { folder: chosen.unwrap_or_else(usual) }
    }

    /// Log and cubin of an entry. One that is damaged is removed and counts as absent.
    pub(crate) fn read(&self, key: &Key) -> Option<(String, Vec<u8>)> {
        let path = self.path(key)?;
        let file = fs::read(&path).ok()?;
        let entry = parse(&file);
        if entry.is_none() {
            log::warn!("the cached kernel `{}` is damaged: compiling it again", path.display());
            // It will be written anew in any case.
            let _ = fs::remove_file(&path);
        }
        entry
    }

    /// Keeps an entry. A failure costs the next start some time and nothing else, so it is logged only.
    pub(crate) fn write(&self, key: &Key, log: &str, cubin: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write_whole(&path, &serialize(log, cubin)) {
            log::warn!("cannot keep a compiled kernel in `{}`: {error}", path.display());
        }
    }

    /// Where it is, what it holds, and whether it can be written.
    pub(crate) fn report(&self) -> CacheReport {
        let mut report = CacheReport { folder: self.folder.clone(), entries: 0, bytes: 0, problem: None };
        let Some(folder) = &self.folder else {
            report.problem = Some("no cache: set EGLU_CACHE_DIR to keep compiled kernels".into());
            return report;
        };
        if let Err(error) = write_whole(&folder.join("probe"), b"").and_then(|()| fs::remove_file(folder.join("probe"))) {
            report.problem =
                Some(format!("`{}` cannot be written: {error}; set EGLU_CACHE_DIR to another folder", folder.display()));
        }
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            if entry.path().extension().is_some_and(|extension| extension == "cubin") {
                report.entries += 1;
                report.bytes += entry.metadata().map_or(0, |metadata| metadata.len());
            }
        }
        report
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(name).with_extension("cubin"))
    }
}

fn serialize(log: &str, cubin: &[u8]) -> Vec<u8> {
    let mut rest = (log.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(log.as_bytes());
    rest.extend_from_slice(cubin);
    [MAGIC.as_slice(), Sha256::digest(&rest).as_slice(), &rest].concat()
}

fn parse(file: &[u8]) -> Option<(String, Vec<u8>)> {
    let (sum, rest) = file.strip_prefix(MAGIC)?.split_at_checked(32)?;
    if Sha256::digest(rest).as_slice() != sum {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (log, cubin) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((String::from_utf8(log.to_vec()).ok()?, cubin.to_vec()))
}

/// Writes beside the file and renames, so that readers and a crash see the old file or the new one, never half of it.
fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{serial}.tmp", std::process::id()));
    let written = fs::write(&temporary, contents).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Nothing reads it; what matters is the first error.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn cache_in(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_path_buf()) }
    }

    #[test]
    fn gives_back_what_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(&folder.path().join("not/yet/there"));
        let key = key(&["source", "sm_90a"]);
        assert_eq!(cache.read(&key), None);
        cache.write(&key, "a log", b"\x7fELF");
        assert_eq!(cache.read(&key), Some(("a log".into(), b"\x7fELF".to_vec())));
        assert_eq!((cache.report().entries, cache.report().problem), (1, None));
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        let key = key(&["source"]);
        cache.write(&key, "log", b"cubin");
        let path = cache.path(&key).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.read(&key), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.read(&key), None, "cut at {at}");
        }
        assert!(!path.exists(), "a damaged entry is removed");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = cache_in(&file);
        cache.write(&key(&["x"]), "", b"");
        assert_eq!(cache.read(&key(&["x"])), None);
        assert!(cache.report().problem.is_some());
    }

    #[test]
    fn the_environment_decides_where() {
        let folder = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> = set.iter().map(|(name, value)| (name.to_string(), value.into())).collect();
            Cache::from_env(&|name| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())).folder
        };
        assert_eq!(folder(&[("EGLU_CACHE_DIR", "/a"), ("HOME", "/h")]), Some("/a".into()));
        assert_eq!(folder(&[("EGLU_CACHE_DIR", ""), ("HOME", "/h")]), None);
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/eglu".into()));
        assert_eq!(folder(&[("HOME", "/h")]), Some("/h/.cache/eglu".into()));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
    }
}

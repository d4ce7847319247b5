//! Compiled kernels on disk: one file for each source, architecture and compiler, written whole or not at all.
//!
//! Processes share the folder without asking each other: an entry is what its name says, whoever wrote it, and a file that is read while it is
//! replaced or removed stays readable. Entries that nobody read for longest go first when the folder grows beyond its bound.

use super::{nvrtc::Nvrtc, python::Env, remembered};
use eglu_ir::whole::{remove_abandoned, write_whole};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

/// Names an entry: a hash of everything that decides what the compiler makes.
pub(crate) type Key = [u8; 32];

/// File format: magic, SHA-256 of the rest, length of the log (u64, little-endian), log, cubin.
const MAGIC: &[u8; 12] = b"eglu-cubin-1";

/// How large the folder may grow where `EGLU_CACHE_MB` does not say, bytes: some ten thousand kernels.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// Reading an entry notes the time, unless that was noted so shortly before.
const NOTED_FOR: Duration = Duration::from_secs(60);

/// The folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct Cache {
    /// `None` where the user wants none, or has no home.
    folder: Option<PathBuf>,
    /// Bytes that its entries may take.
    limit: u64,
    /// An entry was written since the folder was last tidied.
    grown: AtomicBool,
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
    /// What they may take at most.
    pub limit: u64,
    /// What is wrong with it; results do not suffer, only start-up does.
    pub problem: Option<String>,
}

/// An entry of the folder.
struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
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
    /// `EGLU_CACHE_DIR` (empty: no cache), else `eglu` in `XDG_CACHE_HOME` or `~/.cache`; `EGLU_CACHE_MB` bounds it.
    pub(crate) fn from_env(env: Env<'_>) -> Cache {
        let chosen = env("EGLU_CACHE_DIR").map(|folder| (!folder.is_empty()).then(|| PathBuf::from(folder)));
        let usual = || {
            let xdg = env("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
            let caches = xdg.or_else(|| Some(PathBuf::from(env("HOME").filter(|home| !home.is_empty())?).join(".cache")))?;
            Some(caches.join("eglu"))
        };
        let limit = env("EGLU_CACHE_MB").and_then(|text| text.to_str()?.parse::<u64>().ok()?.checked_mul(1 << 20));
        Cache { folder: chosen.unwrap_or_else(usual), limit: limit.unwrap_or(DEFAULT_LIMIT), grown: AtomicBool::new(false) }
    }

    /// Log and cubin of an entry. One that is damaged is removed and counts as absent.
    pub(crate) fn read(&self, key: &Key) -> Option<(String, Vec<u8>)> {
        let path = self.path(key)?;
        let file = fs::read(&path).ok()?;
        let entry = parse(&file);
        match &entry {
            Some(_) => note_use(&path),
            None => {
                log::warn!("the cached kernel `{}` is damaged: compiling it again", path.display());
                // It will be written anew in any case.
                let _ = fs::remove_file(&path);
            }
        }
        entry
    }

    /// Keeps an entry. A failure costs the next start some time and nothing else, so it is a warning only, once in a process. On a full disk
    /// older entries make room.
    pub(crate) fn write(&self, key: &Key, log: &str, cubin: &[u8]) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        let (Some(folder), Some(path)) = (&self.folder, self.path(key)) else { return };
        let contents = serialize(log, cubin);
        let write = || {
            fs::create_dir_all(folder)?;
            write_whole(&path, |file| io::Write::write_all(file, &contents))
        };
        let full = |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let written = write().or_else(|error| match full(&error) {
            true => {
                let bytes = entries(folder).iter().map(|entry| entry.bytes).sum::<u64>();
                shrink(folder, bytes / 2);
                write()
            }
            false => Err(error),
        });
        match written {
            Ok(()) => self.grown.store(true, Ordering::Relaxed),
            Err(error) => {
                if !WARNED.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "compiled kernels cannot be kept in `{}`: {error}; results do not suffer, but the next start compiles them again. \
                         Make the folder writable and give it room, or set EGLU_CACHE_DIR to another (empty: no cache)",
                        folder.display()
                    );
                }
            }
        }
    }

    /// What the compiler was called that made the entries, where it is still there and would be found again. Nothing is loaded for that.
    pub(crate) fn compiler(&self, env: Env<'_>) -> Option<String> {
        remembered::recall(self.folder.as_ref()?, env)
    }

    /// Notes which compiler makes the entries. Without the note the next start loads it, and that is all.
    pub(crate) fn remember(&self, nvrtc: &Nvrtc, env: Env<'_>) {
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_dir()) {
            remembered::remember(folder, nvrtc, env);
        }
    }

    /// Keeps the folder within its bound, and removes what killed processes left unfinished; does nothing where nothing was written.
    pub(crate) fn tidy(&self) {
        if let Some(folder) = self.folder.as_ref().filter(|_| self.grown.swap(false, Ordering::Relaxed)) {
            remove_abandoned(folder, None);
            if entries(folder).iter().map(|entry| entry.bytes).sum::<u64>() > self.limit {
                // Some more than must be, so that the next entries do not each start this again.
                shrink(folder, self.limit / 4 * 3);
            }
        }
    }

    /// Where it is, what it holds, and whether it can be written.
    pub(crate) fn report(&self) -> CacheReport {
        let mut report = CacheReport { folder: self.folder.clone(), entries: 0, bytes: 0, limit: self.limit, problem: None };
        let Some(folder) = &self.folder else {
            report.problem = Some("no cache: set EGLU_CACHE_DIR to keep compiled kernels".into());
            return report;
        };
        let probe = folder.join("probe");
        let written =
            fs::create_dir_all(folder).and_then(|()| write_whole(&probe, |_| Ok(()))).and_then(|()| fs::remove_file(probe));
        if let Err(error) = written {
            report.problem =
                Some(format!("`{}` cannot be written: {error}; set EGLU_CACHE_DIR to another folder", folder.display()));
        }
        let entries = entries(folder);
        report.entries = entries.len() as u64;
        report.bytes = entries.iter().map(|entry| entry.bytes).sum();
        report
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(name).with_extension("cubin"))
    }
}

/// Notes that an entry was read, where the folder allows it.
fn note_use(path: &Path) {
    let fresh = |file: &File| Ok::<bool, io::Error>(file.metadata()?.modified()?.elapsed().is_ok_and(|age| age < NOTED_FOR));
    if let Ok(file) = File::open(path)
        && !fresh(&file).unwrap_or(true)
    {
        // Times of a file are its owner's to set; another's entries age as they were written.
        let _ = file.set_modified(SystemTime::now());
    }
}

fn entries(folder: &Path) -> Vec<Entry> {
    let entry = |entry: fs::DirEntry| {
        let (path, metadata) = (entry.path(), entry.metadata().ok()?);
        let is = path.extension().is_some_and(|extension| extension == "cubin");
        is.then(|| Entry { path, bytes: metadata.len(), used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH) })
    };
    fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).filter_map(entry).collect()
}

/// Removes entries, those unused for longest first, until the rest takes at most so many bytes.
fn shrink(folder: &Path, bytes: u64) {
    let mut entries = entries(folder);
    entries.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
    let mut left = entries.iter().map(|entry| entry.bytes).sum::<u64>();
    for entry in entries {
        if left <= bytes {
            break;
        }
        // Where another process was faster, or the folder cannot be written, the next tidying tries again.
        let _ = fs::remove_file(&entry.path);
        left -= entry.bytes;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn cache_in(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_path_buf()), limit: DEFAULT_LIMIT, grown: AtomicBool::new(false) }
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
    fn the_environment_bounds_it() {
        let limit = |text: &'static str| Cache::from_env(&|name| (name == "EGLU_CACHE_MB").then(|| text.into())).limit;
        assert_eq!((limit("3"), limit("many"), limit("")), (3 << 20, DEFAULT_LIMIT, DEFAULT_LIMIT));
    }

    #[test]
    fn what_was_not_read_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let entry = serialize("", &[0; 1000]).len() as u64;
        let cache = Cache { limit: 8 * entry, ..cache_in(folder.path()) };
        let keys: Vec<Key> = (0..8).map(|i| key(&[&i.to_string()])).collect();
        for (i, key) in keys.iter().enumerate() {
            cache.write(key, "", &[0; 1000]);
            let written = SystemTime::now() - Duration::from_secs(1000 - i as u64);
            File::open(cache.path(key).unwrap()).unwrap().set_modified(written).unwrap();
        }
        cache.tidy();
        assert_eq!(cache.report().entries, 8, "within its bound");
        // The oldest is read, so that it is the youngest; then one more makes it too many.
        assert!(cache.read(&keys[0]).is_some());
        let ninth = key(&["ninth"]);
        cache.write(&ninth, "", &[0; 1000]);
        cache.tidy();
        let left: Vec<usize> = (0..8).filter(|&i| cache.path(&keys[i]).unwrap().exists()).collect();
        assert_eq!(left, [0, 4, 5, 6, 7], "three quarters of the bound are left");
        assert!(cache.read(&ninth).is_some());
        assert!(cache.report().bytes <= cache.limit);
    }

    /// Run by the test below in processes of their own, which are killed while they write.
    #[test]
    fn writes_until_killed() {
        let Some(folder) = std::env::var_os("EGLU_TEST_CACHE_UNTIL_KILLED") else { return };
        let cache = cache_in(folder.as_ref());
        println!("writing");
        for i in 0.. {
            let name = (i % 20).to_string();
            cache.write(&key(&[&name]), &name, &[i as u8 % 20; 300_000]);
            cache.tidy();
        }
    }

    #[test]
    fn processes_that_are_killed_leave_nothing_corrupt() {
        use std::{io::Read, process::*};
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        for delay in [1, 3, 7, 15, 30] {
            let mut writers: Vec<Child> = (0..3)
                .map(|_| {
                    let mut command = Command::new(std::env::current_exe().unwrap());
                    command.args(["--exact", "--nocapture", "cuda::cache::tests::writes_until_killed"]);
                    command.env("EGLU_TEST_CACHE_UNTIL_KILLED", folder.path());
                    command.stdout(Stdio::piped()).spawn().unwrap()
                })
                .collect();
            for writer in &mut writers {
                let (mut text, out) = (vec![], writer.stdout.as_mut().unwrap());
                while !text.ends_with(b"writing") {
                    let mut byte = [0];
                    assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&text));
                    text.extend(byte);
                }
            }
            std::thread::sleep(Duration::from_millis(delay));
            for writer in &mut writers {
                // SIGKILL: no destructor runs.
                writer.kill().unwrap();
                writer.wait().unwrap();
            }
            for entry in entries(folder.path()) {
                let (log, cubin) = parse(&fs::read(&entry.path).unwrap()).unwrap_or_else(|| panic!("{:?}", entry.path));
                assert_eq!(cubin, vec![log.parse::<u8>().unwrap(); 300_000], "what its name says");
            }
        }
        cache.write(&key(&["last"]), "", b"");
        cache.tidy();
        let others = fs::read_dir(folder.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_none_or(|extension| extension != "cubin"));
        assert_eq!(others.count(), 0, "nothing unfinished is left");
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
    }
}

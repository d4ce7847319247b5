//! Files that appear whole or not at all: written beside their place, then renamed.
//!
//! Who dies midway, killed even, leaves a part beside the place, which nobody reads. Writers hold a lock on their part; one that can be locked
//! is abandoned, and the next writer of the same file, or a tidying of the folder, removes it.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// How the names of parts end; they start with a dot and the name of the file that they are to become.
const PART: &str = ".part";

/// Writes a file by `write`. Readers see the old file or the new one, and where writing fails the old one stays.
///
/// The file is open for reading, too. Folders are not made; a folder, a device or a pipe in the file's place is refused.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    replace(path, |file, _| write(file))
}

/// As [`write_whole`], for writers that open files on their own: `write` gets the name of the part, which is there and empty.
pub fn write_whole_by_name(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    replace(path, |_, part| write(part))
}

/// Where a link leads, as renaming would put a file in the link's place.
pub fn place_of(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// True for devices and pipes, which are written to as they are.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

fn replace(path: &Path, write: impl FnOnce(&mut File, &Path) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is something that is no file"));
    }
    let (part, mut file) = claim(path)?;
    let written = write(&mut file, &part).and_then(|()| fs::rename(&part, path));
    match &written {
        // What matters is the first error.
        Err(_) => drop(fs::remove_file(&part)),
        Ok(()) => remove_abandoned(folder_of(path), path.file_name()),
    }
    written
}

/// Removes parts whose writers are gone: of one file, or of every file of the folder.
pub fn remove_abandoned(folder: &Path, of: Option<&OsStr>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with('.') && name.ends_with(PART)) else { continue };
        let ours = of
            .is_none_or(|of| of.to_str().is_some_and(|of| name[1..].strip_prefix(of).is_some_and(|rest| rest.starts_with('.'))));
        if ours
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A new part of its own for `path`, locked.
fn claim(path: &Path) -> io::Result<(PathBuf, File)> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    loop {
        let mut part = OsStr::new(".").to_os_string();
        part.push(name);
        part.push(format!(".{}-{}{PART}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed)));
        let part = folder_of(path).join(part);
        let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&part) {
            // Left by a process of the same number: take another name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        // File systems without locks keep abandoned parts, which harms nobody. Between creation and lock the part looks abandoned; where it
        // was removed for that, the next one is tried.
        match file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) if part.exists() => return Ok((part, file)),
            _ => continue,
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        write_whole(&path, |file| file.write_all(b"old")).unwrap();
        let full = |file: &mut File| file.write_all(b"ne").and_then(|()| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(write_whole(&path, full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!((fs::read(&path).unwrap(), names(root.path())), (b"old".to_vec(), vec!["out".to_string()]));
        assert!(write_whole(&root.path().join("no/out"), |_| Ok(())).is_err());
        assert_eq!(write_whole(root.path(), |_| Ok(())).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn writers_of_one_file_do_not_meet() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        std::thread::scope(|scope| {
            for letter in b'a'..b'i' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..50 {
                        write_whole(path, |file| (0..100).try_for_each(|_| file.write_all(&[letter; 100]))).unwrap();
                        let found = fs::read(path).unwrap();
                        assert!(found.len() == 10_000 && found.iter().all(|byte| *byte == found[0]));
                    }
                });
            }
        });
        assert_eq!(names(root.path()), ["out"]);
    }

    /// Run by the test below in a process of its own, which is killed while it writes.
    #[test]
    fn writes_until_killed() {
        let Some(path) = std::env::var_os("EGLU_TEST_WRITE_UNTIL_KILLED") else { return };
        let never = write_whole(path.as_ref(), |file| {
            file.write_all(b"half")?;
            println!("half written");
            io::stdout().flush()?;
            io::stdin().read_to_end(&mut vec![]).map(drop)
        });
        unreachable!("not killed: {never:?}");
    }

    #[test]
    fn what_a_killed_writer_leaves_is_removed_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let (path, other) = (root.path().join("out"), root.path().join("out.other"));
        fs::write(&path, "old").unwrap();
        let mut writers: Vec<_> = [&path, &other]
            .map(|path| {
                let mut command = std::process::Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "--nocapture", "whole::tests::writes_until_killed"]);
                command.env("EGLU_TEST_WRITE_UNTIL_KILLED", path);
                command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .into();
        for writer in &mut writers {
            let mut text = vec![];
            let out = writer.stdout.as_mut().unwrap();
            while !text.ends_with(b"half written") {
                let mut byte = [0];
                assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&text));
                text.extend(byte);
            }
        }
        // Kill is SIGKILL: no destructor runs.
        writers[0].kill().unwrap();
        writers[0].wait().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(root.path()).len()), (b"old".to_vec(), 3));
        write_whole(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(root.path()).len()), (b"new".to_vec(), 2), "the other still writes");
        writers[1].kill().unwrap();
        writers[1].wait().unwrap();
        remove_abandoned(root.path(), None);
        assert_eq!(names(root.path()), ["out"]);
    }
}

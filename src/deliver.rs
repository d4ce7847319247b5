//! Output files that appear whole or not at all: written beside their place, then renamed.

use crate::failure::Failure;
use eglu_ir::whole::{is_stream, place_of, write_whole};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Writes a file; the path keeps its old contents where writing fails. What is no file, such as a pipe or `/dev/null`, is written to.
pub fn file(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let path = &place_of(path);
        if is_stream(path) {
            return fs::OpenOptions::new().write(true).open(path)?.write_all(contents);
        }
        write_whole(path, |file| file.write_all(contents))
    };
    write().map_err(|cause| cannot_write(path, cause))
}

/// Refuses a file that cannot be written later, when the work for it is done.
pub fn expect_place(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::data(format!("cannot write `{}`: it is a folder", path.display())).help("give the name of a file"));
    }
    let place = place_of(path);
    if is_stream(&place) {
        // A pipe would wait for its reader.
        return Ok(());
    }
    tempfile::NamedTempFile::new_in(folder_of(&place)).map(drop).map_err(|cause| cannot_write(path, cause))
}

/// Refuses a folder that cannot be written later: one that holds what did not come from here, or a file of that name.
pub fn expect_folder(path: &Path, is_own: impl Fn(&str) -> bool) -> Result<(), Failure> {
    if path.exists() && !path.is_dir() {
        return Err(Failure::usage(format!("`{}` is a file, and a folder is to be written", path.display()))
            .help("give a new or an empty folder with -o"));
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(|cause| cannot_write(path, cause))? {
            let name = entry.map_err(|cause| cannot_write(path, cause))?.file_name().to_string_lossy().into_owned();
            if !is_own(&name) {
                return Err(Failure::usage(format!(
                    "`{}` holds `{name}`, which was not written by this command",
                    path.display()
                ))
                .help("give a new or an empty folder with -o"));
            }
        }
    }
    tempfile::tempdir_in(folder_of(path)).map(drop).map_err(|cause| cannot_write(path, cause))
}

/// Writes a folder of files, by name and contents. A folder already there is replaced where `is_own` says that all it holds came from here.
pub fn folder(path: &Path, files: &[(String, Vec<u8>)], is_own: impl Fn(&str) -> bool) -> Result<(), Failure> {
    expect_folder(path, is_own)?;
    let write = || -> std::io::Result<()> {
        let temporary = tempfile::tempdir_in(folder_of(path))?;
        for (name, contents) in files {
            fs::write(temporary.path().join(name), contents)?;
        }
        readable_by_all(temporary.path())?;
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        }
        fs::rename(temporary.path(), path)?;
        // Renamed away: nothing is left for the guard to remove.
        let _ = temporary.keep();
        Ok(())
    };
    write().map_err(|cause| cannot_write(path, cause))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Temporary folders are private to their owner; results are like any other folder.
#[cfg(unix)]
fn readable_by_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn readable_by_all(_path: &Path) -> std::io::Result<()> {
    Ok(())
}

fn cannot_write(path: &Path, cause: std::io::Error) -> Failure {
    let (folder, shown) = (folder_of(path), path.display());
    if !folder.is_dir() {
        return Failure::data(format!("cannot write `{shown}`: there is no folder `{}`", folder.display()))
            .help("make the folder, or give another place");
    }
    // Not the error itself: it names the temporary file.
    let cause = cause.raw_os_error().map_or_else(|| cause.kind().into(), std::io::Error::from_raw_os_error);
    Failure::data(format!("cannot write `{shown}`")).because(cause).help("check that its folder may be written to and has room")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_foreign_files_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("out");
        let files = [("a.cu".to_owned(), b"1".to_vec())];
        folder(&target, &files, |name| name.ends_with(".cu")).unwrap();
        folder(&target, &files, |name| name.ends_with(".cu")).unwrap();
        fs::write(target.join("notes.txt"), "mine").unwrap();
        assert!(folder(&target, &files, |name| name.ends_with(".cu")).is_err());
        assert!(target.join("notes.txt").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        use std::os::unix::fs::FileTypeExt;
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        file(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        let null = Path::new("/dev/null");
        expect_place(null).unwrap();
        file(null, b"gone").unwrap();
        assert!(fs::metadata(null).unwrap().file_type().is_char_device());
    }

    #[test]
    fn a_file_in_a_missing_folder_is_an_error_that_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert!(file(&root.path().join("no/out.json"), b"{}").is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

//! Which compiler made the kernels on disk, known without loading it: NVRTC is a hundred megabytes, which take the loader longer than a model
//! takes from its file to its first result where every kernel is on disk.

use super::{nvrtc::Nvrtc, python::Env};
use eglu_ir::whole::write_whole;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// The note's name in the folder of kernels.
const FILE: &str = "compiler.json";

/// What decides where NVRTC is looked for.
const DECISIVE: [&str; 9] =
    ["EGLU_NVRTC", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "HOME"];

/// A compiler that was found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The values of [`DECISIVE`], under which it was found.
    environment: Vec<Option<String>>,
    path: PathBuf,
    /// The file's size and the time of its last change in nanoseconds, by which another one in its place is told.
    file: (u64, u64),
    /// What kernels are filed under.
    identity: String,
}

/// The identity of the compiler that would be found now, if that is the noted one.
pub(super) fn recall(folder: &Path, env: Env<'_>) -> Option<String> {
    let note: Note = serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()?;
    (note.environment == environment(env) && stamp(&note.path)? == note.file).then_some(note.identity)
}

/// Notes the compiler that was found. One whose file is not known is not noted.
pub(super) fn remember(folder: &Path, nvrtc: &Nvrtc, env: Env<'_>) {
    let Some(file) = stamp(nvrtc.path()) else { return };
    if recall(folder, env).as_deref() == Some(nvrtc.identity()) {
        return;
    }
    let (path, identity) = (nvrtc.path().to_path_buf(), nvrtc.identity().to_string());
    let note = Note { environment: environment(env), path, file, identity };
    if let Ok(text) = serde_json::to_string_pretty(&note) {
        // Where the folder takes no note, the next start loads the compiler again, and that is all.
        let _ = write_whole(&folder.join(FILE), |file| file.write_all(text.as_bytes()));
    }
}

fn environment(env: Env<'_>) -> Vec<Option<String>> {
    DECISIVE.iter().map(|name| env(name).map(|value| value.to_string_lossy().into_owned())).collect()
}

fn stamp(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok().filter(|_| path.is_absolute())?;
    let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((metadata.len(), changed.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_compiler_or_another_environment_is_not_recalled() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libnvrtc.so.13");
        fs::write(&library, "a compiler").unwrap();
        let env = |chosen: &'static str| move |name: &str| (name == "EGLU_NVRTC").then(|| chosen.into());
        let note = |path: PathBuf| Note {
            environment: environment(&env("here")),
            file: stamp(&library).unwrap(),
            path,
            identity: "NVRTC 13.0".into(),
        };
        let recalled = |chosen| recall(folder.path(), &env(chosen));
        assert_eq!(recalled("here"), None, "nothing was noted");
        let write = |note: &Note| fs::write(folder.path().join(FILE), serde_json::to_string(note).unwrap()).unwrap();
        write(&note(library.clone()));
        assert_eq!((recalled("here").as_deref(), recalled("there")), (Some("NVRTC 13.0"), None));
        fs::write(&library, "another compiler").unwrap();
        assert_eq!(recalled("here"), None, "another file in its place");
        fs::remove_file(&library).unwrap();
        assert_eq!(recalled("here"), None, "it is gone");
        fs::write(folder.path().join(FILE), "rubbish").unwrap();
        assert_eq!(recalled("here"), None);
    }
}

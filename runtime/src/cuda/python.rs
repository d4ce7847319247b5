//! Where Python keeps NVIDIA's libraries: `nvidia/*/lib` under site-packages, found without running Python wherever possible.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Reads an environment variable; a parameter, so that tests need not change the process.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// How long the last resort, asking Python itself, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Every `nvidia/*/lib` folder of the Pythons in sight: an active environment, those on `PATH`, pyenv's, the user's, the system's.
pub(crate) fn nvidia_folders(env: Env<'_>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = site_packages(env).iter().flat_map(|site| libraries_under(&site.join("nvidia"))).collect();
    remove_repeats(&mut folders);
    folders
}

/// Asks the first `python3` on `PATH` where its `nvidia` package is; nothing if there is none, or it does not answer in time.
pub(crate) fn ask_python() -> Vec<PathBuf> {
    let script = "import nvidia; print(*nvidia.__path__, sep='\\n')";
    let child =
        Command::new("python3").args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut child) = child else { return vec![] };
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                // Too slow: an answer is no longer wanted, and a failure to stop it changes nothing.
                let _ = child.kill();
                let _ = child.wait();
                return vec![];
            }
        }
    }
    let Ok(output) = child.wait_with_output() else { return vec![] };
    String::from_utf8_lossy(&output.stdout).lines().flat_map(|line| libraries_under(Path::new(line))).collect()
}

fn site_packages(env: Env<'_>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| env(name)).map(PathBuf::from).collect();
    let path = env("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        let Some(python) = ["python3", "python"].iter().map(|name| folder.join(name)).find(|file| file.is_file()) else {
            continue;
        };
        if folder.file_name().is_some_and(|name| name == "shims") {
            prefixes.extend(folder.parent().into_iter().flat_map(pyenv_versions));
            continue;
        }
        prefixes.extend(folder.parent().map(Path::to_path_buf));
        let real = python.canonicalize().ok();
        prefixes.extend(real.and_then(|real| Some(real.parent()?.parent()?.to_path_buf())));
    }
    let home = env("HOME").map(PathBuf::from);
    let pyenv = env("PYENV_ROOT").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".pyenv")));
    prefixes.extend(pyenv.iter().flat_map(|root| pyenv_versions(root)));
    prefixes.extend(home.map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    remove_repeats(&mut prefixes);
    let mut sites = vec![];
    for prefix in prefixes {
        for lib in children(&prefix.join("lib"), "python3") {
            sites.extend(["site-packages", "dist-packages"].map(|name| lib.join(name)));
        }
    }
    remove_repeats(&mut sites);
    sites.retain(|site| site.is_dir());
    sites
}

/// The Pythons under a pyenv root, the chosen ones first.
fn pyenv_versions(root: &Path) -> Vec<PathBuf> {
    let chosen = std::fs::read_to_string(root.join("version")).unwrap_or_default();
    let mut versions: Vec<PathBuf> = chosen.split_whitespace().map(|name| root.join("versions").join(name)).collect();
    versions.extend(children(&root.join("versions"), ""));
    remove_repeats(&mut versions);
    versions
}

fn libraries_under(nvidia: &Path) -> Vec<PathBuf> {
    children(nvidia, "").into_iter().map(|package| package.join("lib")).filter(|lib| lib.is_dir()).collect()
}

/// What is in a folder under names that start with `prefix`, later versions first.
pub(crate) fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort_by_key(|name| std::cmp::Reverse(version_key(name)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Runs of digits compare as numbers, so that 3.12 comes after 3.9.
fn version_key(name: &str) -> Vec<(u64, String)> {
    let mut key = vec![(0u64, String::new())];
    let mut in_digits = false;
    for c in name.chars() {
        match (c.to_digit(10), key.last_mut()) {
            (Some(digit), Some(last)) if in_digits => last.0 = last.0.saturating_mul(10).saturating_add(digit.into()),
            (Some(digit), _) => key.push((digit.into(), String::new())),
            (None, Some(last)) => last.1.push(c),
            (None, None) => {}
        }
        in_digits = c.is_ascii_digit();
    }
    key
}

pub(crate) fn remove_repeats(paths: &mut Vec<PathBuf>) {
    let mut seen = std::collections::HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn finds_the_packages_of_a_python_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        touch(&root.path().join("venv/bin/python3"));
        touch(&root.path().join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"));
        let path = root.path().join("venv/bin").into_os_string();
        let found = nvidia_folders(&|name| (name == "PATH").then(|| path.clone()));
        assert_eq!(found.first(), Some(&root.path().join("venv/lib/python3.12/site-packages/nvidia/cu13/lib")));
    }

    #[test]
    fn follows_pyenv_shims_to_the_chosen_version() {
        let root = tempfile::tempdir().unwrap();
        touch(&root.path().join("shims/python3"));
        for version in ["3.9.1", "3.12.0"] {
            touch(
                &root
                    .path()
                    .join(format!("versions/{version}/lib/python{}/site-packages/nvidia/cuda_nvrtc/lib/x", &version[..4])),
            );
        }
        let path = root.path().join("shims").into_os_string();
        let found = || nvidia_folders(&|name| (name == "PATH").then(|| path.clone()));
        assert!(found()[0].starts_with(root.path().join("versions/3.12.0")), "newest first: {:?}", found());
        fs::write(root.path().join("version"), "3.9.1\n").unwrap();
        assert!(found()[0].starts_with(root.path().join("versions/3.9.1")), "the chosen one first: {:?}", found());
    }

    #[test]
    fn versions_sort_as_numbers() {
        let root = tempfile::tempdir().unwrap();
        for name in ["python3.9", "python3.12", "perl5"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let names = children(root.path(), "python3");
        assert_eq!(names, [root.path().join("python3.12"), root.path().join("python3.9")]);
    }
}

//! The cache of compiled kernels as a user meets it: shared, damaged, read-only, killed.

use super::call::{fixture, has_nvrtc};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

/// `eglu emit` with its cache in `cache`.
fn emit(cache: &Path, out: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_eglu"))
        .args(["emit", &fixture("llama.block.pt2"), "--arch", "sm_80", "-o", out.to_str().unwrap()])
        .env("EGLU_CACHE_DIR", cache)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[track_caller]
fn finish(child: Child) -> String {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{stderr}");
    stderr
}

/// The kernels in a cache, beside which it notes their compiler.
fn kernels(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files(folder);
    assert!(files.remove(Path::new("compiler.json")).is_some(), "{:?}", files.keys());
    files
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (PathBuf::from(path.file_name().unwrap()), fs::read(&path).unwrap())
    };
    fs::read_dir(folder).unwrap().map(file).collect()
}

#[test]
fn processes_that_compile_the_same_model_at_once_share_it() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (cache, out) = (folder.path().join("cache"), |i: usize| folder.path().join(format!("out{i}")));
    let children: Vec<Child> = (0..3).map(|i| emit(&cache, &out(i))).collect();
    for child in children {
        assert_eq!(finish(child), "");
    }
    let (first, kept) = (files(&out(0)), kernels(&cache));
    assert!(!kept.is_empty() && kept.keys().all(|name| name.extension().is_some_and(|extension| extension == "cubin")));
    assert!(first == files(&out(1)) && first == files(&out(2)), "the same kernels for all");
    finish(emit(&cache, &out(3)));
    assert!(first == files(&out(3)), "and from the cache");
    assert_eq!(kept, kernels(&cache), "which stays as it is");
}

#[test]
fn what_a_killed_or_careless_process_left_is_found_and_replaced() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out"));
    for delay in [20, 60, 120, 200] {
        let mut child = emit(&cache, &out);
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let unknown = emit(&cache, &out);
    assert_eq!(finish(unknown), "", "killed processes leave nothing to warn of");
    let (right, kept) = (files(&out), kernels(&cache));
    for name in kept.keys() {
        fs::write(cache.join(name), "rubbish").unwrap();
    }
    let warned = finish(emit(&cache, &out));
    assert!(warned.contains("is damaged: compiling it again"), "{warned}");
    assert!(right == files(&out), "the same kernels again");
    assert!(kept.keys().eq(kernels(&cache).keys()));
    assert_eq!(finish(emit(&cache, &out)), "", "and sound entries in place of the damaged ones");
}

#[test]
fn a_folder_that_cannot_be_written_costs_time_alone() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A file in the folder's place refuses also those whom permissions do not.
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out"));
    fs::write(&cache, "").unwrap();
    let warned = finish(emit(&cache, &out));
    for part in ["warning: compiled kernels cannot be kept in", "cache", "results do not suffer", "EGLU_CACHE_DIR"] {
        assert!(warned.contains(part), "{part} in {warned}");
    }
    assert_eq!(warned.matches("warning").count(), 1, "told once: {warned}");
    assert!(files(&out).keys().any(|name| name.extension().is_some_and(|extension| extension == "cubin")));
}

/// Runs a command with a disk of its own, mounted with these options, at `place`; then lists that. `None`, with a note, where the system lets
/// no process do so.
fn on_own_disk(options: &str, place: &Path, command: &mut Command) -> Option<Output> {
    fs::create_dir_all(place).unwrap();
    let script =
        "mount -t tmpfs -o \"$0\" tmpfs \"$1\" || exit 99; place=$1; shift; \"$@\"; code=$?; ls -A \"$place\"; exit $code";
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", "--mount", "sh", "-c", script, options]).arg(place).arg(command.get_program());
    inside.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    match inside.output() {
        Ok(output) if output.status.code() != Some(99) && !String::from_utf8_lossy(&output.stderr).contains("unshare:") => {
            Some(output)
        }
        refused => {
            eprintln!("skipped: no disk can be mounted: {refused:?}");
            None
        }
    }
}

#[test]
fn a_full_or_read_only_disk_costs_time_alone() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (cache, out) = (folder.path().join("cache"), |name: &str| folder.path().join(name));
    finish(emit(Path::new(""), &out("right")));
    // Room for nothing, for some of the kernels, and for all of them but not to write.
    for (i, (options, warns)) in [("size=8k", true), ("size=96k", false), ("size=9m,ro", true)].into_iter().enumerate() {
        let out = out(&i.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_eglu"));
        command.args(["emit", &fixture("llama.block.pt2"), "--arch", "sm_80", "-o", out.to_str().unwrap()]);
        let Some(output) = on_own_disk(options, &cache, command.env("EGLU_CACHE_DIR", &cache)) else { return };
        let (told, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{options}: {warned}");
        assert!(files(&out) == files(&folder.path().join("right")), "{options}: the same kernels");
        assert_eq!(warned.matches("cannot be kept in").count(), usize::from(warns), "{options}: {warned}");
        let left: Vec<&str> = told.lines().skip(1).filter(|&name| name != "compiler.json").collect();
        assert!(left.iter().all(|name| name.ends_with(".cubin")) && left.is_empty() == warns, "{options}: {told}");
    }
}

#[test]
fn a_package_that_does_not_fit_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, model) = (folder.path().join("disk"), fixture("llama.block.pt2"));
    let out = disk.join("out.eglu");
    let mut command = Command::new(env!("CARGO_BIN_EXE_eglu"));
    command.args(["compile", &model, "--arch", "cpu", "-o", out.to_str().unwrap()]);
    let Some(output) = on_own_disk("size=16k", &disk, &mut command) else { return };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("out.eglu") && told.contains("No space left"), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is left on the disk");
}

#[test]
fn without_the_compiler_kernels_are_the_environments_fault_and_the_host_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eglu"));
        let nowhere = folder.path().join("nowhere");
        let output = command.args(arguments).env("EGLU_NVRTC", nowhere).env("EGLU_CACHE_DIR", folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let out = folder.path().join("out");
    let (code, told) = run(&["emit", &model, "--arch", "sm_80", "-o", out.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("NVRTC") && told.contains("nowhere") && told.contains("EGLU_NVRTC"), "{told}");
    assert!(!out.exists(), "nothing half-written is left");
    assert_eq!(run(&["run", &model, "--inputs", &io, "--expect", &io]), (Some(0), String::new()));
}

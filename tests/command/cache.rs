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
    let (first, kept) = (files(&out(0)), files(&cache));
    assert!(!kept.is_empty() && kept.keys().all(|name| name.extension().is_some_and(|extension| extension == "cubin")));
    assert!(first == files(&out(1)) && first == files(&out(2)), "the same kernels for all");
    finish(emit(&cache, &out(3)));
    assert!(first == files(&out(3)), "and from the cache");
    assert_eq!(kept, files(&cache), "which stays as it is");
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
    let (right, kept) = (files(&out), files(&cache));
    for name in kept.keys() {
        fs::write(cache.join(name), "rubbish").unwrap();
    }
    let warned = finish(emit(&cache, &out));
    assert!(warned.contains("is damaged: compiling it again"), "{warned}");
    assert!(right == files(&out), "the same kernels again");
    assert!(kept.keys().eq(files(&cache).keys()));
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

//! `eglu emit`: one folder with sources and cubins.

use super::call::{eglu, fixture, has_nvrtc};
use std::path::Path;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn sources_alone_need_no_compiler_and_are_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("mixtral-grouped_mm.block.pt2");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    for out in [&one, &two] {
        eglu(["emit", &model, "--arch", "sm_90a", "--sources-only", "-o", out.to_str().unwrap()]).success();
    }
    assert_eq!(names(&one), names(&two));
    assert!(names(&one).iter().any(|name| name.ends_with(".cu")));
    for name in names(&one) {
        assert_eq!(std::fs::read(one.join(&name)).unwrap(), std::fs::read(two.join(&name)).unwrap(), "{name}");
    }
    assert_eq!(names(folder.path()), ["one", "two"], "temporary folders were left behind");
}

#[test]
fn every_source_has_a_cubin() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (model, arch) in [("mixtral-grouped_mm.block.pt2", "sm_80"), ("llama.block.bf16.pt2", "sm_90a")] {
        let out = folder.path().join(arch);
        eglu(["emit", &fixture(model), "--arch", arch, "-o", out.to_str().unwrap()]).success();
        let names = names(&out);
        let count = |extension: &str| names.iter().filter(|name| name.ends_with(extension)).count();
        assert!(count(".cu") > 0 && count(".cu") == count(".cubin"), "{names:?}");
    }
}

#[test]
fn foreign_files_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let model = fixture("llama.block.pt2");
    eglu(["emit", &model, "--arch", "sm_80", "--sources-only", "-o", folder.path().to_str().unwrap()]).error(2, &["notes.txt"]);
    assert_eq!(names(folder.path()), ["notes.txt"]);
}

//! `--schedule` and `--tune`.

use super::call::{eglu, fixture};
use eglu::runtime::cuda::{Finding, probe};

const LARGE: &str = "mixtral-8x7b-grouped_mm.pt2";

#[test]
fn a_schedule_decides_which_kernels_are_emitted() {
    let folder = tempfile::tempdir().unwrap();
    let launches = |schedule: &str| {
        let out = folder.path().join(schedule);
        let options = ["--arch", "sm_90a", "--sources-only", "--schedule", schedule, "-o", out.to_str().unwrap()];
        eglu(["emit", &fixture(LARGE)].into_iter().chain(options)).success();
        std::fs::read_to_string(out.join("launches.txt")).unwrap()
    };
    let [auto, split] = ["auto", "split"].map(launches);
    assert!(auto.contains("moe_bf16_few_tokens") && auto.contains("moe_up"), "{auto}");
    assert!(!split.contains("few") && split.contains("moe_up"), "{split}");
}

#[test]
fn what_cannot_be_is_said() {
    let (model, io) = (fixture("mixtral-grouped_mm.block.pt2"), fixture("mixtral-grouped_mm.block.io.safetensors"));
    eglu(["run", &model, "--inputs", &io, "--schedule", "sideways"]).error(2, &["single", "split", "auto"]);
    eglu(["run", &model, "--inputs", &io, "--tune"]).error(2, &["--tune", "GPU", "--device cuda"]);
    eglu(["bench", &model, "--tune"]).error(2, &["--tune", "GPU", "--device cuda"]);

    let folder = tempfile::tempdir().unwrap();
    let (package, out) = (folder.path().join("block.eglu"), folder.path().join("out"));
    let (package, out) = (package.to_str().unwrap(), out.to_str().unwrap());
    eglu(["compile", &model, "--arch", "cpu", "-o", package]).success();
    for options in [&["--tune"][..], &["--schedule", "split"]] {
        eglu(["run", package, "--inputs", &io].iter().chain(options)).error(2, &["--schedule and --tune", "compile"]);
        eglu(["bench", package].iter().chain(options)).error(2, &["--schedule and --tune", "compile"]);
    }
    if matches!(probe().driver, Finding::Missing(_)) {
        // Nothing to measure on, and nothing is left behind.
        for arguments in [
            vec!["run", &model, "--inputs", &io, "--device", "cuda", "--tune"],
            vec!["bench", &fixture(LARGE), "--device", "cuda", "--tune"],
            vec!["emit", &fixture(LARGE), "--arch", "sm_90a", "-o", out, "--tune"],
            vec!["compile", &fixture(LARGE), "--arch", "sm_90a", "-o", out, "--tune"],
        ] {
            eglu(&arguments).error(3, &["driver"]);
            assert!(!std::path::Path::new(out).exists(), "{arguments:?}");
        }
    }
}

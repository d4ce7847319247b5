//! `eglu compile`, and packages in the other subcommands.

use super::call::{eglu, fixture, has_nvrtc};
use eglu::reference::{read_tensors, write_tensors};
use std::{fs, path::Path, process::Command, time::Duration};

const BLOCK: &str = "mixtral-grouped_mm.block";

fn compile(models: &[&str], arch: &str, out: &Path, more: &[&str]) -> super::call::Outcome {
    let models: Vec<String> = models.iter().map(|model| fixture(&format!("{model}.pt2"))).collect();
    let options = ["--arch", arch, "-o", out.to_str().unwrap()];
    eglu(["compile"].into_iter().chain(models.iter().map(String::as_str)).chain(options).chain(more.iter().copied()))
}

#[test]
fn a_package_gives_pytorchs_results() {
    let folder = tempfile::tempdir().unwrap();
    for (model, more) in
        [(BLOCK, vec![]), ("mixtral-batched_mm.dyn", vec!["--no-fuse"]), ("llama.lm", vec!["--refer-to-weights"])]
    {
        let out = folder.path().join(format!("{model}.eglu"));
        compile(&[model], "cpu", &out, &more).success();
        let io = fixture(&format!("{model}.io.safetensors"));
        let outcome = eglu(["run", out.to_str().unwrap(), "--inputs", &io, "--expect", &io]).success();
        assert!(outcome.stdout.contains("PASS"), "{outcome:?}");
    }
}

#[test]
fn gradients_can_be_packaged() {
    let folder = tempfile::tempdir().unwrap();
    let (out, io) = (folder.path().join("joint.eglu"), folder.path().join("io.safetensors"));
    let (model, inputs) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    let grad = ["--grad", "all", "--wrt", "parameters"];
    compile(&["llama.block"], "cpu", &out, &grad).success();
    // The gradient of the result is a further input: the result itself will do.
    let result = folder.path().join("result.safetensors");
    eglu(["run", &model, "--inputs", &inputs, "--outputs", result.to_str().unwrap()]).success();
    let (mut tensors, result) = (read_tensors(Path::new(&inputs)).unwrap(), read_tensors(&result).unwrap());
    tensors.retain(|name, _| name.starts_with("input."));
    tensors.insert(format!("input.{}", tensors.len()), result["output.0"].clone());
    write_tensors(&io, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))).unwrap();
    let (io, want) = (io.to_str().unwrap(), folder.path().join("want.safetensors"));
    eglu(["run", &model, "--inputs", io, "--outputs", want.to_str().unwrap()].into_iter().chain(grad)).success();
    let outcome = eglu(["run", out.to_str().unwrap(), "--inputs", io, "--expect", want.to_str().unwrap()]).success();
    assert!(outcome.stdout.contains("output.3"), "{outcome:?}");
}

#[test]
fn several_models_share_a_package() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("both.eglu");
    compile(&[BLOCK, "llama.block"], "cpu", &out, &[]).success();
    let (out, io) = (out.to_str().unwrap(), fixture("llama.block.io.safetensors"));
    eglu(["run", out, "--inputs", &io, "--expect", &io, "--program", "llama.block"]).success();
    eglu(["run", out, "--inputs", &io]).error(1, &["--program", "mixtral-grouped_mm.block, llama.block"]);
    let summary = eglu(["inspect", out]).success().stdout;
    for part in ["mixtral-grouped_mm.block", "llama.block", "plan     cpu", "f32["] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    let json = eglu(["inspect", out, "--format", "json"]).success().stdout;
    assert!(json.contains("\"programs\""), "{json}");
    compile(&[BLOCK, BLOCK], "cpu", Path::new(out), &[]).error(2, &["two models are called"]);
}

#[test]
fn a_package_is_measured_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (out, json) = (folder.path().join("experts.eglu"), folder.path().join("bench.json"));
    compile(&["mixtral-grouped_mm.experts"], "cpu", &out, &[]).success();
    // Ids of experts are drawn within what the model says of them, which its fused plan does not.
    let more = ["--dim", "s23=16", "--dim", "s15=16", "--seconds", "0", "--json", json.to_str().unwrap()];
    let outcome = eglu(["bench", out.to_str().unwrap()].into_iter().chain(more)).success();
    assert!(outcome.stdout.contains("of the roofline"), "{outcome:?}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert!(json["fused"]["ms"].as_f64().is_some_and(|ms| ms > 0.0) && json["unfused"].is_null(), "{json}");
}

#[test]
fn kernels_for_several_architectures_are_compiled_without_a_gpu_to_equal_bytes() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.eglu"), folder.path().join("two.eglu"));
    for (out, cache) in [(&one, "a"), (&two, "b")] {
        // A cache of its own for each, so that the compiler, too, must be deterministic.
        let outcome = Command::new(env!("CARGO_BIN_EXE_eglu"))
            .args(["compile", &fixture("llama.block.pt2"), "--arch", "sm_90a,sm_80", "-o", out.to_str().unwrap()])
            .env("EGLU_CACHE_DIR", folder.path().join(cache))
            .output()
            .unwrap();
        assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    }
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
    let summary = eglu(["inspect", one.to_str().unwrap()]).success().stdout;
    assert!(summary.contains("plan     sm_80, by NVRTC") && summary.contains("plan     sm_90a, by NVRTC"), "{summary}");
}

#[test]
fn wrong_use_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.eglu");
    compile(&[BLOCK], "sm_70", &out, &[]).error(2, &["sm_70", "sm_90a"]);
    compile(&[BLOCK], "cpu", &folder.path().join("no/out.eglu"), &[]).error(1, &["no/out.eglu", "there is no folder"]);
    compile(&[BLOCK], "cpu", &out, &[]).success();
    let out = out.to_str().unwrap();
    eglu(["run", out]).error(2, &["takes 1 input,"]);
    eglu(["run", out, "--no-fuse"]).error(2, &["compile the model again"]);
    eglu(["inspect", out, "--format", "dot"]).error(2, &["no graph"]);
    eglu(["run", &fixture("llama.block.pt2"), "--program", "x"]).error(2, &["--program"]);
    eglu(["optimize", out]).error(1, &["out.eglu"]);
}

#[test]
fn damaged_packages_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.eglu");
    compile(&[BLOCK], "cpu", &path, &[]).success();
    let (out, whole) = (path.to_str().unwrap(), fs::read(&path).unwrap());
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&path, damaged).unwrap();
    for command in ["run", "bench", "inspect"] {
        eglu([command, out]).error(1, &["is damaged", "out.eglu", "copy it again"]);
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    eglu(["run", out]).error(1, &["its end is missing"]);
    fs::write(&path, "").unwrap();
    eglu(["run", out]).error(1, &["out.eglu"]);
}

/// A process that is killed while it writes leaves no package or the whole one, and the next one tidies up.
#[test]
fn killed_compilations_leave_nothing_corrupt() {
    let folder = tempfile::tempdir().unwrap();
    let (path, io) = (folder.path().join("out.eglu"), fixture(&format!("{BLOCK}.io.safetensors")));
    let mut killed = 0;
    for delay in 0..24u64 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_eglu"))
            .args(["compile", &fixture(&format!("{BLOCK}.pt2")), "--arch", "cpu", "-o", path.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay * 2));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        if path.exists() {
            eglu(["run", path.to_str().unwrap(), "--inputs", &io, "--expect", &io]).success();
            fs::remove_file(&path).unwrap();
        }
    }
    assert!(killed > 0, "no process was killed midway");
    compile(&[BLOCK], "cpu", &path, &[]).success();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out.eglu"]);
}

#[test]
fn the_common_reductions_are_one_package() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("reductions.eglu");
    let out = out.to_str().unwrap();
    eglu(["compile", "--reductions=f32,bool", "--arch", "cpu", "-o", out]).success();
    let summary = eglu(["inspect", out]).success().stdout;
    for program in [
        "sum.inner.f32",
        "argmax.full.f32",
        "softmax.outer.f32",
        "any.middle.bool",
        "rms_norm.inner.f32",
        "cross_entropy.inner.f32",
    ] {
        assert!(summary.contains(&format!("{program}\n")), "{program} in {summary}");
    }
    let options =
        ["--program", "var_mean.middle.f32", "--dim", "planes=3", "--dim", "rows=50", "--dim", "columns=7", "--seconds", "0"];
    eglu(["bench", out].into_iter().chain(options)).success();
    eglu(["compile", "--reductions=f31", "--arch", "cpu", "-o", out]).error(2, &["f31", "bf16"]);
    eglu(["compile", "--arch", "cpu", "-o", out]).error(2, &["MODEL"]);
}

/// Kernels of a package stand in for the compiler: here it is nowhere, and the model is another one of the same sources.
#[test]
fn kernels_of_a_package_need_no_compiler() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("block.eglu");
    compile(&["llama.block"], "sm_80", &package, &[]).success();
    let emit = |model: &str| {
        Command::new(env!("CARGO_BIN_EXE_eglu"))
            .args(["emit", model, "--arch", "sm_80", "-o", folder.path().join("out").to_str().unwrap()])
            .env("EGLU_KERNELS", &package)
            .env("EGLU_NVRTC", folder.path().join("nowhere"))
            .env("EGLU_CACHE_DIR", "")
            .output()
            .unwrap()
    };
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let found = emit(&fixture("llama.block.pt2"));
    assert!(found.status.success(), "{}", text(&found));
    let lacking = emit(&fixture("llama.lm.pt2"));
    assert!(lacking.status.code() == Some(3) && text(&lacking).contains("NVRTC"), "{}", text(&lacking));
    fs::write(&package, "rubbish").unwrap();
    let damaged = emit(&fixture("llama.block.pt2"));
    assert!(damaged.status.code() == Some(3) && text(&damaged).contains("warning: EGLU_KERNELS"), "{}", text(&damaged));
}

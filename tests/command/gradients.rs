//! `--grad`, `--wrt` and `--recompute`: gradients of forward graphs, and what training graphs keep.

use super::call::{eglu, fixture};
use serde_json::Value;

fn report(model: &str, extra: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let (model, path) = (fixture(model), file.to_str().unwrap());
    eglu(["optimize", &model, "--device", "h200", "--report", path].iter().chain(extra)).success();
    serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap()
}

#[test]
fn a_forward_graph_becomes_a_training_graph() {
    let forward = report("mixtral-grouped_mm.block.pt2", &[]);
    let joint = report("mixtral-grouped_mm.block.pt2", &["--grad", "all"]);
    let number = |report: &Value, key: &str| report[key].as_u64().unwrap();
    assert!(number(&joint, "nodes_before") > 2 * number(&forward, "nodes_before"));
    assert!(number(&joint, "kernels") > number(&forward, "kernels"));
    assert!(forward["kept"].is_null() && joint["kept"]["bytes"].as_u64() > Some(0), "{}", joint["kept"]);
    let few = report("mixtral-grouped_mm.block.pt2", &["--grad", "0", "--wrt", "x"]);
    assert!(number(&few, "nodes_before") < number(&joint, "nodes_before"));
}

#[test]
fn recomputing_keeps_less_and_changes_no_result() {
    let model = "qwen3_moe-batched_mm.joint";
    let (path, io) = (fixture(&format!("{model}.pt2")), fixture(&format!("{model}.io.safetensors")));
    let kept = ["none", "auto", "all"].map(|recompute| {
        eglu(["run", &path, "--inputs", &io, "--expect", &io, "--recompute", recompute]).success();
        report(&format!("{model}.pt2"), &["--recompute", recompute])["kept"]["bytes"].as_u64().unwrap()
    });
    assert!(kept[0] > kept[1] && kept[1] >= kept[2], "{kept:?}");
}

#[test]
fn what_is_not_there_is_bad_usage() {
    let model = fixture("llama.block.pt2");
    for (extra, words) in [
        (&["--grad", "7"][..], "there is no output `7`"),
        (&["--grad", "all", "--wrt", "nosuch"], "m.gate_proj.weight"),
        (&["--recompute", "maybe"], "`none`, `auto` or `all`"),
    ] {
        eglu(["optimize", &model].iter().copied().chain(extra.iter().copied())).error(2, &[words]);
    }
    let joint = fixture("qwen3_moe-batched_mm.joint.pt2");
    eglu(["optimize", &joint, "--grad", "all"]).error(1, &["has gradients among its outputs already"]);
}

//! `eglu optimize`: the report's shape, the blocks it finds, and equal kernels for both dresses of one model.

use super::call::{eglu, fixture};
use serde_json::Value;

fn report(model: &str, extra: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let (model, path) = (fixture(model), file.to_str().unwrap());
    eglu(["optimize", &model, "--report", path].iter().chain(extra)).success();
    serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap()
}

fn count(report: &Value, kind: &str) -> usize {
    report["sites"].as_array().unwrap().iter().filter(|site| site["kind"] == kind).count()
}

#[test]
fn the_report_has_the_shape_that_scripts_rely_on() {
    let report = report("mixtral-grouped_mm.block.pt2", &["--device", "h200"]);
    for key in ["nodes_before", "nodes_after", "kernels"] {
        assert!(report[key].as_u64().is_some_and(|n| n > 0), "{key}: {}", report[key]);
    }
    assert!(report["nodes_after"].as_u64() < report["nodes_before"].as_u64());
    let kinds = ["moe", "glu", "contract", "reduce", "row_norm", "route", "pointwise"];
    for site in report["sites"].as_array().unwrap() {
        assert!(kinds.contains(&site["kind"].as_str().unwrap()), "{site}");
        assert!(!site["rule"].as_str().unwrap().is_empty(), "{site}");
        assert!(!site["nodes"].as_array().unwrap().is_empty(), "{site}");
        assert!(site["saves"]["launches"].is_i64() && site["saves"]["bytes"].is_i64(), "{site}");
    }
    for refusal in report["refused"].as_array().unwrap() {
        assert!(["rule", "node", "condition", "why"].iter().all(|key| refusal[key].is_string()), "{refusal}");
    }
    assert!(report["stops"].is_array());
    let times = report["time_ms"].as_object().unwrap();
    assert!(!times.is_empty() && times.values().all(Value::is_number), "{times:?}");
}

#[test]
fn finds_the_blocks_that_are_there() {
    for (model, moe, glu) in [
        ("mixtral-grouped_mm.block", 1, 0),
        ("mixtral-grouped_mm.block.bf16", 1, 0),
        ("mixtral-grouped_mm.experts", 1, 0),
        ("mixtral-grouped_mm.lm", 2, 0),
        ("mixtral-grouped_mm.dyn", 2, 0),
        ("mixtral-batched_mm.block", 1, 0),
        ("mixtral-batched_mm.lm", 2, 0),
        ("mixtral-batched_mm.dyn", 2, 0),
        ("mixtral-8x7b-grouped_mm", 1, 0),
        ("mixtral-8x7b-experts", 1, 0),
        ("mixtral-mid-grouped_mm", 1, 0),
        ("llama.block", 0, 1),
        ("llama.block.bf16", 0, 1),
        ("llama.lm", 0, 2),
        ("llama.dyn", 0, 2),
    ] {
        for device in ["cpu", "h200"] {
            let report = report(&format!("{model}.pt2"), &["--device", device]);
            assert_eq!((count(&report, "moe"), count(&report, "glu")), (moe, glu), "{model} on {device}");
        }
    }
}

#[test]
fn both_dresses_end_in_the_same_kernels() {
    for form in ["block", "lm", "dyn"] {
        for device in ["cpu", "h200", "a100"] {
            let of = |dress: &str| report(&format!("mixtral-{dress}.{form}.pt2"), &["--device", device]);
            let (grouped, batched) = (of("grouped_mm"), of("batched_mm"));
            assert_eq!(grouped["kernels"], batched["kernels"], "{form} on {device}");
            for kind in ["moe", "glu", "contract", "reduce", "row_norm", "route", "pointwise"] {
                assert_eq!(count(&grouped, kind), count(&batched, kind), "{kind} in {form} on {device}");
            }
        }
    }
}

#[test]
fn the_graph_is_written_in_both_forms_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (model, io) = (fixture("mixtral-grouped_mm.block.pt2"), fixture("mixtral-grouped_mm.block.io.safetensors"));
    let (json, text) = (folder.path().join("graph.json"), folder.path().join("graph.txt"));
    eglu(["optimize", &model, "-o", json.to_str().unwrap()]).success();
    eglu(["optimize", &model, "-o", text.to_str().unwrap()]).success();
    assert!(std::fs::read_to_string(&text).unwrap().contains("moe"));
    // Its weights are not in the file.
    eglu(["run", json.to_str().unwrap(), "--inputs", &io]).error(1, &["m.experts.gate_up_proj", "--weights"]);
}

#[test]
fn passes_can_be_chosen_printed_and_timed() {
    let model = fixture("llama.block.pt2");
    let outcome = eglu(["optimize", &model, "--passes", "canonicalize,cse", "--print-after-all", "--time-passes"]).success();
    assert!(outcome.stdout.contains("after canonicalize") && outcome.stdout.contains("after cse"), "{outcome:?}");
    let changed = eglu(["optimize", &model, "--passes", "cse,cse", "--print-changed"]).success();
    assert!(!changed.stdout.contains("nothing changed"), "{changed:?}");
}

#[test]
fn explanations_name_rules() {
    let model = fixture("mixtral-batched_mm.block.pt2");
    let report = report("mixtral-batched_mm.block.pt2", &[]);
    let site = report["sites"].as_array().unwrap().iter().find(|site| site["kind"] == "moe").unwrap().clone();
    let node = site["nodes"][0].as_str().unwrap();
    let text = eglu(["optimize", &model, "--explain", node]).success().stdout;
    assert!(text.contains(site["rule"].as_str().unwrap()), "{text}");
}

#[test]
fn certification_passes_on_fixtures() {
    for model in ["mixtral-grouped_mm.block.pt2", "mixtral-batched_mm.block.pt2", "llama.block.pt2"] {
        let outcome = eglu(["optimize", &fixture(model), "--certify"]).success();
        assert!(outcome.stdout.contains("certified"), "{outcome:?}");
    }
}

#[test]
fn results_are_the_same_to_the_byte_in_every_process() {
    // Hash maps are seeded anew in each process, so an order of theirs that reached a result would show.
    for (model, device) in [("mixtral-grouped_mm.lm", "h200"), ("mixtral-batched_mm.dyn", "h200"), ("llama.lm", "cpu")] {
        let run = || {
            let folder = tempfile::tempdir().unwrap();
            let file = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
            let (report, json, text) = (file("report.json"), file("graph.json"), file("graph.txt"));
            let model = fixture(&format!("{model}.pt2"));
            let told = eglu(["optimize", &model, "--device", device, "--report", &report, "-o", &json]).success().stdout;
            eglu(["optimize", &model, "--device", device, "-o", &text]).success();
            let read = |path: &str| std::fs::read_to_string(path).unwrap();
            let mut report: Value = serde_json::from_str(&read(&report)).unwrap();
            report.as_object_mut().unwrap().remove("time_ms");
            [told, report.to_string(), read(&json), read(&text)]
        };
        let first = run();
        assert!(first.iter().all(|text| text.len() > 100), "{model}");
        for _ in 0..3 {
            assert!(run() == first, "{model} became something else in another process");
        }
    }
}

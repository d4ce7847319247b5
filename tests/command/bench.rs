//! `eglu bench` on the CPU: the table, the JSON, and sizes.

use super::call::{eglu, fixture};
use serde_json::Value;

#[test]
fn the_json_has_the_shape_that_scripts_rely_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let model = fixture("mixtral-grouped_mm.experts.pt2");
    let outcome = eglu(["bench", &model, "--dim", "s23=32", "--dim", "s15=32", "--json", file.to_str().unwrap()]).success();
    assert!(outcome.stdout.contains("fused") && outcome.stdout.contains("speedup"), "{outcome:?}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((json["device"].as_str(), json["dims"]["s23"].as_i64()), (Some("cpu"), Some(32)), "{json}");
    for plan in ["unfused", "fused"] {
        let plan = &json[plan];
        assert!(
            ["ms", "ms_min", "ms_max", "kernels", "bytes"].iter().all(|key| plan[key].as_f64().is_some_and(|x| x > 0.0)),
            "{plan}"
        );
        let each = plan["each"].as_array().unwrap();
        assert_eq!(each.len() as u64, plan["kernels"].as_u64().unwrap());
        for step in each {
            assert!(["ms", "bytes", "flops", "share_of_roofline"].iter().all(|key| step[key].is_number()), "{step}");
            assert!(step["name"].is_string() && step["kind"].is_string(), "{step}");
        }
    }
    for key in ["speedup", "roofline_ms", "share_of_roofline", "host_us"] {
        assert!(json[key].is_number(), "{key}");
    }
    assert_eq!((json["weights"].as_str(), json["seed"].as_u64()), (Some("model"), Some(0)));
    let phases: Vec<&str> = json["cold_start"].as_array().unwrap().iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["import", "passes", "plan", "weights", "first run"]);
    assert!(json["cold_start"].as_array().unwrap().iter().all(|phase| phase["ms"].as_f64().is_some_and(|ms| ms > 0.0)));
    assert!(json["max_error"].as_f64().is_some_and(|error| error < 1e-5), "{}", json["max_error"]);
    assert!(json["fused"]["kernels"].as_u64() < json["unfused"]["kernels"].as_u64());
}

#[test]
fn structure_only_archives_run_with_random_weights() {
    let model = fixture("mixtral-mid-grouped_mm.pt2");
    let outcome = eglu(["bench", &model, "--tokens", "4"]).success();
    assert!(outcome.stdout.contains("random weights"), "{outcome:?}");
}

#[test]
fn dims_are_checked() {
    eglu(["bench", &fixture("mixtral-mid-grouped_mm.pt2"), "--tokens", "100000"]).error(2, &["s27", "65536"]);
    eglu(["bench", &fixture("mixtral-grouped_mm.dyn.pt2"), "--tokens", "8"]).error(2, &["--dim"]);
    eglu(["bench", &fixture("llama.block.pt2"), "--tokens", "8"]).error(2, &["fixed sizes"]);
}

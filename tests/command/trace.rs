//! The trace that `eglu bench --trace` writes, as Perfetto reads it.

use super::call::{eglu, fixture};
use serde_json::Value;
use std::collections::HashMap;

fn trace(model: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    eglu(["bench", &fixture(model), "--seconds", "0", "--trace", file.to_str().unwrap()]).success();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn phases_passes_and_kernels_are_on_tracks_of_their_own() {
    let events = trace("mixtral-grouped_mm.block.pt2");
    let named = |what: &str| {
        events.iter().filter(|event| event["name"] == what).map(|event| event["args"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(named("process_name"), ["host", "cpu"]);
    assert_eq!(named("thread_name"), ["phases", "passes", "one run, unfused", "one run, fused"]);
    let of = |category: &str| events.iter().filter(|event| event["cat"] == category).collect::<Vec<_>>();
    let names = |category: &str| of(category).iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(names("phase"), ["import", "passes", "plan", "weights", "first run"]);
    assert!(names("pass").contains(&"egraph".to_string()));
    let kernels = of("kernel");
    assert!(kernels.iter().any(|kernel| kernel["args"]["op"] == "moe"), "{kernels:?}");
    for kernel in kernels {
        assert!(kernel["args"]["node"].is_string() && kernel["args"]["bytes"].is_number(), "{kernel}");
    }
}

/// Perfetto nests what overlaps: on one track events follow each other, and passes lie within their phase.
#[test]
fn events_of_a_track_do_not_overlap() {
    let events = trace("llama.block.pt2");
    let mut ends: HashMap<(u64, u64), f64> = HashMap::new();
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let end = ends.entry((event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())).or_insert(0.0);
        assert!(number(event, "ts") >= *end - 0.01 && number(event, "dur") >= 0.0, "{event} begins before {end}");
        *end = number(event, "ts") + number(event, "dur");
    }
    let phase = events.iter().find(|event| event["cat"] == "phase" && event["name"] == "passes").unwrap();
    for pass in events.iter().filter(|event| event["cat"] == "pass") {
        assert!(number(pass, "ts") >= number(phase, "ts") - 0.01, "{pass}");
        assert!(number(pass, "ts") + number(pass, "dur") <= number(phase, "ts") + number(phase, "dur") + 0.01, "{pass}");
    }
}

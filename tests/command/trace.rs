//! The trace that `eglu bench --trace` writes, as Perfetto reads it.

use super::call::{eglu, fixture};
use serde_json::Value;
use std::collections::HashMap;

fn trace(model: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    eglu(["bench", &fixture(model), "--seconds", "0", "--trace", file.to_str().unwrap()]).success();
    events(&std::fs::read_to_string(&file).unwrap())
}

/// The events of a trace, each held against the *Trace Event Format* (Google, 2016) and against what Perfetto's importer asks beyond it.
fn events(text: &str) -> Vec<Value> {
    let trace: Value = serde_json::from_str(text).unwrap();
    // Perfetto reads the unit in its first pass only where it stands before the events, and stops at keys that it does not know.
    assert!(text.starts_with("{\"displayTimeUnit\":\"ms\",\"traceEvents\":["), "{}", &text[..60]);
    assert_eq!(trace.as_object().unwrap().len(), 2);
    let events = trace["traceEvents"].as_array().unwrap().clone();
    let number = |event: &Value, key: &str| {
        let value = event[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {event}"));
        assert!(value.is_finite() && value >= 0.0, "{event}");
        value
    };
    // Ends of the slices that are open on each track, outermost first, and where the last one began; nanoseconds as Perfetto cuts them.
    let mut tracks: HashMap<(u64, u64), (Vec<i64>, i64)> = HashMap::new();
    let mut named: Vec<(u64, u64)> = Vec::new();
    for event in &events {
        let fields: Vec<&str> = event.as_object().unwrap().keys().map(String::as_str).collect();
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        assert!(event["cat"].is_string() && event["args"].is_object(), "{event}");
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        assert!(track.0 <= u32::MAX.into() && track.1 <= u32::MAX.into(), "{event}");
        match event["ph"].as_str() {
            Some("M") => {
                assert_eq!(fields, ["args", "cat", "name", "ph", "pid", "tid"], "{event}");
                assert!(["process_name", "thread_name"].contains(&event["name"].as_str().unwrap()), "{event}");
                assert!(event["args"]["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
                named.extend((event["name"] == "thread_name").then_some(track));
            }
            Some("X") => {
                assert_eq!(fields, ["args", "cat", "dur", "name", "ph", "pid", "tid", "ts"], "{event}");
                let cut = |key: &str| (number(event, key) * 1000.0) as i64;
                let (start, end) = (cut("ts"), cut("ts") + cut("dur"));
                let (open, last) = tracks.entry(track).or_default();
                assert!(start >= *last, "{event} comes after one that began later");
                *last = start;
                open.retain(|&end| end > start);
                assert!(open.last().is_none_or(|&outer| end <= outer), "{event} ends after what it lies within");
                open.push(end);
            }
            other => panic!("{other:?} in {event}"),
        }
    }
    assert!(tracks.keys().all(|track| named.contains(track)), "a track without a name: {named:?}");
    assert!(named.iter().enumerate().all(|(i, track)| !named[..i].contains(track)), "two names: {named:?}");
    events
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

/// On one track events follow each other or nest, which [`events`] checks; passes lie within their phase.
#[test]
fn passes_lie_within_their_phase() {
    let events = trace("llama.block.pt2");
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    let phase = events.iter().find(|event| event["cat"] == "phase" && event["name"] == "passes").unwrap();
    let mut passes = 0;
    for pass in events.iter().filter(|event| event["cat"] == "pass") {
        assert!(number(pass, "ts") >= number(phase, "ts"), "{pass}");
        assert!(number(pass, "ts") + number(pass, "dur") <= number(phase, "ts") + number(phase, "dur") + 0.002, "{pass}");
        passes += 1;
    }
    assert!(passes > 5, "{events:?}");
}

#[test]
fn models_with_many_kernels_and_gradients_and_packages_have_sound_traces() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (block, package) = (fixture("llama.block.pt2"), place("p.eglu"));
    eglu(["compile", &block, "--arch", "cpu", "-o", &package]).success();
    let lm = fixture("llama.lm.pt2");
    for arguments in [vec![lm.as_str()], vec![&block, "--grad", "all"], vec![&package]] {
        let out = place("t.json");
        eglu(["bench"].into_iter().chain(arguments).chain(["--seconds", "0", "--trace", &out])).success();
        let kernels = events(&std::fs::read_to_string(&out).unwrap()).iter().filter(|event| event["cat"] == "kernel").count();
        assert!(kernels > 1, "{kernels} kernels");
    }
}

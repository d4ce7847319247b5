//! Where the time went, in the trace format of Chrome, which <https://ui.perfetto.dev> opens: phases, passes and kernels.
//!
//! The format: *Trace Event Format*, Google, 2016; complete events (`"ph": "X"`) in microseconds on tracks of processes and threads.

use eglu_passes::Optimized;
use eglu_runtime::{
    Phase,
    bench::{Comparison, Measurement},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;

/// Tracks as (process, thread): the host's two, and one of the device for each plan.
const PHASES: (u32, u32) = (1, 1);
const PASSES: (u32, u32) = (1, 2);
const UNFUSED: (u32, u32) = (2, 1);
const FUSED: (u32, u32) = (2, 2);

#[derive(Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    args: Value,
}

/// The trace as JSON. Times count from the beginning of the first phase.
pub fn trace(comparison: &Comparison, optimized: &Optimized, phases: &[Phase]) -> String {
    let mut events = vec![
        named("process_name", (1, 0), "host"),
        named("thread_name", PHASES, "phases"),
        named("thread_name", PASSES, "passes"),
        named("process_name", (2, 0), &comparison.device),
        named("thread_name", UNFUSED, "one run, unfused"),
        named("thread_name", FUSED, "one run, fused"),
    ];
    let passes = &optimized.report.passes;
    let plans = [&comparison.unfused, &comparison.fused];
    let starts = phases.iter().map(|phase| phase.start).chain(passes.iter().map(|pass| pass.start));
    let Some(zero) = starts.chain(plans.into_iter().filter_map(|plan| plan.timeline_began)).min() else {
        return render(events);
    };
    let at = |instant: Instant| 1e6 * instant.saturating_duration_since(zero).as_secs_f64();
    for phase in phases {
        let args = if phase.note.is_empty() { json!({}) } else { json!({ "note": phase.note }) };
        events.push(slice(&phase.name, "phase", PHASES, (at(phase.start), 1e6 * phase.seconds), args));
    }
    for pass in passes {
        events.push(slice(&pass.pass, "pass", PASSES, (at(pass.start), 1e6 * pass.time.as_secs_f64()), json!({})));
    }
    for (plan, track) in [(&comparison.unfused, UNFUSED), (&comparison.fused, FUSED)] {
        if let Some(began) = plan.timeline_began {
            kernels(&mut events, plan, track, at(began));
        }
    }
    render(events)
}

fn kernels(events: &mut Vec<Event>, plan: &Measurement, track: (u32, u32), began: f64) {
    for kernel in &plan.timeline {
        let step = plan.each.get(kernel.step);
        let args = step.map_or_else(
            || json!({}),
            |step| {
                json!({
                    "node": step.name, "op": step.kind, "bytes": step.bytes, "flops": step.flops,
                    "step_median_ms": step.ms.median, "share_of_roofline": step.share_of_roofline,
                })
            },
        );
        events.push(slice(&kernel.name, "kernel", track, (began + 1e3 * kernel.start_ms, 1e3 * kernel.ms), args));
    }
}

fn slice(name: &str, cat: &'static str, (pid, tid): (u32, u32), (ts, dur): (f64, f64), args: Value) -> Event {
    Event { name: name.into(), cat, ph: "X", ts: Some(ts), dur: Some(dur), pid, tid, args }
}

fn named(what: &str, (pid, tid): (u32, u32), name: &str) -> Event {
    Event { name: what.into(), cat: "__metadata", ph: "M", ts: None, dur: None, pid, tid, args: json!({ "name": name }) }
}

fn render(events: Vec<Event>) -> String {
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string() + "\n"
}

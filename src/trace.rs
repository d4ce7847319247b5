//! Where the time went, in the trace format of Chrome, which <https://ui.perfetto.dev> opens: phases, passes and kernels.
//!
//! The format: *Trace Event Format*, Google, 2016; complete events (`"ph": "X"`) in microseconds on tracks of processes and threads.

use eglu_passes::report::Ran;
use eglu_runtime::{Phase, bench::Measurement};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The processes of the trace, and the host's tracks in it as (process, thread).
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const PHASES: (u32, u32) = (HOST, 1);
const PASSES: (u32, u32) = (HOST, 2);

#[derive(Serialize)]
struct Event {
    #[serde(skip)]
    start: Duration,
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

/// The trace as JSON: plans measured on a device, each with what its track is called. Times count from the beginning of what was first.
pub fn trace(device: &str, plans: &[(&str, &Measurement)], passes: &[Ran], phases: &[Phase]) -> String {
    let mut events = vec![named("process_name", (HOST, 0), "host"), named("thread_name", PHASES, "phases")];
    if !passes.is_empty() {
        events.push(named("thread_name", PASSES, "passes"));
    }
    events.push(named("process_name", (DEVICE, 0), device));
    let starts = phases.iter().map(|phase| phase.start).chain(passes.iter().map(|pass| pass.start));
    let zero = starts.chain(plans.iter().filter_map(|(_, plan)| plan.timeline_began)).min();
    let at = |instant: Instant| zero.map_or(Duration::ZERO, |zero| instant.saturating_duration_since(zero));
    for phase in phases {
        let args = if phase.note.is_empty() { json!({}) } else { json!({ "note": phase.note }) };
        events.push(slice(&phase.name, "phase", PHASES, (at(phase.start), Duration::from_secs_f64(phase.seconds)), args));
    }
    // As they ended, which for phases within others is not as they began.
    events.sort_by_key(|event| event.start);
    for pass in passes {
        events.push(slice(&pass.pass, "pass", PASSES, (at(pass.start), pass.time), json!({})));
    }
    for (track, (name, plan)) in (1..).zip(plans) {
        events.push(named("thread_name", (DEVICE, track), name));
        if let Some(began) = plan.timeline_began {
            kernels(&mut events, plan, (DEVICE, track), at(began));
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string() + "\n"
}

fn kernels(events: &mut Vec<Event>, plan: &Measurement, track: (u32, u32), began: Duration) {
    let ms = |ms: f64| began + Duration::from_secs_f64(1e-3 * ms);
    let mut free = Duration::ZERO;
    for kernel in &plan.timeline {
        // One after the other, also where the sum of times that were rounded says otherwise.
        let start = ms(kernel.start_ms).max(free);
        free = ms(kernel.start_ms + kernel.ms).max(start);
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
        events.push(slice(&kernel.name, "kernel", track, (start, free - start), args));
    }
}

fn slice(name: &str, cat: &'static str, (pid, tid): (u32, u32), (start, time): (Duration, Duration), args: Value) -> Event {
    let (ts, dur) = (Some(microseconds(start)), Some(microseconds(time)));
    Event { start, name: name.into(), cat, ph: "X", ts, dur, pid, tid, args }
}

fn named(what: &str, (pid, tid): (u32, u32), name: &str) -> Event {
    let args = json!({ "name": name });
    Event { start: Duration::ZERO, name: what.into(), cat: "__metadata", ph: "M", ts: None, dur: None, pid, tid, args }
}

/// A time in the format's unit. Perfetto multiplies by a thousand and cuts to whole nanoseconds, and shows no slices that overlap by one: half a
/// nanosecond more and the cut is exact.
fn microseconds(time: Duration) -> f64 {
    (time.as_nanos() as f64 + 0.5) / 1e3
}

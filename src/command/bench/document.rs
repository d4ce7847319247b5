//! The result of a benchmark as JSON: what was measured, and how it was set up.

use crate::{command::json, deliver, failure::Failure};
use eglu_runtime::{Phase, Start, memory::MemoryReport};
use serde::Serialize;
use std::path::Path;

/// What the JSON says beside the figures.
pub struct Setting<'a> {
    /// True for weights drawn at random.
    pub random: bool,
    pub seed: u64,
    /// Phases from the file to the first result.
    pub cold_start: &'a [Phase],
    /// Where values lie during a run, if asked for.
    pub memory: Option<&'a MemoryReport>,
}

#[derive(Serialize)]
struct Document<'a, T> {
    #[serde(flatten)]
    figures: &'a T,
    weights: &'static str,
    seed: u64,
    version: &'static str,
    cold_start: Vec<ColdPhase<'a>>,
    cold_start_ms: ColdStart,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a MemoryReport>,
}

#[derive(Serialize)]
struct ColdStart {
    total: f64,
    device_open: f64,
    rest: f64,
}

#[derive(Serialize)]
struct ColdPhase<'a> {
    phase: &'a str,
    ms: f64,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
}

/// Writes the figures with their setting.
pub fn write(path: &Path, figures: &impl Serialize, setting: &Setting<'_>) -> Result<(), Failure> {
    let phases = setting.cold_start.iter();
    let start = Start::of(setting.cold_start);
    let document = Document {
        figures,
        weights: if setting.random { "random" } else { "model" },
        seed: setting.seed,
        version: env!("CARGO_PKG_VERSION"),
        cold_start: phases.map(|phase| ColdPhase { phase: &phase.name, ms: 1e3 * phase.seconds, note: &phase.note }).collect(),
        cold_start_ms: ColdStart { total: 1e3 * start.total(), device_open: 1e3 * start.opening, rest: 1e3 * start.rest },
        memory: setting.memory,
    };
    deliver::file(path, json(&document).as_bytes())
}

/// The phases of a cold start, in one line.
pub fn cold_start_line(phases: &[Phase]) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    let each: Vec<String> = phases.iter().map(|phase| format!("{} {}", phase.name, ms(phase.seconds))).collect();
    let start = Start::of(phases);
    let parts = match start.opening > 0.0 {
        true => format!(", {} of it for the device to open and {} for everything else", ms(start.opening), ms(start.rest)),
        false => String::new(),
    };
    format!("cold start, from the file to the first result: {}{parts} ({})", ms(start.total()), each.join(", "))
}

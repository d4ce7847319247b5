//! The result of a benchmark as JSON: what was measured, and how it was set up.

use crate::{command::json, deliver, failure::Failure};
use eglu_runtime::Phase;
use serde::Serialize;
use std::path::Path;

/// What the JSON says beside the figures.
pub struct Setting<'a> {
    /// True for weights drawn at random.
    pub random: bool,
    pub seed: u64,
    /// Phases from the file to the first result.
    pub cold_start: &'a [Phase],
}

#[derive(Serialize)]
struct Document<'a, T> {
    #[serde(flatten)]
    figures: &'a T,
    weights: &'static str,
    seed: u64,
    version: &'static str,
    cold_start: Vec<ColdPhase<'a>>,
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
    let document = Document {
        figures,
        weights: if setting.random { "random" } else { "model" },
        seed: setting.seed,
        version: env!("CARGO_PKG_VERSION"),
        cold_start: phases.map(|phase| ColdPhase { phase: &phase.name, ms: 1e3 * phase.seconds, note: &phase.note }).collect(),
    };
    deliver::file(path, json(&document).as_bytes())
}

/// Phases that wait for the driver.
const OPENING: [&str; 3] = ["driver", "device", "context"];

/// The phases of a cold start, in one line.
pub fn cold_start_line(phases: &[Phase]) -> String {
    let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    let each: Vec<String> = phases.iter().map(|phase| format!("{} {}", phase.name, ms(phase.seconds))).collect();
    let total = phases.iter().map(|phase| phase.seconds).sum();
    // What any program on the device waits for, however it makes its kernels.
    let opening: f64 = phases.iter().filter(|phase| OPENING.contains(&phase.name.as_str())).map(|phase| phase.seconds).sum();
    let of_device = if opening > 0.0 { format!(", of which {} for the device to open", ms(opening)) } else { String::new() };
    format!("cold start, from the file to the first result: {}{of_device} ({})", ms(total), each.join(", "))
}

//! What a benchmark found: JSON for scripts, a table for people.

use super::statistics::Spread;
use eglu_ir::DeviceProfile;
use indexmap::IndexMap;
use serde::Serialize;
use std::{fmt::Write, time::Instant};

/// Fused against unfused. Serialises as the command's JSON contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Where it ran.
    pub device: String,
    /// The graph's name.
    pub model: String,
    /// Values of the dynamic dims.
    pub dims: IndexMap<String, i64>,
    /// One kernel for each node of the graph.
    pub unfused: Measurement,
    /// The optimised graph.
    pub fused: Measurement,
    /// Unfused time over fused time.
    pub speedup: f64,
    /// What the fused plan would take at the device's peak rates, milliseconds.
    pub roofline_ms: f64,
    /// `roofline_ms` over the fused time.
    pub share_of_roofline: f64,
    /// What the host spends on issuing one fused run, microseconds.
    pub host_us: f64,
    /// Largest ‖fused − unfused‖ / ‖unfused‖ over the outputs.
    pub max_error: f64,
    /// Largest |fused − unfused| over the outputs.
    pub max_abs_error: f64,
    /// The rates behind the rooflines.
    pub rates: Rates,
}

/// Peak rates of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes a second.
    pub bandwidth: f64,
    /// Matrix products, FLOP/s.
    pub matrix_flops: f64,
    /// Other arithmetic, FLOP/s.
    pub vector_flops: f64,
    /// True if measured on this machine just now, false if published or measured elsewhere.
    pub measured: bool,
}

/// Times of one plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Launches of one run.
    pub kernels: usize,
    /// Time of one run, milliseconds.
    #[serde(flatten)]
    pub ms: Spread,
    /// Bytes to and from memory over all steps.
    pub bytes: f64,
    /// Operations over all steps.
    pub flops: f64,
    /// Bytes of the arena that holds intermediate values.
    pub arena_bytes: u64,
    /// Bytes they would take without sharing.
    pub arena_sum: u64,
    /// How many runs were timed.
    pub runs: usize,
    /// The time of each run, in order, milliseconds.
    pub runs_ms: Vec<f64>,
    /// The steps, in order.
    pub each: Vec<StepReport>,
    /// The kernels of one run of middling time, with the clock between them.
    pub timeline: Vec<KernelReport>,
    /// When that run began.
    #[serde(skip)]
    pub timeline_began: Option<Instant>,
}

/// When one kernel ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// The kernel's name; that of its node where steps have no kernels of their own.
    pub name: String,
    /// Position in [`Measurement::each`] of its step.
    pub step: usize,
    /// Its start, milliseconds after the start of the run.
    pub start_ms: f64,
    /// Its time, milliseconds.
    pub ms: f64,
}

/// Time of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Name of its node.
    pub name: String,
    /// Its op.
    pub kind: String,
    /// Time, milliseconds.
    #[serde(flatten)]
    pub ms: Spread,
    /// Bytes to and from memory.
    pub bytes: f64,
    /// Operations.
    pub flops: f64,
    /// Time at peak rates over time measured.
    pub share_of_roofline: f64,
}

impl Comparison {
    /// The figures as text, with the slowest `steps` steps of each plan.
    pub fn table(&self, steps: usize) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}{} on {}", self.model, dims_text(&self.dims), self.device);
        let _ = writeln!(text, "{}\n", self.rates.line());
        let _ = writeln!(text, "{:10} {:>8} {:>11} {:>23} {:>10} {:>10}", "", "kernels", "ms", "min .. max", "MB", "arena MB");
        for (name, plan) in [("unfused", &self.unfused), ("fused", &self.fused)] {
            let spread = format!("{:.3} .. {:.3}", plan.ms.min, plan.ms.max);
            let (bytes, arena) = (plan.bytes / 1e6, plan.arena_bytes as f64 / 1e6);
            let _ =
                writeln!(text, "{name:10} {:>8} {:>11.3} {spread:>23} {bytes:>10.1} {arena:>10.1}", plan.kernels, plan.ms.median);
        }
        let _ = writeln!(
            text,
            "\nspeedup {:.2}x, {:.0} % of the roofline ({:.3} ms), host {:.1} us, max error {:.1e} (absolute {:.1e})",
            self.speedup,
            100.0 * self.share_of_roofline,
            self.roofline_ms,
            self.host_us,
            self.max_error,
            self.max_abs_error
        );
        for (name, plan) in [("unfused", &self.unfused), ("fused", &self.fused)] {
            text += &plan.slowest(name, steps);
        }
        text
    }
}

/// The values of dims in parentheses, for a title; nothing where there are none.
pub(super) fn dims_text(dims: &IndexMap<String, i64>) -> String {
    let dims: Vec<String> = dims.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if dims.is_empty() { String::new() } else { format!(" ({})", dims.join(", ")) }
}

impl Rates {
    pub(super) fn of(profile: &DeviceProfile, measured: bool) -> Rates {
        let &DeviceProfile { bandwidth, matrix_flops, vector_flops, .. } = profile;
        Rates { bandwidth, matrix_flops, vector_flops, measured }
    }

    pub(super) fn line(&self) -> String {
        let how = if self.measured { "measured" } else { "published" };
        let [bandwidth, matrix, vector] = [self.bandwidth, self.matrix_flops, self.vector_flops].map(|rate| rate / 1e9);
        format!("peak rates ({how}): {bandwidth:.1} GB/s, {matrix:.1} GFLOP/s in products, {vector:.1} GFLOP/s elsewhere")
    }
}

impl Measurement {
    /// The slowest steps of the plan called `name`, a line each.
    pub(super) fn slowest(&self, name: &str, steps: usize) -> String {
        let mut text = format!("\nslowest steps, {name}:\n");
        let mut order: Vec<&StepReport> = self.each.iter().collect();
        order.sort_by(|a, b| b.ms.median.total_cmp(&a.ms.median));
        for step in order.into_iter().take(steps) {
            let share = 100.0 * step.share_of_roofline;
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {:>10.3} ms  {share:>4.0} %  {:16} {}", step.ms.median, step.kind, step.name);
        }
        text
    }
}

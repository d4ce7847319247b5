//! Measures one plan by itself: a package has no unfused one beside.

use super::{Candidate, Measurement, Options, Rates, report::dims_text, statistics::Spread, take_down};
use crate::{Executable, RuntimeError};
use eglu_ir::{DeviceProfile, Tensor};
use indexmap::IndexMap;
use serde::Serialize;
use std::{fmt::Write, time::Instant};

/// One plan measured. Serialises as a [`Comparison`](super::Comparison) does, with `null` for what needs a second plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Alone {
    pub device: String,
    pub model: String,
    pub dims: IndexMap<String, i64>,
    pub unfused: Option<Measurement>,
    pub fused: Measurement,
    pub speedup: Option<f64>,
    pub roofline_ms: f64,
    pub share_of_roofline: f64,
    pub host_us: f64,
    pub max_error: Option<f64>,
    pub rates: Rates,
}

/// Measures a plan; arguments are those of [`side_by_side`](super::side_by_side).
pub fn alone(
    executable: &Executable,
    inputs: &[Tensor],
    (profile, rates_measured): (&DeviceProfile, bool),
    options: &Options,
    progress: &mut dyn FnMut(f64),
) -> Result<Alone, RuntimeError> {
    let bindings = executable.bind(inputs)?;
    let mut candidate = Candidate::new(executable, inputs)?;
    for _ in 0..options.warm_up {
        candidate.timed.time_run()?;
    }
    let (begin, mut runs) = (Instant::now(), 0);
    while runs < options.least || (begin.elapsed() < options.budget && runs < options.most) {
        candidate.run()?;
        runs += 1;
        let by_time = begin.elapsed().as_secs_f64() / options.budget.as_secs_f64().max(1e-9);
        progress(by_time.max(runs as f64 / options.most.max(1) as f64).min(0.9));
    }
    for _ in 0..runs.min(options.least.max(3)) {
        candidate.run_steps()?;
    }
    take_down(std::slice::from_mut(&mut candidate), options)?;
    let host_us = candidate.host_us();
    let (fused, roofline) = candidate.report(&bindings, profile)?;
    progress(1.0);
    let share = if fused.ms.median > 0.0 { 1e3 * roofline / fused.ms.median } else { 0.0 };
    Ok(Alone {
        device: executable.backend().device_name(),
        model: executable.plan().name.clone(),
        dims: bindings.iter().map(|(name, &value)| (name.to_string(), value)).collect(),
        unfused: None,
        fused,
        speedup: None,
        roofline_ms: 1e3 * roofline,
        share_of_roofline: share,
        host_us,
        max_error: None,
        rates: Rates::of(profile, rates_measured),
    })
}

impl Alone {
    /// The figures as text, with the slowest `steps` steps.
    pub fn table(&self, steps: usize) -> String {
        let plan = &self.fused;
        let Spread { median, min, max } = plan.ms;
        let mut text = format!("{}{} on {}\n{}\n\n", self.model, dims_text(&self.dims), self.device, self.rates.line());
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{} kernels, {median:.3} ms ({min:.3} .. {max:.3}), {:.1} MB, arena {:.1} MB",
            plan.kernels,
            plan.bytes / 1e6,
            plan.arena_bytes as f64 / 1e6
        );
        let share = 100.0 * self.share_of_roofline;
        let _ = writeln!(text, "{share:.0} % of the roofline ({:.3} ms), host {:.1} us", self.roofline_ms, self.host_us);
        text + &plan.slowest("the package's plan", steps)
    }
}

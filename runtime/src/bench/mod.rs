//! Measures plans: fused and unfused side by side, step by step, against the device's roofline.

mod alone;
mod calibrate;
mod report;
mod roofline;
mod statistics;

pub use alone::{Alone, alone};
pub use calibrate::host;
pub use report::{Comparison, KernelReport, Measurement, Rates, StepReport};
pub use roofline::{Work, work};
pub use statistics::{Spread, median};

use crate::{
    Executable, KernelTime, RuntimeError, Timed,
    compare::{CompareError, compare},
};
use eglu_ir::{Bindings, DeviceProfile, Tensor};
use std::time::{Duration, Instant};

/// How long to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time for the whole runs of both plans together; at least [`least`](Options::least) runs of each are made.
    pub budget: Duration,
    /// Fewest runs of each plan.
    pub least: usize,
    /// Most runs of each plan.
    pub most: usize,
    /// Runs before the clock starts.
    pub warm_up: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { budget: Duration::from_secs(2), least: 5, most: 1000, warm_up: 2 }
    }
}

/// How many runs are taken down kernel by kernel, for the timeline of a usual one: at least, and where they are short.
const TIMELINES: (usize, usize) = (3, 9);

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BenchError {
    #[error(transparent)]
    Run(#[from] RuntimeError),
    #[error("fused and unfused results differ in kind: {0}")]
    Compare(#[from] CompareError),
}

/// A plan with its inputs in place, and the times so far.
struct Candidate<'a> {
    executable: &'a Executable,
    timed: Box<dyn Timed + 'a>,
    seconds: Vec<f64>,
    host: Vec<f64>,
    steps: Vec<Vec<f64>>,
    /// Runs kernel by kernel, with their beginnings.
    timelines: Vec<(Instant, Vec<KernelTime>)>,
}

impl<'a> Candidate<'a> {
    fn new(executable: &'a Executable, inputs: &[Tensor]) -> Result<Candidate<'a>, RuntimeError> {
        let steps = vec![Vec::new(); executable.plan().steps.len()];
        Ok(Candidate { executable, timed: executable.prepare(inputs)?, seconds: vec![], host: vec![], steps, timelines: vec![] })
    }

    fn run(&mut self) -> Result<(), RuntimeError> {
        let time = self.timed.time_run()?;
        self.seconds.push(time.seconds);
        self.host.push(time.host_seconds);
        Ok(())
    }

    fn run_steps(&mut self) -> Result<(), RuntimeError> {
        for time in self.timed.time_steps()? {
            self.steps[time.step].push(time.seconds);
        }
        Ok(())
    }

    fn run_kernels(&mut self) -> Result<(), RuntimeError> {
        let begin = Instant::now();
        self.timelines.push((begin, self.timed.time_kernels()?));
        Ok(())
    }

    /// The timeline of the run that took the middle time.
    fn timeline(&self) -> Option<(Instant, Vec<KernelReport>)> {
        let end = |run: &(Instant, Vec<KernelTime>)| run.1.last().map_or(0.0, |last| last.start + last.seconds);
        let mut order: Vec<&(Instant, Vec<KernelTime>)> = self.timelines.iter().collect();
        order.sort_by(|a, b| end(a).total_cmp(&end(b)));
        let (begin, kernels) = order.get(order.len() / 2)?;
        let report = |kernel: &KernelTime| KernelReport {
            name: kernel.name.to_string(),
            step: kernel.step,
            start_ms: 1e3 * kernel.start,
            ms: 1e3 * kernel.seconds,
        };
        Some((*begin, kernels.iter().map(report).collect()))
    }

    fn host_us(&self) -> f64 {
        let mut sorted = self.host.clone();
        sorted.sort_by(f64::total_cmp);
        1e6 * median(&sorted)
    }

    /// The report, and the roofline of all steps in seconds.
    fn report(&self, bindings: &Bindings, profile: &DeviceProfile) -> Result<(Measurement, f64), RuntimeError> {
        let plan = self.executable.plan();
        let work = work(plan, bindings, profile)?;
        let each: Vec<StepReport> = plan
            .steps
            .iter()
            .zip(&work)
            .zip(&self.steps)
            .map(|((step, work), times)| {
                let ms = Spread::of_seconds(times);
                let share_of_roofline = if ms.median > 0.0 { 1e3 * work.seconds / ms.median } else { 0.0 };
                let (name, kind) = (step.name.to_string(), step.op.name().to_string());
                StepReport { name, kind, ms, bytes: work.bytes, flops: work.flops, share_of_roofline }
            })
            .collect();
        let (timeline_began, timeline) = self.timeline().unzip();
        let (arena_bytes, arena_sum) = self.timed.memory();
        let measurement = Measurement {
            // Those of these dims: a plan also holds kernels for other ones, whose launches are skipped.
            kernels: timeline.as_ref().map_or_else(|| self.executable.backend().kernels(), Vec::len),
            ms: Spread::of_seconds(&self.seconds),
            bytes: work.iter().map(|w| w.bytes).sum(),
            flops: work.iter().map(|w| w.flops).sum(),
            arena_bytes,
            arena_sum,
            runs: self.seconds.len(),
            runs_ms: self.seconds.iter().map(|seconds| 1e3 * seconds).collect(),
            each,
            timeline: timeline.unwrap_or_default(),
            timeline_began,
        };
        Ok((measurement, work.iter().map(|w| w.seconds).sum()))
    }
}

/// Takes runs down kernel by kernel, in turns.
fn take_down(candidates: &mut [Candidate<'_>], options: &Options) -> Result<(), RuntimeError> {
    let (least, most) = TIMELINES;
    let begin = Instant::now();
    for round in 0..most {
        if round >= least && begin.elapsed() > options.budget / 4 {
            break;
        }
        for candidate in &mut *candidates {
            candidate.run_kernels()?;
        }
    }
    Ok(())
}

/// Measures both plans on the same inputs, their runs taking turns, so that the machine's moods meet both.
///
/// `rates_measured` says whether the profile was measured here; `progress` is told the share done, from 0 to 1.
pub fn side_by_side(
    (unfused, fused): (&Executable, &Executable),
    inputs: &[Tensor],
    (profile, rates_measured): (&DeviceProfile, bool),
    options: &Options,
    progress: &mut dyn FnMut(f64),
) -> Result<Comparison, BenchError> {
    let bindings = unfused.bind(inputs)?;
    let mut both = [Candidate::new(unfused, inputs)?, Candidate::new(fused, inputs)?];
    for candidate in &mut both {
        for _ in 0..options.warm_up {
            candidate.timed.time_run()?;
        }
    }
    let begin = Instant::now();
    let mut runs = 0;
    while runs < options.least || (begin.elapsed() < options.budget && runs < options.most) {
        for candidate in &mut both {
            candidate.run()?;
        }
        runs += 1;
        let by_time = begin.elapsed().as_secs_f64() / options.budget.as_secs_f64().max(1e-9);
        progress(by_time.max(runs as f64 / options.most.max(1) as f64).min(0.9));
    }
    // Steps by themselves: as long again at most, for their medians.
    for round in 0..runs.min(options.least.max(3)) {
        for candidate in &mut both {
            candidate.run_steps()?;
        }
        progress((0.9 + 0.02 * round as f64).min(1.0));
    }
    take_down(&mut both, options)?;
    let outputs = [both[0].timed.outputs()?, both[1].timed.outputs()?];
    let (mut max_error, mut max_abs_error) = (0.0f64, 0.0f64);
    for (i, (reference, output)) in outputs[0].iter().zip(&outputs[1]).enumerate() {
        let difference = compare(&format!("output.{i}"), output, reference)?;
        max_error = max_error.max(difference.relative);
        max_abs_error = max_abs_error.max(difference.max_abs);
    }
    let host_us = both[1].host_us();
    let (unfused_report, _) = both[0].report(&bindings, profile)?;
    let (fused_report, roofline) = both[1].report(&bindings, profile)?;
    progress(1.0);
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    Ok(Comparison {
        device: fused.backend().device_name(),
        model: unfused.plan().name.clone(),
        dims: bindings.iter().map(|(name, &value)| (name.to_string(), value)).collect(),
        speedup: ratio(unfused_report.ms.median, fused_report.ms.median),
        roofline_ms: 1e3 * roofline,
        share_of_roofline: ratio(1e3 * roofline, fused_report.ms.median),
        host_us,
        max_error,
        max_abs_error,
        rates: Rates::of(profile, rates_measured),
        unfused: unfused_report,
        fused: fused_report,
    })
}

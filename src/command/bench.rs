//! `eglu bench`: fused beside unfused.

mod document;
mod package;

use super::{device, differentiate::Differentiate, kernels::Kernels, model};
use crate::{deliver, failure::Failure, page, progress::Progress, screen::show, trace::trace};
use clap::Args;
use document::{Setting, cold_start_line};
use eglu_codegen::{Plan, lower};
use eglu_ir::{import::Imported, weights::Weights};
use eglu_passes::{Optimized, Pipeline};
use eglu_runtime::{
    Device, Executable, Phase,
    bench::{self, BenchError, Comparison},
    inputs::{self, Routing, Spec},
    memory::MemoryReport,
    package::is_package,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Measures the fused model beside the unfused one, on inputs drawn at random.
///
/// The unfused plan runs each operator of the graph as a kernel of its own, as PyTorch's eager mode does. Times are medians, with the
/// least and the greatest. Weights are the archive's own; where it has none, they are drawn at random.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct Bench {
    /// Model: .pt2 or .json, or a package: .eglu, whose plan is measured alone
    model: PathBuf,
    /// Which program of a package; not needed where it has one
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Value of a dynamic dim; those not given are 256, or what is nearest in range
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = dim)]
    dims: Vec<(String, i64)>,
    /// Value of the one dynamic dim
    #[arg(long, value_name = "N")]
    tokens: Option<i64>,
    /// How to draw an input: normal, uniform:LO:HI, randint:LO:HI or topk:E (distinct expert ids in each row)
    #[arg(long = "input", value_name = "INDEX=SPEC", value_parser = indexed_spec, allow_hyphen_values = true)]
    inputs: Vec<(usize, Spec)>,
    /// Where to run: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    device: Device,
    /// `random`, or a file of weights by name
    #[arg(long, value_name = "random|FILE")]
    weights: Option<String>,
    /// How the rows of topk inputs choose experts
    #[arg(long, value_name = "uniform|zipf|balanced", default_value = "uniform")]
    routing: Routing,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Time to spend on runs of both plans; each runs five times at least
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// How many of the slowest steps to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Where to write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to write a report to read: one HTML file with plots, timeline, and the graph before and after
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Where to write phases, passes and kernels as a trace for https://ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Show where values lie in memory during a run of the fused plan, and how much that is at the peak
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    differentiate: Differentiate,
}

/// What a benchmark found.
struct Measured {
    comparison: Comparison,
    optimized: Optimized,
    /// Phases from the file to the first result of the fused plan.
    cold_start: Vec<Phase>,
    /// True for weights drawn at random.
    random: bool,
    /// Of the fused plan, if asked for.
    memory: Option<MemoryReport>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, from 0 to 3600".into()),
    }
}

fn dim(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE")?;
    Ok((name.into(), value.parse().map_err(|_| format!("`{value}` is no extent"))?))
}

fn indexed_spec(text: &str) -> Result<(usize, Spec), String> {
    let (index, spec) = text.split_once('=').ok_or("give INDEX=SPEC, e.g. 0=normal")?;
    let index = index.parse().map_err(|_| format!("`{index}` is no input's position"))?;
    Ok((index, spec.parse::<Spec>().map_err(|error| error.to_string())?))
}

impl Bench {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        self.outputs().into_iter().try_for_each(deliver::expect_place)?;
        if let Some((index, _)) =
            self.inputs.iter().enumerate().find_map(|(i, (index, spec))| {
                self.inputs[..i].iter().any(|(before, _)| before == index).then_some((index, spec))
            })
        {
            return Err(Failure::usage(format!("input {index} is described twice")));
        }
        if is_package(&self.model) {
            return self.run_package();
        }
        if self.program.is_some() {
            return Err(Failure::usage("--program chooses from a package (.eglu), and a model is one program"));
        }
        let progress = Progress::new();
        let Measured { comparison, optimized, cold_start, random, memory } = self.measure(&progress)?;
        drop(progress);
        let weights = if random { "random weights" } else { "weights of the model" };
        let (table, cold) = (comparison.table(self.top), cold_start_line(&cold_start));
        let places = memory.as_ref().map_or_else(String::new, |memory| format!("\n{memory}"));
        show(&format!("{}\n{weights}, seed {}\n\n{cold}\n{places}", table.trim_end(), self.seed))?;
        if let Some(path) = &self.json {
            let setting = Setting { random, seed: self.seed, cold_start: &cold_start, memory: memory.as_ref() };
            document::write(path, &comparison, &setting)?;
        }
        if let Some(path) = &self.html {
            let facts = [
                ("weights", if random { format!("random, seed {}", self.seed) } else { "of the model".into() }),
                ("eglu", env!("CARGO_PKG_VERSION").to_owned()),
            ];
            let subject =
                page::Subject { comparison: &comparison, optimized: &optimized, cold_start: &cold_start, facts: &facts };
            deliver::file(path, page::page(&subject).as_bytes())?;
        }
        if let Some(path) = &self.trace {
            let plans = [("one run, unfused", &comparison.unfused), ("one run, fused", &comparison.fused)];
            let text = trace(&comparison.device, &plans, &optimized.report.passes, &cold_start);
            deliver::file(path, text.as_bytes())?;
        }
        Ok(())
    }

    /// The files to write.
    fn outputs(&self) -> Vec<&Path> {
        [&self.json, &self.html, &self.trace].into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// Takes the fused plan from the file to its first result, phase by phase; then measures it beside the unfused one.
    fn measure(&self, progress: &Progress) -> Result<Measured, Failure> {
        let phases = progress.phases();
        let selection = self.kernels.selection(self.device)?;
        let _opening = device::open_early(self.device);
        let mut imported = phases.time("import", || model::load(&self.model))?;
        // The first question to a GPU waits until the driver has started.
        let profile = match self.device {
            Device::Cpu => device::profile_of(self.device)?,
            Device::Cuda(_) => phases.time("driver", || device::profile_of(self.device))?,
        };
        let options = self.differentiate.options(&imported, profile.clone());
        let optimize = |pipeline: Pipeline| self.differentiate.before(pipeline).run_with(imported.graph.clone(), &options);
        let optimized = phases.time("passes", || optimize(Pipeline::standard()))?;
        let fused = phases.time("plan", || lower(&optimized.graph))?;
        let unfused: Plan = lower(&optimize(Pipeline::unfused())?.graph)?;

        let bindings = inputs::sizes(&unfused, self.tokens, &self.dims)?;
        let specs = self.inputs.iter().copied().collect();
        let tensors = inputs::generate(&unfused, &bindings, &specs, self.routing, self.seed)?;
        let random = self.choose_weights(&mut imported)?;
        let fused = Executable::load_selecting(fused, &imported.weights, &self.device, (selection, &phases))?;
        phases.time("first run", || fused.run(&tensors))?;
        let cold_start = phases.list();
        let memory = self.memory.then(|| fused.memory(&tensors)).transpose()?;
        let unfused = Executable::load_in_phases(unfused, &imported.weights, &self.device, &progress.phases())?;

        // The host's rates are measured; those of a GPU are its profile's.
        let (rates, measured) = if self.device == Device::Cpu { (bench::host(), true) } else { (profile, false) };
        let options = bench::Options { budget: Duration::from_secs_f64(self.seconds), ..bench::Options::default() };
        let mut told = |share: f64| progress.share("measure", share);
        let comparison = bench::side_by_side((&unfused, &fused), &tensors, (&rates, measured), &options, &mut told);
        let comparison = comparison.map_err(|error| match error {
            BenchError::Run(error) => error.into(),
            error => Failure::data("the plans cannot be compared").because(error),
        })?;
        Ok(Measured { comparison, optimized, cold_start, random, memory })
    }

    /// Weights to run with, and whether they are random.
    fn choose_weights(&self, imported: &mut Imported) -> Result<bool, Failure> {
        let random = match self.weights.as_deref() {
            Some("random") => true,
            Some(path) => {
                model::add_weights(imported, path.as_ref())?;
                model::require_weights(imported)?;
                false
            }
            None => !imported.weights.missing(&imported.graph).is_empty(),
        };
        if random {
            imported.weights = Weights::random(&imported.graph, self.seed).map_err(|cause| {
                Failure::data(format!("weights for `{}` cannot be drawn", imported.graph.name)).because(cause)
            })?;
        }
        Ok(random)
    }
}

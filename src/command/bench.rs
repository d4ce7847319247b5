//! `eglu bench`: fused beside unfused.

mod package;

use super::{device, differentiate::Differentiate, model};
use crate::{deliver, failure::Failure, screen::show};
use clap::Args;
use eglu_codegen::{Plan, lower};
use eglu_ir::{import::Imported, weights::Weights};
use eglu_passes::Pipeline;
use eglu_runtime::{
    Device, Executable,
    bench::{self, BenchError},
    inputs::{self, Routing, Spec},
    package::is_package,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{path::PathBuf, time::Duration};

/// Measures the fused model beside the unfused one, on inputs drawn at random.
///
/// The unfused plan runs each operator of the graph as a kernel of its own, as PyTorch's eager mode does. Times are medians, with the
/// least and the greatest. Weights are the archive's own; where it has none, they are drawn at random.
#[derive(Debug, Args)]
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
    #[arg(long = "input", value_name = "INDEX=SPEC", value_parser = indexed_spec)]
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
    #[command(flatten)]
    differentiate: Differentiate,
}

/// Steps of the progress bar.
const PARTS: u64 = 1000;

/// A bar on stderr; indicatif draws nothing where that is no terminal.
fn progress_bar() -> ProgressBar {
    ProgressBar::new(PARTS).with_style(ProgressStyle::default_bar())
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
        if is_package(&self.model) {
            return self.run_package();
        }
        let mut imported = model::load(&self.model)?;
        let profile = device::profile_of(self.device)?;
        let plan = |pipeline: Pipeline| -> Result<Plan, Failure> {
            let options = self.differentiate.options(&imported, profile.clone());
            Ok(lower(&self.differentiate.before(pipeline).run(imported.graph.clone(), &options)?.graph)?)
        };
        let (unfused, fused) = (plan(Pipeline::unfused())?, plan(Pipeline::standard())?);
        let bindings = inputs::sizes(&unfused, self.tokens, &self.dims)?;
        let specs = self.inputs.iter().copied().collect();
        let tensors = inputs::generate(&unfused, &bindings, &specs, self.routing, self.seed)?;
        let random = self.choose_weights(&mut imported)?;
        let unfused = Executable::load(unfused, &imported.weights, &self.device)?;
        let fused = Executable::load(fused, &imported.weights, &self.device)?;

        // The host's rates are measured; those of a GPU are its profile's.
        let (rates, measured) = if self.device == Device::Cpu { (bench::host(), true) } else { (profile.clone(), false) };
        let bar = progress_bar();
        let mut progress = |share: f64| bar.set_position((share * PARTS as f64) as u64);
        let options = bench::Options { budget: Duration::from_secs_f64(self.seconds), ..bench::Options::default() };
        let comparison = bench::side_by_side((&unfused, &fused), &tensors, (&rates, measured), &options, &mut progress);
        bar.finish_and_clear();
        let comparison = comparison.map_err(|error| match error {
            BenchError::Run(error) => error.into(),
            error => Failure::data("the plans cannot be compared").because(error),
        })?;
        let weights = if random { "random weights" } else { "weights of the model" };
        show(&format!("{}\n{weights}, seed {}\n", comparison.table(self.top).trim_end(), self.seed));
        if let Some(path) = &self.json {
            deliver::file(path, super::json(&comparison).as_bytes())?;
        }
        Ok(())
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

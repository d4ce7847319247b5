//! `eglu bench`: fused beside unfused.

use super::{device, model};
use crate::{
    deliver,
    failure::Failure,
    screen::show,
    workload::{Bound, InputSpec, Routing, bound, draw, sizes},
};
use clap::Args;
use eglu_codegen::lower;
use eglu_ir::{Bindings, Graph, NodeId, Tensor, import::Imported, weights::Weights};
use eglu_passes::{Options, Pipeline};
use eglu_runtime::{
    Device, Executable,
    bench::{self, BenchError},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{path::PathBuf, time::Duration};

/// Measures the fused model beside the unfused one, on inputs drawn at random.
///
/// The unfused plan runs each operator of the graph as a kernel of its own, as PyTorch's eager mode does. Times are medians, with the
/// least and the greatest. Weights are the archive's own; where it has none, they are drawn at random.
#[derive(Debug, Args)]
pub struct Bench {
    /// Model: .pt2 or .json
    model: PathBuf,
    /// Value of a dynamic dim; those not given are 64, or what is nearest in range
    #[arg(long = "dim", value_name = "NAME=VALUE")]
    dims: Vec<String>,
    /// Value of the one dynamic dim
    #[arg(long, value_name = "N")]
    tokens: Option<i64>,
    /// How to draw an input: normal, uniform:LO:HI, randint:LO:HI or topk:E (distinct expert ids in each row)
    #[arg(long = "input", value_name = "INDEX=SPEC", value_parser = indexed_spec)]
    inputs: Vec<(usize, InputSpec)>,
    /// Where to run: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    device: Device,
    /// `random`, or a file of weights by name
    #[arg(long, value_name = "random|FILE")]
    weights: Option<String>,
    /// How the rows of topk inputs choose experts
    #[arg(long, value_enum, default_value_t = Routing::Uniform)]
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

fn indexed_spec(text: &str) -> Result<(usize, InputSpec), String> {
    let (index, spec) = text.split_once('=').ok_or("give INDEX=SPEC, e.g. 0=normal")?;
    let index = index.parse().map_err(|_| format!("`{index}` is no input's position"))?;
    Ok((index, spec.parse::<InputSpec>().map_err(|error| error.to_string())?))
}

impl Bench {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let mut imported = model::load(&self.model)?;
        let bindings =
            sizes(&imported.graph.symbols, &self.dims, self.tokens).map_err(|error| Failure::usage(error.to_string()))?;
        let inputs = self.draw_inputs(&imported.graph, &bindings)?;
        let random = self.choose_weights(&mut imported)?;
        let profile = device::profile_of(self.device)?;
        let load = |pipeline: Pipeline| -> Result<Executable, Failure> {
            let optimized = pipeline.run(imported.graph.clone(), &Options::new(profile.clone()))?;
            Ok(Executable::load(lower(&optimized.graph)?, &imported.weights, &self.device)?)
        };
        let (unfused, fused) = (load(Pipeline::unfused())?, load(Pipeline::standard())?);

        // The host's rates are measured; those of a GPU are its profile's.
        let (rates, measured) = if self.device == Device::Cpu { (bench::host(), true) } else { (profile.clone(), false) };
        let bar = progress_bar();
        let mut progress = |share: f64| bar.set_position((share * PARTS as f64) as u64);
        let options = bench::Options { budget: Duration::from_secs_f64(self.seconds), ..bench::Options::default() };
        let comparison = bench::side_by_side((&unfused, &fused), &inputs, (&rates, measured), &options, &mut progress);
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

    /// One tensor for each input of the graph.
    fn draw_inputs(&self, graph: &Graph, bindings: &Bindings) -> Result<Vec<Tensor>, Failure> {
        let count = graph.inputs().len();
        if let Some((index, _)) = self.inputs.iter().find(|(index, _)| *index >= count) {
            return Err(Failure::usage(format!("`{}` has no input {index}; it has {count}, numbered from 0", graph.name)));
        }
        let draw_one = |(i, &id): (usize, &NodeId)| {
            let ty = graph.ty(id.into());
            let given = self.inputs.iter().rev().find(|(index, _)| *index == i).map(|(_, spec)| *spec);
            let spec = given.unwrap_or_else(|| default_spec(graph, id));
            let fail = |cause: Box<dyn std::error::Error + Send + Sync>| {
                Failure::usage(format!("input {i} (`{}`, {ty}) cannot be drawn", graph.node(id).name)).because(cause)
            };
            let shape = ty.concrete(bindings).map_err(|cause| fail(cause.into()))?;
            draw(ty.dtype, &shape, spec, self.routing, self.seed.wrapping_add(i as u64)).map_err(|cause| fail(cause.into()))
        };
        graph.inputs().iter().enumerate().map(draw_one).collect()
    }
}

/// Floats are normal; integers are what the graph's use of them bounds them to.
fn default_spec(graph: &Graph, id: NodeId) -> InputSpec {
    let ty = graph.ty(id.into());
    if ty.dtype.is_float() || ty.dtype.is_complex() {
        return InputSpec::Normal;
    }
    match bound(graph, id.into()) {
        // Ids of one token are distinct, as a router's are.
        Some(Bound::Experts(experts)) => InputSpec::TopK { experts },
        Some(Bound::Positions(extent)) => InputSpec::RandInt { lo: 0, hi: extent.max(1) },
        None => InputSpec::RandInt { lo: 0, hi: 2 },
    }
}

//! A small model taken from its text to its result on a device, with the time of each phase on the way.

use crate::{command::device, failure::Failure, progress::Progress};
use eglu_codegen::lower;
use eglu_ir::{Bindings, Graph, eval::eval_graph, text::parse, weights::Weights};
use eglu_passes::{Options, Pipeline};
use eglu_runtime::{
    Device, Executable, Phase,
    compare::compare,
    inputs::{Routing, generate},
};
use indexmap::IndexMap;

const SAMPLE: &str = include_str!("sample.txt");

/// Rows of the sample's input.
const ROWS: i64 = 64;

/// A self-test that ran.
pub struct Passed {
    /// ‖result − reference‖ / ‖reference‖.
    pub error: f64,
    pub phases: Vec<Phase>,
}

/// Runs the sample on the device and compares it with the reference evaluator.
pub fn self_test(device: Device, progress: &Progress) -> Result<Passed, Failure> {
    let phases = progress.phases();
    let profile = phases.time("device", || device::profile_of(device))?;
    let graph: Graph = phases
        .time("import", || parse(SAMPLE))
        .map_err(|cause| Failure::data("the built-in model of the self-test cannot be read").because(cause))?;
    let weights = Weights::random(&graph, 0)
        .map_err(|cause| Failure::data("the weights of the self-test cannot be drawn").because(cause))?;
    let optimized = phases.time("passes", || Pipeline::standard().run_with(graph.clone(), &Options::new(profile)))?;
    let plan = phases.time("plan", || lower(&optimized.graph))?;
    let bindings = Bindings::from([("rows".into(), ROWS)]);
    let inputs = generate(&plan, &bindings, &IndexMap::new(), Routing::Uniform, 0)?;
    let executable = Executable::load_in_phases(plan, &weights, &device, &phases)?;
    let results = phases.time("first run", || executable.run(&inputs))?;
    phases.time("second run", || executable.run(&inputs))?;
    let wrong = |cause: String| Failure::data(format!("the self-test on {device} went wrong: {cause}"));
    let reference = eval_graph(&graph, &|name| weights.get(name).ok(), &inputs).map_err(|error| wrong(error.to_string()))?;
    let (Some(result), Some(reference)) = (results.first(), reference.first()) else {
        return Err(wrong("it has no result".into()));
    };
    let difference = compare("output.0", result, reference).map_err(|error| wrong(error.to_string()))?;
    match difference.within {
        true => Ok(Passed { error: difference.relative, phases: phases.list() }),
        false => Err(wrong(format!("its result is off by {:.1e}", difference.relative))),
    }
}

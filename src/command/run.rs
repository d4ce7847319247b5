//! `eglu run`: results of a model, compared with a reference.

use super::{differentiate::Differentiate, kernels::Kernels, model};
use crate::{deliver, failure::Failure, progress::Progress, screen::show};
use clap::Args;
use eglu_codegen::lower;
use eglu_ir::{DType, Tensor, graph::OutputKind, reference::write_tensors};
use eglu_passes::Pipeline;
use eglu_runtime::{
    Device, Executable, Package, Phases,
    compare::{Tolerance, compare_all},
    package::is_package,
};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

/// Runs a model on tensors from a file.
///
/// Inputs are read from the tensors `input.0`, `input.1`, … in the order of the model's signature, and results are written as `output.0`, … With
/// --expect, each result's relative error ‖out − ref‖ / ‖ref‖ is printed; exit code 1 if one is beyond its dtype's tolerance (f64 1e-12, f32 1e-5,
/// f16 2e-3, bf16 2e-2, others exact).
#[derive(Debug, Args)]
pub struct Run {
    /// Model: .pt2 or .json, or a package: .eglu
    model: PathBuf,
    /// Inputs, as `input.0`, `input.1`, … of a .safetensors file
    #[arg(long, value_name = "IO.safetensors")]
    inputs: Option<PathBuf>,
    /// Where to write the results
    #[arg(long, value_name = "OUT.safetensors")]
    outputs: Option<PathBuf>,
    /// Results to compare with, as `output.0`, `output.1`, … of a .safetensors file
    #[arg(long, value_name = "IO.safetensors")]
    expect: Option<PathBuf>,
    /// Where to run: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    device: Device,
    /// Run each operator as a kernel of its own
    #[arg(long)]
    no_fuse: bool,
    /// Weights that the archive lacks, or that replace its own, by name
    #[arg(long, value_name = "FILE.safetensors")]
    weights: Option<PathBuf>,
    /// Show where values lie in memory during the run, and how much that is at the peak
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    differentiate: Differentiate,
    /// Which program of a package; not needed where it has one
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

impl Run {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        self.outputs.as_deref().map_or(Ok(()), deliver::expect_place)?;
        let is_package = is_package(&self.model);
        let _opening = super::device::open_early(self.device);
        let progress = Progress::new();
        let phases = progress.phases();
        let (executable, inputs) = match is_package {
            true => self.load_package(&phases)?,
            false => self.load_model(&phases)?,
        };
        let expected = self.expect.as_deref().map(model::tensors).transpose()?;
        let kinds: Vec<OutputKind> = executable.plan().outputs.iter().map(|output| output.kind.clone()).collect();
        let memory = self.memory.then(|| executable.memory(&inputs)).transpose()?;
        let results = phases.time("run", || executable.run(&inputs))?;
        drop(progress);
        if let Some(memory) = memory {
            show(&memory.to_string())?;
        }
        let results: Vec<Tensor> = results.into_iter().zip(kinds).filter(|(_, kind)| is_users(kind)).map(|(t, _)| t).collect();

        if let Some(path) = &self.outputs {
            let names: Vec<String> = (0..results.len()).map(|i| format!("output.{i}")).collect();
            write_tensors(path, names.iter().map(String::as_str).zip(&results))
                .map_err(|cause| Failure::data(format!("cannot write `{}`", path.display())).because(cause))?;
        }
        match (self.expect, expected) {
            (Some(path), Some(expected)) => judge(&results, &expected, &path),
            _ => {
                for (i, tensor) in results.iter().enumerate() {
                    show(&format!("output.{i}  {}\n", tensor.ty()))?;
                }
                Ok(())
            }
        }
    }

    fn load_model(&self, phases: &Phases) -> Result<(Executable, Vec<Tensor>), Failure> {
        if self.program.is_some() {
            return Err(Failure::usage("--program chooses from a package (.eglu), and a model is one program"));
        }
        let selection = self.kernels.selection(self.device)?;
        let mut imported = phases.time("import", || model::load(&self.model))?;
        if let Some(weights) = &self.weights {
            model::add_weights(&mut imported, weights)?;
        }
        model::require_weights(&imported)?;
        let pipeline = if self.no_fuse { Pipeline::unfused() } else { Pipeline::standard() };
        let profile = super::device::profile_of(self.device)?;
        let options = self.differentiate.options(&imported, profile);
        let pipeline = self.differentiate.before(pipeline);
        let optimized = phases.time("passes", || pipeline.run_with(imported.graph, &options))?;
        let graph = &optimized.graph;
        let wanted: Vec<DType> = graph.inputs().iter().map(|&id| graph.ty(id.into()).dtype).collect();
        let inputs = self.read_inputs(&graph.name, &wanted)?;
        let plan = lower(&optimized.graph)?;
        let executable = Executable::load_selecting(plan, &imported.weights, &self.device, (selection, phases))?;
        Ok((executable, inputs))
    }

    fn load_package(&self, phases: &Phases) -> Result<(Executable, Vec<Tensor>), Failure> {
        if self.no_fuse {
            return Err(Failure::usage("--no-fuse cannot change a package, whose plans are made")
                .help("compile the model again with --no-fuse"));
        }
        self.differentiate.refuse_for_package()?;
        self.kernels.refuse_for_package()?;
        let package = Package::open(&self.model)?;
        let program = package.program(self.program.as_deref())?;
        let weights = model::package_weights(&program, self.weights.as_deref())?;
        let executable = program.load_in_phases(&weights, &self.device, phases)?;
        let wanted: Vec<DType> = executable.plan().inputs.iter().map(|input| input.ty.dtype).collect();
        let inputs = self.read_inputs(program.name(), &wanted)?;
        Ok((executable, inputs))
    }

    fn read_inputs(&self, name: &str, wanted: &[DType]) -> Result<Vec<Tensor>, Failure> {
        match &self.inputs {
            Some(path) => Ok(model::as_declared(model::numbered(path, "input")?, wanted)),
            None if wanted.is_empty() => Ok(Vec::new()),
            None => Err(Failure::usage(format!("`{name}` takes {}, and none is given", super::counted(wanted.len(), "input")))
                .help(
                    "give them with --inputs IO.safetensors, as the tensors `input.0`, `input.1`, …; `eglu bench` draws its own",
                )),
        }
    }
}

/// True for what a caller gets back; mutated state is not.
fn is_users(kind: &OutputKind) -> bool {
    !matches!(kind, OutputKind::Mutation(_))
}

/// Prints each result's error and fails if one does not pass.
fn judge(results: &[Tensor], expected: &IndexMap<String, Tensor>, path: &Path) -> Result<(), Failure> {
    let differences = compare_all(results, expected)
        .map_err(|cause| Failure::data(format!("the results cannot be compared with `{}`", path.display())).because(cause))?;
    for (difference, out) in differences.iter().zip(results) {
        let tolerance = match difference.tolerance {
            Tolerance::Relative(bound) => format!("{bound:.0e}"),
            Tolerance::Exact => "exact".to_owned(),
        };
        let verdict = if difference.within { "PASS" } else { "FAIL" };
        show(&format!(
            "{}  {}  relative error {:.3e}  tolerance {tolerance}  {verdict}\n",
            difference.name,
            out.ty(),
            difference.relative
        ))?;
    }
    match differences.iter().filter(|difference| !difference.within).count() {
        0 => Ok(()),
        failed => Err(Failure::data(format!("{failed} of {} outputs differ from `{}`", results.len(), path.display()))
            .help("`--no-fuse` tells whether fusing is the cause")),
    }
}

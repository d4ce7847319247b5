//! Ahead of time: from models to the programs of a package, which loads and runs with no compiler.
//!
//! ```
//! use eglu::{Device, Package, Pipeline, ahead::{self, Architecture, Model}, import::import, reference::read_tensors, runtime::package::Draft};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("block.eglu");
//! let imported = import("fixtures/llama.block.pt2".as_ref())?;
//! let model = Model::new(imported.graph, imported.weights);
//! // For GPUs, `"sm_90a".parse()?` and the like beside it; these need NVRTC here.
//! let programs = ahead::compile(&[model], &[Architecture::Cpu], &Pipeline::standard())?;
//! Draft { programs, refer_to_weights: false }.write(&path)?;
//!
//! let package = Package::open(&path)?;
//! let program = package.program(None)?;
//! let executable = program.load(&program.weights()?, &Device::Cpu)?;
//! let io = read_tensors("fixtures/llama.block.io.safetensors".as_ref())?;
//! assert_eq!(executable.run(&[io["input.0"].clone()])?.len(), 1);
//! # Ok(())
//! # }
//! ```

use eglu_codegen::{
    LowerError, Plan,
    cuda::{Choices, EmitError, Module, Target, emit_with},
    lower,
};
use eglu_ir::{DeviceProfile, Graph, NodeKind, TensorType, profile, weights::Weights};
use eglu_passes::{Options, PassError, Pipeline};
use eglu_runtime::{
    Phases, RuntimeError,
    cuda::{self, CudaError},
    inputs,
    package::{self, CPU, Program},
};
use indexmap::IndexMap;
use std::{str::FromStr, sync::Arc};

/// What a plan of a package is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// The host.
    Cpu,
    /// GPUs that run code for this target.
    Cuda(Target),
}

/// A text that names no architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no code is made for the architecture `{0}`: give one of cpu, {names}", names = Target::names().collect::<Vec<_>>().join(", "))]
pub struct ArchitectureError(String);

impl FromStr for Architecture {
    type Err = ArchitectureError;

    fn from_str(text: &str) -> Result<Architecture, ArchitectureError> {
        match text {
            CPU => Ok(Architecture::Cpu),
            _ => Target::named(text).map(Architecture::Cuda).ok_or_else(|| ArchitectureError(text.into())),
        }
    }
}

/// Why a model cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AheadError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error(transparent)]
    Emit(#[from] EmitError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Choices(#[from] RuntimeError),
}

/// Which kernels a plan is to have for a target.
pub type Choose<'a> = dyn Fn(&Plan, Target) -> Result<Choices, RuntimeError> + 'a;

/// A model to compile.
pub struct Model<'a> {
    /// What it computes.
    pub graph: Graph,
    /// Its weights, as far as they have contents.
    pub weights: Weights,
    /// What the pipeline is to do for a device of this profile.
    pub options: Box<dyn Fn(DeviceProfile) -> Options + 'a>,
    /// Which kernels its plan is to have for this target.
    pub choices: Box<Choose<'a>>,
}

impl Model<'_> {
    /// A model to compile with the pipeline's default options and the usual kernels.
    pub fn new(graph: Graph, weights: Weights) -> Model<'static> {
        Model { graph, weights, options: Box::new(Options::new), choices: Box::new(|_, _| Ok(Choices::default())) }
    }
}

/// Optimises models for each architecture by `pipeline`, and compiles their kernels, all of one architecture at once. No GPU is needed; for
/// GPUs, NVRTC is.
pub fn compile(models: &[Model<'_>], architectures: &[Architecture], pipeline: &Pipeline) -> Result<Vec<Program>, AheadError> {
    compile_in_phases(models, architectures, pipeline, &Phases::default())
}

/// [`compile`], with its phases timed and told of.
pub fn compile_in_phases(
    models: &[Model<'_>],
    architectures: &[Architecture],
    pipeline: &Pipeline,
    phases: &Phases,
) -> Result<Vec<Program>, AheadError> {
    let mut programs = models.iter().map(program).collect::<Result<Vec<_>, _>>()?;
    for architecture in architectures {
        let plan = |model: &Model<'_>, profile: &DeviceProfile| -> Result<Plan, AheadError> {
            let options = (model.options)(profile.clone());
            let optimized = phases.time("passes", || pipeline.run_with(model.graph.clone(), &options))?;
            Ok(lower(&optimized.graph)?)
        };
        match architecture {
            Architecture::Cpu => {
                for (model, program) in models.iter().zip(&mut programs) {
                    program.targets.push(package::Target::Cpu(plan(model, &profile::CPU)?));
                }
            }
            Architecture::Cuda(target) => {
                let plan = |model: &Model<'_>| {
                    let plan = plan(model, target.profile())?;
                    Ok(emit_with(&plan, *target, &(model.choices)(&plan, *target)?)?)
                };
                let plans = models.iter().map(plan).collect::<Result<Vec<_>, AheadError>>()?;
                let modules: Vec<Module> = plans.iter().flat_map(|plan| plan.modules.iter().cloned()).collect();
                let mut cubins = cuda::compile_in_phases(&modules, target.name(), phases)?.into_iter();
                let (arch, compiler) = (target.name(), cuda::compiler()?);
                for (plan, program) in plans.into_iter().zip(&mut programs) {
                    let cubins = cubins.by_ref().take(plan.modules.len()).collect();
                    let (arch, compiler) = (arch.into(), compiler.clone());
                    program.targets.push(package::Target::Cuda { arch, compiler, plan, cubins });
                }
            }
        }
    }
    Ok(programs)
}

/// A model without plans.
fn program(Model { graph, weights, .. }: &Model<'_>) -> Result<Program, AheadError> {
    let ty = |path: &Arc<str>| {
        let is = |id: &_| matches!(&graph.node(*id).kind, NodeKind::Weight(other) if other == path);
        graph.node_ids().find(is).map(|id| (path.clone(), graph.node(id).outputs[0].clone()))
    };
    let absent: IndexMap<Arc<str>, TensorType> = weights.missing(graph).iter().filter_map(ty).collect();
    let bounds = inputs::bounds(&lower(graph)?);
    Ok(Program { name: graph.name.clone(), targets: vec![], weights: weights.clone(), absent, bounds })
}

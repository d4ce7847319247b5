//! Ahead of time: from a model to the program of a package.

use eglu_codegen::{
    LowerError,
    cuda::{EmitError, Target, emit},
    lower,
};
use eglu_ir::{DeviceProfile, Graph, NodeKind, TensorType, profile, weights::Weights};
use eglu_passes::{Options, PassError, Pipeline};
use eglu_runtime::{
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
}

/// Optimises a model for each architecture by `pipeline`, and compiles its kernels. No GPU is needed; for GPUs, NVRTC is.
pub fn compile(
    graph: &Graph,
    weights: &Weights,
    architectures: &[Architecture],
    pipeline: &Pipeline,
) -> Result<Program, AheadError> {
    let plan = |profile: &DeviceProfile| -> Result<_, AheadError> {
        Ok(lower(&pipeline.run(graph.clone(), &Options::new(profile.clone()))?.graph)?)
    };
    let mut targets = vec![];
    for architecture in architectures {
        targets.push(match architecture {
            Architecture::Cpu => package::Target::Cpu(plan(&profile::CPU)?),
            Architecture::Cuda(target) => {
                let plan = emit(&plan(target.profile())?, *target)?;
                let cubins = cuda::compile(&plan.modules, target.name())?;
                package::Target::Cuda { arch: target.name().into(), compiler: cuda::compiler()?, plan, cubins }
            }
        });
    }
    let ty = |path: &Arc<str>| {
        let is = |id: &_| matches!(&graph.node(*id).kind, NodeKind::Weight(other) if other == path);
        graph.node_ids().find(is).map(|id| (path.clone(), graph.node(id).outputs[0].clone()))
    };
    let absent: IndexMap<Arc<str>, TensorType> = weights.missing(graph).iter().filter_map(ty).collect();
    let bounds = inputs::bounds(&lower(graph)?);
    Ok(Program { name: graph.name.clone(), targets, weights: weights.clone(), absent, bounds })
}

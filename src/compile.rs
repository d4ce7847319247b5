//! From a graph to a plan, in one call.

use eglu_codegen::{LowerError, Plan, lower};
use eglu_ir::{DeviceProfile, Graph};
use eglu_passes::{Options, PassError, Pipeline};

/// Why a graph has no plan.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompileError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// Optimises a graph for a device with the standard pipeline, and lowers it to a plan that [`Executable::load`](crate::Executable::load)
/// makes ready. The device need not be there.
pub fn compile(graph: Graph, profile: &DeviceProfile) -> Result<Plan, CompileError> {
    Ok(lower(&Pipeline::standard().run_with(graph, &Options::new(profile.clone()))?.graph)?)
}

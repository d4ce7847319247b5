//! What can go wrong while a plan is loaded or run.

use crate::{cuda::CudaError, package::PackageError};
use eglu_codegen::cuda::EmitError;
use eglu_ir::{DType, bind::BindError, dim::DimError, tensor::TensorError, weights::WeightError};
use std::sync::Arc;

/// Whose fault an error is; decides the exit code of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The model or its data (exit code 1).
    Data,
    /// The request (exit code 2).
    Usage,
    /// The environment: a driver, a device, a compiler or memory is missing (exit code 3).
    Environment,
}

/// Why a plan cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RuntimeError {
    #[error("the weight `{name}` is {found}, the graph declares {want}")]
    WeightType { name: Arc<str>, want: String, found: String },
    #[error(transparent)]
    Weight(Box<WeightError>),
    #[error(transparent)]
    Inputs(Box<BindError>),
    #[error("the sizes of this run: {0}")]
    Dim(#[from] DimError),
    #[error("{what} cannot be allocated: {source}")]
    Tensor { what: String, source: TensorError },
    #[error("{bytes} bytes for {what} cannot be allocated on {device}: free memory, or run with smaller sizes")]
    OutOfMemory { what: String, bytes: u64, device: String },
    #[error("step `{step}` ({op}): {why}")]
    Step { step: Arc<str>, op: &'static str, why: String },
    #[error("step `{step}` ({op}) does not take {dtype} on {device}: cast its inputs, or run on another device")]
    Unsupported { step: Arc<str>, op: &'static str, dtype: DType, device: String },
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Package(Box<PackageError>),
    #[error("no CUDA kernel for this plan: {0}")]
    Emit(#[from] EmitError),
}

impl From<WeightError> for RuntimeError {
    fn from(error: WeightError) -> RuntimeError {
        RuntimeError::Weight(Box::new(error))
    }
}

impl From<PackageError> for RuntimeError {
    fn from(error: PackageError) -> RuntimeError {
        RuntimeError::Package(Box::new(error))
    }
}

impl From<BindError> for RuntimeError {
    fn from(error: BindError) -> RuntimeError {
        RuntimeError::Inputs(Box::new(error))
    }
}

impl RuntimeError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            RuntimeError::Usage(_) => Fault::Usage,
            RuntimeError::Cuda(error) if error.is_environment() => Fault::Environment,
            RuntimeError::OutOfMemory { .. } => Fault::Environment,
            _ => Fault::Data,
        }
    }
}

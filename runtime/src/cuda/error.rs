//! What can go wrong between a plan and a GPU.

use super::compile::CompileError;
use eglu_ir::dim::DimError;
use std::sync::Arc;

/// Why the CUDA backend cannot do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CudaError {
    /// The environment has no usable driver.
    #[error("no CUDA driver: {why}; {how}")]
    NoDriver { why: String, how: String },
    /// The driver works, but there is no such device.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}; choose one with `--device cuda:N`, or `--device cpu`")]
    NoDevice { ordinal: usize, count: usize },
    /// The environment has no NVRTC.
    #[error("no CUDA run-time compiler (NVRTC): {why}; {how}")]
    NoCompiler { why: String, how: String },
    /// The device is older than any kernel that can be made for it.
    #[error("device {ordinal} ({name}) has compute capability {}.{}, and kernels need 8.0 or newer", capability.0, capability.1)]
    OldDevice { ordinal: usize, name: String, capability: (u32, u32) },
    /// A translation unit was refused.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The compiler itself failed.
    #[error("NVRTC cannot compile `{module}` for {arch}: {why}; `eglu doctor` shows which NVRTC is used")]
    Compiler { module: String, arch: String, why: String },
    /// A driver call failed.
    #[error("{doing}: the CUDA driver says {code} ({message})")]
    Driver { doing: String, code: String, message: String },
    /// The driver cannot take the kernels' machine code.
    #[error(
        "loading the kernels of `{module}`: the CUDA driver says {code} ({message}). It supports CUDA {}.{}: where a newer NVRTC made the kernels, \
         update the driver, or use an NVRTC of its version",
        driver.0, driver.1
    )]
    OldDriver { module: String, code: String, message: String, driver: (u32, u32) },
    /// An allocation was refused.
    #[error(
        "{what} needs {wanted} bytes of device memory, and {free} of {total} are free on device {ordinal}: choose smaller dims, or free memory"
    )]
    OutOfMemory { what: String, wanted: u64, free: u64, total: u64, ordinal: usize },
    /// A kernel broke the context.
    #[error(
        "a kernel of `{plan}` failed: {code} ({message}); {known}. This process can use the device no more: load the model in a new one"
    )]
    Fault { plan: String, known: String, code: String, message: String },
    /// The executable lived in a context that a fault ended.
    #[error(
        "a kernel failed earlier, and the driver lets this process use device {ordinal} no more: load the model in a new process, or on another device"
    )]
    Lost { ordinal: usize },
    /// What a caller lends does not fit.
    #[error("{what} {why}")]
    Lent { what: String, why: String },
    /// A launch beyond what the hardware takes.
    #[error("kernel `{entry}` of step `{step}` would be launched on a grid of {grid:?} blocks; {why}")]
    Launch { entry: String, step: Arc<str>, grid: [i64; 3], why: String },
    /// A dim has no value, or one that no memory can hold.
    #[error("`{what}`: {error}")]
    Dim { what: String, error: DimError },
    /// A buffer's size does not fit 64 bits.
    #[error("`{name}` of `{plan}` is too large for any memory")]
    TooLarge { plan: String, name: String },
    /// The plan's launches and its modules do not fit each other.
    #[error("the plan `{plan}` is inconsistent: {why}")]
    Inconsistent { plan: String, why: String },
}

impl CudaError {
    /// True where the machine, not the model, is at fault: a missing driver, device or compiler.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            Self::NoDriver { .. }
                | Self::OutOfMemory { .. }
                | Self::Driver { .. }
                | Self::OldDriver { .. }
                | Self::NoDevice { .. }
                | Self::NoCompiler { .. }
                | Self::OldDevice { .. }
        )
    }
}

//! CUDA: finding driver and compiler, compiling kernels, and running plans.
//!
//! Nothing here panics on a machine without a GPU: [`probe`] says what is missing, and every entry point returns the same as an error.

mod cache;
mod compile;
mod device;
mod driver;
mod error;
mod nvrtc;
mod probe;
mod python;

pub use cache::CacheReport;
pub use compile::{CompileError, Cubin, KernelUse, compile};
pub use device::DeviceFacts;
pub use error::CudaError;
pub use probe::{DriverReport, Finding, NvrtcReport, Probe, probe};

//! CUDA: finding driver and compiler, compiling kernels, and running plans.
//!
//! Nothing here panics on a machine without a GPU: [`probe`] says what is missing, and every entry point returns the same as an error.

mod bound;
mod cache;
mod compile;
mod context;
mod device;
mod driver;
mod error;
mod executable;
#[cfg(test)]
mod fake;
mod functions;
mod gather;
mod nvrtc;
mod probe;
mod python;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod timed;

pub use cache::CacheReport;
pub use compile::{CompileError, Cubin, KernelUse, compile};
pub use device::DeviceFacts;
pub use error::CudaError;
pub use executable::CudaExecutable;
pub use probe::{DriverReport, Finding, NvrtcReport, Probe, probe};

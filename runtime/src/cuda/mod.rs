//! CUDA: finding driver and compiler, compiling kernels, and running plans.
//!
//! Nothing here panics on a machine without a GPU: [`probe`] says what is missing, and every entry point returns the same as an error.
//!
//! | variable | effect |
//! |---|---|
//! | `EGLU_NVRTC` | the NVRTC library, or its folder; no other is looked for |
//! | `EGLU_CACHE_DIR` | where compiled kernels are kept (default `eglu` in `XDG_CACHE_HOME` or `~/.cache`); empty: nowhere |
//! | `EGLU_CACHE_MB` | how large that folder may grow, in megabytes (default 1024) |
//! | `EGLU_KERNELS` | packages (separated as in `PATH`) whose kernels need not be compiled |
//! | `EGLU_POISON=1` | intermediate memory is filled with NaN before each run, so that reading what was never written shows |
//! | `EGLU_REPLAY=0` | kernels are launched one by one, never as one CUDA graph |
//! | `EGLU_SYNC=1` | each kernel is waited for, so that a fault names its step |

mod allocator;
mod bound;
mod cache;
mod compile;
mod context;
#[cfg(test)]
mod counting;
mod device;
mod driver;
mod early;
mod error;
mod executable;
#[cfg(test)]
mod fake;
mod fault;
mod functions;
mod gather;
mod lanes;
mod maps;
mod nvrtc;
mod place;
mod probe;
mod python;
mod remembered;
mod replay;
mod session;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod timed;
mod transfer;
mod tuning;
mod weights;

pub use allocator::Allocator;
pub use cache::CacheReport;
pub use compile::{CompileError, Cubin, KernelUse, compile, compile_in_phases, compiler, source_digest};
pub use device::DeviceFacts;
pub use driver::DriverCalls;
pub use early::{Opening, open_early};
pub use error::CudaError;
pub use executable::CudaExecutable;
pub use probe::{DriverReport, Finding, NvrtcReport, Probe, probe};
pub use tuning::{Selection, choices};

//! Runs plans: the CPU backend, the CUDA backend, memory plans, measurement and comparison.
//!
//! [`Executable::load`] makes a plan ready on a [`Device`]; [`Executable::run`] takes dense host tensors and gives dense host tensors,
//! [`Executable::run_on`] takes and writes tensors in device memory where the caller has them.
//! Nothing here is global but the facts of the host and of its devices: pools, streams and allocators belong to an executable.

pub mod bench;
pub mod compare;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
mod executable;
pub mod inputs;
mod lent;
pub mod memory;
pub mod package;
mod phases;

pub use device::{Device, DeviceParseError};
pub use error::{Fault, RuntimeError};
pub use executable::{Backend, Executable, KernelTime, OnDevice, RunTime, StepTime, Timed, WeightSource};
pub use lent::{DeviceTensor, OutputPlace, OutputView, Results, Stream};
pub use package::Package;
pub use phases::{Phase, Phases, Progress, Start};

//! CUDA: source for each kernel family, and the launches that run a plan.

mod convolution;
mod ctype;
mod elementwise;
mod emitter;
mod error;
mod gemm;
mod indexing;
mod kernel;
mod launch;
mod lines;
mod loops;
mod norm;
mod order;
mod pointwise;
mod program;
mod reduce;
mod route;
mod scan;
mod scatter;
mod target;

pub use emitter::{Target, emit};
pub use error::EmitError;
pub use launch::{COUNTERS, CudaPlan, KernelArg, Launch, Memory, Module, Scratch, TensorMap};

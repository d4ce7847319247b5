//! CUDA: source for each kernel family, and the launches that run a plan.

mod choices;
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

pub use choices::{BlockShape, BlockWay, Choices, Chosen, Schedule, TOKENS, block_ways, blocks};
pub use emitter::{Target, emit, emit_with};
pub use error::EmitError;
pub use launch::{COUNTERS, CudaPlan, KernelArg, Launch, Memory, Module, Scratch, TensorMap};

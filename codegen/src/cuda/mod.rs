//! CUDA: source for each kernel family, and the launches that run a plan.

mod launch;

pub use launch::{CudaPlan, KernelArg, Launch, Memory, Module, Scratch};

//! The embedded default backend: steps run over strided views of host memory, blocked, on the threads of the current rayon pool.

mod arena;
mod block;
mod call;
mod chain;
mod compile;
mod contract;
mod convert;
mod convolution;
mod copy;
mod dots;
mod epilogue;
mod expert_contract;
mod experts;
mod fold;
mod gather;
mod kernel;
mod matrix;
mod moe;
mod outer;
mod plan;
mod pointwise;
mod reduce;
mod rows;
mod scratch;
mod shared;
mod vector;
mod view;

pub use plan::CpuExecutable;

/// Runs `f` compiled for the widest vectors this host has.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// `out = a · b` for n × n matrices, on this thread: for calibration.
pub(crate) fn square_product(a: &[f32], b: &[f32], out: &mut [f32], n: usize) {
    matrix::multiply(matrix::Panel::dense(a, n, n), matrix::Panel::dense(b, n, n), out, n, n);
}

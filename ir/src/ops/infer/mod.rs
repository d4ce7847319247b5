//! Type inference, by families of ops.

mod chain;
mod convolution;
mod epilogue;
mod experts;
mod fused;
mod indexing;
mod matmul;
mod pointwise;
mod reduce;
mod route;
mod views;

pub(super) use pointwise::pointwise;
pub use pointwise::{compute_dtype, promote};

use super::InferError;
use crate::{Dim, Shape, TensorType};

/// The shape that both broadcast to.
pub fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Shape, InferError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[Dim], i: usize| (i + shape.len()).checked_sub(rank).map_or(Dim::from(1), |j| shape[j].clone());
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y.is(1) => Ok(x),
            (x, y) if x.is(1) => Ok(y),
            (x, y) => Err(InferError(format!("shapes {a:?} and {b:?} do not broadcast: dim {i} is {x} and {y}"))),
        })
        .collect()
}

fn check_axis(axis: usize, ty: &TensorType) -> Result<(), InferError> {
    if axis < ty.rank() {
        return Ok(());
    }
    Err(InferError(format!("dim {axis} is out of range for {ty}")))
}

fn same(what: &str, a: &Dim, b: &Dim) -> Result<(), InferError> {
    if a == b {
        return Ok(());
    }
    Err(InferError(format!("{what} must agree: {a} against {b}")))
}

fn rank(what: &str, ty: &TensorType, rank: usize) -> Result<(), InferError> {
    if ty.rank() == rank {
        return Ok(());
    }
    Err(InferError(format!("{what} must have {rank} dims, not {ty}")))
}

fn integer(what: &str, ty: &TensorType) -> Result<(), InferError> {
    if ty.dtype.is_int() {
        return Ok(());
    }
    Err(InferError(format!("{what} must be integers, not {ty}")))
}

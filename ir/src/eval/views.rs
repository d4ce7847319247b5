//! Views, as copies, and generators.

use super::{
    Call, EvalError,
    element::encode,
    strides::{Offsets, broadcast_strides, dense_strides, pick},
    values::Values,
};
use crate::{
    Tensor,
    ops::{Full, Iota, Permute, Slice},
};

pub(super) fn permute(op: &Permute, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    let strides = dense_strides(x.shape());
    let permuted = op.dims.iter().map(|&i| strides[i]).collect();
    pick(x, call.shape(), Offsets::new(call.shape(), permuted, 0))
}

pub(super) fn expand(call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    pick(x, call.shape(), Offsets::new(call.shape(), broadcast_strides(x.shape(), call.shape()), 0))
}

pub(super) fn slice(op: &Slice, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    let mut strides = dense_strides(x.shape());
    // Inference has checked that the bounds lie within the extent.
    let start = op.start.as_const().unwrap_or(0) as usize * strides[op.dim];
    strides[op.dim] *= op.step as usize;
    pick(x, call.shape(), Offsets::new(call.shape(), strides, start))
}

pub(super) fn iota(op: &Iota, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let len = call.shape()[0] as i64;
    let values: Vec<i64> = (0..len).map(|i| op.start.wrapping_add(op.step.wrapping_mul(i))).collect();
    encode(op.dtype, call.shape(), &values)
}

pub(super) fn full(op: &Full, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let mut out = Tensor::zeros(op.dtype, call.shape())?;
    let element = Values::splat(op.value, op.dtype, 1).store(op.dtype, op.dtype, &[1])?;
    if element.bytes().iter().any(|&byte| byte != 0) {
        out.bytes_mut().chunks_exact_mut(op.dtype.size()).for_each(|slot| slot.copy_from_slice(element.bytes()));
    }
    Ok(out)
}

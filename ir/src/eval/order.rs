//! Sorting, top-k and histograms.

use super::{
    Call, EvalError,
    element::{decode, encode},
    strides::{Offsets, dense_strides, pick},
    values::with_work,
};
use crate::{
    Tensor,
    ops::{Histc, Sort, TopK},
};
use std::cmp::Ordering;

/// A total order in which NaN is the largest, as in `torch.sort`.
pub(super) trait Rank: Copy {
    fn rank(self, other: Self) -> Ordering;
}

macro_rules! real_rank {
    ($($ty:ty)+) => {
        $(impl Rank for $ty {
            fn rank(self, other: Self) -> Ordering {
                self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
            }
        })+
    };
}

real_rank!(f32 f64);

impl Rank for i64 {
    fn rank(self, other: i64) -> Ordering {
        self.cmp(&other)
    }
}

impl Rank for num_complex::Complex64 {
    fn rank(self, _: Self) -> Ordering {
        Ordering::Equal
    }
}

/// Positions along a line in ascending or descending order; equal elements keep theirs.
pub(super) fn ranked<T: Rank>(line: &[T], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..line.len()).collect();
    match descending {
        true => order.sort_by(|&a, &b| line[b].rank(line[a])),
        false => order.sort_by(|&a, &b| line[a].rank(line[b])),
    }
    order
}

/// The first `k` elements of each line in order, and their positions.
fn leading(x: &Tensor, dim: usize, k: usize, descending: bool, shape: &[usize]) -> Result<Vec<Tensor>, EvalError> {
    if x.dtype().is_complex() {
        return Err(EvalError::Unsupported { op: "sort", dtype: x.dtype() });
    }
    let (stride, len) = (dense_strides(x.shape())[dim], x.shape()[dim]);
    let out_stride = dense_strides(shape)[dim];
    let mut from = vec![0; shape.iter().product()];
    let mut positions = vec![0i64; from.len()];
    with_work!(x.dtype(), W => {
        let values = decode::<W>(x);
        let mut line = Vec::with_capacity(len);
        let bases = Offsets::along(x.shape(), |i| i != dim).zip(Offsets::along(shape, |i| i != dim));
        for (base, out_base) in bases {
            line.clear();
            line.extend((0..len).map(|i| values[base + i * stride]));
            for (i, at) in ranked(&line, descending).into_iter().take(k).enumerate() {
                from[out_base + i * out_stride] = base + at * stride;
                positions[out_base + i * out_stride] = at as i64;
            }
        }
    });
    Ok(vec![pick(x, shape, from.into_iter())?, encode(crate::DType::I64, shape, &positions)?])
}

pub(super) fn sort(op: &Sort, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let x = call.tensor(0)?;
    leading(x, op.dim, x.shape()[op.dim], op.descending, call.shape())
}

pub(super) fn topk(op: &TopK, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    leading(call.tensor(0)?, op.dim, op.k, op.largest, call.shape())
}

/// As `torch.histc`: values outside the range (and NaN) count nowhere; an empty range means that of the data.
pub(super) fn histc(op: &Histc, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    let mut counts = vec![0i64; op.bins];
    let fail = |why: &str| EvalError::Data(format!("histc: {why}"));
    if op.bins == 0 {
        return Err(fail("needs at least one bin"));
    }
    if x.dtype().is_complex() {
        return Err(EvalError::Unsupported { op: "histc", dtype: x.dtype() });
    }
    let values = decode::<f64>(x);
    let (mut low, mut high) = (op.min.as_f64(), op.max.as_f64());
    if low == high && !values.is_empty() {
        low = values.iter().copied().fold(f64::INFINITY, f64::min);
        high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    }
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    if !(low < high && low.is_finite() && high.is_finite()) {
        return Err(fail(&format!("the range [{low}, {high}] must be finite and ascend")));
    }
    for &value in values.iter().filter(|&&value| value >= low && value <= high) {
        let bin = ((value - low) * op.bins as f64 / (high - low)) as usize;
        counts[bin.min(op.bins - 1)] += 1;
    }
    encode(x.dtype(), call.shape(), &counts)
}

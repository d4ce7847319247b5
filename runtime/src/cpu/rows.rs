//! Norms of rows: one read, one write.

use super::{
    call::{Call, Outcome, Source, Taken},
    contract::read_all,
    convert::Class,
    matrix::{Number, with_number},
    simd,
    view::View,
};
use eglu_ir::{DType, moments};
use rayon::prelude::*;

/// Elements one task handles.
const TASK: usize = 1 << 14;

/// Runs `f` on each row of a view, widened; the row it leaves is stored.
fn each_row<T: Number>(call: &mut Call<'_>, x: &View<'_>, f: impl Fn(&mut [T]) + Sync) -> Outcome {
    let Some(&len) = x.shape.last() else { return Ok(Taken::Refused) };
    let out = &mut call.outputs[0];
    let (dtype, row_bytes) = (out.dtype, len * out.dtype.size());
    if row_bytes == 0 {
        return Ok(Taken::Done);
    }
    let source = Source::new(x);
    let rows = (TASK / len).max(1);
    out.bytes.par_chunks_mut(rows * row_bytes).enumerate().for_each(|(task, bytes)| {
        let mut all = vec![T::default(); bytes.len() / dtype.size()];
        source.read(task * rows * len, &mut all);
        all.chunks_exact_mut(len).for_each(&f);
        T::store(dtype, &all, bytes);
    });
    Ok(Taken::Done)
}

fn covers(x: &View<'_>, out: DType) -> bool {
    Class::of(x.dtype).is_some_and(|class| class != Class::Int && Class::of(out) == Some(class))
}

/// Softmax along the last dim, or its logarithm.
pub fn softmax(call: &mut Call<'_>, dim: usize, log: bool) -> Outcome {
    let x = call.view(0)?.clone();
    let to = call.outputs[0].dtype;
    // The input is rounded to a narrower result's dtype first, as with PyTorch's `dtype=`: left to the reference evaluator.
    let narrows = x.dtype != to && to.size() < 4;
    if !covers(&x, to) || narrows || dim + 1 != x.shape.len() {
        return Ok(Taken::Refused);
    }
    with_number!(x.dtype, T => each_row::<T>(call, &x, |row| softmax_row(row, log)))
}

fn softmax_row<T: Number>(row: &mut [T], log: bool) {
    simd(|| {
        let largest = row.iter().fold(T::neg_infinity(), |a, &b| if b.is_nan() || b > a { b } else { a });
        // A row of -∞ alone is NaN, as in PyTorch.
        if log {
            let sum = sum(row.iter().map(|&x| (x - largest).fast_exp()));
            let shift = largest + sum.ln();
            row.iter_mut().for_each(|x| *x = *x - shift);
        } else {
            row.iter_mut().for_each(|x| *x = (*x - largest).fast_exp());
            let scale = T::one() / sum(row.iter().copied());
            row.iter_mut().for_each(|x| *x = *x * scale);
        }
    });
}

/// Sums in 16 lanes, so that the loop vectorises and errors stay small.
#[inline(always)]
fn sum<T: Number>(values: impl Iterator<Item = T>) -> T {
    let mut lanes = [T::zero(); 16];
    for (i, x) in values.enumerate() {
        lanes[i % 16] = lanes[i % 16] + x;
    }
    lanes.iter().fold(T::zero(), |a, &b| a + b)
}

/// `x / sqrt(mean(x²) + eps) · weight` along the last dim.
pub fn rms_norm(call: &mut Call<'_>, eps: f64) -> Outcome {
    let x = call.view(0)?.clone();
    let weight = call.optional(1).cloned();
    if !covers(&x, call.outputs[0].dtype) || weight.as_ref().is_some_and(|w| Class::of(w.dtype) != Class::of(x.dtype)) {
        return Ok(Taken::Refused);
    }
    with_number!(x.dtype, T => {
        let weight = weight.as_ref().map(read_all::<T>);
        each_row::<T>(call, &x, |row| rms_row(row, weight.as_deref(), eps))
    })
}

fn rms_row<T: Number>(row: &mut [T], weight: Option<&[T]>, eps: f64) {
    simd(|| {
        let mean = sum(row.iter().map(|&x| x * x)) / T::lit(row.len() as f64);
        let scale = T::one() / (mean + T::lit(eps)).sqrt();
        match weight {
            None => row.iter_mut().for_each(|x| *x = *x * scale),
            Some(weight) => row.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x * scale * w),
        }
    });
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias` along the last dim, and each row's mean and reciprocal root.
pub fn layer_norm(call: &mut Call<'_>, eps: f64) -> Outcome {
    let x = call.view(0)?.clone();
    let parameters = [1, 2].map(|i| call.optional(i).cloned());
    let alike = |view: &View<'_>| Class::of(view.dtype) == Class::of(x.dtype);
    if !covers(&x, call.outputs[0].dtype) || !parameters.iter().flatten().all(alike) || x.numel() == 0 {
        return Ok(Taken::Refused);
    }
    with_number!(x.dtype, T => {
        let parameters = parameters.map(|parameter| parameter.as_ref().map(read_all::<T>));
        layer_norms::<T>(call, &x, parameters.each_ref().map(|parameter| parameter.as_deref()), eps)
    })
}

fn layer_norms<T: Number>(call: &mut Call<'_>, x: &View<'_>, [weight, bias]: [Option<&[T]>; 2], eps: f64) -> Outcome {
    let (Some(&len), [y, means, scales]) = (x.shape.last(), &mut call.outputs[..]) else { return Ok(Taken::Refused) };
    let source = Source::new(x);
    let rows = (TASK / len).max(1);
    let (means, scales): (&mut [T], &mut [T]) = (bytemuck::cast_slice_mut(means.bytes), bytemuck::cast_slice_mut(scales.bytes));
    let statistics = means.par_chunks_mut(rows).zip(scales.par_chunks_mut(rows));
    let dtype = y.dtype;
    y.bytes.par_chunks_mut(rows * len * dtype.size()).zip(statistics).enumerate().for_each(|(task, (bytes, (means, scales)))| {
        let mut all = vec![T::default(); bytes.len() / dtype.size()];
        source.read(task * rows * len, &mut all);
        for ((row, mean), scale) in all.chunks_exact_mut(len).zip(means).zip(scales) {
            (*mean, *scale) = layer_row(row, weight, bias, eps);
        }
        T::store(dtype, &all, bytes);
    });
    Ok(Taken::Done)
}

/// Normalises a row in place; its mean and reciprocal root.
fn layer_row<T: Number>(row: &mut [T], weight: Option<&[T]>, bias: Option<&[T]>, eps: f64) -> (T, T) {
    simd(|| {
        let (mean, scale) = moments::standardization(row, eps);
        row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
        if let Some(weight) = weight {
            row.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x * w);
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(x, &b)| *x = *x + b);
        }
        (mean, scale)
    })
}

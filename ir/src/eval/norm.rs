//! Softmax, RMSNorm and LayerNorm, in opmath.

use super::{
    Call, EvalError,
    element::{Work, decode, encode},
    strides::Offsets,
    values::cast,
};
use crate::{
    DType, Tensor, moments,
    ops::{LayerNorm, RmsNorm, Softmax, pointwise::Real},
};

/// Softmax (or its logarithm) of one line, shifted by its maximum.
pub(super) fn softmax_line<T: Real>(line: &mut [T], log: bool) {
    let wide = |x: T| x.to_f64().unwrap_or(f64::NAN);
    // f64 sums keep a line of any length exact to f32.
    let max = line.iter().copied().fold(T::neg_infinity(), |m, x| if x.is_nan() || x > m { x } else { m });
    let sum: f64 = line.iter().map(|&x| wide((x - max).exp())).sum();
    for x in line {
        *x = match log {
            true => *x - max - T::lit(sum.ln()),
            false => T::lit(wide((*x - max).exp()) / sum),
        };
    }
}

pub(super) fn softmax(op: &Softmax, call: &Call<'_>) -> Result<Tensor, EvalError> {
    // As PyTorch with `dtype=`: the input is converted first.
    let x = cast(call.tensor(0)?, op.dtype)?;
    fn lines<T: Real>(values: &mut [T], shape: &[usize], op: &Softmax) {
        let members: Vec<usize> = Offsets::along(shape, |i| i == op.dim).collect();
        let mut line = vec![T::zero(); members.len()];
        for base in Offsets::along(shape, |i| i != op.dim) {
            line.iter_mut().zip(&members).for_each(|(slot, at)| *slot = values[base + at]);
            softmax_line(&mut line, op.log);
            line.iter().zip(&members).for_each(|(&x, at)| values[base + at] = x);
        }
    }
    match op.dtype {
        DType::F64 => {
            let mut values = decode::<f64>(&x).into_owned();
            lines(&mut values, x.shape(), op);
            encode(op.dtype, call.shape(), &values)
        }
        _ => {
            let mut values = decode::<f32>(&x).into_owned();
            lines(&mut values, x.shape(), op);
            encode(op.dtype, call.shape(), &values)
        }
    }
}

pub(super) fn rms_norm(op: &RmsNorm, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, weight) = (call.tensor(0)?, call.optional(1));
    let values = decode::<f64>(x);
    let width = x.shape().last().copied().unwrap_or(1);
    let weight = weight.map(|weight| decode::<f64>(weight));
    let mut out = Vec::with_capacity(values.len());
    for row in values.chunks_exact(width.max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / width as f64;
        let scale = 1.0 / (mean + op.eps.as_f64()).sqrt();
        out.extend(row.iter().enumerate().map(|(i, x)| x * scale * weight.as_ref().map_or(1.0, |w| w[i])));
    }
    encode(op.dtype, call.shape(), &out)
}

pub(super) fn layer_norm(op: &LayerNorm, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    fn rows<T: Real + Work>(op: &LayerNorm, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
        let x = call.tensor(0)?;
        let [weight, bias] = [1, 2].map(|i| call.optional(i).map(decode::<T>));
        let mut values = decode::<T>(x).into_owned();
        let width = x.shape().last().copied().unwrap_or(1);
        let rows = x.shape().iter().rev().skip(1).product();
        let mut statistics = [Vec::with_capacity(rows), Vec::with_capacity(rows)];
        for i in 0..rows {
            let row = &mut values[i * width..(i + 1) * width];
            let (mean, scale) = moments::standardization(row, op.eps.as_f64());
            row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
            if let Some(weight) = &weight {
                row.iter_mut().zip(&**weight).for_each(|(x, &w)| *x = *x * w);
            }
            if let Some(bias) = &bias {
                row.iter_mut().zip(&**bias).for_each(|(x, &b)| *x = *x + b);
            }
            statistics[0].push(mean);
            statistics[1].push(scale);
        }
        let [means, scales] = statistics;
        let statistic = |values: &[T]| encode(x.dtype().opmath(), &call.shapes[1], values);
        Ok(vec![encode(op.dtype, call.shape(), &values)?, statistic(&means)?, statistic(&scales)?])
    }
    match call.tensor(0)?.dtype() {
        DType::F64 => rows::<f64>(op, call),
        _ => rows::<f32>(op, call),
    }
}

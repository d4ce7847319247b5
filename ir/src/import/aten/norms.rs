//! Norms over the last dims.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{LayerNorm, Pointwise, ReduceKind, Reshape, RmsNorm},
    types::numel,
};

/// How many trailing dims are normalised; their extents must be the given ones.
pub fn normalized(c: &Call<'_, '_>, x: Value) -> Built<usize> {
    let count = c.dims("normalized_shape")?.len();
    let rank = c.ty(x).rank();
    if count == 0 || count > rank {
        return Err(Fault::Bad(format!("it normalises {count} dims of a tensor that has {rank}")));
    }
    Ok(count)
}

/// A weight or bias in the dtype of the computation.
pub fn wide(c: &mut Call<'_, '_>, name: &str, dtype: DType) -> Built<Option<Value>> {
    match c.optional(name)? {
        Some(value) => c.cast(value, dtype).map(Some),
        None => Ok(None),
    }
}

/// Weight or bias of a norm over `count` dims, which the row takes as one.
fn parameter(c: &mut Call<'_, '_>, name: &str, count: usize) -> Built<Operand> {
    match c.optional(name)? {
        Some(value) if count != 1 => {
            let shape = Shape::from_iter([c.ty(value).numel()]);
            Ok(c.op(Reshape { shape }, [value.into()])?.into())
        }
        value => Ok(value.map_or(Operand::None, Into::into)),
    }
}

/// The last `count` dims as one, which is the dim that rows of norms normalise.
fn joined(c: &mut Call<'_, '_>, x: Value, count: usize) -> Built<Value> {
    let ty = c.ty(x).clone();
    let tail = ty.rank() - count;
    let shape = ty.shape[..tail].iter().cloned().chain([numel(&ty.shape[tail..])]).collect();
    if count == 1 { Ok(x) } else { c.op(Reshape { shape }, [x.into()]) }
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias` over the last `count` dims, with mean and reciprocal root, dims kept.
pub fn normed(c: &mut Call<'_, '_>, input: Value, count: usize) -> Built<[Value; 3]> {
    let ty = c.ty(input).clone();
    let eps = Scalar::Float(c.float("eps")?);
    let rows = joined(c, input, count)?;
    let (weight, bias) = (parameter(c, "weight", count)?, parameter(c, "bias", count)?);
    let norm = c.op(LayerNorm { eps, dtype: ty.dtype }, [rows.into(), weight, bias])?;
    let [result, mean, scale] = [0, 1, 2].map(|index| Value { index, ..norm });
    if count == 1 {
        return Ok([result, mean, scale]);
    }
    let tail = ty.rank() - count;
    let kept: Shape = ty.shape[..tail].iter().cloned().chain(vec![Dim::from(1); count]).collect();
    let result = c.op(Reshape { shape: ty.shape }, [result.into()])?;
    let mean = c.op(Reshape { shape: kept.clone() }, [mean.into()])?;
    Ok([result, mean, c.op(Reshape { shape: kept }, [scale.into()])?])
}

/// In opmath (aten/src/ATen/native/cpu/layer_norm_kernel.cpp).
pub fn layer_norm(c: &mut Call<'_, '_>) -> Built {
    let input = c.tensor("input")?;
    let count = normalized(c, input)?;
    Ok(Out::Value(normed(c, input, count)?[0]))
}

/// The result, and mean and reciprocal standard deviation with dims kept.
pub fn native_layer_norm(c: &mut Call<'_, '_>) -> Built {
    let input = c.tensor("input")?;
    let count = normalized(c, input)?;
    let [result, mean, scale] = normed(c, input, count)?;
    // Kernels of some devices keep the statistics in the dtype of the input, others in opmath: the archive says which.
    let kept = c.declared(1)?.map_or(c.ty(input).dtype, |ty| ty.dtype);
    Ok(Out::Values([result, c.cast(mean, kept)?, c.cast(scale, kept)?].into_iter().collect()))
}

/// The distance from one to the next float, `torch.finfo(dtype).eps`.
fn epsilon(dtype: DType) -> Built<f64> {
    match dtype {
        DType::F16 => Ok(half::f16::EPSILON.to_f64()),
        DType::Bf16 => Ok(half::bf16::EPSILON.to_f64()),
        DType::F32 => Ok(f64::from(f32::EPSILON)),
        DType::F64 => Ok(f64::EPSILON),
        DType::F8E4M3Fn | DType::F8E4M3FnUz => Ok(0.125),
        DType::F8E5M2 | DType::F8E5M2FnUz => Ok(0.25),
        other => Err(Fault::Unsupported(format!("of {other}"))),
    }
}

pub fn rms_norm(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("input")?;
    let count = normalized(c, x)?;
    let ty = c.ty(x).clone();
    if !ty.dtype.is_float() {
        return Err(Fault::Unsupported(format!("of {}", ty.dtype)));
    }
    let eps = Scalar::Float(c.number("eps")?.map_or(epsilon(ty.dtype), |eps| Ok(eps.as_f64()))?);
    let (rows, weight) = (joined(c, x, count)?, parameter(c, "weight", count)?);
    let normed = c.op(RmsNorm { eps, dtype: ty.dtype }, [rows.into(), weight])?;
    Ok(Out::Value(if count == 1 { normed } else { c.op(Reshape { shape: ty.shape }, [normed.into()])? }))
}

/// `_fused_rms_norm`: the result, and the reciprocal roots in opmath with dims kept.
pub fn rms_norm_with_scale(c: &mut Call<'_, '_>) -> Built {
    let input = c.tensor("input")?;
    let count = normalized(c, input)?;
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let eps = c.number("eps")?.map_or(epsilon(dtype), |eps| Ok(eps.as_f64()))?;
    let x = c.cast(input, dtype)?;
    let square = c.op(Pointwise::Mul, [x.into(), x.into()])?;
    let mean = reduce(c, square, ReduceKind::Mean, (ty.rank() - count..ty.rank()).collect(), true, dtype)?;
    let shifted = c.op(Pointwise::Add, [mean.into(), Scalar::Float(eps).into()])?;
    let scale = c.op(Pointwise::Rsqrt, [shifted.into()])?;
    let result = match rms_norm(c)? {
        Out::Value(result) => result,
        _ => return Err(Fault::Bad("it has no result".into())),
    };
    Ok(Out::Values([result, scale].into_iter().collect()))
}

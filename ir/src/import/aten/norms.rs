//! Layer norms.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
};
use crate::{
    DType, Scalar, Shape, Value,
    ops::{Axes, Pointwise, ReduceKind, RmsNorm},
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

/// `(x - mean) / sqrt(var + eps) · weight + bias`, in opmath (aten/src/ATen/native/cpu/layer_norm_kernel.cpp).
pub fn layer_norm(c: &mut Call<'_, '_>) -> Built {
    let input = c.tensor("input")?;
    let count = normalized(c, input)?;
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let eps = Scalar::Float(c.float("eps")?);
    let dims: Axes = (ty.rank() - count..ty.rank()).collect();
    let x = c.cast(input, dtype)?;
    let mean = reduce(c, x, ReduceKind::Mean, dims.clone(), true, dtype)?;
    let centered = c.op(Pointwise::Sub, [x.into(), mean.into()])?;
    let square = c.op(Pointwise::Mul, [centered.into(), centered.into()])?;
    let variance = reduce(c, square, ReduceKind::Mean, dims, true, dtype)?;
    let shifted = c.op(Pointwise::Add, [variance.into(), eps.into()])?;
    let scale = c.op(Pointwise::Rsqrt, [shifted.into()])?;
    let mut result = c.op(Pointwise::Mul, [centered.into(), scale.into()])?;
    if let Some(weight) = wide(c, "weight", dtype)? {
        result = c.op(Pointwise::Mul, [result.into(), weight.into()])?;
    }
    if let Some(bias) = wide(c, "bias", dtype)? {
        result = c.op(Pointwise::Add, [result.into(), bias.into()])?;
    }
    Ok(Out::Value(c.cast(result, ty.dtype)?))
}

/// The distance from one to the next float, `torch.finfo(dtype).eps`.
fn epsilon(dtype: DType) -> Built<f64> {
    match dtype {
        DType::F16 => Ok(half::f16::EPSILON.to_f64()),
        DType::Bf16 => Ok(half::bf16::EPSILON.to_f64()),
        DType::F32 => Ok(f64::from(f32::EPSILON)),
        DType::F64 => Ok(f64::EPSILON),
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
    let weight = c.optional("weight")?;
    if count == 1 {
        let weight = weight.map_or(crate::Operand::None, Into::into);
        return Ok(Out::Value(c.op(RmsNorm { eps, dtype: ty.dtype }, [x.into(), weight])?));
    }
    // The row normalises the last dim: several are seen as one.
    let tail = ty.rank() - count;
    let joined = crate::types::numel(&ty.shape[tail..]);
    let flat: Shape = ty.shape[..tail].iter().cloned().chain([joined.clone()]).collect();
    let rows = c.op(crate::ops::Reshape { shape: flat }, [x.into()])?;
    let weight = match weight {
        Some(weight) => c.op(crate::ops::Reshape { shape: Shape::from_iter([joined]) }, [weight.into()])?.into(),
        None => crate::Operand::None,
    };
    let normed = c.op(RmsNorm { eps, dtype: ty.dtype }, [rows.into(), weight])?;
    Ok(Out::Value(c.op(crate::ops::Reshape { shape: ty.shape }, [normed.into()])?))
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

//! Norms over channels: group, instance and batch norm, and the core forms that also return statistics.

use super::{
    super::call::{Built, Call, Fault, Out},
    special::{float, two},
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{Axes, Full, LayerNorm, Permute, Pointwise as P, Reshape},
};
use smallvec::smallvec;

/// A value for each channel (dim 1) of a tensor of that rank.
pub fn by_channel(c: &mut Call<'_, '_>, name: &str, rank: usize, dtype: DType) -> Built<Option<Value>> {
    let Some(value) = c.optional(name)? else { return Ok(None) };
    let channels = c.ty(value).numel();
    let shape: Shape = (0..rank).map(|i| if i == 1 { channels.clone() } else { Dim::from(1) }).collect();
    let value = c.op(Reshape { shape }, [value.into()])?;
    c.cast(value, dtype).map(Some)
}

/// `x · weight + bias`, each if given.
fn affine(c: &mut Call<'_, '_>, mut x: Value, weight: Option<Value>, bias: Option<Value>) -> Built<Value> {
    if let Some(weight) = weight {
        x = two(c, P::Mul, x, weight)?;
    }
    if let Some(bias) = bias {
        x = two(c, P::Add, x, bias)?;
    }
    Ok(x)
}

/// Each of `groups` groups of channels of each sample normalised: result, mean and reciprocal standard deviation of shape [N, groups].
fn grouped(c: &mut Call<'_, '_>, input: Value, groups: Dim) -> Built<[Value; 3]> {
    let ty = c.ty(input).clone();
    let eps = c.float("eps")?;
    let [samples, channels, ..] = &ty.shape[..] else { return Err(Fault::Bad("it needs at least 2 dims".into())) };
    let each = channels.exact_div(&groups).filter(|_| !groups.is(0));
    each.ok_or_else(|| Fault::Bad(format!("{channels} channels do not divide into {groups} groups")))?;
    let wide = ty.dtype.opmath();
    let per_group = crate::types::numel(&ty.shape[1..]).exact_div(&groups);
    let per_group = per_group.ok_or_else(|| Fault::Bad("its groups are not even".into()))?;
    let apart = c.op(Reshape { shape: Shape::from_iter([samples.clone(), groups.clone(), per_group]) }, [input.into()])?;
    let norm = c.op(LayerNorm { eps: Scalar::Float(eps), dtype: wide }, [apart.into(), Operand::None, Operand::None])?;
    let [normed, mean, scale] = [0, 1, 2].map(|index| Value { index, ..norm });
    let normed = c.op(Reshape { shape: ty.shape.clone() }, [normed.into()])?;
    let (weight, bias) = (by_channel(c, "weight", ty.rank(), wide)?, by_channel(c, "bias", ty.rank(), wide)?);
    let result = affine(c, normed, weight, bias)?;
    let flat = Shape::from_iter([samples.clone(), groups]);
    let mean = c.op(Reshape { shape: flat.clone() }, [mean.into()])?;
    let scale = c.op(Reshape { shape: flat }, [scale.into()])?;
    Ok([c.cast(result, ty.dtype)?, c.cast(mean, ty.dtype)?, c.cast(scale, ty.dtype)?])
}

pub fn group_norm(c: &mut Call<'_, '_>) -> Built {
    let (x, groups) = (c.tensor("input")?, c.dim("num_groups")?);
    Ok(Out::Value(grouped(c, x, groups)?[0]))
}

pub fn native_group_norm(c: &mut Call<'_, '_>) -> Built {
    let (x, groups) = (c.tensor("input")?, c.dim("group")?);
    Ok(Out::Values(grouped(c, x, groups)?.into_iter().collect()))
}

/// Each channel of each sample by itself.
pub fn instance_norm(c: &mut Call<'_, '_>) -> Built {
    if !c.flag("use_input_stats")? {
        return Err(Fault::Unsupported("by running statistics".into()));
    }
    let x = c.tensor("input")?;
    let groups = c.ty(x).shape.get(1).cloned().ok_or_else(|| Fault::Bad("it needs at least 2 dims".into()))?;
    Ok(Out::Value(grouped(c, x, groups)?[0]))
}

/// By running statistics: `(x - running_mean) / sqrt(running_var + eps) · weight + bias`.
fn by_running(c: &mut Call<'_, '_>) -> Built<Value> {
    let input = c.tensor("input")?;
    let ty = c.ty(input).clone();
    let wide = ty.dtype.opmath();
    let missing = || Fault::Unsupported("without running statistics".into());
    let mean = by_channel(c, "running_mean", ty.rank(), wide)?.ok_or_else(missing)?;
    let variance = by_channel(c, "running_var", ty.rank(), wide)?.ok_or_else(missing)?;
    let x = c.cast(input, wide)?;
    let centered = two(c, P::Sub, x, mean)?;
    let eps = c.float("eps")?;
    let shifted = two(c, P::Add, variance, float(eps))?;
    let scale = c.op(P::Rsqrt, [shifted.into()])?;
    let normed = two(c, P::Mul, centered, scale)?;
    let (weight, bias) = (by_channel(c, "weight", ty.rank(), wide)?, by_channel(c, "bias", ty.rank(), wide)?);
    let result = affine(c, normed, weight, bias)?;
    c.cast(result, ty.dtype)
}

/// By running statistics, or where the layer keeps none by those of the batch.
pub fn batch_norm(c: &mut Call<'_, '_>) -> Built {
    if !c.flag("training")? {
        return Ok(Out::Value(by_running(c)?));
    }
    if c.given("running_mean")? {
        return Err(Fault::Unsupported("in training: export the model in eval mode".into()));
    }
    match batch_norm_of_batch(c)? {
        Out::Values(values) => Ok(Out::Value(values[0])),
        other => Ok(other),
    }
}

/// By the statistics of the batch: the result, the means and the reciprocal roots of the channels.
pub fn batch_norm_of_batch(c: &mut Call<'_, '_>) -> Built {
    if !c.flag("training")? {
        return Err(Fault::Unsupported("without running statistics".into()));
    }
    let input = c.tensor("input")?;
    let ty = c.ty(input).clone();
    let (wide, eps) = (ty.dtype.opmath(), c.float("eps")?);
    let channels = ty.shape.get(1).cloned().ok_or_else(|| Fault::Bad("it needs channels".into()))?;
    // The row normalises the last dim: everything but the channels.
    let mut dims: Axes = (0..ty.rank()).collect();
    dims.swap(0, 1);
    let front = c.op(Permute { dims: dims.clone() }, [input.into()])?;
    let shape = c.ty(front).shape.clone();
    let rows = Shape::from_iter([channels.clone(), crate::types::numel(&shape[1..])]);
    let rows = c.op(Reshape { shape: rows }, [front.into()])?;
    let norm = c.op(LayerNorm { eps: Scalar::Float(eps), dtype: wide }, [rows.into(), Operand::None, Operand::None])?;
    let [normed, mean, scale] = [0, 1, 2].map(|index| Value { index, ..norm });
    let normed = c.op(Reshape { shape }, [normed.into()])?;
    let normed = c.op(Permute { dims }, [normed.into()])?;
    let (weight, bias) = (by_channel(c, "weight", ty.rank(), wide)?, by_channel(c, "bias", ty.rank(), wide)?);
    let result = affine(c, normed, weight, bias)?;
    let flat = Shape::from_iter([channels]);
    let mean = c.op(Reshape { shape: flat.clone() }, [mean.into()])?;
    let scale = c.op(Reshape { shape: flat }, [scale.into()])?;
    let kept = c.declared(1)?.map_or(ty.dtype, |ty| ty.dtype);
    Ok(Out::Values(smallvec![c.cast(result, ty.dtype)?, c.cast(mean, kept)?, c.cast(scale, kept)?]))
}

/// The core form at inference, whose saved statistics are empty.
pub fn native_batch_norm(c: &mut Call<'_, '_>) -> Built {
    if c.row.has("training") && c.flag("training")? {
        return Err(Fault::Unsupported("in training: export the model in eval mode".into()));
    }
    let result = by_running(c)?;
    let input = c.tensor("input")?;
    let dtype = c.ty(input).dtype;
    let empty = Full { shape: Shape::from_iter([Dim::from(0)]), value: Scalar::Int(0), dtype };
    let (mean, variance) = (c.op(empty.clone(), [])?, c.op(empty, [])?);
    Ok(Out::Values(smallvec![result, mean, variance]))
}

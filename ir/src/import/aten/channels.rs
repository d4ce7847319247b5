//! Norms over channels: group, instance and batch norm, and the core forms that also return statistics.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
    special::{float, two},
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{Axes, Full, LayerNorm, Permute, Pointwise as P, ReduceKind, Reshape},
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

/// By running statistics, or in training by those of the batch. No elements are passed on whatever their shape, and move no running
/// statistics; the core forms refuse them.
pub fn batch_norm(c: &mut Call<'_, '_>) -> Built {
    let input = c.tensor("input")?;
    if c.ty(input).numel().is(0) {
        return Ok(Out::Value(input));
    }
    if !c.flag("training")? {
        return Ok(Out::Value(by_running(c)?));
    }
    let [result, ..] = trained(c)?;
    Ok(Out::Value(result))
}

/// By the statistics of the batch: the result, the means and the reciprocal roots of the channels.
pub fn batch_norm_of_batch(c: &mut Call<'_, '_>) -> Built {
    if !c.flag("training")? {
        return Err(Fault::Unsupported("without running statistics".into()));
    }
    Ok(Out::Values(by_batch(c)?.1.into_iter().collect()))
}

/// By the statistics of the batch, with the running ones brought forward where the layer keeps any.
fn trained(c: &mut Call<'_, '_>) -> Built<[Value; 3]> {
    let (rows, results) = by_batch(c)?;
    if c.given("running_mean")? {
        let new = running(c, rows)?;
        for (name, value) in [("running_mean", new[0]), ("running_var", new[1])] {
            let (alias, hint) = (c.alias(name)?, c.name.clone());
            c.translator.aliases.write(&mut c.translator.graph, alias, value, &hint)?;
        }
    }
    Ok(results)
}

/// The form without effects: the running statistics brought forward are further results.
pub fn functional_batch_norm(c: &mut Call<'_, '_>) -> Built {
    if !c.flag("training")? {
        let (mean, variance) = (c.tensor("running_mean")?, c.tensor("running_var")?);
        let Out::Values(mut values) = native_batch_norm(c)? else { return Err(Fault::Bad("it has no results".into())) };
        values.extend([mean, variance]);
        return Ok(Out::Values(values));
    }
    let (rows, results) = by_batch(c)?;
    let new = running(c, rows)?;
    Ok(Out::Values(results.into_iter().chain(new).collect()))
}

/// The running mean and variance, `momentum` of the way towards those of the rows of each channel; the variance without bias.
fn running(c: &mut Call<'_, '_>, rows: Value) -> Built<[Value; 2]> {
    let momentum = c.float("momentum")?;
    let count = c.ty(rows).shape[1].clone();
    let dtype = c.ty(rows).dtype.opmath();
    let rows = c.cast(rows, dtype)?;
    let average = |c: &mut Call<'_, '_>, x: Value, keepdim: bool, missing: i64| -> Built<Value> {
        let sum = reduce(c, x, ReduceKind::Sum, Axes::from_iter([1]), keepdim, dtype)?;
        let count = c.size(&(count.clone() - Dim::from(missing)))?;
        two(c, P::Div, sum, count)
    };
    let mean = average(c, rows, true, 0)?;
    let centered = two(c, P::Sub, rows, mean)?;
    let squares = two(c, P::Mul, centered, centered)?;
    let variance = average(c, squares, false, 1)?;
    let mean = average(c, rows, false, 0)?;
    let mut blend = |name: &str, new: Value| -> Built<Value> {
        let old = c.tensor(name)?;
        let kept = c.ty(old).dtype;
        let old = c.cast(old, dtype)?;
        let old = two(c, P::Mul, old, float(1.0 - momentum))?;
        let new = two(c, P::Mul, new, float(momentum))?;
        let sum = two(c, P::Add, old, new)?;
        c.cast(sum, kept)
    };
    Ok([blend("running_mean", mean)?, blend("running_var", variance)?])
}

/// The rows of each channel; the result, the means and the reciprocal roots of the channels.
fn by_batch(c: &mut Call<'_, '_>) -> Built<(Value, [Value; 3])> {
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
    Ok((rows, [c.cast(result, ty.dtype)?, c.cast(mean, kept)?, c.cast(scale, kept)?]))
}

/// The core form; at inference its saved statistics are empty.
pub fn native_batch_norm(c: &mut Call<'_, '_>) -> Built {
    if c.row.has("training") && c.flag("training")? {
        return Ok(Out::Values(trained(c)?.into_iter().collect()));
    }
    let result = by_running(c)?;
    let input = c.tensor("input")?;
    let dtype = c.ty(input).dtype;
    let empty = Full { shape: Shape::from_iter([Dim::from(0)]), value: Scalar::Int(0), dtype };
    let (mean, variance) = (c.op(empty.clone(), [])?, c.op(empty, [])?);
    Ok(Out::Values(smallvec![result, mean, variance]))
}

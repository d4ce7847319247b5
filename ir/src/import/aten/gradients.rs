//! Gradients of norms, losses and selections, where PyTorch has them as operators: `_export_forward_backward` leaves them in joint graphs.

use super::{
    super::call::{Built, Call, Fault, Out},
    channels, losses,
    norms::{normalized, wide},
    reductions::reduce,
    slopes::scaled,
    special::{float, one, select, two},
    updates::iota,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Axes, Full, IndexPut, Pointwise as P, ReduceKind, Reshape, ScatterAdd, Slice},
};
use smallvec::smallvec;

/// `y · (g - Σ g · y)` of a softmax `y`; `g - eʸ · Σ g` of its logarithm.
pub fn softmax(c: &mut Call<'_, '_>, log: bool) -> Built {
    let (grad, y) = (c.tensor("grad_output")?, c.tensor("output")?);
    let ty = c.ty(y).clone();
    let dtype = c.dtype("input_dtype")?.unwrap_or(ty.dtype);
    let wide = ty.dtype.opmath();
    let (grad, y) = (c.cast(grad, wide)?, c.cast(y, wide)?);
    let dims = if ty.rank() == 0 { Axes::new() } else { Axes::from_iter([c.axis("dim", ty.rank())?]) };
    let result = if log {
        let sum = reduce(c, grad, ReduceKind::Sum, dims, true, wide)?;
        let exp = one(c, P::Exp, y)?;
        let share = two(c, P::Mul, exp, sum)?;
        two(c, P::Sub, grad, share)?
    } else {
        let product = two(c, P::Mul, grad, y)?;
        let sum = reduce(c, product, ReduceKind::Sum, dims, true, wide)?;
        let share = two(c, P::Mul, y, sum)?;
        two(c, P::Sub, product, share)?
    };
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// The gradient by the input of a norm `(x - mean) · scale` over `dims`, from that by the normed values `g`:
/// `scale · (g - mean(g) - normed · mean(g · normed))`; without the middle term where no mean was taken off.
fn of_normed(c: &mut Call<'_, '_>, grad: Value, normed: Value, scale: Value, dims: &Axes, centered: bool) -> Built<Value> {
    let dtype = c.ty(grad).dtype;
    let along = two(c, P::Mul, grad, normed)?;
    let along = reduce(c, along, ReduceKind::Mean, dims.clone(), true, dtype)?;
    let along = two(c, P::Mul, normed, along)?;
    let mut rest = grad;
    if centered {
        let mean = reduce(c, grad, ReduceKind::Mean, dims.clone(), true, dtype)?;
        rest = two(c, P::Sub, rest, mean)?;
    }
    let rest = two(c, P::Sub, rest, along)?;
    two(c, P::Mul, rest, scale)
}

/// `native_layer_norm_backward`: by input, weight and bias.
pub fn layer_norm(c: &mut Call<'_, '_>) -> Built {
    let (grad, input) = (c.tensor("grad_out")?, c.tensor("input")?);
    let count = normalized(c, input)?;
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let (grad, x) = (c.cast(grad, dtype)?, c.cast(input, dtype)?);
    let (mean, scale) = (c.tensor("mean")?, c.tensor("rstd")?);
    let (mean, scale) = (c.cast(mean, dtype)?, c.cast(scale, dtype)?);
    let centered = two(c, P::Sub, x, mean)?;
    let normed = two(c, P::Mul, centered, scale)?;
    let (inner, outer): (Axes, Axes) = ((ty.rank() - count..ty.rank()).collect(), (0..ty.rank() - count).collect());
    let by_normed = match wide(c, "weight", dtype)? {
        Some(weight) => two(c, P::Mul, grad, weight)?,
        None => grad,
    };
    let of_input = of_normed(c, by_normed, normed, scale, &inner, true)?;
    let share = two(c, P::Mul, grad, normed)?;
    let of_weight = reduce(c, share, ReduceKind::Sum, outer.clone(), false, dtype)?;
    let of_bias = reduce(c, grad, ReduceKind::Sum, outer, false, dtype)?;
    Ok(Out::Values(smallvec![c.cast(of_input, ty.dtype)?, c.cast(of_weight, ty.dtype)?, c.cast(of_bias, ty.dtype)?]))
}

/// `_fused_rms_norm_backward`: by input and weight.
pub fn rms_norm(c: &mut Call<'_, '_>) -> Built {
    let (grad, input) = (c.tensor("grad_out")?, c.tensor("input")?);
    let count = normalized(c, input)?;
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let (grad, x) = (c.cast(grad, dtype)?, c.cast(input, dtype)?);
    let scale = c.tensor("rstd")?;
    let scale = c.cast(scale, dtype)?;
    let normed = two(c, P::Mul, x, scale)?;
    let (inner, outer): (Axes, Axes) = ((ty.rank() - count..ty.rank()).collect(), (0..ty.rank() - count).collect());
    let by_normed = match wide(c, "weight", dtype)? {
        Some(weight) => two(c, P::Mul, grad, weight)?,
        None => grad,
    };
    let of_input = of_normed(c, by_normed, normed, scale, &inner, false)?;
    let share = two(c, P::Mul, grad, normed)?;
    let of_weight = reduce(c, share, ReduceKind::Sum, outer, false, dtype)?;
    Ok(Out::Values(smallvec![c.cast(of_input, ty.dtype)?, c.cast(of_weight, ty.dtype)?]))
}

/// `native_group_norm_backward`: by input, weight and bias.
pub fn group_norm(c: &mut Call<'_, '_>) -> Built {
    let (grad, input, groups) = (c.tensor("grad_out")?, c.tensor("input")?, c.dim("group")?);
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let [samples, channels, ..] = &ty.shape[..] else { return Err(Fault::Bad("it needs at least 2 dims".into())) };
    let inside = crate::types::numel(&ty.shape[2..]);
    let each = channels.exact_div(&groups).ok_or_else(|| Fault::Bad("its groups are not even".into()))?;
    let apart = Shape::from_iter([samples.clone(), groups.clone(), each.clone(), inside]);
    let split = |c: &mut Call<'_, '_>, x: Value| {
        let x = c.cast(x, dtype)?;
        c.op(Reshape { shape: apart.clone() }, [x.into()])
    };
    let (grad, x) = (split(c, grad)?, split(c, input)?);
    let of_group = Shape::from_iter([samples.clone(), groups.clone(), Dim::from(1), Dim::from(1)]);
    let statistic = |c: &mut Call<'_, '_>, name: &str| {
        let value = c.tensor(name)?;
        let value = c.cast(value, dtype)?;
        c.op(Reshape { shape: of_group.clone() }, [value.into()])
    };
    let (mean, scale) = (statistic(c, "mean")?, statistic(c, "rstd")?);
    let centered = two(c, P::Sub, x, mean)?;
    let normed = two(c, P::Mul, centered, scale)?;
    let by_normed = match wide(c, "weight", dtype)? {
        Some(weight) => {
            let shape = Shape::from_iter([groups.clone(), each, Dim::from(1)]);
            let weight = c.op(Reshape { shape }, [weight.into()])?;
            two(c, P::Mul, grad, weight)?
        }
        None => grad,
    };
    let of_input = of_normed(c, by_normed, normed, scale, &Axes::from_iter([2, 3]), true)?;
    let of_input = c.op(Reshape { shape: ty.shape.clone() }, [of_input.into()])?;
    let share = two(c, P::Mul, grad, normed)?;
    let by_channel = |c: &mut Call<'_, '_>, x: Value| {
        let sum = reduce(c, x, ReduceKind::Sum, Axes::from_iter([0, 3]), false, dtype)?;
        let sum = c.op(Reshape { shape: Shape::from_iter([channels.clone()]) }, [sum.into()])?;
        c.cast(sum, ty.dtype)
    };
    let (of_weight, of_bias) = (by_channel(c, share)?, by_channel(c, grad)?);
    Ok(Out::Values(smallvec![c.cast(of_input, ty.dtype)?, of_weight, of_bias]))
}

/// `native_batch_norm_backward`: by input, weight and bias; at inference the statistics are constants.
pub fn batch_norm(c: &mut Call<'_, '_>) -> Built {
    let (grad, input) = (c.tensor("grad_out")?, c.tensor("input")?);
    let ty = c.ty(input).clone();
    let dtype = ty.dtype.opmath();
    let train = c.flag("train")?;
    let names = if train { ("save_mean", "save_invstd") } else { ("running_mean", "running_var") };
    let missing = || Fault::Unsupported("without statistics".into());
    let mean = channels::by_channel(c, names.0, ty.rank(), dtype)?.ok_or_else(missing)?;
    let mut scale = channels::by_channel(c, names.1, ty.rank(), dtype)?.ok_or_else(missing)?;
    if !train {
        let eps = c.float("eps")?;
        let shifted = two(c, P::Add, scale, float(eps))?;
        scale = one(c, P::Rsqrt, shifted)?;
    }
    let (grad, x) = (c.cast(grad, dtype)?, c.cast(input, dtype)?);
    let centered = two(c, P::Sub, x, mean)?;
    let normed = two(c, P::Mul, centered, scale)?;
    let by_normed = match channels::by_channel(c, "weight", ty.rank(), dtype)? {
        Some(weight) => two(c, P::Mul, grad, weight)?,
        None => grad,
    };
    let dims: Axes = (0..ty.rank()).filter(|&i| i != 1).collect();
    let of_input = match train {
        true => of_normed(c, by_normed, normed, scale, &dims, true)?,
        false => two(c, P::Mul, by_normed, scale)?,
    };
    let share = two(c, P::Mul, grad, normed)?;
    let of_weight = reduce(c, share, ReduceKind::Sum, dims.clone(), false, dtype)?;
    let of_bias = reduce(c, grad, ReduceKind::Sum, dims, false, dtype)?;
    Ok(Out::Values(smallvec![c.cast(of_input, ty.dtype)?, c.cast(of_weight, ty.dtype)?, c.cast(of_bias, ty.dtype)?]))
}

/// Each id's gradient added to its row of the table; the padding's is left out.
pub fn embedding(c: &mut Call<'_, '_>) -> Built {
    let (grad, ids, rows, padding) =
        (c.tensor("grad_output")?, c.tensor("indices")?, c.dim("num_weights")?, c.int("padding_idx")?);
    if c.flag("scale_grad_by_freq")? {
        return Err(Fault::Unsupported("with gradients divided by frequency".into()));
    }
    let ty = c.ty(grad).clone();
    let width = ty.shape.last().cloned().ok_or_else(|| Fault::Bad("its gradient has no rows".into()))?;
    let count = c.ty(ids).numel();
    let ids = c.op(Reshape { shape: Shape::from_iter([count.clone()]) }, [ids.into()])?;
    let mut grad = c.op(Reshape { shape: Shape::from_iter([count.clone(), width.clone()]) }, [grad.into()])?;
    if padding >= 0 {
        let padded = two(c, P::Eq, ids, Scalar::Int(padding))?;
        let padded = c.op(Reshape { shape: Shape::from_iter([count, Dim::from(1)]) }, [padded.into()])?;
        grad = select(c, padded, float(0.0), grad)?;
    }
    let zero = c.op(Full { shape: Shape::from_iter([rows, width]), value: Scalar::Int(0), dtype: ty.dtype }, [])?;
    let put = IndexPut { axes: Axes::from_iter([0]), accumulate: true };
    Ok(Out::Value(c.op(put, [zero.into(), grad.into(), ids.into()])?))
}

/// Minus each target's weight at its class, divided by the total for a mean.
pub fn nll_loss(c: &mut Call<'_, '_>) -> Built {
    let (grad, log, target) = (c.tensor("grad_output")?, c.tensor("self")?, c.tensor("target")?);
    let ty = c.ty(log).clone();
    let axis = usize::from(ty.rank() > 1);
    let dtype = ty.dtype.opmath();
    let losses::Targets { counted, safe, .. } = losses::targets(c, target, dtype)?;
    let grad = c.cast(grad, dtype)?;
    let mut share = two(c, P::Mul, counted, grad)?;
    if c.int("reduction")? == losses::MEAN {
        let total = c.tensor("total_weight")?;
        let total = c.cast(total, dtype)?;
        share = two(c, P::Div, share, total)?;
    }
    let share = one(c, P::Neg, share)?;
    let mut apart = c.ty(safe).shape.clone();
    apart.insert(axis.min(apart.len()), Dim::from(1));
    let at = c.op(Reshape { shape: apart.clone() }, [safe.into()])?;
    let share = c.op(Reshape { shape: apart }, [share.into()])?;
    let zero = c.op(Full { shape: ty.shape.clone(), value: Scalar::Int(0), dtype }, [])?;
    let placed = c.op(ScatterAdd { dim: axis }, [zero.into(), at.into(), share.into()])?;
    Ok(Out::Value(c.cast(placed, ty.dtype)?))
}

/// A loss's gradient by element of `self` and `target`, times that of the loss.
pub fn elementwise(c: &mut Call<'_, '_>, slope: fn(&mut Call<'_, '_>, Value, Value) -> Built<Value>) -> Built {
    let (grad, x, target) = (c.tensor("grad_output")?, c.tensor("self")?, c.tensor("target")?);
    let dtype = c.ty(x).dtype;
    let wide = dtype.opmath();
    let (grad, x, target) = (c.cast(grad, wide)?, c.cast(x, wide)?, c.cast(target, wide)?);
    let slope = slope(c, x, target)?;
    let mut result = two(c, P::Mul, slope, grad)?;
    if c.int("reduction")? == losses::MEAN {
        let count = c.ty(slope).numel();
        let count = c.size(&count)?;
        result = two(c, P::Div, result, count)?;
    }
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `2 · (x - target)`.
pub fn squared_error(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let difference = two(c, P::Sub, x, target)?;
    scaled(c, difference, 2.0, 0.0)
}

/// `(x - target) / bound`, within ±1; `outer` at the most.
pub fn clipped_error(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let (name, huber) = if c.row.has("beta") { ("beta", false) } else { ("delta", true) };
    let bound = c.float(name)?;
    let difference = two(c, P::Sub, x, target)?;
    if huber {
        let low = two(c, P::Maximum, difference, float(-bound))?;
        return two(c, P::Minimum, low, float(bound));
    }
    if bound == 0.0 {
        return one(c, P::Sign, difference);
    }
    let part = scaled(c, difference, 1.0 / bound, 0.0)?;
    let low = two(c, P::Maximum, part, float(-1.0))?;
    two(c, P::Minimum, low, float(1.0))
}

/// A tensor of the argument `input_sizes`, zero but for what `place` puts there.
fn placed(c: &mut Call<'_, '_>, place: impl FnOnce(&mut Call<'_, '_>, &Shape) -> Built<(Slice, Value)>) -> Built {
    let grad = c.tensor("grad_output")?;
    let dtype = c.ty(grad).dtype;
    let shape: Shape = c.dims("input_sizes")?.into_iter().collect();
    let (slice, grad) = place(c, &shape)?;
    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype }, [])?;
    let hint = c.name.clone();
    Ok(Out::Value(super::super::alias::overwrite_slice(&mut c.translator.graph, zero, &slice, grad, &hint)?))
}

pub fn of_select(c: &mut Call<'_, '_>) -> Built {
    placed(c, |c, shape| {
        let dim = c.axis("dim", shape.len())?;
        let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no elements to select".into()))?;
        let start = super::slices::from_end(c.dim("index")?, &extent);
        let grad = c.tensor("grad_output")?;
        let mut row = shape.clone();
        row[dim] = Dim::from(1);
        let grad = c.op(Reshape { shape: row }, [grad.into()])?;
        Ok((Slice { dim, end: start.clone() + Dim::from(1), start, step: 1 }, grad))
    })
}

pub fn of_slice(c: &mut Call<'_, '_>) -> Built {
    placed(c, |c, shape| {
        let slice = super::slices::within(c, shape)?;
        Ok((slice, c.tensor("grad_output")?))
    })
}

/// The gradient at the places that a selection along a dim had named.
pub fn of_selection(c: &mut Call<'_, '_>) -> Built {
    let (mut grad, mut at) = (c.tensor("grad")?, c.tensor("indices")?);
    let shape: Shape = c.dims("sizes")?.into_iter().collect();
    let dtype = c.ty(grad).dtype;
    if shape.is_empty() {
        return Ok(Out::Value(grad));
    }
    let dim = c.axis("dim", shape.len())?;
    if !c.flag("keepdim")? {
        let mut kept = shape.clone();
        kept[dim] = Dim::from(1);
        grad = c.op(Reshape { shape: kept.clone() }, [grad.into()])?;
        at = c.op(Reshape { shape: kept }, [at.into()])?;
    }
    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype }, [])?;
    Ok(Out::Value(c.op(ScatterAdd { dim }, [zero.into(), at.into(), grad.into()])?))
}

/// Each window's gradient added to the elements it shows.
pub fn of_windows(c: &mut Call<'_, '_>) -> Built {
    let grad = c.tensor("grad_in")?;
    let dtype = c.ty(grad).dtype;
    let shape: Shape = c.dims("input_sizes")?.into_iter().collect();
    let (size, step) = (c.int("size")?, c.int("step")?);
    let rank = c.ty(grad).rank();
    if shape.is_empty() && c.ty(grad).numel().is(1) {
        return Ok(Out::Value(c.op(Reshape { shape }, [grad.into()])?));
    }
    if shape.is_empty() || rank != shape.len() + 1 {
        return Err(Fault::Bad("its gradient must have a dim more than the input".into()));
    }
    let dim = c.axis("dim", shape.len())?;
    let count = c.ty(grad).shape[dim].clone();
    let starts = c.op(crate::ops::Iota { len: count.clone(), start: 0, step, dtype: DType::I64 }, [])?;
    let starts = c.op(Reshape { shape: Shape::from_iter([count, Dim::from(1)]) }, [starts.into()])?;
    let within = iota(c, Dim::from(size))?;
    let at = two(c, P::Add, starts, within)?;
    let order = (0..=dim).chain([rank - 1]).chain(dim + 1..rank - 1).collect();
    let grad = c.op(crate::ops::Permute { dims: order }, [grad.into()])?;
    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype }, [])?;
    let put = IndexPut { axes: Axes::from_iter([dim]), accumulate: true };
    Ok(Out::Value(c.op(put, [zero.into(), grad.into(), at.into()])?))
}

/// `grad · mask · scale`.
pub fn dropout(c: &mut Call<'_, '_>) -> Built {
    let (grad, mask, scale) = (c.tensor("grad_output")?, c.tensor("mask")?, c.float("scale")?);
    let kept = two(c, P::Mul, grad, mask)?;
    Ok(Out::Value(if scale == 1.0 { kept } else { two(c, P::Mul, kept, float(scale))? }))
}

//! Losses.

use super::{
    super::call::{Built, Call, Fault, Out},
    activations::softmax_of,
    reductions::reduce,
    special::{float, select, two},
};
use crate::{
    DType, Dim, Operand, Scalar, TensorType, Value,
    ops::{Axes, Gather, Index, Pointwise, ReduceKind, Reshape},
};
use smallvec::smallvec;

/// How a loss over elements becomes one number (at::Reduction).
const NONE: i64 = 0;
pub const MEAN: i64 = 1;

/// Cross-entropy with class numbers as targets: ignored targets leave numerator and denominator, weights divide by their sum, and
/// label smoothing spreads part of each target over all classes (aten/src/ATen/native/LossNLL.cpp).
pub fn cross_entropy(c: &mut Call<'_, '_>) -> Built {
    let (logits, target) = (c.tensor("self")?, c.tensor("target")?);
    let (ty, target_ty) = (c.ty(logits).clone(), c.ty(target).clone());
    if !target_ty.dtype.is_int() {
        return probability_loss(c, logits, target);
    }
    let axis = usize::from(ty.rank() > 1);
    if target_ty.rank() + 1 != ty.rank() {
        return Err(Fault::Bad(format!("targets {target_ty} for logits {ty}: they must have one dim less")));
    }
    let dtype = ty.dtype.opmath();
    let smoothing = c.float("label_smoothing")?;
    let classes = if smoothing == 0.0 { 1 } else { known_classes(&ty, axis)? };
    let reduction = c.int("reduction")?;
    let log = softmax_of(c, logits, axis, true, Some(dtype))?;
    let (loss, _) = class_loss(c, log, axis, target, smoothing, classes, reduction)?;
    Ok(Out::Value(c.cast(loss, ty.dtype)?))
}

/// The number of classes that label smoothing spreads a target over: it becomes a constant of the graph.
fn known_classes(logits: &TensorType, axis: usize) -> Built<i64> {
    let classes = logits.shape.get(axis).and_then(Dim::as_const);
    classes.ok_or_else(|| Fault::Unsupported("with label smoothing over a dynamic number of classes".into()))
}

/// `nll_loss` on logarithms of probabilities: the loss, and the sum of the weights that its mean divides by.
pub fn negative_log_likelihood(c: &mut Call<'_, '_>) -> Built {
    let (log, target) = (c.tensor("self")?, c.tensor("target")?);
    let ty = c.ty(log).clone();
    let axis = usize::from(ty.rank() > 1);
    let reduction = c.int("reduction")?;
    let wide = c.cast(log, ty.dtype.opmath())?;
    let (loss, mut total) = class_loss(c, wide, axis, target, 0.0, 1, reduction)?;
    // Without a reduction there is no total, but for a single target, which PyTorch reduces anyway.
    if reduction == NONE && c.ty(target).rank() > 0 {
        total = c.op(crate::ops::Full { shape: crate::Shape::new(), value: Scalar::Int(0), dtype: ty.dtype }, [])?;
    }
    Ok(Out::Values(smallvec![c.cast(loss, ty.dtype)?, c.cast(total, ty.dtype)?]))
}

/// The loss alone.
pub fn nll_loss(c: &mut Call<'_, '_>) -> Built {
    match negative_log_likelihood(c)? {
        Out::Values(values) => Ok(Out::Value(values[0])),
        other => Ok(other),
    }
}

/// Targets that are probabilities: `-Σ_c t_c · weight_c · log p_c`, its mean over all but the classes.
fn probability_loss(c: &mut Call<'_, '_>, logits: Value, target: Value) -> Built {
    let ty = c.ty(logits).clone();
    let axis = usize::from(ty.rank() > 1);
    let (dtype, smoothing, reduction) = (ty.dtype.opmath(), c.float("label_smoothing")?, c.int("reduction")?);
    let log = softmax_of(c, logits, axis, true, Some(dtype))?;
    let mut target = c.cast(target, dtype)?;
    if smoothing != 0.0 {
        let classes = known_classes(&ty, axis)?;
        target = c.op(Pointwise::Mul, [target.into(), Scalar::Float(1.0 - smoothing).into()])?;
        target = c.op(Pointwise::Add, [target.into(), Scalar::Float(smoothing / classes as f64).into()])?;
    }
    let mut each = c.op(Pointwise::Mul, [log.into(), target.into()])?;
    if let Some(weight) = c.optional("weight")? {
        let shape = (0..ty.rank()).map(|i| if i == axis { ty.shape[i].clone() } else { Dim::from(1) }).collect();
        let weight = c.cast(weight, dtype)?;
        let weight = c.op(Reshape { shape }, [weight.into()])?;
        each = c.op(Pointwise::Mul, [each.into(), weight.into()])?;
    }
    let sum = reduce(c, each, ReduceKind::Sum, Axes::from_iter([axis]), false, dtype)?;
    let mut loss = c.op(Pointwise::Neg, [sum.into()])?;
    if reduction != NONE {
        let all: Axes = (0..c.ty(loss).rank()).collect();
        let kind = if reduction == MEAN { ReduceKind::Mean } else { ReduceKind::Sum };
        loss = reduce(c, loss, kind, all, false, dtype)?;
    }
    Ok(Out::Value(c.cast(loss, ty.dtype)?))
}

/// A loss by element of `self` and `target`, reduced as asked for.
pub fn elementwise(c: &mut Call<'_, '_>, each: fn(&mut Call<'_, '_>, Value, Value) -> Built<Value>) -> Built {
    let (x, target) = (c.tensor("self")?, c.tensor("target")?);
    let dtype = super::pointwise::common_dtype(c, &[x, target])?;
    if dtype.is_complex() {
        return Err(Fault::Unsupported(format!("of {dtype}")));
    }
    let wide = dtype.opmath();
    let (x, target) = (c.cast(x, wide)?, c.cast(target, wide)?);
    let loss = each(c, x, target)?;
    let loss = summed(c, loss)?;
    Ok(Out::Value(c.cast(loss, dtype)?))
}

/// A loss by element, reduced as the argument `reduction` says.
fn summed(c: &mut Call<'_, '_>, loss: Value) -> Built<Value> {
    let reduction = c.int("reduction")?;
    if reduction == NONE {
        return Ok(loss);
    }
    let TensorType { dtype, shape } = c.ty(loss).clone();
    let kind = if reduction == MEAN { ReduceKind::Mean } else { ReduceKind::Sum };
    reduce(c, loss, kind, (0..shape.len()).collect(), false, dtype)
}

/// Half the square of differences below `beta` (or `delta`), linear beyond.
pub fn clipped_error(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let huber = c.row.has("delta");
    let bound = c.float(if huber { "delta" } else { "beta" })?;
    let size = absolute_error(c, x, target)?;
    if bound == 0.0 && !huber {
        return Ok(size);
    }
    let near = two(c, Pointwise::Lt, size, float(bound))?;
    let square = two(c, Pointwise::Mul, size, size)?;
    let bent = two(c, Pointwise::Mul, square, float(if huber { 0.5 } else { 0.5 / bound }))?;
    let straight = two(c, Pointwise::Sub, size, float(0.5 * bound))?;
    let straight = if huber { two(c, Pointwise::Mul, straight, float(bound))? } else { straight };
    select(c, near, bent, straight)
}

/// `target · (log target - x)`, where `x` is a logarithm; the target may be one too.
pub fn divergence(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    if c.flag("log_target")? {
        let difference = two(c, Pointwise::Sub, target, x)?;
        let weight = c.op(Pointwise::Exp, [target.into()])?;
        return two(c, Pointwise::Mul, weight, difference);
    }
    let log = c.op(Pointwise::Log, [target.into()])?;
    let entropy = two(c, Pointwise::Mul, target, log)?;
    let zero = two(c, Pointwise::Eq, target, Scalar::Int(0))?;
    let entropy = select(c, zero, float(0.0), entropy)?;
    let cross = two(c, Pointwise::Mul, target, x)?;
    two(c, Pointwise::Sub, entropy, cross)
}

/// A loss by element times the argument `weight`, if there is one.
fn weighted(c: &mut Call<'_, '_>, loss: Value) -> Built<Value> {
    let dtype = c.ty(loss).dtype;
    match c.optional("weight")? {
        Some(weight) => {
            let weight = c.cast(weight, dtype)?;
            two(c, Pointwise::Mul, loss, weight)
        }
        None => Ok(loss),
    }
}

/// `-(t · log x + (1 - t) · log (1 - x))`, logarithms bounded by -100.
pub fn binary(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let bounded = |c: &mut Call<'_, '_>, x: Value| {
        let log = c.op(Pointwise::Log, [x.into()])?;
        two(c, Pointwise::Maximum, log, float(-100.0))
    };
    let rest = two(c, Pointwise::Sub, float(1.0), x)?;
    let (hit, miss) = (bounded(c, x)?, bounded(c, rest)?);
    let others = two(c, Pointwise::Sub, target, float(1.0))?;
    let miss = two(c, Pointwise::Mul, others, miss)?;
    let hit = two(c, Pointwise::Mul, target, hit)?;
    let loss = two(c, Pointwise::Sub, miss, hit)?;
    weighted(c, loss)
}

/// `(1 - t) · x + (1 + (pos_weight - 1) · t) · log(1 + e⁻ˣ)`.
pub fn binary_of_logits(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let minus = c.op(Pointwise::Neg, [x.into()])?;
    let mut soft = super::activations::softplus_of(c, minus)?;
    if let Some(weight) = c.optional("pos_weight")? {
        let weight = c.cast(weight, c.ty(x).dtype)?;
        let beyond = two(c, Pointwise::Sub, weight, float(1.0))?;
        let factor = two(c, Pointwise::Mul, beyond, target)?;
        let factor = two(c, Pointwise::Add, factor, float(1.0))?;
        soft = two(c, Pointwise::Mul, factor, soft)?;
    }
    let others = two(c, Pointwise::Sub, float(1.0), target)?;
    let linear = two(c, Pointwise::Mul, others, x)?;
    let loss = two(c, Pointwise::Add, linear, soft)?;
    weighted(c, loss)
}

/// `(x - target)²`.
pub fn squared_error(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let difference = c.op(Pointwise::Sub, [x.into(), target.into()])?;
    c.op(Pointwise::Mul, [difference.into(), difference.into()])
}

/// `|x - target|`.
pub fn absolute_error(c: &mut Call<'_, '_>, x: Value, target: Value) -> Built<Value> {
    let difference = c.op(Pointwise::Sub, [x.into(), target.into()])?;
    c.op(Pointwise::Abs, [difference.into()])
}

/// Class numbers as targets.
pub struct Targets {
    /// The weight of each target's class, 0 where it is ignored.
    pub counted: Value,
    /// Where it is not ignored.
    pub valid: Value,
    /// The class, or 0.
    pub safe: Value,
}

/// Targets by the arguments `weight` and `ignore_index`.
pub fn targets(c: &mut Call<'_, '_>, target: Value, dtype: DType) -> Built<Targets> {
    let valid = c.op(Pointwise::Ne, [target.into(), c.scalar("ignore_index")?.into()])?;
    let safe = c.op(Pointwise::Where, [valid.into(), target.into(), Scalar::Int(0).into()])?;
    let each_weight = match c.optional("weight")? {
        Some(weight) => {
            let weight = c.cast(weight, dtype)?;
            c.op(Index { axes: Axes::from_iter([0]) }, [weight.into(), safe.into()])?.into()
        }
        None => Operand::Scalar(Scalar::Float(1.0)),
    };
    let counted = c.op(Pointwise::Where, [valid.into(), each_weight, Scalar::Float(0.0).into()])?;
    Ok(Targets { counted: c.cast(counted, dtype)?, valid, safe })
}

/// The loss of logarithms of probabilities and class numbers, and the sum of the weights of the targets that count.
fn class_loss(
    c: &mut Call<'_, '_>,
    log: Value,
    axis: usize,
    target: Value,
    smoothing: f64,
    classes: i64,
    reduction: i64,
) -> Built<(Value, Value)> {
    let target_ty = c.ty(target).clone();
    let dtype = c.ty(log).dtype;
    let weight = match c.optional("weight")? {
        Some(weight) => Some(c.cast(weight, dtype)?),
        None => None,
    };
    let Targets { counted, valid, safe } = targets(c, target, dtype)?;
    let zero = Operand::Scalar(Scalar::Float(0.0));

    let mut column = target_ty.shape.clone();
    column.insert(axis, Dim::from(1));
    let column = c.op(Reshape { shape: column }, [safe.into()])?;
    let picked = c.op(Gather { dim: axis }, [log.into(), column.into()])?;
    let picked = c.op(Reshape { shape: target_ty.shape.clone() }, [picked.into()])?;
    let negative = c.op(Pointwise::Neg, [picked.into()])?;
    let weighted = c.op(Pointwise::Mul, [negative.into(), counted.into()])?;
    let mut loss = c.op(Pointwise::Where, [valid.into(), weighted.into(), zero])?;
    if smoothing != 0.0 {
        let smooth = smooth(c, log, weight, axis, valid)?;
        let main = c.op(Pointwise::Mul, [loss.into(), Scalar::Float(1.0 - smoothing).into()])?;
        let spread = c.op(Pointwise::Mul, [smooth.into(), Scalar::Float(smoothing / classes as f64).into()])?;
        loss = c.op(Pointwise::Add, [main.into(), spread.into()])?;
    }
    let all: Axes = (0..target_ty.rank()).collect();
    let total = reduce(c, counted, ReduceKind::Sum, all.clone(), false, dtype)?;
    if reduction != NONE {
        loss = reduce(c, loss, ReduceKind::Sum, all, false, dtype)?;
        if reduction == MEAN {
            loss = c.op(Pointwise::Div, [loss.into(), total.into()])?;
        }
    }
    Ok((loss, total))
}

/// `-Σ_c weight_c · log p_c`, zero where the target is ignored.
fn smooth(c: &mut Call<'_, '_>, log: Value, weight: Option<Value>, axis: usize, valid: Value) -> Built<Value> {
    let ty = c.ty(log).clone();
    let weighted = match weight {
        Some(weight) => {
            let shape = (0..ty.rank()).map(|i| if i == axis { ty.shape[i].clone() } else { Dim::from(1) }).collect();
            let weight = c.op(Reshape { shape }, [weight.into()])?;
            c.op(Pointwise::Mul, [log.into(), weight.into()])?
        }
        None => log,
    };
    let sum = reduce(c, weighted, ReduceKind::Sum, Axes::from_iter([axis]), false, DType::opmath(ty.dtype))?;
    let negative = c.op(Pointwise::Neg, [sum.into()])?;
    c.op(Pointwise::Where, [valid.into(), negative.into(), Scalar::Float(0.0).into()])
}

//! Losses.

use super::{
    super::call::{Built, Call, Fault, Out},
    activations::softmax_of,
    reductions::reduce,
};
use crate::{
    DType, Dim, Operand, Scalar, Value,
    ops::{Axes, Gather, Index, Pointwise, ReduceKind, Reshape},
};

/// How a loss over elements becomes one number (at::Reduction).
const NONE: i64 = 0;
const MEAN: i64 = 1;

/// Cross-entropy with class numbers as targets: ignored targets leave numerator and denominator, weights divide by their sum, and
/// label smoothing spreads part of each target over all classes (aten/src/ATen/native/LossNLL.cpp).
pub fn cross_entropy(c: &mut Call<'_, '_>) -> Built {
    let (logits, target) = (c.tensor("self")?, c.tensor("target")?);
    let (ty, target_ty) = (c.ty(logits).clone(), c.ty(target).clone());
    if !target_ty.dtype.is_int() {
        return Err(Fault::Unsupported("with class probabilities as targets".into()));
    }
    let axis = usize::from(ty.rank() > 1);
    if target_ty.rank() + 1 != ty.rank() {
        return Err(Fault::Bad(format!("targets {target_ty} for logits {ty}: they must have one dim less")));
    }
    let classes = ty.shape.get(axis).and_then(Dim::as_const);
    let classes = classes.ok_or_else(|| Fault::Unsupported("over a dynamic number of classes".into()))?;
    let dtype = ty.dtype.opmath();
    let smoothing = c.float("label_smoothing")?;
    let reduction = c.int("reduction")?;
    let log = softmax_of(c, logits, axis, true, Some(dtype))?;

    let valid = c.op(Pointwise::Ne, [target.into(), c.scalar("ignore_index")?.into()])?;
    let safe = c.op(Pointwise::Where, [valid.into(), target.into(), Scalar::Int(0).into()])?;
    let weight = match c.optional("weight")? {
        Some(weight) => Some(c.cast(weight, dtype)?),
        None => None,
    };
    let each_weight = match weight {
        Some(weight) => c.op(Index { axes: Axes::from_iter([0]) }, [weight.into(), safe.into()])?.into(),
        None => Operand::Scalar(Scalar::Float(1.0)),
    };
    let zero = Operand::Scalar(Scalar::Float(0.0));
    let counted = c.op(Pointwise::Where, [valid.into(), each_weight, zero])?;
    let counted = c.cast(counted, dtype)?;

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
    if reduction != NONE {
        let all: Axes = (0..target_ty.rank()).collect();
        loss = reduce(c, loss, ReduceKind::Sum, all.clone(), false, dtype)?;
        if reduction == MEAN {
            let total = reduce(c, counted, ReduceKind::Sum, all, false, dtype)?;
            loss = c.op(Pointwise::Div, [loss.into(), total.into()])?;
        }
    }
    Ok(Out::Value(c.cast(loss, ty.dtype)?))
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

//! Activations and softmax.

use super::{
    super::call::{Built, Call, Fault, Out},
    pointwise::in_opmath,
    special::{float, floated, of_self, one, select, two},
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Pointwise as P, Reshape, Slice, Softmax},
};

pub fn gelu(c: &mut Call<'_, '_>) -> Built {
    let op = match c.text("approximate")? {
        "none" => P::GeluErf,
        "tanh" => P::GeluTanh,
        other => return Err(Fault::Bad(format!("there is no GELU approximation `{other}`"))),
    };
    super::pointwise::unary(c, op)
}

fn number(value: f64) -> crate::Operand {
    Scalar::Float(value).into()
}

/// `scale · x` above zero, `alpha · scale · (exp(input_scale · x) - 1)` below.
pub fn elu(c: &mut Call<'_, '_>) -> Built {
    let (alpha, scale, input_scale) = (c.float("alpha")?, c.float("scale")?, c.float("input_scale")?);
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let positive = c.op(P::Gt, [x.into(), Scalar::Int(0).into()])?;
        let above = c.op(P::Mul, [x.into(), number(scale)])?;
        let scaled = c.op(P::Mul, [x.into(), number(input_scale)])?;
        let curve = c.op(P::Expm1, [scaled.into()])?;
        let below = c.op(P::Mul, [curve.into(), number(alpha * scale)])?;
        c.op(P::Where, [positive.into(), above.into(), below.into()])
    })?;
    Ok(Out::Value(result))
}

pub fn leaky_relu(c: &mut Call<'_, '_>) -> Built {
    let slope = c.float("negative_slope")?;
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let positive = c.op(P::Gt, [x.into(), Scalar::Int(0).into()])?;
        let below = c.op(P::Mul, [x.into(), number(slope)])?;
        c.op(P::Where, [positive.into(), x.into(), below.into()])
    })?;
    Ok(Out::Value(result))
}

/// `log(1 + exp(beta · x)) / beta`, and `x` itself where `beta · x` exceeds the threshold.
pub fn softplus(c: &mut Call<'_, '_>) -> Built {
    let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let scaled = c.op(P::Mul, [x.into(), number(beta)])?;
        let linear = c.op(P::Gt, [scaled.into(), number(threshold)])?;
        let exp = c.op(P::Exp, [scaled.into()])?;
        let log = c.op(P::Log1p, [exp.into()])?;
        let curve = c.op(P::Div, [log.into(), number(beta)])?;
        c.op(P::Where, [linear.into(), x.into(), curve.into()])
    })?;
    Ok(Out::Value(result))
}

/// The first half of a dim times the sigmoid of the second.
pub fn glu(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let dim = c.axis("dim", shape.len())?;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no halves".into()))?;
    let half = extent.exact_div(&Dim::from(2)).ok_or_else(|| Fault::Bad(format!("the extent {extent} is odd")))?;
    let first = c.op(Slice { dim, start: Dim::from(0), end: half.clone(), step: 1 }, [x.into()])?;
    let second = c.op(Slice { dim, start: half, end: extent, step: 1 }, [x.into()])?;
    let gate = c.op(P::Sigmoid, [second.into()])?;
    Ok(Out::Value(c.op(P::Mul, [first.into(), gate.into()])?))
}

/// Softmax of `x`, converted to `dtype` first where one is given, as PyTorch does.
pub fn softmax_of(c: &mut Call<'_, '_>, x: Value, dim: usize, log: bool, dtype: Option<DType>) -> Built<Value> {
    let dtype = dtype.unwrap_or(c.ty(x).dtype);
    let x = c.cast(x, dtype)?;
    if c.ty(x).rank() == 0 {
        let row = c.lines(x)?;
        let result = c.op(Softmax { dim: 0, log, dtype }, [row.into()])?;
        return c.op(Reshape { shape: Shape::new() }, [result.into()]);
    }
    c.op(Softmax { dim, log, dtype }, [x.into()])
}

pub fn softmax(c: &mut Call<'_, '_>, log: bool) -> Built {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let dtype = c.dtype("dtype")?;
    Ok(Out::Value(softmax_of(c, x, dim, log, dtype)?))
}

/// The core form, whose flag turns halves into f32.
pub fn softmax_core(c: &mut Call<'_, '_>, log: bool) -> Built {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let dtype = c.flag("half_to_float")?.then_some(DType::F32);
    Ok(Out::Value(softmax_of(c, x, dim, log, dtype)?))
}

/// Softmax, but zero for rows of minus infinity alone (attention rows that see nothing).
pub fn safe_softmax(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    let dim = c.axis("dim", rank)?;
    let dtype = c.dtype("dtype")?;
    let result = softmax_of(c, x, dim, false, dtype)?;
    let masked = c.op(P::Eq, [x.into(), number(f64::NEG_INFINITY)])?;
    let dims = if rank == 0 { crate::ops::Axes::new() } else { crate::ops::Axes::from_iter([dim]) };
    let all = super::reductions::reduce(c, masked, crate::ops::ReduceKind::All, dims, true, DType::Bool)?;
    Ok(Out::Value(c.op(P::Where, [all.into(), number(0.0), result.into()])?))
}

/// Within `[min_val, max_val]`; NaN stays.
pub fn hardtanh(c: &mut Call<'_, '_>, low: Option<f64>, high: Option<f64>) -> Built {
    let x = c.tensor("self")?;
    let low = low.map_or_else(|| c.scalar("min_val"), |low| Ok(Scalar::Float(low)))?;
    let high = high.map_or_else(|| c.scalar("max_val"), |high| Ok(Scalar::Float(high)))?;
    // Bounds of integers are cut to integers.
    let dtype = c.ty(x).dtype;
    let (low, high) = (super::matmul::in_kind(low, dtype), super::matmul::in_kind(high, dtype));
    let x = two(c, P::Maximum, x, low)?;
    Ok(Out::Value(two(c, P::Minimum, x, high)?))
}

/// `clamp(x + 3, 0, 6) / 6`.
fn hard_gate(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    let shifted = two(c, P::Add, x, float(3.0))?;
    let above = two(c, P::Maximum, shifted, float(0.0))?;
    let within = two(c, P::Minimum, above, float(6.0))?;
    two(c, P::Div, within, float(6.0))
}

pub fn hardsigmoid(c: &mut Call<'_, '_>) -> Built {
    of_self(c, hard_gate)
}

pub fn hardswish(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        let gate = hard_gate(c, x)?;
        two(c, P::Mul, x, gate)
    })
}

/// `x · tanh(log(1 + eˣ))`.
pub fn mish(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        // log(1 + eˣ) = max(x, 0) + log1p(exp(-|x|)) does not overflow.
        let soft = softplus_of(c, x)?;
        let tanh = one(c, P::Tanh, soft)?;
        two(c, P::Mul, x, tanh)
    })
}

/// `log(1 + eˣ)` without overflow.
pub fn softplus_of(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    let size = one(c, P::Abs, x)?;
    let minus = one(c, P::Neg, size)?;
    let exp = one(c, P::Exp, minus)?;
    let log = one(c, P::Log1p, exp)?;
    let above = one(c, P::Relu, x)?;
    two(c, P::Add, above, log)
}

/// `log(sigmoid(x))`.
pub fn log_sigmoid(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        let minus = one(c, P::Neg, x)?;
        let soft = softplus_of(c, minus)?;
        one(c, P::Neg, soft)
    })
}

/// `scale · (x > 0 ? x : alpha · (exp(x / width) - 1))`.
pub fn exponential_unit(c: &mut Call<'_, '_>, scale: f64, alpha: f64, width: f64) -> Built {
    of_self(c, |c, x| {
        let positive = two(c, P::Gt, x, Scalar::Int(0))?;
        let narrow = two(c, P::Div, x, float(width))?;
        let curve = one(c, P::Expm1, narrow)?;
        let below = two(c, P::Mul, curve, float(alpha * scale))?;
        let above = two(c, P::Mul, x, float(scale))?;
        select(c, positive, above, below)
    })
}

pub fn celu(c: &mut Call<'_, '_>) -> Built {
    let alpha = c.float("alpha")?;
    exponential_unit(c, 1.0, alpha, alpha)
}

/// `x > 0 ? x : weight · x`, with one weight or one for each channel (dim 1).
pub fn prelu(c: &mut Call<'_, '_>) -> Built {
    let (x, weight) = (c.tensor("self")?, c.tensor("weight")?);
    let rank = c.ty(x).rank();
    let weight = if c.ty(weight).rank() == 1 && rank > 2 && !c.ty(weight).numel().is(1) {
        let channels = c.ty(weight).numel();
        let shape = (0..rank).map(|i| if i == 1 { channels.clone() } else { 1.into() }).collect();
        c.op(crate::ops::Reshape { shape }, [weight.into()])?
    } else {
        weight
    };
    let positive = two(c, P::Gt, x, Scalar::Int(0))?;
    let below = two(c, P::Mul, x, weight)?;
    Ok(Out::Value(select(c, positive, x, below)?))
}

/// `x > threshold ? x : value`.
pub fn threshold(c: &mut Call<'_, '_>) -> Built {
    let (x, threshold, value) = (c.tensor("self")?, c.scalar("threshold")?, c.scalar("value")?);
    let below = two(c, P::Le, x, threshold)?;
    Ok(Out::Value(select(c, below, value, x)?))
}

/// Zero within `lambd` of zero; beyond, `x` itself or (soft) moved towards zero by `lambd`.
pub fn shrink(c: &mut Call<'_, '_>, soft: bool) -> Built {
    let lambda = c.float("lambd")?;
    let x = c.tensor("self")?;
    let (above, below) = (two(c, P::Gt, x, float(lambda))?, two(c, P::Lt, x, float(-lambda))?);
    let (high, low) = if soft { (two(c, P::Sub, x, float(lambda))?, two(c, P::Add, x, float(lambda))?) } else { (x, x) };
    // `x · 0` rather than 0, so that NaN stays.
    let zero = two(c, P::Mul, x, float(0.0))?;
    let lower = select(c, below, low, zero)?;
    Ok(Out::Value(select(c, above, high, lower)?))
}

/// `log_sigmoid`, and the buffer that its gradient uses on some devices: empty on others.
pub fn log_sigmoid_forward(c: &mut Call<'_, '_>) -> Built {
    let Out::Value(result) = log_sigmoid(c)? else { return Err(Fault::Bad("it has no result".into())) };
    let x = c.tensor("self")?;
    let x = floated(c, x)?;
    let size = one(c, P::Abs, x)?;
    let minus = one(c, P::Neg, size)?;
    let buffer = one(c, P::Exp, minus)?;
    Ok(Out::Values([result, buffer].into_iter().collect()))
}

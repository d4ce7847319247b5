//! Elementwise operators made of several rows.

use super::{
    super::call::{Built, Call, Fault, Out},
    pointwise::{common_dtype, in_opmath},
    statistics,
};
use crate::{
    DType, Operand, Scalar, Value,
    dtype::Category,
    ops::{Pointwise as P, infer},
};

/// A number that does not raise floats.
pub fn float(value: f64) -> Operand {
    Scalar::Float(value).into()
}

/// `op(x)`.
pub fn one(c: &mut Call<'_, '_>, op: P, x: impl Into<Operand>) -> Built<Value> {
    c.op(op, [x.into()])
}

/// `op(x, y)`.
pub fn two(c: &mut Call<'_, '_>, op: P, x: impl Into<Operand>, y: impl Into<Operand>) -> Built<Value> {
    c.op(op, [x.into(), y.into()])
}

/// `mask ? x : y`.
pub fn select(c: &mut Call<'_, '_>, mask: Value, x: impl Into<Operand>, y: impl Into<Operand>) -> Built<Value> {
    c.op(P::Where, [mask.into(), x.into(), y.into()])
}

/// A row that needs floats: integers become f32 first, as everywhere in PyTorch.
fn floated(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    if c.ty(x).dtype.category() < Category::Float { c.cast(x, DType::F32) } else { Ok(x) }
}

/// A function of `self` in opmath.
fn of_self(c: &mut Call<'_, '_>, f: impl FnOnce(&mut Call<'_, '_>, Value) -> Built<Value>) -> Built {
    let x = c.tensor("self")?;
    let x = floated(c, x)?;
    Ok(Out::Value(in_opmath(c, x, f)?))
}

/// Operands in the opmath of their common float dtype, and that dtype.
fn promoted(c: &mut Call<'_, '_>, names: &[&str]) -> Built<(Vec<Value>, DType)> {
    let operands = names.iter().map(|name| c.operand(name)).collect::<Built<Vec<_>>>()?;
    let types: Vec<_> = operands
        .iter()
        .map(|operand| match operand {
            Operand::Value(value) => crate::ops::OperandType::Tensor(c.ty(*value)),
            Operand::Scalar(scalar) => crate::ops::OperandType::Scalar(*scalar),
            Operand::None => crate::ops::OperandType::None,
        })
        .collect();
    let dtype = infer::promote(&types)?;
    let dtype = if dtype.category() < Category::Float { DType::F32 } else { dtype };
    let mut values = Vec::new();
    for operand in operands {
        values.push(match operand {
            Operand::Value(value) => c.cast(value, dtype.opmath())?,
            scalar => number(c, scalar, dtype.opmath())?,
        });
    }
    Ok((values, dtype))
}

fn number(c: &mut Call<'_, '_>, operand: Operand, dtype: DType) -> Built<Value> {
    let Operand::Scalar(value) = operand else { return Err(Fault::Bad("an operand is missing".into())) };
    c.op(crate::ops::Full { shape: crate::Shape::new(), value, dtype }, [])
}

/// `|self|`, real for complex numbers too.
pub fn abs(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    if !c.ty(x).dtype.is_complex() {
        return Ok(Out::Value(one(c, P::Abs, x)?));
    }
    Ok(Out::Value(statistics::size(c, x)?))
}

/// The real part.
pub fn real(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = statistics::real_dtype(c.ty(x).dtype);
    Ok(Out::Value(c.cast(x, dtype)?))
}

/// `self - trunc(self)`.
pub fn frac(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let whole = one(c, P::Trunc, x)?;
    Ok(Out::Value(two(c, P::Sub, x, whole)?))
}

/// `self · factor`, integers becoming floats.
pub fn times(c: &mut Call<'_, '_>, factor: f64) -> Built {
    of_self(c, |c, x| two(c, P::Mul, x, float(factor)))
}

/// `log(x / (1 - x))`, with `x` kept within `eps` of 0 and 1 if one is given.
pub fn logit(c: &mut Call<'_, '_>) -> Built {
    let eps = c.number("eps")?.map(Scalar::as_f64);
    of_self(c, |c, mut x| {
        if let Some(eps) = eps {
            x = two(c, P::Maximum, x, float(eps))?;
            x = two(c, P::Minimum, x, float(1.0 - eps))?;
        }
        let rest = two(c, P::Sub, float(1.0), x)?;
        let odds = two(c, P::Div, x, rest)?;
        one(c, P::Log, odds)
    })
}

/// Compared with an infinity.
pub fn is_infinity(c: &mut Call<'_, '_>, infinity: f64) -> Built {
    let x = c.tensor("self")?;
    Ok(Out::Value(two(c, P::Eq, x, float(infinity))?))
}

/// Not zero in exactly one operand.
pub fn logical_xor(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    let (x, y) = (one(c, P::LogicalNot, x)?, one(c, P::LogicalNot, y)?);
    Ok(Out::Value(two(c, P::Ne, x, y)?))
}

/// `maximum` or `minimum`, but a number wins over NaN.
pub fn number_wins(c: &mut Call<'_, '_>, op: P) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let dtype = common_dtype(c, &[x, y])?;
    let (x, y) = (c.cast(x, dtype)?, c.cast(y, dtype)?);
    let best = two(c, op, x, y)?;
    let (no_x, no_y) = (one(c, P::IsNan, x)?, one(c, P::IsNan, y)?);
    let best = select(c, no_y, x, best)?;
    Ok(Out::Value(select(c, no_x, y, best)?))
}

/// `x · log(y)`, 0 where x is 0 unless y is NaN.
pub fn xlogy(c: &mut Call<'_, '_>) -> Built {
    let (values, dtype) = promoted(c, &["self", "other"])?;
    let (x, y) = (values[0], values[1]);
    let log = one(c, P::Log, y)?;
    let product = two(c, P::Mul, x, log)?;
    let zero = two(c, P::Eq, x, Scalar::Int(0))?;
    let result = select(c, zero, float(0.0), product)?;
    let is_nan = one(c, P::IsNan, y)?;
    let result = select(c, is_nan, y, result)?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `log(eˣ + eʸ)` (or to base 2): the larger plus `log1p(exp(-|x - y|))`.
pub fn logaddexp(c: &mut Call<'_, '_>, base_two: bool) -> Built {
    let (values, dtype) = promoted(c, &["self", "other"])?;
    let (x, y) = (values[0], values[1]);
    let most = two(c, P::Maximum, x, y)?;
    let gap = two(c, P::Sub, x, y)?;
    let gap = one(c, P::Abs, gap)?;
    let gap = one(c, P::Neg, gap)?;
    let exp = one(c, if base_two { P::Exp2 } else { P::Exp }, gap)?;
    let mut log = one(c, P::Log1p, exp)?;
    if base_two {
        log = two(c, P::Mul, log, float(std::f64::consts::LOG2_E))?;
    }
    let sum = two(c, P::Add, most, log)?;
    // Equal infinities have no difference.
    let equal = two(c, P::Eq, x, y)?;
    let size = one(c, P::Abs, x)?;
    let infinite = two(c, P::Eq, size, float(f64::INFINITY))?;
    let same = two(c, P::LogicalAnd, equal, infinite)?;
    let result = select(c, same, x, sum)?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `self + weight · (end - self)`, from the nearer end (aten/src/ATen/native/Lerp.h).
pub fn lerp(c: &mut Call<'_, '_>) -> Built {
    let (x, end) = (c.tensor("self")?, c.tensor("end")?);
    let weight = c.operand("weight")?;
    let dtype = common_dtype(c, &[x, end])?;
    let wide = dtype.opmath();
    let (x, end) = (c.cast(x, wide)?, c.cast(end, wide)?);
    let weight = match weight {
        Operand::Value(weight) => c.cast(weight, wide)?,
        scalar => number(c, scalar, wide)?,
    };
    let span = two(c, P::Sub, end, x)?;
    let step = two(c, P::Mul, weight, span)?;
    let near = two(c, P::Add, x, step)?;
    let rest = two(c, P::Sub, float(1.0), weight)?;
    let back = two(c, P::Mul, span, rest)?;
    let far = two(c, P::Sub, end, back)?;
    let size = one(c, P::Abs, weight)?;
    let small = two(c, P::Lt, size, float(0.5))?;
    let result = select(c, small, near, far)?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `pow` in f64.
pub fn float_power(c: &mut Call<'_, '_>) -> Built {
    let wide = |c: &mut Call<'_, '_>, operand: Operand| match operand {
        Operand::Value(value) => c.cast(value, DType::F64).map(Operand::from),
        scalar => number(c, scalar, DType::F64).map(Operand::from),
    };
    let (x, y) = (c.operand("self")?, c.operand("exponent")?);
    let (x, y) = (wide(c, x)?, wide(c, y)?);
    Ok(Out::Value(two(c, P::Pow, x, y)?))
}

/// `self < 0` to 0, `self > 0` to 1, zero to `values`.
pub fn heaviside(c: &mut Call<'_, '_>) -> Built {
    let (x, values) = (c.tensor("self")?, c.tensor("values")?);
    let dtype = c.ty(x).dtype;
    let zero = two(c, P::Eq, x, Scalar::Int(0))?;
    let above = two(c, P::Gt, x, Scalar::Int(0))?;
    let above = c.cast(above, dtype)?;
    Ok(Out::Value(select(c, zero, values, above)?))
}

/// Within `[min_val, max_val]`; NaN stays.
pub fn hardtanh(c: &mut Call<'_, '_>, low: Option<f64>, high: Option<f64>) -> Built {
    let x = c.tensor("self")?;
    let low = low.map_or_else(|| c.scalar("min_val"), |low| Ok(Scalar::Float(low)))?;
    let high = high.map_or_else(|| c.scalar("max_val"), |high| Ok(Scalar::Float(high)))?;
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
        let soft = softplus(c, x)?;
        let tanh = one(c, P::Tanh, soft)?;
        two(c, P::Mul, x, tanh)
    })
}

fn softplus(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
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
        let soft = softplus(c, minus)?;
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

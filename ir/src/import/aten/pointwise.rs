//! Elementwise operators.

use super::super::call::{Built, Call, Fault, Out};
use crate::{
    DType, Operand, Scalar, Value,
    ops::{Pointwise, infer},
};

pub fn unary(c: &mut Call<'_, '_>, op: Pointwise) -> Built {
    let x = c.tensor("self")?;
    Ok(Out::Value(c.op(op, [x.into()])?))
}

pub fn binary(c: &mut Call<'_, '_>, op: Pointwise) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    Ok(Out::Value(c.op(op, [x, y])?))
}

/// `operand · factor`; nothing for a factor of one.
fn times(c: &mut Call<'_, '_>, operand: Operand, factor: &str) -> Built<Operand> {
    let factor = c.scalar(factor)?;
    match (operand, factor) {
        (operand, Scalar::Int(1)) => Ok(operand),
        (operand, Scalar::Float(1.0)) => Ok(operand),
        (Operand::Scalar(Scalar::Int(x)), Scalar::Int(y)) => Ok(Scalar::Int(x.wrapping_mul(y)).into()),
        (Operand::Scalar(x), y) => Ok(Scalar::Float(x.as_f64() * y.as_f64()).into()),
        (operand, factor) => Ok(c.op(Pointwise::Mul, [operand, factor.into()])?.into()),
    }
}

/// `self ± alpha · other`.
pub fn scaled(c: &mut Call<'_, '_>, op: Pointwise) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    let y = times(c, y, "alpha")?;
    Ok(Out::Value(c.op(op, [x, y])?))
}

/// `other - alpha · self`.
pub fn rsub(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    let x = times(c, x, "alpha")?;
    Ok(Out::Value(c.op(Pointwise::Sub, [y, x])?))
}

/// `self + value · (tensor1 op tensor2)`.
pub fn addc(c: &mut Call<'_, '_>, op: Pointwise) -> Built {
    let (x, a, b) = (c.operand("self")?, c.operand("tensor1")?, c.operand("tensor2")?);
    let combined = c.op(op, [a, b])?;
    let combined = times(c, combined.into(), "value")?;
    Ok(Out::Value(c.op(Pointwise::Add, [x, combined])?))
}

pub fn square(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let x = if c.ty(x).dtype == DType::Bool { c.cast(x, DType::I64)? } else { x };
    Ok(Out::Value(c.op(Pointwise::Mul, [x.into(), x.into()])?))
}

pub fn div_mode(c: &mut Call<'_, '_>) -> Built {
    let op = match c.text("rounding_mode")? {
        "" => Pointwise::Div,
        "floor" => Pointwise::FloorDiv,
        "trunc" => return truncated(c),
        other => return Err(Fault::Bad(format!("there is no rounding mode `{other}`"))),
    };
    binary(c, op)
}

/// Division rounding toward zero; the quotient of halves is rounded to their dtype before, as in `div_trunc_kernel`.
fn truncated(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    let quotient = c.op(Pointwise::TruncDiv, [x, y])?;
    if !c.ty(quotient).dtype.is_float() {
        return Ok(Out::Value(quotient));
    }
    let quotient = c.op(Pointwise::Div, [x, y])?;
    Ok(Out::Value(c.op(Pointwise::Trunc, [quotient.into()])?))
}

pub fn pow(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("exponent")?);
    if let (Operand::Value(x), Operand::Scalar(Scalar::Int(..0))) = (x, y)
        && !c.ty(x).dtype.is_float()
        && !c.ty(x).dtype.is_complex()
    {
        return Err(Fault::Bad("integers to negative integer powers are not allowed: cast to a float first".into()));
    }
    Ok(Out::Value(c.op(Pointwise::Pow, [x, y])?))
}

/// `|self|` compared with infinity.
pub fn magnitude(c: &mut Call<'_, '_>, op: Pointwise) -> Built {
    let x = c.tensor("self")?;
    let size = c.op(Pointwise::Abs, [x.into()])?;
    Ok(Out::Value(c.op(op, [size.into(), Scalar::Float(f64::INFINITY).into()])?))
}

/// A condition as a bool tensor; integers count as "not zero".
fn mask(c: &mut Call<'_, '_>, name: &str) -> Built<Value> {
    let mask = c.tensor(name)?;
    match c.ty(mask).dtype {
        DType::Bool => Ok(mask),
        _ => c.op(Pointwise::Ne, [mask.into(), Scalar::Int(0).into()]),
    }
}

pub fn choose(c: &mut Call<'_, '_>) -> Built {
    let mask = mask(c, "condition")?;
    let (x, y) = (c.operand("self")?, c.operand("other")?);
    Ok(Out::Value(c.op(Pointwise::Where, [mask.into(), x, y])?))
}

/// `where(mask, value, self)` in the dtype of `self`.
pub fn masked_fill(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    let mask = mask(c, "mask")?;
    let value = match c.operand("value")? {
        Operand::Scalar(value) if dtype.is_int() => Scalar::Int(value.as_i64()).into(),
        Operand::Scalar(value) if dtype == DType::Bool => Scalar::Bool(value.as_f64() != 0.0).into(),
        other => other,
    };
    let filled = c.op(Pointwise::Where, [mask.into(), value, x.into()])?;
    Ok(Out::Value(c.cast(filled, dtype)?))
}

/// `minimum(maximum(self, min), max)`.
pub fn clamp(c: &mut Call<'_, '_>) -> Built {
    let mut x = c.tensor("self")?;
    if c.given("min")? {
        let min = c.operand("min")?;
        x = c.op(Pointwise::Maximum, [x.into(), min])?;
    }
    if c.given("max")? {
        let max = c.operand("max")?;
        x = c.op(Pointwise::Minimum, [x.into(), max])?;
    }
    Ok(Out::Value(x))
}

/// One side of a clamp.
pub fn bound(c: &mut Call<'_, '_>, limit: &str, op: Pointwise) -> Built {
    let (x, limit) = (c.tensor("self")?, c.operand(limit)?);
    Ok(Out::Value(c.op(op, [x.into(), limit])?))
}

/// The largest finite value of a float dtype.
fn largest(dtype: DType) -> Built<f64> {
    match dtype {
        DType::F16 => Ok(half::f16::MAX.to_f64()),
        DType::Bf16 => Ok(half::bf16::MAX.to_f64()),
        DType::F32 => Ok(f64::from(f32::MAX)),
        DType::F64 => Ok(f64::MAX),
        other => Err(Fault::Unsupported(format!("of {other}"))),
    }
}

pub fn nan_to_num(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    if !dtype.is_float() {
        return Ok(Out::Value(x));
    }
    let largest = largest(dtype)?;
    let value = |given: Option<Scalar>, default: f64| Operand::from(Scalar::Float(given.map_or(default, Scalar::as_f64)));
    let nan = value(c.number("nan")?, 0.0);
    let above = value(c.number("posinf")?, largest);
    let below = value(c.number("neginf")?, -largest);
    let mut result: Operand = x.into();
    for (limit, replacement) in [(f64::INFINITY, above), (f64::NEG_INFINITY, below)] {
        let at_limit = c.op(Pointwise::Eq, [x.into(), Scalar::Float(limit).into()])?;
        result = c.op(Pointwise::Where, [at_limit.into(), replacement, result])?.into();
    }
    let is_nan = c.op(Pointwise::IsNan, [x.into()])?;
    Ok(Out::Value(c.op(Pointwise::Where, [is_nan.into(), nan, result])?))
}

/// The dtype that values promote to, for ops that need one dtype.
pub fn common_dtype(c: &Call<'_, '_>, values: &[Value]) -> Built<DType> {
    let types: Vec<_> = values.iter().map(|&value| crate::ops::OperandType::Tensor(c.ty(value))).collect();
    Ok(infer::promote(&types)?)
}

/// Applies `f` in the precision PyTorch computes in, and rounds once at the end.
pub fn in_opmath(c: &mut Call<'_, '_>, x: Value, f: impl FnOnce(&mut Call<'_, '_>, Value) -> Built<Value>) -> Built<Value> {
    let dtype = c.ty(x).dtype;
    let wide = c.cast(x, dtype.opmath())?;
    let result = f(c, wide)?;
    c.cast(result, dtype)
}

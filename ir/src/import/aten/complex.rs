//! Complex numbers as pairs of real ones.

use super::{
    super::{
        alias::AliasId,
        call::{Built, Call, Fault, Out},
    },
    pointwise::common_dtype,
    special::{float, one, select, two},
    statistics::real_dtype,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Bitcast, Cat, Pointwise as P, Reshape, Slice},
};

/// The complex dtype whose parts are of this one.
fn complex_dtype(part: DType) -> Built<DType> {
    match part {
        DType::F16 => Ok(DType::C32),
        DType::F32 => Ok(DType::C64),
        DType::F64 => Ok(DType::C128),
        other => Err(Fault::Bad(format!("no complex number has parts of {other}"))),
    }
}

/// Real and imaginary parts in a new last dim of 2.
fn parts(c: &mut Call<'_, '_>, x: AliasId) -> Built<AliasId> {
    let ty = c.alias_ty(x)?;
    if !ty.dtype.is_complex() {
        return Err(Fault::Bad(format!("it takes complex numbers, not {ty}")));
    }
    let apart: Shape = ty.shape.iter().cloned().chain([Dim::from(1)]).collect();
    let apart = c.view(x, Reshape { shape: apart })?;
    c.view(apart, Bitcast { dtype: real_dtype(ty.dtype) })
}

pub fn view_as_real(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    Ok(Out::Alias(parts(c, x)?))
}

/// The pairs of the last dim as complex numbers.
fn joined(c: &mut Call<'_, '_>, x: AliasId) -> Built<AliasId> {
    let ty = c.alias_ty(x)?;
    let dtype = complex_dtype(ty.dtype)?;
    if !ty.shape.last().is_some_and(|last| last.is(2)) {
        return Err(Fault::Bad(format!("it takes pairs in the last dim, not {ty}")));
    }
    let pairs = c.view(x, Bitcast { dtype })?;
    let shape = ty.shape[..ty.rank() - 1].iter().cloned().collect();
    c.view(pairs, Reshape { shape })
}

pub fn view_as_complex(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    Ok(Out::Alias(joined(c, x)?))
}

/// Complex numbers of these parts.
fn of_parts(c: &mut Call<'_, '_>, real: Value, imaginary: Value) -> Built {
    let dtype = common_dtype(c, &[real, imaginary])?;
    let shape = crate::ops::infer::broadcast(&c.ty(real).shape.clone(), &c.ty(imaginary).shape.clone())?;
    let apart: Shape = shape.iter().cloned().chain([Dim::from(1)]).collect();
    let mut pair = [real, imaginary];
    for part in &mut pair {
        let wide = c.cast(*part, dtype)?;
        let wide = c.expand(wide, &shape)?;
        *part = c.op(Reshape { shape: apart.clone() }, [wide.into()])?;
    }
    let pairs = c.op(Cat { dim: shape.len() }, pair.map(Into::into))?;
    let pairs = c.translator.aliases.storage(pairs);
    let numbers = joined(c, pairs)?;
    Ok(Out::Value(c.read(numbers)?))
}

pub fn complex(c: &mut Call<'_, '_>) -> Built {
    let (real, imaginary) = (c.tensor("real")?, c.tensor("imag")?);
    of_parts(c, real, imaginary)
}

/// Complex numbers of these magnitudes and angles.
pub fn polar(c: &mut Call<'_, '_>) -> Built {
    let (size, angle) = (c.tensor("abs")?, c.tensor("angle")?);
    let (cos, sin) = (one(c, P::Cos, angle)?, one(c, P::Sin, angle)?);
    let (real, imaginary) = (two(c, P::Mul, size, cos)?, two(c, P::Mul, size, sin)?);
    of_parts(c, real, imaginary)
}

fn part(c: &mut Call<'_, '_>, x: AliasId, at: i64) -> Built<AliasId> {
    let pairs = parts(c, x)?;
    let mut shape = c.alias_ty(pairs)?.shape;
    let dim = shape.len() - 1;
    let part = c.view(pairs, Slice { dim, start: Dim::from(at), end: Dim::from(at + 1), step: 1 })?;
    shape.pop();
    c.view(part, Reshape { shape })
}

/// The real part: real numbers are their own.
pub fn real(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    if c.alias_ty(x)?.dtype.is_complex() { Ok(Out::Alias(part(c, x, 0)?)) } else { Ok(Out::Alias(x)) }
}

/// The imaginary part.
pub fn imaginary(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    Ok(Out::Alias(part(c, x, 1)?))
}

/// The angle in the complex plane: for real numbers 0, π below zero, and NaN for NaN.
pub fn angle(c: &mut Call<'_, '_>) -> Built {
    let source = c.alias("self")?;
    if c.alias_ty(source)?.dtype.is_complex() {
        let (real, imaginary) = (part(c, source, 0)?, part(c, source, 1)?);
        let (real, imaginary) = (c.read(real)?, c.read(imaginary)?);
        return Ok(Out::Value(two(c, P::Atan2, imaginary, real)?));
    }
    let x = c.read(source)?;
    let dtype = c.ty(x).dtype;
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    let x = c.cast(x, dtype)?;
    let below = two(c, P::Lt, x, Scalar::Int(0))?;
    let angle = select(c, below, float(std::f64::consts::PI), float(0.0))?;
    let angle = c.cast(angle, dtype)?;
    let unknown = one(c, P::IsNan, x)?;
    Ok(Out::Value(select(c, unknown, x, angle)?))
}

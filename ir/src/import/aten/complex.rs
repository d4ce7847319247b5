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
    DType, Dim, NodeKind, Op, Operand, Scalar, Shape, TensorType, Value,
    ops::{Bitcast, Cat, Expand, Permute, Pointwise as P, Reshape, Slice},
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
    let parts = c.view(apart, Bitcast { dtype: real_dtype(ty.dtype) })?;
    let numbers = c.read(x)?;
    if let Some(pairs) = in_pairs(c, numbers, 0)? {
        c.translator.aliases.show(parts, pairs);
    }
    Ok(parts)
}

/// Complex numbers as pairs in a last dim of 2, computed in real arithmetic as far as they come from pairs: products and sums of
/// rotary embeddings then need no complex arithmetic. What computes the complex form is dead where nothing else reads it.
fn in_pairs(c: &mut Call<'_, '_>, x: Value, depth: usize) -> Built<Option<Value>> {
    let node = c.translator.graph.node(x.node);
    let NodeKind::Call(op) = node.kind.clone() else { return Ok(None) };
    let operands: Vec<Operand> = node.operands.to_vec();
    let TensorType { dtype, shape } = c.ty(x).clone();
    if depth > DEPTH || !dtype.is_complex() {
        return Ok(None);
    }
    let paired: Shape = shape.iter().cloned().chain([Dim::from(2)]).collect();
    let source = operands.first().and_then(|operand| operand.value());
    let of = |c: &mut Call<'_, '_>, operand: Option<Value>| match operand {
        Some(value) => in_pairs(c, value, depth + 1),
        None => Ok(None),
    };
    match op {
        Op::Bitcast(_) => {
            let Some(source) = source.filter(|&source| c.ty(source).dtype == real_dtype(dtype)) else { return Ok(None) };
            Ok(Some(c.op(Reshape { shape: paired }, [source.into()])?))
        }
        Op::Reshape(_) => match of(c, source)? {
            Some(pairs) => Ok(Some(c.op(Reshape { shape: paired }, [pairs.into()])?)),
            None => Ok(None),
        },
        Op::Expand(_) => match of(c, source)? {
            Some(pairs) => Ok(Some(c.op(Expand { shape: paired }, [pairs.into()])?)),
            None => Ok(None),
        },
        Op::Slice(slice) => match of(c, source)? {
            Some(pairs) => Ok(Some(c.op(slice, [pairs.into()])?)),
            None => Ok(None),
        },
        Op::Permute(Permute { mut dims }) => match of(c, source)? {
            Some(pairs) => {
                dims.push(shape.len());
                Ok(Some(c.op(Permute { dims }, [pairs.into()])?))
            }
            None => Ok(None),
        },
        Op::Pointwise(op @ (P::Mul | P::Add | P::Sub)) => arithmetic(c, op, &operands, depth),
        _ => Ok(None),
    }
}

/// Deepest chain of complex operations that is followed.
const DEPTH: usize = 64;

/// A product or sum of complex numbers in pairs; one operand may be real.
fn arithmetic(c: &mut Call<'_, '_>, op: P, operands: &[Operand], depth: usize) -> Built<Option<Value>> {
    // Both parts of each operand; real numbers have no second one.
    let mut parts: Vec<[Option<Operand>; 2]> = Vec::new();
    for operand in operands {
        let value = operand.value().filter(|&value| c.ty(value).dtype.is_complex());
        let Some(value) = value else {
            parts.push([Some(*operand), None]);
            continue;
        };
        let Some(pairs) = in_pairs(c, value, depth + 1)? else { return Ok(None) };
        let rank = c.ty(pairs).rank();
        let part = |c: &mut Call<'_, '_>, at: i64| {
            let slice = Slice { dim: rank - 1, start: Dim::from(at), end: Dim::from(at + 1), step: 1 };
            let part = c.op(slice, [pairs.into()])?;
            let shape = c.ty(part).shape[..rank - 1].iter().cloned().collect();
            c.op(Reshape { shape }, [part.into()]).map(Operand::from)
        };
        parts.push([Some(part(c, 0)?), Some(part(c, 1)?)]);
    }
    let &[[Some(a), b], [Some(x), y]] = &parts[..] else { return Ok(None) };
    let (real, imaginary) = match (op, b, y) {
        (P::Mul, Some(b), Some(y)) => {
            let (ax, by) = (two(c, P::Mul, a, x)?, two(c, P::Mul, b, y)?);
            let (ay, bx) = (two(c, P::Mul, a, y)?, two(c, P::Mul, b, x)?);
            (two(c, P::Sub, ax, by)?, two(c, P::Add, ay, bx)?)
        }
        (P::Mul, Some(b), None) => (two(c, P::Mul, a, x)?, two(c, P::Mul, b, x)?),
        (P::Mul, None, Some(y)) => (two(c, P::Mul, a, x)?, two(c, P::Mul, a, y)?),
        (_, Some(b), Some(y)) => (two(c, op, a, x)?, two(c, op, b, y)?),
        _ => return Ok(None),
    };
    Ok(Some(stacked(c, real, imaginary)?))
}

/// Two tensors side by side in a new last dim.
fn stacked(c: &mut Call<'_, '_>, real: Value, imaginary: Value) -> Built<Value> {
    let dtype = common_dtype(c, &[real, imaginary])?;
    let shape = crate::ops::infer::broadcast(&c.ty(real).shape.clone(), &c.ty(imaginary).shape.clone())?;
    let apart: Shape = shape.iter().cloned().chain([Dim::from(1)]).collect();
    let mut pair = [real, imaginary];
    for part in &mut pair {
        let wide = c.cast(*part, dtype)?;
        let wide = c.expand(wide, &shape)?;
        *part = c.op(Reshape { shape: apart.clone() }, [wide.into()])?;
    }
    c.op(Cat { dim: shape.len() }, pair.map(Into::into))
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
    let pairs = stacked(c, real, imaginary)?;
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
    let turn = crate::ops::Full { shape: Shape::new(), value: Scalar::Float(std::f64::consts::PI), dtype };
    let turn = c.op(turn, [])?;
    let angle = select(c, below, turn, float(0.0))?;
    let unknown = one(c, P::IsNan, x)?;
    Ok(Out::Value(select(c, unknown, x, angle)?))
}

/// The last two dims swapped, and complex numbers mirrored.
pub fn adjoint(c: &mut Call<'_, '_>) -> Built {
    let Out::Alias(swapped) = super::views::transposed(c, true)? else { return Err(Fault::Bad("it has no matrix".into())) };
    if !c.alias_ty(swapped)?.dtype.is_complex() {
        return Ok(Out::Alias(swapped));
    }
    let x = c.read(swapped)?;
    Ok(Out::Value(one(c, P::Conj, x)?))
}

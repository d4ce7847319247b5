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
pub fn floated(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    if c.ty(x).dtype.category() < Category::Float { c.cast(x, DType::F32) } else { Ok(x) }
}

/// A function of `self` in opmath.
pub fn of_self(c: &mut Call<'_, '_>, f: impl FnOnce(&mut Call<'_, '_>, Value) -> Built<Value>) -> Built {
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

/// `x · log(y)`, with this logarithm; 0 where x is 0 unless y is NaN.
pub fn times_log(c: &mut Call<'_, '_>, log: P) -> Built {
    let (values, dtype) = promoted(c, &["self", "other"])?;
    let (x, y) = (values[0], values[1]);
    let log = one(c, log, y)?;
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
    if dtype.is_complex() {
        return Err(Fault::Unsupported(format!("of {dtype}")));
    }
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
    let result = between(c, x, end, weight)?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `x + weight · (end - x)`, from the nearer end.
pub fn between(c: &mut Call<'_, '_>, x: Value, end: Value, weight: Value) -> Built<Value> {
    let span = two(c, P::Sub, end, x)?;
    let step = two(c, P::Mul, weight, span)?;
    let near = two(c, P::Add, x, step)?;
    let rest = two(c, P::Sub, float(1.0), weight)?;
    let back = two(c, P::Mul, span, rest)?;
    let far = two(c, P::Sub, end, back)?;
    let size = one(c, P::Abs, weight)?;
    let small = two(c, P::Lt, size, float(0.5))?;
    select(c, small, near, far)
}

/// `pow` in f64.
pub fn float_power(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.operand("self")?, c.operand("exponent")?);
    let complex = |operand: Operand| operand.value().is_some_and(|value| c.ty(value).dtype.is_complex());
    let dtype = if complex(x) || complex(y) { DType::C128 } else { DType::F64 };
    let wide = |c: &mut Call<'_, '_>, operand: Operand| match operand {
        Operand::Value(value) => c.cast(value, dtype).map(Operand::from),
        scalar => number(c, scalar, dtype).map(Operand::from),
    };
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

/// `sin(πx) / πx`, 1 at 0.
pub fn sinc(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        let angle = two(c, P::Mul, x, float(std::f64::consts::PI))?;
        let sine = one(c, P::Sin, angle)?;
        let ratio = two(c, P::Div, sine, angle)?;
        let zero = two(c, P::Eq, x, Scalar::Int(0))?;
        select(c, zero, float(1.0), ratio)
    })
}

/// `-x · log(x)`, 0 at 0 and -∞ below.
pub fn entropy(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        let log = one(c, P::Log, x)?;
        let product = two(c, P::Mul, x, log)?;
        let entropy = one(c, P::Neg, product)?;
        let (zero, below) = (two(c, P::Eq, x, Scalar::Int(0))?, two(c, P::Lt, x, Scalar::Int(0))?);
        let entropy = select(c, zero, float(0.0), entropy)?;
        select(c, below, float(f64::NEG_INFINITY), entropy)
    })
}

/// The share of a normal distribution below `x`.
pub fn normal_below(c: &mut Call<'_, '_>) -> Built {
    of_self(c, |c, x| {
        let scaled = two(c, P::Mul, x, float(std::f64::consts::FRAC_1_SQRT_2))?;
        let half = one(c, P::Erf, scaled)?;
        let whole = two(c, P::Add, half, float(1.0))?;
        two(c, P::Mul, whole, float(0.5))
    })
}

/// `x · 2ʸ`, the power rounded to its own dtype as PyTorch does.
pub fn ldexp(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let y = floated(c, y)?;
    let power = one(c, P::Exp2, y)?;
    Ok(Out::Value(two(c, P::Mul, x, power)?))
}

/// `|x - y| ≤ atol + |rtol · y|`; infinities are close to themselves alone, NaN to NaN if asked for.
pub fn isclose(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let (rtol, atol) = (c.float("rtol")?, c.float("atol")?);
    let dtype = c.ty(x).dtype;
    if dtype.is_complex() {
        return Err(Fault::Unsupported("of complex numbers".into()));
    }
    let mut close = two(c, P::Eq, x, y)?;
    if dtype.is_float() && c.flag("equal_nan")? {
        let (no_x, no_y) = (one(c, P::IsNan, x)?, one(c, P::IsNan, y)?);
        let both = two(c, P::LogicalAnd, no_x, no_y)?;
        close = two(c, P::LogicalOr, close, both)?;
    }
    if rtol == 0.0 && atol == 0.0 {
        return Ok(Out::Value(close));
    }
    // Bools and integers are compared as floats; halves round after each step, as in PyTorch.
    let (x, y) = (floated(c, x)?, floated(c, y)?);
    let allowed = two(c, P::Mul, y, float(rtol))?;
    let allowed = one(c, P::Abs, allowed)?;
    let allowed = two(c, P::Add, allowed, float(atol))?;
    let error = two(c, P::Sub, x, y)?;
    let error = one(c, P::Abs, error)?;
    let finite = two(c, P::Lt, error, float(f64::INFINITY))?;
    let near = two(c, P::Le, error, allowed)?;
    let near = two(c, P::LogicalAnd, finite, near)?;
    Ok(Out::Value(two(c, P::LogicalOr, close, near)?))
}

/// Which elements are among others.
pub fn isin(c: &mut Call<'_, '_>) -> Built {
    let elements = c.tensor("elements")?;
    let invert = c.flag("invert")?;
    let found = if c.row.has("test_element") {
        let other = c.operand("test_element")?;
        two(c, P::Eq, elements, other)?
    } else {
        let others = c.tensor("test_elements")?;
        let count = c.ty(others).numel();
        let flat = c.op(crate::ops::Reshape { shape: crate::Shape::from_iter([count]) }, [others.into()])?;
        let mut apart = c.ty(elements).shape.clone();
        apart.push(1.into());
        let rank = apart.len();
        let apart = c.op(crate::ops::Reshape { shape: apart }, [elements.into()])?;
        let equal = two(c, P::Eq, apart, flat)?;
        let dims = crate::ops::Axes::from_iter([rank - 1]);
        super::reductions::reduce(c, equal, crate::ops::ReduceKind::Any, dims, false, DType::Bool)?
    };
    Ok(Out::Value(if invert { one(c, P::LogicalNot, found)? } else { found }))
}

/// True for numbers without an imaginary part.
pub fn isreal(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    if c.alias_ty(x)?.dtype.is_complex() {
        let Out::Alias(imaginary) = super::complex::imaginary(c)? else { return Err(Fault::Bad("it has no parts".into())) };
        let imaginary = c.read(imaginary)?;
        return Ok(Out::Value(two(c, P::Eq, imaginary, Scalar::Int(0))?));
    }
    let shape = c.alias_ty(x)?.shape;
    Ok(Out::Value(c.op(crate::ops::Full { shape, value: Scalar::Bool(true), dtype: DType::Bool }, [])?))
}

/// Cross products of triples along a dim, by default the first of three.
pub fn cross(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let shape = infer::broadcast(&c.ty(x).shape.clone(), &c.ty(y).shape.clone())?;
    let (x, y) = (c.expand(x, &shape)?, c.expand(y, &shape)?);
    let dim = if c.given("dim")? {
        c.axis("dim", shape.len())?
    } else {
        let triple = shape.iter().position(|extent| extent.is(3));
        triple.ok_or_else(|| Fault::Bad("no dim has three elements".into()))?
    };
    if !shape.get(dim).is_some_and(|extent| extent.is(3)) {
        return Err(Fault::Bad(format!("dim {dim} must have three elements")));
    }
    let turned = |c: &mut Call<'_, '_>, x: Value, by: i64| -> Built<Value> {
        let positions = super::taps::table(c, DType::I64, &[(0..3).map(|i| (i + by) % 3).collect()])?;
        let positions = c.op(crate::ops::Reshape { shape: crate::Shape::from_iter([3.into()]) }, [positions.into()])?;
        c.op(crate::ops::Index { axes: crate::ops::Axes::from_iter([dim]) }, [x.into(), positions.into()])
    };
    let (x1, x2, y1, y2) = (turned(c, x, 1)?, turned(c, x, 2)?, turned(c, y, 1)?, turned(c, y, 2)?);
    let (left, right) = (two(c, P::Mul, x1, y2)?, two(c, P::Mul, x2, y1)?);
    Ok(Out::Value(two(c, P::Sub, left, right)?))
}

/// Rounded to so many digits behind the point, or before it (`round_decimals_kernel`).
pub fn round_decimals(c: &mut Call<'_, '_>) -> Built {
    let (x, decimals) = (c.tensor("self")?, c.int("decimals")?);
    if !c.ty(x).dtype.is_float() {
        return Err(Fault::Unsupported("of integers".into()));
    }
    if !(-300..=300).contains(&decimals) {
        return Err(Fault::Bad(format!("{decimals} decimals")));
    }
    let ten = float(10f64.powi(decimals.unsigned_abs() as i32));
    let (before, after) = if decimals < 0 { (P::Div, P::Mul) } else { (P::Mul, P::Div) };
    let scaled = two(c, before, x, ten)?;
    let whole = one(c, P::Round, scaled)?;
    Ok(Out::Value(two(c, after, whole, ten)?))
}

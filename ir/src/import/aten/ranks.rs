//! Elements by their rank along a dim: medians, quantiles, the k-th and the most frequent value; and running extremes.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
    special::{float, one, select, two},
    updates::iota,
};
use crate::{
    DType, Dim, NodeId, Operand, Scalar, Shape, Value,
    dtype::Category,
    ops::{Axes, Full, Gather, Index, Permute, Pointwise as P, ReduceKind, Reshape, Slice, Sort},
};
use smallvec::smallvec;

/// Values sorted along a dim (NaN last), and where each stood.
fn sorted(c: &mut Call<'_, '_>, x: Value, dim: usize) -> Built<(Value, Value)> {
    let node: NodeId = c.ops(Sort { dim, descending: false }, [x.into()])?;
    Ok((Value { node, index: 0 }, Value { node, index: 1 }))
}

/// The elements at one position of a dim, which is kept with an extent of 1.
fn at(c: &mut Call<'_, '_>, x: Value, dim: usize, position: Dim) -> Built<Value> {
    let end = position.clone() + Dim::from(1);
    c.op(Slice { dim, start: position, end, step: 1 }, [x.into()])
}

fn dropped(c: &mut Call<'_, '_>, x: Value, dim: usize, keepdim: bool) -> Built<Value> {
    if keepdim {
        return Ok(x);
    }
    let mut shape = c.ty(x).shape.clone();
    shape.remove(dim);
    c.op(Reshape { shape }, [x.into()])
}

/// `x`, its dim `dim`, and that dim's extent, which must not be known to be 0. A 0-d tensor counts as a vector of one.
fn line(c: &mut Call<'_, '_>) -> Built<(Value, usize, Dim)> {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let x = if c.ty(x).rank() == 0 { c.op(Reshape { shape: Shape::from_iter([Dim::from(1)]) }, [x.into()])? } else { x };
    let extent = c.ty(x).shape[dim].clone();
    if extent.is(0) {
        return Err(Fault::Bad("it ranks the elements of an empty dim".into()));
    }
    Ok((x, dim, extent))
}

/// Values and positions, in the shape that the schema promises.
fn finished(c: &mut Call<'_, '_>, values: [Value; 2], dim: usize) -> Built {
    let source = c.tensor("self")?;
    let scalar = c.ty(source).rank() == 0;
    let keepdim = scalar || c.flag("keepdim")?;
    let mut out = values;
    for value in &mut out {
        *value = dropped(c, *value, dim, keepdim)?;
        if scalar {
            *value = c.op(Reshape { shape: Shape::new() }, [(*value).into()])?;
        }
    }
    Ok(Out::Values(out.into_iter().collect()))
}

/// Where a dim has a NaN, that NaN and its first place instead.
fn unless_nan(c: &mut Call<'_, '_>, x: Value, dim: usize, value: Value, position: Value) -> Built<[Value; 2]> {
    let dtype = c.ty(x).dtype;
    if !dtype.is_float() {
        return Ok([value, position]);
    }
    let dims = Axes::from_iter([dim]);
    let unknown = one(c, P::IsNan, x)?;
    let any = reduce(c, unknown, ReduceKind::Any, dims.clone(), true, DType::Bool)?;
    let counted = c.cast(unknown, DType::I64)?;
    let first = reduce(c, counted, ReduceKind::Argmax, dims, true, DType::I64)?;
    let value = select(c, any, float(f64::NAN), value)?;
    Ok([c.cast(value, dtype)?, select(c, any, first, position)?])
}

/// The lower median along a dim; NaN if there is one.
pub fn median(c: &mut Call<'_, '_>) -> Built {
    let (x, dim, extent) = line(c)?;
    let (values, places) = sorted(c, x, dim)?;
    let middle = (extent - Dim::from(1)).floor_div(&Dim::from(2));
    let (value, place) = (at(c, values, dim, middle.clone())?, at(c, places, dim, middle)?);
    let pair = unless_nan(c, x, dim, value, place)?;
    finished(c, pair, dim)
}

/// The lower median of what is not NaN along a dim.
fn nan_free_median(c: &mut Call<'_, '_>, x: Value, dim: usize) -> Built<[Value; 2]> {
    let (values, places) = sorted(c, x, dim)?;
    let unknown = one(c, P::IsNan, x)?;
    let known = one(c, P::LogicalNot, unknown)?;
    let count = reduce(c, known, ReduceKind::Sum, Axes::from_iter([dim]), true, DType::I64)?;
    let last = two(c, P::Sub, count, Scalar::Int(1))?;
    let last = two(c, P::Maximum, last, Scalar::Int(0))?;
    let middle = two(c, P::FloorDiv, last, Scalar::Int(2))?;
    let pick = |c: &mut Call<'_, '_>, x: Value| c.op(Gather { dim }, [x.into(), middle.into()]);
    Ok([pick(c, values)?, pick(c, places)?])
}

pub fn nanmedian(c: &mut Call<'_, '_>) -> Built {
    if !{
        let x = c.tensor("self")?;
        c.ty(x).dtype.is_float()
    } {
        return median(c);
    }
    let (x, dim, _) = line(c)?;
    let pair = nan_free_median(c, x, dim)?;
    finished(c, pair, dim)
}

/// The median of all elements.
pub fn median_of_all(c: &mut Call<'_, '_>, skips_nan: bool) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let count = ty.numel();
    let flat = c.op(Reshape { shape: Shape::from_iter([count.clone()]) }, [x.into()])?;
    if count.is(0) {
        let value = if ty.dtype.is_float() { Scalar::Float(f64::NAN) } else { Scalar::Int(0) };
        return Ok(Out::Value(c.op(Full { shape: Shape::new(), value, dtype: ty.dtype }, [])?));
    }
    let [value, _] = if skips_nan && ty.dtype.is_float() {
        nan_free_median(c, flat, 0)?
    } else {
        let (values, places) = sorted(c, flat, 0)?;
        let middle = (count - Dim::from(1)).floor_div(&Dim::from(2));
        let (value, place) = (at(c, values, 0, middle.clone())?, at(c, places, 0, middle)?);
        unless_nan(c, flat, 0, value, place)?
    };
    Ok(Out::Value(c.op(Reshape { shape: Shape::new() }, [value.into()])?))
}

/// The k-th smallest along a dim, counted from one.
pub fn kthvalue(c: &mut Call<'_, '_>) -> Built {
    let (x, dim, extent) = line(c)?;
    let k = c.int("k")?;
    if k < 1 || extent.as_const().is_some_and(|extent| k > extent) {
        return Err(Fault::Bad(format!("there is no element {k} among {extent}")));
    }
    let (values, places) = sorted(c, x, dim)?;
    let (value, place) = (at(c, values, dim, Dim::from(k - 1))?, at(c, places, dim, Dim::from(k - 1))?);
    finished(c, [value, place], dim)
}

/// A dim before `dim` for results, so that `dim + 1` pairs each with every element; and the positions along both.
fn pairs(c: &mut Call<'_, '_>, x: Value, dim: usize) -> Built<(Value, Value, Value)> {
    let shape = c.ty(x).shape.clone();
    let rank = shape.len();
    let mut apart = shape.clone();
    apart.insert(dim, Dim::from(1));
    let elements = c.op(Reshape { shape: apart }, [x.into()])?;
    let along = |c: &mut Call<'_, '_>, at: usize| {
        let mut beside: Shape = vec![Dim::from(1); rank + 1].into();
        beside[at] = shape[dim].clone();
        let positions = iota(c, shape[dim].clone())?;
        c.op(Reshape { shape: beside }, [positions.into()])
    };
    Ok((elements, along(c, dim)?, along(c, dim + 1)?))
}

/// The most frequent value along a dim, the smallest of equals, and where it stands last.
pub fn mode(c: &mut Call<'_, '_>) -> Built {
    let (x, dim, _) = line(c)?;
    let ty = c.ty(x).clone();
    let (elements, _, _) = pairs(c, x, dim)?;
    let mut apart = ty.shape.clone();
    apart.insert(dim + 1, Dim::from(1));
    let each = c.op(Reshape { shape: apart }, [x.into()])?;
    let equal = two(c, P::Eq, each, elements)?;
    let count = reduce(c, equal, ReduceKind::Sum, Axes::from_iter([dim + 1]), false, DType::I64)?;
    let dims = Axes::from_iter([dim]);
    let most = reduce(c, count, ReduceKind::Amax, dims.clone(), true, DType::I64)?;
    let frequent = two(c, P::Eq, count, most)?;
    // Among the frequent ones the smallest; the largest of all stands in for the others.
    let largest = reduce(c, x, ReduceKind::Amax, dims.clone(), true, ty.dtype)?;
    let candidates = select(c, frequent, x, largest)?;
    let value = reduce(c, candidates, ReduceKind::Amin, dims.clone(), true, ty.dtype)?;
    let hits = two(c, P::Eq, x, value)?;
    let positions = iota(c, ty.shape[dim].clone())?;
    let mut beside: Shape = vec![Dim::from(1); ty.rank()].into();
    beside[dim] = ty.shape[dim].clone();
    let positions = c.op(Reshape { shape: beside }, [positions.into()])?;
    let hit = select(c, hits, positions, Scalar::Int(0))?;
    let place = reduce(c, hit, ReduceKind::Amax, dims, true, DType::I64)?;
    finished(c, [value, place], dim)
}

/// Running maxima (`op` is `Maximum`) or minima along a dim, and where each stands: the last of equals, and of NaNs once there is one.
/// The table scans sums alone: each result is an extreme of all elements up to it.
pub fn running_extreme(c: &mut Call<'_, '_>, kind: ReduceKind) -> Built {
    let source = c.tensor("self")?;
    let ty = c.ty(source).clone();
    if ty.rank() == 0 {
        let zero = c.op(Full { shape: Shape::new(), value: Scalar::Int(0), dtype: DType::I64 }, [])?;
        return Ok(Out::Values(smallvec![source, zero]));
    }
    let dim = c.axis("dim", ty.rank())?;
    let (elements, result, element) = pairs(c, source, dim)?;
    let before = two(c, P::Le, element, result)?;
    // The first element is before every result: it can stand in for those that are not.
    let first = at(c, elements, dim + 1, Dim::from(0))?;
    let seen = select(c, before, elements, first)?;
    let dims = Axes::from_iter([dim + 1]);
    let extremes = reduce(c, seen, kind, dims.clone(), true, ty.dtype)?;
    let mut hit = two(c, P::Eq, elements, extremes)?;
    if ty.dtype.is_float() {
        let unknown = one(c, P::IsNan, elements)?;
        hit = two(c, P::LogicalOr, hit, unknown)?;
    }
    let hit = two(c, P::LogicalAnd, hit, before)?;
    let place = select(c, hit, element, Scalar::Int(0))?;
    let place = reduce(c, place, ReduceKind::Amax, dims, false, DType::I64)?;
    Ok(Out::Values(smallvec![c.op(Reshape { shape: ty.shape }, [extremes.into()])?, place]))
}

/// `log Σ exp` of all elements up to each.
pub fn logcumsumexp(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    if !ty.dtype.is_float() {
        return Err(Fault::Unsupported(format!("of {}", ty.dtype)));
    }
    if ty.rank() == 0 {
        return Ok(Out::Value(x));
    }
    let dim = c.axis("dim", ty.rank())?;
    let wide = ty.dtype.opmath();
    let x = c.cast(x, wide)?;
    let (elements, result, element) = pairs(c, x, dim)?;
    let before = two(c, P::Le, element, result)?;
    let seen = select(c, before, elements, float(f64::NEG_INFINITY))?;
    let dims = Axes::from_iter([dim + 1]);
    let max = reduce(c, seen, ReduceKind::Amax, dims.clone(), true, wide)?;
    let size = one(c, P::Abs, max)?;
    let infinite = two(c, P::Eq, size, float(f64::INFINITY))?;
    let shift = select(c, infinite, float(0.0), max)?;
    let exp = two(c, P::Sub, seen, shift)?;
    let exp = one(c, P::Exp, exp)?;
    let sum = reduce(c, exp, ReduceKind::Sum, dims, true, wide)?;
    let log = one(c, P::Log, sum)?;
    let log = two(c, P::Add, log, shift)?;
    let log = c.op(Reshape { shape: ty.shape }, [log.into()])?;
    Ok(Out::Value(c.cast(log, ty.dtype)?))
}

/// Values between neighbours of the sorted elements, at `q · (n - 1)`; NaN if there is one. Several `q` make a dim in front.
pub fn quantile(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    if dtype.category() != Category::Float {
        return Err(Fault::Bad(format!("it needs floats, not {dtype}: cast first")));
    }
    let (x, dim, given) = if c.given("dim")? {
        let (x, dim, _) = line(c)?;
        (x, dim, true)
    } else {
        let flat = Shape::from_iter([c.ty(x).numel()]);
        (c.op(Reshape { shape: flat }, [x.into()])?, 0, false)
    };
    let q = match c.operand("q")? {
        Operand::Value(q) => q,
        _ => {
            let value = c.scalar("q")?;
            c.op(Full { shape: Shape::new(), value, dtype }, [])?
        }
    };
    let several = c.ty(q).rank() == 1;
    let extent = c.ty(x).shape[dim].clone();
    let (values, _) = sorted(c, x, dim)?;
    let steps = c.size(&(extent - Dim::from(1)))?;
    let rank = two(c, P::Mul, q, steps)?;
    let (below, above) = match c.text("interpolation")? {
        "linear" | "midpoint" => (P::Floor, P::Ceil),
        "lower" => (P::Floor, P::Floor),
        "higher" => (P::Ceil, P::Ceil),
        "nearest" => (P::Round, P::Round),
        other => return Err(Fault::Bad(format!("there is no interpolation `{other}`"))),
    };
    let pick = |c: &mut Call<'_, '_>, by: P| {
        let position = one(c, by, rank)?;
        let position = c.cast(position, DType::I64)?;
        let picked = c.op(Index { axes: Axes::from_iter([dim]) }, [values.into(), position.into()])?;
        if !several || dim == 0 {
            return Ok(picked);
        }
        let order = [dim].into_iter().chain((0..c.ty(picked).rank()).filter(|&i| i != dim)).collect();
        c.op(Permute { dims: order }, [picked.into()])
    };
    let (low, high) = (pick(c, below)?, pick(c, above)?);
    let part = match c.text("interpolation")? {
        "midpoint" => c.op(Full { shape: Shape::new(), value: Scalar::Float(0.5), dtype }, [])?,
        _ => {
            let whole = one(c, P::Floor, rank)?;
            two(c, P::Sub, rank, whole)?
        }
    };
    let rest = c.ty(x).rank() - 1;
    let part = if several {
        let mut beside: Shape = vec![Dim::from(1); rest + 1].into();
        beside[0] = c.ty(q).shape[0].clone();
        c.op(Reshape { shape: beside }, [part.into()])?
    } else {
        part
    };
    let mut result = if below == above { low } else { super::special::between(c, low, high, part)? };
    let unknown = one(c, P::IsNan, x)?;
    let any = reduce(c, unknown, ReduceKind::Any, Axes::from_iter([dim]), false, DType::Bool)?;
    result = select(c, any, float(f64::NAN), result)?;
    if c.flag("keepdim")? {
        let source = c.tensor("self")?;
        let mut shape = c.ty(source).shape.clone();
        for i in (0..shape.len()).filter(|&i| !given || i == dim) {
            shape[i] = Dim::from(1);
        }
        let front = c.ty(q).shape.clone();
        result = c.op(Reshape { shape: front.into_iter().chain(shape).collect() }, [result.into()])?;
    }
    Ok(Out::Value(result))
}

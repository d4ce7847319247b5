//! Reductions, scans and histograms.

use super::super::call::{Built, Call, Fault, Out};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    dtype::Category,
    ops::{Axes, Cumsum, Full, Histc, Pointwise, Reduce, ReduceKind, Reshape, ScatterAdd},
};
use smallvec::smallvec;

/// The dims to reduce: those of the argument, or all where none are named. A 0-d tensor has none.
pub fn dims(c: &Call<'_, '_>, name: &str, rank: usize) -> Built<Axes> {
    let named = if c.row.has(name) { c.axes(name, rank)? } else { None };
    Ok(match named {
        Some(_) if rank == 0 => Axes::new(),
        Some(axes) if !axes.is_empty() => axes,
        _ => (0..rank).collect(),
    })
}

/// True if every value of `from` has its exact counterpart in `to`.
fn lossless(from: DType, to: DType) -> bool {
    from == to || from == DType::Bool || (from.category() == to.category() && from.promote(to) == Some(to))
}

/// Adds a reduction; operands that `dtype` cannot hold exactly are converted first, as PyTorch does.
pub fn reduce(c: &mut Call<'_, '_>, x: Value, kind: ReduceKind, dims: Axes, keepdim: bool, dtype: DType) -> Built<Value> {
    let truth = matches!(kind, ReduceKind::Any | ReduceKind::All);
    let position = matches!(kind, ReduceKind::Argmax | ReduceKind::Argmin);
    let x = if truth || position || lossless(c.ty(x).dtype, dtype) { x } else { c.cast(x, dtype)? };
    c.op(Reduce { kind, dims, keepdim, dtype }, [x.into()])
}

/// The dtype that a reduction gives when none is named: sums and products of integers are i64.
pub fn default_dtype(kind: ReduceKind, of: DType) -> DType {
    match kind {
        ReduceKind::Sum | ReduceKind::Prod if of.category() <= Category::Int => DType::I64,
        ReduceKind::Any | ReduceKind::All if of != DType::U8 => DType::Bool,
        _ => of,
    }
}

fn reduced(c: &mut Call<'_, '_>, x: Value, kind: ReduceKind, dims: Axes, keepdim: bool) -> Built {
    let given = if c.row.has("dtype") { c.dtype("dtype")? } else { None };
    let dtype = given.unwrap_or(default_dtype(kind, c.ty(x).dtype));
    if matches!(kind, ReduceKind::Any | ReduceKind::All) {
        // Of u8, PyTorch answers in u8.
        let truth = reduce(c, x, kind, dims, keepdim, DType::Bool)?;
        return Ok(Out::Value(c.cast(truth, dtype)?));
    }
    Ok(Out::Value(reduce(c, x, kind, dims, keepdim, dtype)?))
}

/// A reduction over everything.
pub fn all_dims(c: &mut Call<'_, '_>, kind: ReduceKind) -> Built {
    let x = c.tensor("self")?;
    let dims = (0..c.ty(x).rank()).collect();
    reduced(c, x, kind, dims, false)
}

/// A reduction over the dims of the argument `dim`.
pub fn over_dims(c: &mut Call<'_, '_>, kind: ReduceKind) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    if matches!(kind, ReduceKind::Any | ReduceKind::All) && c.axes("dim", rank)?.is_some_and(|axes| axes.is_empty()) {
        return Err(Fault::Unsupported("over an empty list of dims".into()));
    }
    let dims = dims(c, "dim", rank)?;
    let keepdim = c.flag("keepdim")?;
    reduced(c, x, kind, dims, keepdim)
}

/// The sum of what is not NaN.
pub fn nansum(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let (dtype, rank) = (c.ty(x).dtype, c.ty(x).rank());
    let (dims, keepdim) = (dims(c, "dim", rank)?, c.flag("keepdim")?);
    if !dtype.is_float() {
        return reduced(c, x, ReduceKind::Sum, dims, keepdim);
    }
    let is_nan = c.op(Pointwise::IsNan, [x.into()])?;
    let clean = c.op(Pointwise::Where, [is_nan.into(), Scalar::Float(0.0).into(), x.into()])?;
    reduced(c, clean, ReduceKind::Sum, dims, keepdim)
}

/// Refuses complex numbers, which have no order, also where there are none to compare.
fn ordered(c: &Call<'_, '_>, x: Value) -> Built<()> {
    match c.ty(x).dtype {
        dtype if dtype.is_complex() => Err(Fault::Bad(format!("{dtype} has no order"))),
        _ => Ok(()),
    }
}

/// Extremes along a dim and where they stand.
pub fn with_position(c: &mut Call<'_, '_>, extreme: ReduceKind, position: ReduceKind) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    ordered(c, x)?;
    let (dims, keepdim) = (dims(c, "dim", c.ty(x).rank())?, c.flag("keepdim")?);
    let values = reduce(c, x, extreme, dims.clone(), keepdim, dtype)?;
    let indices = reduce(c, x, position, dims, keepdim, DType::I64)?;
    Ok(Out::Values(smallvec![values, indices]))
}

pub fn aminmax(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    let (dims, keepdim) = (dims(c, "dim", c.ty(x).rank())?, c.flag("keepdim")?);
    let min = reduce(c, x, ReduceKind::Amin, dims.clone(), keepdim, dtype)?;
    let max = reduce(c, x, ReduceKind::Amax, dims, keepdim, dtype)?;
    Ok(Out::Values(smallvec![min, max]))
}

/// The position of an extreme: along a dim, or among all elements in row-major order.
pub fn position(c: &mut Call<'_, '_>, kind: ReduceKind) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    ordered(c, x)?;
    if ty.dtype == DType::Bool {
        return Err(Fault::Bad("the position of an extreme is not defined for bool: cast first".into()));
    }
    let keepdim = c.flag("keepdim")?;
    if c.given("dim")? {
        let dims = dims(c, "dim", ty.rank())?;
        return Ok(Out::Value(reduce(c, x, kind, dims, keepdim, DType::I64)?));
    }
    let flat = c.op(Reshape { shape: Shape::from_iter([ty.numel()]) }, [x.into()])?;
    let at = reduce(c, flat, kind, Axes::from_iter([0]), false, DType::I64)?;
    if !keepdim {
        return Ok(Out::Value(at));
    }
    Ok(Out::Value(c.op(Reshape { shape: vec![Dim::from(1); ty.rank()].into() }, [at.into()])?))
}

pub fn count_nonzero(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dims = dims(c, "dim", c.ty(x).rank())?;
    let counted = match c.ty(x).dtype {
        DType::Bool => x,
        _ => c.op(Pointwise::Ne, [x.into(), Scalar::Int(0).into()])?,
    };
    Ok(Out::Value(reduce(c, counted, ReduceKind::Sum, dims, false, DType::I64)?))
}

pub fn cumsum(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let dim = c.axis("dim", ty.rank())?;
    let dtype = c.dtype("dtype")?.unwrap_or(default_dtype(ReduceKind::Sum, ty.dtype));
    if ty.rank() == 0 {
        return Ok(Out::Value(c.cast(x, dtype)?));
    }
    let x = if lossless(ty.dtype, dtype) { x } else { c.cast(x, dtype)? };
    Ok(Out::Value(c.op(Cumsum { dim, dtype }, [x.into()])?))
}

pub fn histc(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let (bins, min, max) = (c.int("bins")?, c.scalar("min")?, c.scalar("max")?);
    let bins = usize::try_from(bins).ok().filter(|&bins| bins > 0).ok_or_else(|| Fault::Bad(format!("{bins} bins")))?;
    if min.as_f64() == max.as_f64() {
        return histogram_of_all(c, x, bins);
    }
    Ok(Out::Value(c.op(Histc { bins, min, max }, [x.into()])?))
}

/// A histogram over the range of the data, widened by one on each side where it is a point (PyTorch's `select_outer_bin_edges`).
fn histogram_of_all(c: &mut Call<'_, '_>, x: Value, bins: usize) -> Built {
    let ty = c.ty(x).clone();
    let full = |shape: Shape, value: i64, dtype: DType| Full { shape, value: Scalar::Int(value), dtype };
    let one = c.op(full(ty.shape.clone(), 1, ty.dtype), [])?;
    let every: Axes = (0..ty.rank()).collect();
    if bins == 1 {
        let count = reduce(c, one, ReduceKind::Sum, every, false, ty.dtype)?;
        return Ok(Out::Value(c.op(Reshape { shape: Shape::from_iter([Dim::from(1)]) }, [count.into()])?));
    }
    let (low, high) = (
        reduce(c, x, ReduceKind::Amin, every.clone(), false, ty.dtype)?,
        reduce(c, x, ReduceKind::Amax, every, false, ty.dtype)?,
    );
    let point = c.op(Pointwise::Eq, [low.into(), high.into()])?;
    let point = c.cast(point, ty.dtype)?;
    let (low, high) = (c.op(Pointwise::Sub, [low.into(), point.into()])?, c.op(Pointwise::Add, [high.into(), point.into()])?);
    let (from, width) = (c.op(Pointwise::Sub, [x.into(), low.into()])?, c.op(Pointwise::Sub, [high.into(), low.into()])?);
    let scaled = c.op(Pointwise::Mul, [from.into(), Scalar::Int(bins as i64).into()])?;
    let at = c.op(Pointwise::Div, [scaled.into(), width.into()])?;
    let at = c.cast(at, DType::I64)?;
    let at = c.op(Pointwise::Minimum, [at.into(), Scalar::Int(bins as i64 - 1).into()])?;
    let flat = Shape::from_iter([ty.numel()]);
    let (at, one) = (c.op(Reshape { shape: flat.clone() }, [at.into()])?, c.op(Reshape { shape: flat }, [one.into()])?);
    let none = c.op(full(Shape::from_iter([Dim::from(bins as i64)]), 0, ty.dtype), [])?;
    Ok(Out::Value(c.op(ScatterAdd { dim: 0 }, [none.into(), at.into(), one.into()])?))
}

/// Summed over the dims that `size` lacks, or has as 1.
pub fn sum_to_size(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let (ty, size) = (c.ty(x).clone(), c.dims("size")?);
    let new = ty.rank().checked_sub(size.len()).ok_or_else(|| Fault::Bad("it has fewer dims than asked for".into()))?;
    let gone = |i: usize| i < new || (size[i - new].is(1) && !ty.shape[i].is(1));
    let dims: Axes = (0..ty.rank()).filter(|&i| gone(i)).collect();
    let dtype = default_dtype(ReduceKind::Sum, ty.dtype);
    let sum = if dims.is_empty() { c.cast(x, dtype)? } else { reduce(c, x, ReduceKind::Sum, dims, true, dtype)? };
    Ok(Out::Value(c.op(Reshape { shape: size.into_iter().collect() }, [sum.into()])?))
}

//! Reordering and selecting along dims: rolls, windows, and writes by index.

use super::{
    super::call::{Built, Call, Fault, Out},
    diagonals::{known, to_end},
    pooling::{highest, lowest},
    special::{select, two},
    updates::iota,
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{Axes, Expand, Full, Gather, Index, IndexPut, Iota, Pointwise as P, Reduce, ReduceKind, Reshape, ScatterAdd, Slice},
};

/// Elements moved on by `shifts` along dims; what leaves at the end comes back at the start.
pub fn roll(c: &mut Call<'_, '_>) -> Built {
    let mut x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let shifts = c.optional_ints("shifts")?.unwrap_or_default();
    let dims = c.optional_ints("dims")?.unwrap_or_default();
    let flat = dims.is_empty();
    if flat {
        x = c.op(Reshape { shape: Shape::from_iter([crate::types::numel(&shape)]) }, [x.into()])?;
    } else if dims.len() != shifts.len() {
        return Err(Fault::Bad(format!("{} shifts for {} dims", shifts.len(), dims.len())));
    }
    let rank = c.ty(x).rank() as i64;
    for (i, &shift) in shifts.iter().enumerate() {
        let dim = dims.get(i).copied().unwrap_or(0);
        let dim = usize::try_from(if dim < 0 { dim + rank } else { dim }).ok().filter(|&dim| dim < rank as usize);
        let dim = dim.ok_or_else(|| Fault::Bad("a dim is out of range".into()))?;
        let extent = c.ty(x).shape[dim].clone();
        if extent.is(0) {
            continue;
        }
        let shifted = c.op(Iota { len: extent.clone(), start: shift.wrapping_neg(), step: 1, dtype: DType::I64 }, [])?;
        let extent = c.size(&extent)?;
        let from = two(c, P::Remainder, shifted, extent)?;
        x = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), from.into()])?;
    }
    Ok(Out::Value(if flat { c.op(Reshape { shape }, [x.into()])? } else { x }))
}

/// Windows of `size` elements every `step` along a dim, as a last dim.
pub fn unfold(c: &mut Call<'_, '_>) -> Built {
    let mut x = c.alias("self")?;
    let scalar = c.alias_ty(x)?.rank() == 0;
    if scalar {
        x = c.view(x, Reshape { shape: Shape::from_iter([Dim::from(1)]) })?;
    }
    let shape = c.alias_ty(x)?.shape;
    let dim = c.axis("dimension", shape.len())?;
    let (size, step) = (c.int("size")?, c.int("step")?);
    let extent = shape.get(dim).ok_or_else(|| Fault::Unsupported("of a 0-d tensor".into()))?;
    let extent = known(extent, "the number of windows")?;
    if size < 0 || size > extent || step < 1 {
        return Err(Fault::Bad(format!("windows of {size} every {step} in {extent} elements")));
    }
    let count = Dim::from((extent - size) / step + 1);
    let starts = c.op(Iota { len: count.clone(), start: 0, step, dtype: DType::I64 }, [])?;
    let starts = c.op(Reshape { shape: Shape::from_iter([count, Dim::from(1)]) }, [starts.into()])?;
    let within = iota(c, Dim::from(size))?;
    let at = two(c, P::Add, starts, within)?;
    let picked = c.picked(x, &[dim], &[at])?;
    if scalar {
        let windows = Shape::from_iter([Dim::from(size)]);
        return Ok(Out::Alias(c.view(picked, Reshape { shape: windows })?));
    }
    Ok(Out::Alias(to_end(c, picked, dim + 1)?))
}

/// Elements of the flattened tensor.
pub fn take(c: &mut Call<'_, '_>) -> Built {
    let (x, index) = (c.tensor("self")?, c.tensor("index")?);
    let flat = c.op(Reshape { shape: Shape::from_iter([c.ty(x).numel()]) }, [x.into()])?;
    Ok(Out::Value(c.op(Index { axes: Axes::from_iter([0]) }, [flat.into(), index.into()])?))
}

/// `gather` after broadcasting all dims but `dim`; of the flattened tensors where no dim is given.
pub fn take_along_dim(c: &mut Call<'_, '_>) -> Built {
    let (x, index) = (c.tensor("self")?, c.tensor("indices")?);
    // Unlike those of `gather`, its indices may count from the end.
    let wrapped = |c: &mut Call<'_, '_>, index: Value, extent: &Dim| {
        let extent = c.size(extent)?;
        let below = two(c, P::Lt, index, Scalar::Int(0))?;
        let other = two(c, P::Add, index, extent)?;
        select(c, below, other, index)
    };
    if !c.given("dim")? {
        let flat = |c: &mut Call<'_, '_>, x: Value| c.op(Reshape { shape: Shape::from_iter([c.ty(x).numel()]) }, [x.into()]);
        let (x, index) = (flat(c, x)?, flat(c, index)?);
        let index = wrapped(c, index, &c.ty(x).numel())?;
        return Ok(Out::Value(c.op(Gather { dim: 0 }, [x.into(), index.into()])?));
    }
    let (have, want) = (c.ty(x).shape.clone(), c.ty(index).shape.clone());
    let dim = c.axis("dim", have.len())?;
    if have.len() != want.len() || have.is_empty() {
        return Err(Fault::Bad("tensor and indices must have one rank".into()));
    }
    let wider = |i: usize| if have[i].is(1) { want[i].clone() } else { have[i].clone() };
    let (mut source, mut target) = (have.clone(), want.clone());
    for i in (0..have.len()).filter(|&i| i != dim) {
        source[i] = wider(i);
        target[i] = wider(i);
    }
    let index = wrapped(c, index, &have[dim])?;
    let (x, index) = (c.expand(x, &source)?, c.expand(index, &target)?);
    Ok(Out::Value(c.op(Gather { dim }, [x.into(), index.into()])?))
}

/// `x` with `values` written, or added, to the slices that a 1-d index names along a dim.
fn put_along(c: &mut Call<'_, '_>, values: Value, accumulate: bool) -> Built {
    let (source, index) = (c.tensor("self")?, c.tensor("index")?);
    let (x, index) = (c.lines(source)?, c.lines(index)?);
    let ty = c.ty(x).clone();
    if c.ty(index).rank() != 1 {
        return Err(Fault::Bad("its index must be a vector".into()));
    }
    let dim = c.axis("dim", ty.rank())?;
    let values = c.cast(values, ty.dtype)?;
    let op = IndexPut { axes: Axes::from_iter([dim]), accumulate };
    let put = c.op(op, [x.into(), values.into(), index.into()])?;
    Ok(Out::Value(if source == x { put } else { c.op(Reshape { shape: Shape::new() }, [put.into()])? }))
}

pub fn index_add(c: &mut Call<'_, '_>) -> Built {
    let source = c.tensor("source")?;
    let alpha = super::matmul::in_kind(c.scalar("alpha")?, c.ty(source).dtype);
    let source = if alpha.as_f64() == 1.0 { source } else { two(c, P::Mul, source, alpha)? };
    put_along(c, source, true)
}

pub fn index_copy(c: &mut Call<'_, '_>) -> Built {
    let source = c.tensor("source")?;
    put_along(c, source, false)
}

pub fn index_fill(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    let value = match c.operand("value")? {
        Operand::Value(value) => value,
        _ => {
            let value = c.scalar("value")?;
            c.op(Full { shape: Shape::new(), value, dtype }, [])?
        }
    };
    put_along(c, value, false)
}

/// How a scatter combines what meets at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combine {
    Sum,
    Mean,
    Prod,
    Amax,
    Amin,
}

fn combine(c: &Call<'_, '_>) -> Built<Combine> {
    match c.text("reduce")? {
        "sum" | "add" => Ok(Combine::Sum),
        "mean" => Ok(Combine::Mean),
        "prod" | "multiply" => Ok(Combine::Prod),
        "amax" => Ok(Combine::Amax),
        "amin" => Ok(Combine::Amin),
        other => Err(Fault::Bad(format!("there is no reduction `{other}`"))),
    }
}

/// `scatter_reduce`, and `scatter` with `reduce`.
pub fn scatter_reduce(c: &mut Call<'_, '_>) -> Built {
    let (x, index, how) = (c.tensor("self")?, c.tensor("index")?, combine(c)?);
    let ty = c.ty(x).clone();
    let dim = c.axis("dim", ty.rank())?;
    let shape = c.ty(index).shape.clone();
    let src = if c.row.has("src") {
        let src = c.tensor("src")?;
        super::indexing::covered(c, src, index)?
    } else {
        let value = c.scalar("value")?;
        c.op(Full { shape, value, dtype: ty.dtype }, [])?
    };
    let include = !c.row.has("include_self") || c.flag("include_self")?;
    let lines = |c: &mut Call<'_, '_>, x: Value| match c.ty(x).rank() {
        0 => c.op(Reshape { shape: Shape::from_iter([Dim::from(1)]) }, [x.into()]),
        _ => Ok(x),
    };
    let (x, index, src) = (lines(c, x)?, lines(c, index)?, lines(c, src)?);
    let result = scattered(c, x, dim, index, src, how, include)?;
    Ok(Out::Value(c.op(Reshape { shape: ty.shape }, [result.into()])?))
}

/// `index_reduce`: whole slices of `source` combined at a 1-d index.
pub fn index_reduce(c: &mut Call<'_, '_>) -> Built {
    let (whole, index, source, how) = (c.tensor("self")?, c.tensor("index")?, c.tensor("source")?, combine(c)?);
    let (x, index, source) = (c.lines(whole)?, c.lines(index)?, c.lines(source)?);
    let ty = c.ty(source).clone();
    if c.ty(x).rank() != ty.rank() || c.ty(index).rank() != 1 {
        return Err(Fault::Bad("its index must be a vector".into()));
    }
    let dim = c.axis("dim", ty.rank())?;
    let mut beside: Shape = vec![Dim::from(1); ty.rank()].into();
    beside[dim] = ty.shape[dim].clone();
    let index = c.op(Reshape { shape: beside }, [index.into()])?;
    let index = c.expand(index, &ty.shape)?;
    let include = c.flag("include_self")?;
    let result = scattered(c, x, dim, index, source, how, include)?;
    Ok(Out::Value(if whole == x { result } else { c.op(Reshape { shape: Shape::new() }, [result.into()])? }))
}

/// `src` combined with `x` at `index` along a dim; where `x` itself does not count, only in places that nothing reaches.
fn scattered(
    c: &mut Call<'_, '_>,
    mut x: Value,
    dim: usize,
    index: Value,
    src: Value,
    how: Combine,
    include: bool,
) -> Built<Value> {
    let ty = c.ty(x).clone();
    let src = c.cast(src, ty.dtype)?;
    let ones = c.op(Full { shape: c.ty(index).shape.clone(), value: Scalar::Int(1), dtype: DType::I64 }, [])?;
    let none = c.op(Full { shape: ty.shape.clone(), value: Scalar::Int(0), dtype: DType::I64 }, [])?;
    let count = c.op(ScatterAdd { dim }, [none.into(), index.into(), ones.into()])?;
    let identity = match how {
        Combine::Sum | Combine::Mean if ty.dtype.is_int() => Scalar::Int(0),
        Combine::Sum | Combine::Mean => Scalar::Float(0.0),
        Combine::Prod if ty.dtype.is_int() => Scalar::Int(1),
        Combine::Prod => Scalar::Float(1.0),
        Combine::Amax => lowest(ty.dtype),
        Combine::Amin => highest(ty.dtype),
    };
    if !include {
        let touched = two(c, P::Gt, count, Scalar::Int(0))?;
        let empty = c.op(Full { shape: Shape::new(), value: identity, dtype: ty.dtype }, [])?;
        x = select(c, touched, empty, x)?;
    }
    if matches!(how, Combine::Sum | Combine::Mean) {
        let sum = c.op(ScatterAdd { dim }, [x.into(), index.into(), src.into()])?;
        if how == Combine::Sum {
            return Ok(sum);
        }
        let count = if include { two(c, P::Add, count, Scalar::Int(1))? } else { two(c, P::Maximum, count, Scalar::Int(1))? };
        let mean = two(c, if ty.dtype.is_float() { P::Div } else { P::FloorDiv }, sum, count)?;
        return c.cast(mean, ty.dtype);
    }
    // The table scatters sums alone: each place reduces all elements of its line, those that go elsewhere left out.
    let apart = |c: &mut Call<'_, '_>, x: Value| {
        let mut shape = c.ty(x).shape.clone();
        shape.insert(dim, Dim::from(1));
        c.op(Reshape { shape }, [x.into()])
    };
    let (source, to) = (apart(c, src)?, apart(c, index)?);
    let places = iota(c, ty.shape[dim].clone())?;
    let mut beside: Shape = vec![Dim::from(1); ty.rank() + 1].into();
    beside[dim] = ty.shape[dim].clone();
    let places = c.op(Reshape { shape: beside }, [places.into()])?;
    let here = two(c, P::Eq, to, places)?;
    let empty = c.op(Full { shape: Shape::new(), value: identity, dtype: ty.dtype }, [])?;
    let met = select(c, here, source, empty)?;
    let (kind, op) = match how {
        Combine::Amax => (ReduceKind::Amax, P::Maximum),
        Combine::Amin => (ReduceKind::Amin, P::Minimum),
        _ => (ReduceKind::Prod, P::Mul),
    };
    let met = c.op(Reduce { kind, dims: Axes::from_iter([dim + 1]), keepdim: false, dtype: ty.dtype }, [met.into()])?;
    // An index may cover the leading part of the other dims only.
    let storage = c.translator.aliases.storage(x);
    let mut part = storage;
    for (i, extent) in c.ty(met).shape.clone().into_iter().enumerate() {
        part = c.view(part, Slice { dim: i, start: Dim::from(0), end: extent, step: 1 })?;
    }
    let before = c.read(part)?;
    let after = two(c, op, before, met)?;
    let name = c.name.clone();
    c.translator.aliases.write(&mut c.translator.graph, part, after, &name)?;
    c.read(storage)
}

/// Counts, or sums of weights, of the numbers from 0 on: as many as the archive says, since the data would say it otherwise.
pub fn bincount(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let bins = c.declared(0)?.and_then(|ty| ty.shape.first().cloned()).filter(|bins| bins.as_const().is_some());
    let Some(bins) = bins else {
        return Err(Fault::Unsupported(
            "the size of its result depends on the data: count with `zeros(n).scatter_add(0, x, ones)`, or `histc`".into(),
        ));
    };
    let values = match c.optional("weights")? {
        Some(weights) if c.ty(weights).dtype.is_float() => weights,
        Some(weights) => c.cast(weights, DType::F64)?,
        None => c.op(Full { shape: c.ty(x).shape.clone(), value: Scalar::Int(1), dtype: DType::I64 }, [])?,
    };
    let dtype = c.ty(values).dtype;
    let none = c.op(Full { shape: Shape::from_iter([bins]), value: Scalar::Int(0), dtype }, [])?;
    let x = c.cast(x, DType::I64)?;
    Ok(Out::Value(c.op(ScatterAdd { dim: 0 }, [none.into(), x.into(), values.into()])?))
}

/// Running products: the table scans sums alone, so that each is a product of all up to it.
pub fn cumprod(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let integer = ty.dtype.category() < crate::dtype::Category::Float;
    let dtype = c.dtype("dtype")?.unwrap_or(if integer { DType::I64 } else { ty.dtype });
    let x = c.cast(x, dtype)?;
    if ty.rank() == 0 {
        return Ok(Out::Value(x));
    }
    let dim = c.axis("dim", ty.rank())?;
    let extent = ty.shape[dim].clone();
    // A dim of the results' positions before that of the factors.
    let mut apart = ty.shape.clone();
    apart.insert(dim, Dim::from(1));
    let factors = c.op(Reshape { shape: apart }, [x.into()])?;
    let along = |c: &mut Call<'_, '_>, at: usize| {
        let mut shape: Shape = vec![Dim::from(1); ty.rank() + 1].into();
        shape[at] = extent.clone();
        let positions = iota(c, extent.clone())?;
        c.op(Reshape { shape }, [positions.into()])
    };
    let (result, factor) = (along(c, dim)?, along(c, dim + 1)?);
    let before = two(c, P::Le, factor, result)?;
    let one = if integer { Scalar::Int(1) } else { Scalar::Float(1.0) };
    let kept = select(c, before, factors, one)?;
    Ok(Out::Value(
        c.op(Reduce { kind: ReduceKind::Prod, dims: Axes::from_iter([dim + 1]), keepdim: false, dtype }, [kept.into()])?,
    ))
}

/// One at the position that each element names, in a last dim of `num_classes`.
pub fn one_hot(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let classes = c.dim("num_classes")?;
    if classes.is(-1) {
        return Err(Fault::Unsupported("with the number of classes taken from the data: pass `num_classes`".into()));
    }
    let mut shape = c.ty(x).shape.clone();
    shape.push(Dim::from(1));
    let apart = c.op(Reshape { shape }, [x.into()])?;
    let all = iota(c, classes)?;
    let hit = two(c, P::Eq, apart, all)?;
    Ok(Out::Value(c.cast(hit, DType::I64)?))
}

/// How many of `sorted` (along its last dim) come before each value: below it, or (`right`) not above it. In the words of
/// aten/src/ATen/native/Bucketization.cpp, `!(sorted >= value)` and `!(sorted > value)`.
fn places(c: &mut Call<'_, '_>, sorted: Value, values: Operand, right: bool) -> Built {
    let shape = c.ty(sorted).shape.clone();
    let (sorted, values) = match values {
        Operand::Value(values) => {
            let mut apart = c.ty(values).shape.clone();
            apart.push(Dim::from(1));
            let values = c.op(Reshape { shape: apart }, [values.into()])?;
            let mut row = shape;
            row.insert(row.len().saturating_sub(1), Dim::from(1));
            let sorted = if row.len() > 2 { c.op(Reshape { shape: row }, [sorted.into()])? } else { sorted };
            (sorted, values.into())
        }
        scalar => (sorted, scalar),
    };
    let after = two(c, if right { P::Gt } else { P::Ge }, sorted, values)?;
    let before = c.op(P::LogicalNot, [after.into()])?;
    let dtype = if c.flag("out_int32")? { DType::I32 } else { DType::I64 };
    let last = c.ty(before).rank() - 1;
    Ok(Out::Value(c.op(Reduce { kind: ReduceKind::Sum, dims: Axes::from_iter([last]), keepdim: false, dtype }, [before.into()])?))
}

pub fn searchsorted(c: &mut Call<'_, '_>) -> Built {
    let (mut sorted, values) = (c.tensor("sorted_sequence")?, c.operand("self")?);
    if let Some(order) = c.optional("sorter")? {
        let dim = c.ty(sorted).rank().saturating_sub(1);
        sorted = c.op(Gather { dim }, [sorted.into(), order.into()])?;
    }
    let right = c.flag("right")? || c.text("side")? == "right";
    places(c, sorted, values, right)
}

pub fn bucketize(c: &mut Call<'_, '_>) -> Built {
    let (boundaries, values) = (c.tensor("boundaries")?, c.operand("self")?);
    let right = c.flag("right")?;
    places(c, boundaries, values, right)
}

/// Padding by the tensor's own elements, one dim after the other.
pub fn pad_by_index(c: &mut Call<'_, '_>, mode: &str, name: &str) -> Built {
    let mut x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    let pads = c.optional_ints(name)?.unwrap_or_default();
    if pads.len() % 2 != 0 || pads.len() / 2 > rank {
        return Err(Fault::Bad(format!("{} paddings for {rank} dims", pads.len())));
    }
    for (i, pair) in pads.chunks_exact(2).enumerate() {
        let dim = rank - 1 - i;
        let extent = c.ty(x).shape[dim].clone();
        if pair == [0, 0] {
            continue;
        }
        let fits = match (mode, extent.as_const()) {
            ("reflect", Some(extent)) => pair.iter().all(|&pad| pad < extent),
            ("circular", Some(extent)) => pair.iter().all(|&pad| pad <= extent),
            (_, Some(extent)) => extent > 0,
            _ => true,
        };
        if !fits {
            return Err(Fault::Bad(format!("the padding {pair:?} exceeds the extent {extent}")));
        }
        let len = extent.clone() + Dim::from(pair[0]) + Dim::from(pair[1]);
        let position = c.op(Iota { len, start: -pair[0], step: 1, dtype: DType::I64 }, [])?;
        let last = c.size(&(extent.clone() - Dim::from(1)))?;
        let from = match mode {
            "reflect" => {
                let first = c.op(P::Abs, [position.into()])?;
                let beyond = two(c, P::Sub, last, first)?;
                let beyond = c.op(P::Abs, [beyond.into()])?;
                two(c, P::Sub, last, beyond)?
            }
            "replicate" => {
                let above = two(c, P::Maximum, position, Scalar::Int(0))?;
                two(c, P::Minimum, above, last)?
            }
            _ => {
                let extent = c.size(&extent)?;
                two(c, P::Remainder, position, extent)?
            }
        };
        x = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), from.into()])?;
    }
    Ok(Out::Value(x))
}

/// `self` broadcast to `size`.
pub fn broadcast_to(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    let shape = c.dims("size")?.into();
    Ok(Out::Alias(c.view(x, Expand { shape })?))
}

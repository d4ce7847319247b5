//! Reordering and selecting along dims: diagonals, triangles, rolls, windows, and writes by index.

use super::{
    super::{
        call::{Built, Call, Fault, Out},
        number,
    },
    special::{select, two},
    updates::iota,
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{
        Axes, Expand, Full, Gather, Index, IndexPut, Iota, Permute, Pointwise as P, Reduce, ReduceKind, Reshape, ScatterAdd,
        Slice,
    },
};

/// `x` with its last dim moved to `to`, or the dim `from` moved to the end.
fn to_end(c: &mut Call<'_, '_>, x: Value, from: usize) -> Built<Value> {
    let rank = c.ty(x).rank();
    let dims: Axes = (0..rank).filter(|&i| i != from).chain([from]).collect();
    if dims.iter().copied().eq(0..rank) { Ok(x) } else { c.op(Permute { dims }, [x.into()]) }
}

fn known(dim: &Dim, what: &str) -> Built<i64> {
    dim.as_const().ok_or_else(|| Fault::Unsupported(format!("{what} depends on the size {dim}")))
}

/// Elements of two dims at equal positions, as a last dim.
pub fn diagonal_of(c: &mut Call<'_, '_>, x: Value, offset: i64, first: usize, second: usize) -> Built<Value> {
    let shape = c.ty(x).shape.clone();
    if first == second {
        return Err(Fault::Bad("a diagonal lies between two dims".into()));
    }
    let (rows, columns) = (known(&shape[first], "a diagonal")?, known(&shape[second], "a diagonal")?);
    let (down, right) = ((-offset).max(0), offset.max(0));
    let len = Dim::from((rows - down).min(columns - right).max(0));
    let at = |c: &mut Call<'_, '_>, start: i64| c.op(Iota { len: len.clone(), start, step: 1, dtype: DType::I64 }, []);
    let (row, column) = (at(c, down)?, at(c, right)?);
    let (axes, operands) = match first < second {
        true => ([first, second], [x, row, column]),
        false => ([second, first], [x, column, row]),
    };
    let adjacent = axes[0] + 1 == axes[1];
    let picked = c.op(Index { axes: Axes::from_iter(axes) }, operands.map(Operand::from))?;
    to_end(c, picked, if adjacent { axes[0] } else { 0 })
}

pub fn diagonal(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    let (offset, first, second) = (c.int("offset")?, c.axis("dim1", rank)?, c.axis("dim2", rank)?);
    Ok(Out::Value(diagonal_of(c, x, offset, first, second)?))
}

/// The sum of a matrix's diagonal.
pub fn trace(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let diagonal = diagonal_of(c, x, 0, 0, 1)?;
    let dtype = if c.ty(x).dtype.category() < crate::dtype::Category::Float { DType::I64 } else { c.ty(x).dtype };
    Ok(Out::Value(super::reductions::reduce(c, diagonal, ReduceKind::Sum, Axes::from_iter([0]), false, dtype)?))
}

/// Zero above (`lower`) or below the diagonal that lies `diagonal` to the right of the main one.
pub fn triangle(c: &mut Call<'_, '_>, lower: bool) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let diagonal = c.int("diagonal")?;
    let [.., rows, columns] = &ty.shape[..] else { return Err(Fault::Bad("it needs a matrix".into())) };
    let row = iota(c, rows.clone())?;
    let row = c.op(Reshape { shape: Shape::from_iter([rows.clone(), Dim::from(1)]) }, [row.into()])?;
    let column = iota(c, columns.clone())?;
    let edge = two(c, P::Add, row, Scalar::Int(diagonal))?;
    let kept = two(c, if lower { P::Le } else { P::Ge }, column, edge)?;
    let zero = match ty.dtype {
        DType::Bool => Scalar::Bool(false),
        _ => Scalar::Int(0),
    };
    Ok(Out::Value(select(c, kept, x, zero)?))
}

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
        let extent = number::of_dim(&mut c.translator.graph, &extent, &c.name)?;
        let from = two(c, P::Remainder, shifted, extent)?;
        x = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), from.into()])?;
    }
    Ok(Out::Value(if flat { c.op(Reshape { shape }, [x.into()])? } else { x }))
}

/// Windows of `size` elements every `step` along a dim, as a last dim.
pub fn unfold(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
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
    let picked = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), at.into()])?;
    Ok(Out::Value(to_end(c, picked, dim + 1)?))
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
    if !c.given("dim")? {
        let flat = |c: &mut Call<'_, '_>, x: Value| c.op(Reshape { shape: Shape::from_iter([c.ty(x).numel()]) }, [x.into()]);
        let (x, index) = (flat(c, x)?, flat(c, index)?);
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
    let (x, index) = (c.expand(x, &source)?, c.expand(index, &target)?);
    Ok(Out::Value(c.op(Gather { dim }, [x.into(), index.into()])?))
}

/// `x` with `values` written, or added, to the slices that a 1-d index names along a dim.
fn put_along(c: &mut Call<'_, '_>, values: Value, accumulate: bool) -> Built {
    let (x, index) = (c.tensor("self")?, c.tensor("index")?);
    let ty = c.ty(x).clone();
    if ty.rank() == 0 || c.ty(index).rank() != 1 {
        return Err(Fault::Unsupported("with an index that is not 1-d".into()));
    }
    let dim = c.axis("dim", ty.rank())?;
    let values = c.cast(values, ty.dtype)?;
    let op = IndexPut { axes: Axes::from_iter([dim]), accumulate };
    Ok(Out::Value(c.op(op, [x.into(), values.into(), index.into()])?))
}

pub fn index_add(c: &mut Call<'_, '_>) -> Built {
    let source = c.tensor("source")?;
    let alpha = c.scalar("alpha")?;
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

/// `scatter_reduce` by sum or mean, and `scatter` with `reduce='add'`.
pub fn scatter_reduce(c: &mut Call<'_, '_>) -> Built {
    let (mut x, index) = (c.tensor("self")?, c.tensor("index")?);
    let ty = c.ty(x).clone();
    if ty.rank() == 0 {
        return Err(Fault::Unsupported("of 0-d tensors".into()));
    }
    let dim = c.axis("dim", ty.rank())?;
    let reduce = c.text("reduce")?;
    if !matches!(reduce, "sum" | "add" | "mean") {
        return Err(Fault::Unsupported(format!("by `{reduce}`")));
    }
    let shape = c.ty(index).shape.clone();
    let mut src = if c.row.has("src") {
        c.tensor("src")?
    } else {
        let value = c.scalar("value")?;
        c.op(Full { shape: shape.clone(), value, dtype: ty.dtype }, [])?
    };
    for (dim, extent) in shape.iter().enumerate() {
        if c.ty(src).shape.get(dim).is_some_and(|have| have != extent) {
            src = c.op(Slice { dim, start: Dim::from(0), end: extent.clone(), step: 1 }, [src.into()])?;
        }
    }
    let src = c.cast(src, ty.dtype)?;
    let include = !c.row.has("include_self") || c.flag("include_self")?;
    let ones = c.op(Full { shape, value: Scalar::Int(1), dtype: DType::I64 }, [])?;
    let none = c.op(Full { shape: ty.shape.clone(), value: Scalar::Int(0), dtype: DType::I64 }, [])?;
    let count = c.op(ScatterAdd { dim }, [none.into(), index.into(), ones.into()])?;
    if !include {
        let touched = two(c, P::Gt, count, Scalar::Int(0))?;
        let zero = if ty.dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
        x = select(c, touched, zero, x)?;
    }
    let sum = c.op(ScatterAdd { dim }, [x.into(), index.into(), src.into()])?;
    if reduce != "mean" {
        return Ok(Out::Value(sum));
    }
    let count = if include { two(c, P::Add, count, Scalar::Int(1))? } else { two(c, P::Maximum, count, Scalar::Int(1))? };
    let op = if ty.dtype.is_float() { P::Div } else { P::FloorDiv };
    Ok(Out::Value(two(c, op, sum, count)?))
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
        return Err(Fault::Unsupported("with the number of classes taken from the data".into()));
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
    if c.given("sorter")? {
        return Err(Fault::Unsupported("with a sorter".into()));
    }
    let (sorted, values) = (c.tensor("sorted_sequence")?, c.operand("self")?);
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
        let last = number::of_dim(&mut c.translator.graph, &(extent.clone() - Dim::from(1)), &c.name)?;
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
                let extent = number::of_dim(&mut c.translator.graph, &extent, &c.name)?;
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

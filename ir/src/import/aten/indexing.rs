//! Gathers, scatters, joins and orders.

use super::{
    super::call::{Built, Call, Fault, Out},
    pointwise::common_dtype,
    updates::iota,
};
use crate::{
    DType, Dim, NodeKind, Op, Operand, Scalar, Shape, Value,
    ops::{Axes, Cat, Expand, Full, Gather, Index, IndexPut, Iota, Pointwise, Reshape, ScatterAdd, Slice, Sort, TopK},
};
use smallvec::smallvec;

/// Index tensors and the dims they index; where there are masks, the caller decides.
fn indices(c: &mut Call<'_, '_>) -> Built<(Axes, Vec<Value>)> {
    let list = c.optional_tensors("indices")?;
    let given = list.into_iter().enumerate().filter_map(|(axis, index)| index.map(|index| (axis, index)));
    let (axes, values): (Axes, Vec<Value>) = given.unzip();
    if axes.is_empty() {
        return Err(Fault::Bad("it has no index tensor".into()));
    }
    Ok((axes, values))
}

fn is_mask(c: &Call<'_, '_>, index: Value) -> bool {
    matches!(c.ty(index).dtype, DType::Bool | DType::U8)
}

pub fn index(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let (axes, indices) = indices(c)?;
    if indices.iter().any(|&index| is_mask(c, index)) {
        return of_unknown_size(c);
    }
    let operands = std::iter::once(x).chain(indices).map(Operand::from).collect::<Vec<_>>();
    Ok(Out::Value(c.op(Index { axes }, operands)?))
}

pub fn index_put(c: &mut Call<'_, '_>) -> Built {
    let (x, values) = (c.tensor("self")?, c.tensor("values")?);
    let accumulate = c.flag("accumulate")?;
    let dtype = c.ty(x).dtype;
    let values = c.cast(values, dtype)?;
    let (axes, indices) = indices(c)?;
    if indices.iter().any(|&index| is_mask(c, index)) {
        return masked_put(c, x, values, &indices, accumulate);
    }
    let operands = [x, values].into_iter().chain(indices).map(Operand::from).collect::<Vec<_>>();
    Ok(Out::Value(c.op(IndexPut { axes, accumulate }, operands)?))
}

/// Where a mask over the leading dims holds, the values in turn, or one for all; or their sums with what is there.
fn masked_put(c: &mut Call<'_, '_>, x: Value, values: Value, indices: &[Value], accumulate: bool) -> Built {
    let &[mask] = indices else { return Err(Fault::Unsupported("by a mask beside other indices".into())) };
    let rank = c.ty(x).rank();
    let rest = rank.checked_sub(c.ty(mask).rank()).ok_or_else(|| Fault::Bad("its mask has more dims than the tensor".into()))?;
    let mask = truth(c, mask)?;
    let of_values = c.ty(values).clone();
    let values = if of_values.rank() <= rest {
        values
    } else if of_values.rank() == rest + 1 {
        let values = c.translator.aliases.storage(values);
        if of_values.shape[0].is(1) {
            let shape = of_values.shape[1..].iter().cloned().collect();
            let one = c.view(values, Reshape { shape })?;
            c.read(one)?
        } else {
            let values = c.read(values)?;
            in_turn(c, mask, values)?
        }
    } else {
        return Err(Fault::Bad(format!("values {of_values} for {rest} dims behind the mask")));
    };
    let mut shape = c.ty(mask).shape.clone();
    shape.resize(rank, Dim::from(1));
    let mask = c.op(Reshape { shape }, [mask.into()])?;
    let values = if accumulate { c.op(Pointwise::Add, [x.into(), values.into()])? } else { values };
    Ok(Out::Value(c.op(Pointwise::Where, [mask.into(), values.into(), x.into()])?))
}

/// A mask as bools.
fn truth(c: &mut Call<'_, '_>, mask: Value) -> Built<Value> {
    if c.ty(mask).dtype == DType::Bool { Ok(mask) } else { c.op(Pointwise::Ne, [mask.into(), Scalar::Int(0).into()]) }
}

/// For each place of the mask that holds, the next row of `values`; some row for the others.
fn in_turn(c: &mut Call<'_, '_>, mask: Value, values: Value) -> Built<Value> {
    let ty = c.ty(mask).clone();
    let flat = c.op(Reshape { shape: Shape::from_iter([ty.numel()]) }, [mask.into()])?;
    let count = c.op(crate::ops::Cumsum { dim: 0, dtype: DType::I64 }, [flat.into()])?;
    let position = c.op(Pointwise::Sub, [count.into(), Scalar::Int(1).into()])?;
    let position = c.op(Pointwise::Where, [flat.into(), position.into(), Scalar::Int(0).into()])?;
    let position = c.op(Reshape { shape: ty.shape }, [position.into()])?;
    c.op(Index { axes: Axes::from_iter([0]) }, [values.into(), position.into()])
}

/// Elements of `source` in turn wherever the mask holds.
pub fn masked_scatter(c: &mut Call<'_, '_>) -> Built {
    let (x, mask, source) = (c.tensor("self")?, c.tensor("mask")?, c.tensor("source")?);
    let shape = crate::ops::infer::broadcast(&c.ty(x).shape.clone(), &c.ty(mask).shape.clone())?;
    let (x, mask) = (c.expand(x, &shape)?, truth(c, mask)?);
    let mask = c.expand(mask, &shape)?;
    let count = c.ty(source).numel();
    let flat = c.op(Reshape { shape: Shape::from_iter([count]) }, [source.into()])?;
    let values = in_turn(c, mask, flat)?;
    Ok(Out::Value(c.op(Pointwise::Where, [mask.into(), values.into(), x.into()])?))
}

/// `self[indices]` where the mask holds, else `fill`; indices beyond the mask may be anything.
pub fn masked_index(c: &mut Call<'_, '_>) -> Built {
    let (x, mask) = (c.tensor("self")?, c.tensor("mask")?);
    let (axes, indices) = indices(c)?;
    let dtype = c.ty(x).dtype;
    let mut operands: Vec<Operand> = vec![x.into()];
    for (&axis, index) in axes.iter().zip(indices) {
        let last = c.ty(x).shape[axis].clone() - Dim::from(1);
        let last = c.size(&last)?;
        let above = c.op(Pointwise::Maximum, [index.into(), Scalar::Int(0).into()])?;
        operands.push(c.op(Pointwise::Minimum, [above.into(), last])?.into());
    }
    let picked = c.op(Index { axes }, operands)?;
    let fill = c.scalar("fill")?;
    let result = c.op(Pointwise::Where, [mask.into(), picked.into(), fill.into()])?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// What has as many elements as the data says: every extent here is known from the inputs' extents.
pub fn of_unknown_size(_: &mut Call<'_, '_>) -> Built {
    Err(Fault::Unsupported(
        "the size of its result depends on the data: keep the elements in place, with `torch.where` or a mask of zeros".into(),
    ))
}

pub fn index_select(c: &mut Call<'_, '_>) -> Built {
    let (source, index) = (c.tensor("self")?, c.tensor("index")?);
    let (x, index) = (c.lines(source)?, c.lines(index)?);
    if c.ty(index).rank() != 1 {
        return Err(Fault::Bad("its index must be a vector".into()));
    }
    let dim = c.axis("dim", c.ty(x).rank())?;
    let picked = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), index.into()])?;
    Ok(Out::Value(if source == x { picked } else { c.op(Reshape { shape: Shape::new() }, [picked.into()])? }))
}

/// Rows of a table. Negative ids are refused, unlike by indexing: they become a number that is out of range from either end.
pub fn embedding(c: &mut Call<'_, '_>) -> Built {
    let (weight, mut ids) = (c.tensor("weight")?, c.tensor("indices")?);
    let lowest = match c.ty(ids).dtype {
        DType::I64 => Some(i64::MIN),
        DType::I32 => Some(i64::from(i32::MIN)),
        _ => None,
    };
    let counts =
        matches!(&c.translator.graph.node(ids.node).kind, NodeKind::Call(Op::Iota(iota)) if iota.start >= 0 && iota.step >= 0);
    if let Some(lowest) = lowest.filter(|_| !counts) {
        let negative = c.op(Pointwise::Lt, [ids.into(), Scalar::Int(0).into()])?;
        ids = c.op(Pointwise::Where, [negative.into(), Scalar::Int(lowest).into(), ids.into()])?;
    }
    Ok(Out::Value(c.op(Index { axes: Axes::from_iter([0]) }, [weight.into(), ids.into()])?))
}

pub fn gather(c: &mut Call<'_, '_>) -> Built {
    let (x, index) = (c.tensor("self")?, c.tensor("index")?);
    let dim = c.axis("dim", c.ty(x).rank())?;
    let shape = c.ty(index).shape.clone();
    let (x, index) = (c.lines(x)?, c.lines(index)?);
    let picked = c.op(Gather { dim }, [x.into(), index.into()])?;
    Ok(Out::Value(if c.ty(picked).shape == shape { picked } else { c.op(Reshape { shape }, [picked.into()])? }))
}

/// The leading part of `src` that `index` covers: scatters may leave the rest unread.
pub fn covered(c: &mut Call<'_, '_>, mut src: Value, index: Value) -> Built<Value> {
    let shape = c.ty(index).shape.clone();
    for (dim, extent) in shape.iter().enumerate() {
        if c.ty(src).shape.get(dim).is_some_and(|have| have != extent) {
            let part = Slice { dim, start: Dim::from(0), end: extent.clone(), step: 1 };
            src = c.op(part, [src.into()])?;
        }
    }
    Ok(src)
}

/// `out[i][index[i][j]] = src[i][j]`: an index_put whose other indices are the positions themselves.
pub fn scatter(c: &mut Call<'_, '_>) -> Built {
    let (source, index) = (c.tensor("self")?, c.tensor("index")?);
    let (x, index) = (c.lines(source)?, c.lines(index)?);
    let ty = c.ty(x).clone();
    let shape = c.ty(index).shape.clone();
    if shape.len() != ty.rank() {
        return Err(Fault::Bad(format!("its index has {} dims, the tensor {}", shape.len(), ty.rank())));
    }
    let dim = c.axis("dim", ty.rank())?;
    let values = if c.row.has("src") {
        let src = c.tensor("src")?;
        let src = c.lines(src)?;
        let src = covered(c, src, index)?;
        c.cast(src, ty.dtype)?
    } else {
        let value = c.scalar("value")?;
        c.op(Full { shape: Shape::new(), value, dtype: ty.dtype }, [])?
    };
    let mut operands: Vec<Operand> = vec![x.into(), values.into()];
    for (axis, extent) in shape.iter().enumerate() {
        if axis == dim {
            operands.push(index.into());
            continue;
        }
        let positions = iota(c, extent.clone())?;
        let mut along: Shape = smallvec![Dim::from(1); shape.len()];
        along[axis] = extent.clone();
        operands.push(c.op(Reshape { shape: along }, [positions.into()])?.into());
    }
    let written = c.op(IndexPut { axes: (0..ty.rank()).collect(), accumulate: false }, operands)?;
    Ok(Out::Value(if source == x { written } else { c.op(Reshape { shape: Shape::new() }, [written.into()])? }))
}

pub fn scatter_add(c: &mut Call<'_, '_>) -> Built {
    let (x, index, src) = (c.tensor("self")?, c.tensor("index")?, c.tensor("src")?);
    let dim = c.axis("dim", c.ty(x).rank())?;
    let shape = c.ty(x).shape.clone();
    let (x, index, src) = (c.lines(x)?, c.lines(index)?, c.lines(src)?);
    let src = covered(c, src, index)?;
    let sum = c.op(ScatterAdd { dim }, [x.into(), index.into(), src.into()])?;
    Ok(Out::Value(if c.ty(sum).shape == shape { sum } else { c.op(Reshape { shape }, [sum.into()])? }))
}

/// Positions from the last to the first.
fn reversed(c: &mut Call<'_, '_>, extent: &Dim) -> Built<Value> {
    match extent.as_const() {
        Some(len) => c.op(Iota { len: len.into(), start: len - 1, step: -1, dtype: DType::I64 }, []),
        None => {
            let down = c.op(Iota { len: extent.clone(), start: -1, step: -1, dtype: DType::I64 }, [])?;
            let len = c.size(extent)?;
            c.op(Pointwise::Add, [down.into(), len])
        }
    }
}

/// `x` with a dim in reverse.
pub fn flipped(c: &mut Call<'_, '_>, x: Value, dim: usize) -> Built<Value> {
    let extent = c.ty(x).shape[dim].clone();
    let positions = reversed(c, &extent)?;
    c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), positions.into()])
}

pub fn flip(c: &mut Call<'_, '_>) -> Built {
    let mut x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let dims = c.axes("dims", shape.len())?.unwrap_or_default();
    for dim in dims.into_iter().filter(|&dim| dim < shape.len()) {
        x = flipped(c, x, dim)?;
    }
    Ok(Out::Value(x))
}

/// Each element `repeats` times in a row: `x[positions // repeats]`.
pub fn repeat_interleave(c: &mut Call<'_, '_>) -> Built {
    let mut x = c.tensor("self")?;
    let repeats = c.int("repeats")?;
    if repeats < 1 {
        return Err(Fault::Unsupported(format!("{repeats} times")));
    }
    let dim = if c.given("dim")? {
        c.axis("dim", c.ty(x).rank())?
    } else {
        let shape = Shape::from_iter([c.ty(x).numel()]);
        x = c.op(Reshape { shape }, [x.into()])?;
        0
    };
    let Some(extent) = c.ty(x).shape.get(dim).cloned() else { return Err(Fault::Unsupported("of a 0-d tensor".into())) };
    let positions = iota(c, extent * Dim::from(repeats))?;
    let sources = c.op(Pointwise::FloorDiv, [positions.into(), Scalar::Int(repeats).into()])?;
    Ok(Out::Value(c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), sources.into()])?))
}

/// The whole tensor side by side, `repeats` times along each dim.
pub fn repeat(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let repeats = c.dims("repeats")?;
    repeated(c, x, repeats)
}

/// As `repeat`, with ones for the leading dims that `dims` leaves out.
pub fn tile(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let mut repeats = c.dims("dims")?;
    let missing = c.ty(x).rank().saturating_sub(repeats.len());
    repeats.splice(0..0, vec![Dim::from(1); missing]);
    repeated(c, x, repeats)
}

fn repeated(c: &mut Call<'_, '_>, x: Value, repeats: Vec<Dim>) -> Built {
    let extents = c.ty(x).shape.clone();
    let new = repeats.len().checked_sub(extents.len()).ok_or_else(|| Fault::Bad("it drops dims".into()))?;
    let (mut apart, mut wide, mut joined) = (Shape::new(), Shape::new(), Shape::new());
    for (i, times) in repeats.into_iter().enumerate() {
        let extent = i.checked_sub(new).map_or(Dim::from(1), |at| extents[at].clone());
        apart.extend([Dim::from(1), extent.clone()]);
        wide.extend([times.clone(), extent.clone()]);
        joined.push(times * extent);
    }
    let apart = c.op(Reshape { shape: apart }, [x.into()])?;
    let wide = c.op(Expand { shape: wide }, [apart.into()])?;
    Ok(Out::Value(c.op(Reshape { shape: joined }, [wide.into()])?))
}

/// Values joined along a dim, in the dtype they promote to.
pub fn join(c: &mut Call<'_, '_>, values: &[Value], dim: usize) -> Built<Value> {
    let dtype = common_dtype(c, values)?;
    let parts: Vec<Operand> = values.iter().map(|&value| c.cast(value, dtype).map(Operand::from)).collect::<Built<_>>()?;
    match parts[..] {
        [Operand::Value(only)] => Ok(only),
        _ => c.op(Cat { dim }, parts),
    }
}

pub fn cat(c: &mut Call<'_, '_>) -> Built {
    let all = c.tensors("tensors")?;
    // 1-d tensors without elements join with anything, by old custom (`at::native::cat_should_skip_tensor`).
    let skipped = |c: &Call<'_, '_>, value: Value| c.ty(value).rank() == 1 && c.ty(value).shape[0].is(0);
    let values: Vec<Value> = all.iter().copied().filter(|&value| !skipped(c, value)).collect();
    let values = if values.is_empty() { all } else { values };
    let first = *values.first().ok_or_else(|| Fault::Bad("it joins nothing".into()))?;
    let dim = c.axis("dim", c.ty(first).rank())?;
    Ok(Out::Value(join(c, &values, dim)?))
}

pub fn stack(c: &mut Call<'_, '_>) -> Built {
    let values = c.tensors("tensors")?;
    let first = *values.first().ok_or_else(|| Fault::Bad("it stacks nothing".into()))?;
    let dim = c.axis("dim", c.ty(first).rank() + 1)?;
    Ok(Out::Value(stacked(c, &values, dim)?))
}

/// Tensors of one shape side by side along a new dim.
pub fn stacked(c: &mut Call<'_, '_>, values: &[Value], dim: usize) -> Built<Value> {
    let mut rows = Vec::with_capacity(values.len());
    for &value in values {
        let mut shape = c.ty(value).shape.clone();
        shape.insert(dim, Dim::from(1));
        rows.push(c.op(Reshape { shape }, [value.into()])?);
    }
    join(c, &rows, dim)
}

/// Constant padding: pairs (before, after) from the last dim on; negative ones cut.
pub fn pad(c: &mut Call<'_, '_>) -> Built {
    if c.row.has("mode") {
        match c.text("mode")? {
            "constant" => {}
            mode @ ("reflect" | "replicate" | "circular") => return super::selections::pad_by_index(c, mode, "pad"),
            other => return Err(Fault::Bad(format!("there is no padding mode `{other}`"))),
        }
    }
    let mut x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let value = c.number("value")?.unwrap_or(Scalar::Int(0));
    let pads = c.dims("pad")?;
    if pads.len() % 2 != 0 || pads.len() / 2 > ty.rank() {
        return Err(Fault::Bad(format!("{} paddings for {} dims", pads.len(), ty.rank())));
    }
    for (i, pair) in pads.chunks_exact(2).enumerate() {
        let dim = ty.rank() - 1 - i;
        let (mut start, mut end) = (Dim::from(0), ty.shape[dim].clone());
        let mut parts = Vec::new();
        let filler = |c: &mut Call<'_, '_>, x: Value, extent: &Dim| {
            let mut shape = c.ty(x).shape.clone();
            shape[dim] = extent.clone();
            c.op(Full { shape, value, dtype: ty.dtype }, [])
        };
        let cuts = |pad: &Dim| pad.as_const().is_some_and(|pad| pad < 0);
        if cuts(&pair[0]) {
            start = -pair[0].clone();
        }
        if cuts(&pair[1]) {
            end = end + pair[1].clone();
        }
        let middle = Slice { dim, start, end, step: 1 };
        let whole = middle.start.is(0) && middle.end == ty.shape[dim];
        let middle = if whole { x } else { c.op(middle, [x.into()])? };
        if !cuts(&pair[0]) && !pair[0].is(0) {
            parts.push(filler(c, x, &pair[0])?);
        }
        parts.push(middle);
        if !cuts(&pair[1]) && !pair[1].is(0) {
            parts.push(filler(c, x, &pair[1])?);
        }
        x = join(c, &parts, dim)?;
    }
    Ok(Out::Value(x))
}

/// Differences of neighbours, `n` times over.
pub fn diff(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let (before, after) = (c.optional("prepend")?, c.optional("append")?);
    let parts: Vec<Value> = before.into_iter().chain([x]).chain(after).collect();
    let mut x = join(c, &parts, dim)?;
    for _ in 0..c.int("n")? {
        let Some(extent) = c.ty(x).shape.get(dim).cloned() else {
            return Err(Fault::Bad("a 0-d tensor has no neighbours".into()));
        };
        let later = c.op(Slice { dim, start: Dim::from(1), end: extent.clone(), step: 1 }, [x.into()])?;
        let earlier = c.op(Slice { dim, start: Dim::from(0), end: extent - Dim::from(1), step: 1 }, [x.into()])?;
        let op = if c.ty(x).dtype == DType::Bool { Pointwise::Ne } else { Pointwise::Sub };
        x = c.op(op, [later.into(), earlier.into()])?;
    }
    Ok(Out::Value(x))
}

/// Both results of an order, in the shape of a 0-d tensor where that was the source.
fn ordered(c: &mut Call<'_, '_>, x: Value, op: impl Into<Op>) -> Built<[Value; 2]> {
    let row = c.lines(x)?;
    let node = c.ops(op, [row.into()])?;
    let mut results = [Value { node, index: 0 }, Value { node, index: 1 }];
    if row != x {
        for result in &mut results {
            *result = c.op(Reshape { shape: Shape::new() }, [(*result).into()])?;
        }
    }
    Ok(results)
}

fn sorted(c: &mut Call<'_, '_>) -> Built<[Value; 2]> {
    let x = c.tensor("self")?;
    let (dim, descending) = (c.axis("dim", c.ty(x).rank())?, c.flag("descending")?);
    ordered(c, x, Sort { dim, descending })
}

pub fn sort(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Values(sorted(c)?.into_iter().collect()))
}

pub fn argsort(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Value(sorted(c)?[1]))
}

/// Values sorted along the first dim.
pub fn msort(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    Ok(Out::Value(ordered(c, x, Sort { dim: 0, descending: false })?[0]))
}

pub fn topk(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let k = usize::try_from(c.int("k")?).map_err(|_| Fault::Bad("its k is negative".into()))?;
    let (dim, largest) = (c.axis("dim", c.ty(x).rank())?, c.flag("largest")?);
    Ok(Out::Values(ordered(c, x, TopK { k, dim, largest })?.into_iter().collect()))
}

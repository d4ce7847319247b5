//! Elements in other places: by strides, in blocks of an image, joined and repeated.

use super::{
    super::{
        alias::AliasId,
        call::{Built, Call, Fault, Out},
    },
    indexing::join,
    pooling::{Windows, first_spatial},
    special::two,
    updates::iota,
    views,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Axes, Expand, Full, Iota, Permute, Pointwise as P, Reshape},
};

/// What a view shows, in a storage of its own (`expand_copy` and its like).
pub fn copy_of(c: &mut Call<'_, '_>, view: super::Build) -> Built {
    match view(c)? {
        Out::Alias(alias) => Ok(Out::Value(c.read(alias)?)),
        Out::Aliases(list) => Ok(Out::Values(list.into_iter().map(|alias| c.read(alias)).collect::<Built<_>>()?)),
        other => Ok(other),
    }
}

/// The elements of a dense storage that the arguments `size`, `stride` and `storage_offset` name.
fn strided(c: &mut Call<'_, '_>, x: AliasId) -> Built<AliasId> {
    let (shape, strides) = (c.dims("size")?, c.dims("stride")?);
    if shape.len() != strides.len() {
        return Err(Fault::Bad(format!("{} strides for {} dims", strides.len(), shape.len())));
    }
    if !views::is_dense(c)? {
        return Err(Fault::Unsupported("of a view that is not contiguous".into()));
    }
    let offset = c.optional_dim("storage_offset")?.unwrap_or(Dim::from(0));
    let shape: Shape = shape.into_iter().collect();
    let count = c.alias_ty(x)?.numel();
    if offset.is(0) && crate::types::numel(&shape) == count && super::super::strides::is_contiguous(&shape, &strides) {
        return c.view(x, Reshape { shape });
    }
    let known = |dim: &Dim| dim.as_const().ok_or_else(|| Fault::Unsupported(format!("by the dynamic stride {dim}")));
    let reach = shape.iter().zip(&strides).try_fold(known(&offset)?, |reach, (extent, stride)| {
        Ok::<_, Fault>(reach.saturating_add((known(extent)? - 1).saturating_mul(known(stride)?)))
    });
    let empty = shape.iter().any(|extent| extent.is(0));
    if let (Ok(reach), Some(count)) = (&reach, count.as_const())
        && *reach >= count
        && !empty
    {
        return Err(Fault::Unsupported(format!("beyond the tensor's own {count} elements")));
    }
    let mut at = c.op(Full { shape: Shape::new(), value: Scalar::Int(known(&offset)?), dtype: DType::I64 }, [])?;
    for (i, stride) in strides.iter().enumerate() {
        let steps = c.op(Iota { len: shape[i].clone(), start: 0, step: known(stride)?, dtype: DType::I64 }, [])?;
        let mut beside: Shape = vec![Dim::from(1); shape.len() - i].into();
        beside[0] = shape[i].clone();
        let steps = c.op(Reshape { shape: beside }, [steps.into()])?;
        at = two(c, P::Add, at, steps)?;
    }
    let flat = c.view(x, Reshape { shape: Shape::from_iter([count]) })?;
    c.picked(flat, &[0], &[at])
}

pub fn as_strided(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    Ok(Out::Alias(strided(c, x)?))
}

/// `x` with the elements at the strides replaced by `src`.
pub fn as_strided_scatter(c: &mut Call<'_, '_>) -> Built {
    let (x, src) = (c.tensor("self")?, c.tensor("src")?);
    // A storage of its own, so that the write stays here.
    let storage = c.translator.aliases.storage(x);
    let view = strided(c, storage)?;
    let ty = c.alias_ty(view)?;
    let src = c.cast(src, ty.dtype)?;
    let src = c.expand(src, &ty.shape)?;
    let name = c.name.clone();
    c.translator.aliases.write(&mut c.translator.graph, view, src, &name)?;
    Ok(Out::Value(c.read(storage)?))
}

/// Blocks of an image as columns: `[N, C, H, W]` to `[N, C · kh · kw, windows]`.
pub fn im2col(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let (windows, first) = (Windows::of_columns(c)?, first_spatial(c, x, 2)?);
    let mut y = x;
    for i in 0..2 {
        let taps = windows.taps(c, i, &ty.shape[first + i])?;
        y = taps.read(c, y, first + 2 * i, Scalar::Int(0))?;
    }
    // Dims are now …, rows of windows, rows in them, columns of windows, columns in them.
    let order = (0..first).chain([first + 1, first + 3, first, first + 2]).collect();
    let y = c.op(Permute { dims: order }, [y.into()])?;
    let shape = c.ty(y).shape.clone();
    let join = |dims: &[Dim]| crate::types::numel(dims);
    let flat =
        shape[..first - 1].iter().cloned().chain([join(&shape[first - 1..first + 2]), join(&shape[first + 2..])]).collect();
    Ok(Out::Value(c.op(Reshape { shape: flat }, [y.into()])?))
}

/// The image that columns add up to: the transpose of [`im2col`].
pub fn col2im(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let extents = c.dims("output_size")?;
    let windows = Windows::of_columns(c)?;
    let (2..=3, [rows, columns]) = (ty.rank(), &extents[..]) else {
        return Err(Fault::Bad(format!("it takes columns of 2 or 3 dims and an image of 2, not {ty}")));
    };
    let first = ty.rank() - 1;
    let each = windows.size();
    let channels = ty.shape[first - 1].exact_div(&Dim::from(each[0] * each[1]));
    let channels = channels.ok_or_else(|| Fault::Bad("its columns are no blocks".into()))?;
    let counts = [windows.count(0, rows)?, windows.count(1, columns)?];
    let apart = ty.shape[..first - 1].iter().cloned().chain([
        channels,
        Dim::from(each[0]),
        Dim::from(each[1]),
        counts[0].clone(),
        counts[1].clone(),
    ]);
    let y = c.op(Reshape { shape: apart.collect() }, [x.into()])?;
    let order = (0..first).chain([first + 2, first, first + 3, first + 1]).collect();
    let mut y = c.op(Permute { dims: order }, [y.into()])?;
    for (i, extent) in [(1, columns), (0, rows)] {
        let taps = windows.taps(c, i, extent)?;
        y = taps.add(c, y, first + 2 * i, extent.clone())?;
    }
    Ok(Out::Value(y))
}

/// Channels in groups of `r²` as blocks of the image, or the other way.
pub fn pixel_shuffle(c: &mut Call<'_, '_>, up: bool) -> Built {
    let x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let factor = Dim::from(c.int(if up { "upscale_factor" } else { "downscale_factor" })?);
    let first = shape.len().checked_sub(3).ok_or_else(|| Fault::Bad("it needs at least 3 dims".into()))?;
    let [channels, rows, columns] = &shape[first..] else { return Err(Fault::Bad("it needs at least 3 dims".into())) };
    let whole = |dim: &Dim, by: &Dim| dim.exact_div(by).ok_or_else(|| Fault::Bad(format!("{dim} does not divide by {by}")));
    let square = factor.clone() * factor.clone();
    let f = || factor.clone();
    let (parts, order, joined) = if up {
        let channels = whole(channels, &square)?;
        let parts = [channels.clone(), f(), f(), rows.clone(), columns.clone()];
        (parts, [0, 3, 1, 4, 2], [channels, rows.clone() * f(), columns.clone() * f()])
    } else {
        let (rows, columns) = (whole(rows, &factor)?, whole(columns, &factor)?);
        let parts = [channels.clone(), rows.clone(), f(), columns.clone(), f()];
        (parts, [0, 2, 4, 1, 3], [channels.clone() * square, rows, columns])
    };
    let lead = || shape[..first].iter().cloned();
    let apart = c.op(Reshape { shape: lead().chain(parts).collect() }, [x.into()])?;
    let order: Axes = (0..first).chain(order.map(|i| first + i)).collect();
    let mixed = c.op(Permute { dims: order }, [apart.into()])?;
    Ok(Out::Value(c.op(Reshape { shape: lead().chain(joined).collect() }, [mixed.into()])?))
}

/// Channels of all groups in turn.
pub fn channel_shuffle(c: &mut Call<'_, '_>) -> Built {
    let (x, groups) = (c.tensor("self")?, c.dim("groups")?);
    let shape = c.ty(x).shape.clone();
    let channels = shape.get(1).ok_or_else(|| Fault::Bad("it needs channels".into()))?;
    let each = channels.exact_div(&groups).ok_or_else(|| Fault::Bad(format!("{channels} channels in {groups} groups")))?;
    let rest = || shape[2..].iter().cloned();
    let apart = [shape[0].clone(), groups, each].into_iter().chain(rest()).collect();
    let apart = c.op(Reshape { shape: apart }, [x.into()])?;
    let order = [0, 2, 1].into_iter().chain(3..shape.len() + 1).collect();
    let mixed = c.op(Permute { dims: order }, [apart.into()])?;
    Ok(Out::Value(c.op(Reshape { shape }, [mixed.into()])?))
}

/// Each vector along its own dim of a common grid.
pub fn meshgrid(c: &mut Call<'_, '_>) -> Built {
    let vectors = c.tensors("tensors")?;
    let swapped = c.row.has("indexing") && c.text("indexing")? == "xy" && vectors.len() > 1;
    let mut shape: Shape = vectors.iter().map(|&x| c.ty(x).numel()).collect();
    if swapped {
        shape.swap(0, 1);
    }
    let mut grids = Vec::new();
    for (i, &vector) in vectors.iter().enumerate() {
        let dim = if swapped && i < 2 { 1 - i } else { i };
        let mut beside: Shape = vec![Dim::from(1); vectors.len()].into();
        beside[dim] = c.ty(vector).numel();
        let vector = c.translator.aliases.storage(vector);
        let row = c.view(vector, Reshape { shape: beside })?;
        grids.push(c.view(row, Expand { shape: shape.clone() })?);
    }
    Ok(Out::Aliases(grids))
}

/// Tensors broadcast to one shape.
pub fn broadcast_tensors(c: &mut Call<'_, '_>) -> Built {
    let tensors = c.tensors("tensors")?;
    let mut shape = Shape::new();
    for &x in &tensors {
        shape = crate::ops::infer::broadcast(&shape, &c.ty(x).shape)?;
    }
    Ok(Out::Values(tensors.into_iter().map(|x| c.expand(x, &shape)).collect::<Built<_>>()?))
}

/// Matrices along a diagonal of blocks.
pub fn block_diag(c: &mut Call<'_, '_>) -> Built {
    let tensors = c.tensors("tensors")?;
    let dtype = super::pointwise::common_dtype(c, &tensors)?;
    let matrix = |c: &mut Call<'_, '_>, x: Value| {
        let shape = c.ty(x).shape.clone();
        let shape = match &shape[..] {
            [] => [Dim::from(1), Dim::from(1)],
            [columns] => [Dim::from(1), columns.clone()],
            [rows, columns] => [rows.clone(), columns.clone()],
            _ => return Err(Fault::Bad("it takes matrices".into())),
        };
        let x = c.cast(x, dtype)?;
        c.op(Reshape { shape: Shape::from_iter(shape) }, [x.into()])
    };
    let blocks = tensors.into_iter().map(|x| matrix(c, x)).collect::<Built<Vec<_>>>()?;
    let width = blocks.iter().fold(Dim::from(0), |width, &block| width + c.ty(block).shape[1].clone());
    let (mut rows, mut before) = (Vec::new(), Dim::from(0));
    for &block in &blocks {
        let [height, own] = [c.ty(block).shape[0].clone(), c.ty(block).shape[1].clone()];
        let after = width.clone() - before.clone() - own.clone();
        let mut parts = vec![block];
        for (at, extent) in [(0, before.clone()), (2, after)] {
            if extent.is(0) {
                continue;
            }
            let zero = Full { shape: Shape::from_iter([height.clone(), extent]), value: Scalar::Int(0), dtype };
            let zero = c.op(zero, [])?;
            parts.insert(at.min(parts.len()), zero);
        }
        rows.push(join(c, &parts, 1)?);
        before = before + own;
    }
    Ok(Out::Value(join(c, &rows, 0)?))
}

/// Turned by a quarter, `k` times, in the plane of two dims.
pub fn rot90(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    let dims = c.optional_ints("dims")?.unwrap_or_else(|| vec![0, 1]);
    let wrap = |dim: i64| usize::try_from(if dim < 0 { dim + rank as i64 } else { dim }).ok().filter(|&dim| dim < rank);
    let (Some(first), Some(second)) = (dims.first().copied().and_then(wrap), dims.get(1).copied().and_then(wrap)) else {
        return Err(Fault::Bad("it turns in a plane of two dims".into()));
    };
    if first == second {
        return Err(Fault::Bad("it turns in a plane of two dims".into()));
    }
    let mut swapped: Axes = (0..rank).collect();
    swapped.swap(first, second);
    let swap = Permute { dims: swapped };
    Ok(Out::Value(match c.int("k")?.rem_euclid(4) {
        0 => x,
        1 => {
            let x = super::indexing::flipped(c, x, second)?;
            c.op(swap, [x.into()])?
        }
        2 => {
            let x = super::indexing::flipped(c, x, first)?;
            super::indexing::flipped(c, x, second)?
        }
        _ => {
            let x = c.op(swap, [x.into()])?;
            super::indexing::flipped(c, x, second)?
        }
    }))
}

/// Flipped along one dim.
pub fn flip_along(c: &mut Call<'_, '_>, dim: usize) -> Built {
    let x = c.tensor("self")?;
    if c.ty(x).rank() <= dim {
        return Err(Fault::Bad(format!("it needs more than {dim} dims")));
    }
    Ok(Out::Value(super::indexing::flipped(c, x, dim)?))
}

/// At least so many dims, as `atleast_1d` and its like place them.
fn at_least(shape: &[Dim], rank: usize) -> Shape {
    let one = Dim::from(1);
    match (rank, shape) {
        (1, []) => Shape::from_iter([one]),
        (2, []) => Shape::from_iter([one.clone(), one]),
        (2, [n]) => Shape::from_iter([one, n.clone()]),
        (3, []) => Shape::from_iter([one.clone(), one.clone(), one]),
        (3, [n]) => Shape::from_iter([one.clone(), n.clone(), one]),
        (3, [n, m]) => Shape::from_iter([n.clone(), m.clone(), one]),
        _ => shape.iter().cloned().collect(),
    }
}

/// `atleast_1d`, `2d`, `3d`.
pub fn atleast(c: &mut Call<'_, '_>, rank: usize) -> Built {
    let x = c.alias("self")?;
    let shape = at_least(&c.alias_ty(x)?.shape, rank);
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

/// Tensors of at least `rank` dims, joined along one.
pub fn stacked(c: &mut Call<'_, '_>, rank: usize, dim: usize) -> Built {
    let mut parts = c.tensors("tensors")?;
    for part in &mut parts {
        let shape = at_least(&c.ty(*part).shape, rank);
        *part = c.op(Reshape { shape }, [(*part).into()])?;
    }
    // Vectors are joined along the only dim that they have.
    let dim = if parts.iter().all(|&part| c.ty(part).rank() == 1) { 0 } else { dim };
    Ok(Out::Value(join(c, &parts, dim)?))
}

/// Vectors and numbers as columns of a matrix.
pub fn column_stack(c: &mut Call<'_, '_>) -> Built {
    let mut parts = c.tensors("tensors")?;
    for part in &mut parts {
        let ty = c.ty(*part).clone();
        if ty.rank() < 2 {
            *part = c.op(Reshape { shape: Shape::from_iter([ty.numel(), Dim::from(1)]) }, [(*part).into()])?;
        }
    }
    Ok(Out::Value(join(c, &parts, 1)?))
}

/// Rows and columns of the elements of a triangle, as `[2, count]`.
pub fn triangle_indices(c: &mut Call<'_, '_>, lower: bool) -> Built {
    let (rows, columns, offset) = (c.int("row")?, c.int("col")?, c.int("offset")?);
    if !(0..1 << 16).contains(&rows) || !(0..1 << 16).contains(&columns) || rows * columns > 1 << 24 {
        return Err(Fault::Unsupported(format!("of a {rows} × {columns} matrix")));
    }
    let inside = |&(row, column): &(i64, i64)| if lower { column <= row + offset } else { column >= row + offset };
    let places: Vec<(i64, i64)> =
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).filter(inside).collect();
    let (row, column): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
    let dtype = c.dtype("dtype")?.unwrap_or(DType::I64);
    let table = super::taps::table(c, DType::I64, &[row, column])?;
    Ok(Out::Value(c.cast(table, dtype)?))
}

/// All pairs of an element of each vector as rows.
pub fn cartesian_prod(c: &mut Call<'_, '_>) -> Built {
    let vectors = c.tensors("tensors")?;
    if let [only] = vectors[..] {
        return Ok(Out::Value(only));
    }
    let shape: Shape = vectors.iter().map(|&x| c.ty(x).numel()).collect();
    let count = crate::types::numel(&shape);
    let mut columns = Vec::new();
    for (i, &vector) in vectors.iter().enumerate() {
        let mut beside: Shape = vec![Dim::from(1); vectors.len()].into();
        beside[i] = shape[i].clone();
        let row = c.op(Reshape { shape: beside }, [vector.into()])?;
        let grid = c.expand(row, &shape)?;
        columns.push(c.op(Reshape { shape: Shape::from_iter([count.clone(), Dim::from(1)]) }, [grid.into()])?);
    }
    Ok(Out::Value(join(c, &columns, 1)?))
}

/// Each element as often as `repeats` says, where the archive knows how many that makes.
pub fn repeat_by_counts(c: &mut Call<'_, '_>) -> Built {
    let repeats = c.tensor("repeats")?;
    let declared = match c.optional_dim("output_size")? {
        Some(total) => Some(total),
        None => c.declared(0)?.and_then(|ty| ty.shape.first().cloned()).filter(|dim| dim.as_const().is_some()),
    };
    let total = declared
        .ok_or_else(|| Fault::Unsupported("by counts from data, with a result of unknown size: pass `output_size`".into()))?;
    // Result i comes from the first element whose running total exceeds i.
    let ends = c.op(crate::ops::Cumsum { dim: 0, dtype: DType::I64 }, [repeats.into()])?;
    let at = iota(c, total.clone())?;
    let at = c.op(Reshape { shape: Shape::from_iter([total, Dim::from(1)]) }, [at.into()])?;
    let passed = two(c, P::Le, ends, at)?;
    let source = super::reductions::reduce(c, passed, crate::ops::ReduceKind::Sum, Axes::from_iter([1]), false, DType::I64)?;
    if !c.row.has("self") {
        return Ok(Out::Value(source));
    }
    let mut x = c.tensor("self")?;
    let dim = if c.given("dim")? {
        c.axis("dim", c.ty(x).rank())?
    } else {
        x = c.op(Reshape { shape: Shape::from_iter([c.ty(x).numel()]) }, [x.into()])?;
        0
    };
    Ok(Out::Value(c.op(crate::ops::Index { axes: Axes::from_iter([dim]) }, [x.into(), source.into()])?))
}

/// Each element of `self` times all of `other`, in blocks.
pub fn kron(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let (left, right) = (c.ty(x).shape.clone(), c.ty(y).shape.clone());
    let rank = left.len().max(right.len());
    let padded =
        |shape: &Shape| -> Shape { (0..rank - shape.len()).map(|_| Dim::from(1)).chain(shape.iter().cloned()).collect() };
    let (left, right) = (padded(&left), padded(&right));
    let outer: Shape = left.iter().flat_map(|extent| [extent.clone(), Dim::from(1)]).collect();
    let inner: Shape = right.iter().flat_map(|extent| [Dim::from(1), extent.clone()]).collect();
    let (x, y) = (c.op(Reshape { shape: outer }, [x.into()])?, c.op(Reshape { shape: inner }, [y.into()])?);
    let product = two(c, P::Mul, x, y)?;
    let shape = left.iter().zip(&right).map(|(a, b)| a.clone() * b.clone()).collect();
    Ok(Out::Value(c.op(Reshape { shape }, [product.into()])?))
}

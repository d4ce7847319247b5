//! Views, copies and conversions: which results share a storage with their source matters for later writes.

use super::{
    super::{
        alias::AliasId,
        call::{Built, Call, Fault, Out},
        strides,
        translate::same_dim,
    },
    slices,
};
use crate::{
    Dim, Shape, Value,
    ops::{Axes, Bitcast, Expand, Permute, Reshape},
    types,
};

/// The shape that a list of sizes means for a tensor of these extents; one size may be -1.
fn resolve(sizes: Vec<Dim>, extents: &[Dim], declared: Option<&Shape>) -> Built<Shape> {
    let mut shape: Shape = sizes.into_iter().collect();
    let open: Vec<usize> = (0..shape.len()).filter(|&i| shape[i].is(-1)).collect();
    let Some(&at) = open.first() else { return Ok(shape) };
    if open.len() > 1 {
        return Err(Fault::Bad("only one size may be -1".into()));
    }
    let known = shape.iter().filter(|dim| !dim.is(-1)).fold(Dim::from(1), |n, dim| n * dim.clone());
    let numel = types::numel(extents);
    let rest = numel.exact_div(&known).filter(|_| !known.is(0)).or_else(|| Some(declared?.get(at)?.clone()));
    shape[at] = rest.ok_or_else(|| Fault::Bad(format!("{numel} elements do not divide by {known}")))?;
    Ok(shape)
}

fn source(c: &mut Call<'_, '_>) -> Built<(AliasId, Shape)> {
    let alias = c.alias("self")?;
    let shape = c.alias_ty(alias)?.shape;
    Ok((alias, shape))
}

fn target_shape(c: &mut Call<'_, '_>, sizes: &str, extents: &[Dim]) -> Built<Shape> {
    let declared = c.declared(0)?.map(|ty| ty.shape);
    let shape = resolve(c.dims(sizes)?, extents, declared.as_ref())?;
    Ok(shape.iter().map(|dim| c.translator.simplified(dim)).collect())
}

pub fn view(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    let shape = target_shape(c, "size", &extents)?;
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

pub fn view_as(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    let other = c.tensor("other")?;
    let shape = c.ty(other).shape.clone();
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

pub fn view_dtype(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    let (from, to) = (c.alias_ty(x)?.dtype, c.dtype("dtype")?);
    match to {
        Some(dtype) if dtype != from => Ok(Out::Alias(c.view(x, Bitcast { dtype })?)),
        _ => Ok(Out::Alias(x)),
    }
}

/// Sizes and strides of the tensor argument `self`, where the archive has them.
fn layout(c: &mut Call<'_, '_>) -> Built<Option<(Vec<Dim>, Vec<Dim>)>> {
    let name = c.tensor_name("self")?;
    let Some(meta) = c.scope.json.tensor_values.get(name).filter(|meta| meta.strides.len() == meta.sizes.len()) else {
        return Ok(None);
    };
    let sizes = meta.sizes.iter().map(|d| c.translator.dim(d, name)).collect::<Result<_, _>>()?;
    let strides = meta.strides.iter().map(|d| c.translator.dim(d, name)).collect::<Result<_, _>>()?;
    Ok(Some((sizes, strides)))
}

/// True if `self` is contiguous, as far as the archive says; a lone operator's inputs are.
pub fn is_dense(c: &mut Call<'_, '_>) -> Built<bool> {
    Ok(layout(c)?.is_none_or(|(sizes, strides)| strides::is_contiguous(&sizes, &strides)))
}

/// A view where the source's strides allow one, else a copy (`at::reshape`).
fn reshaped(c: &mut Call<'_, '_>, x: AliasId, shape: Shape) -> Built {
    if layout(c)?.is_none_or(|(sizes, strides)| strides::can_view(&sizes, &strides, &shape)) {
        return Ok(Out::Alias(c.view(x, Reshape { shape })?));
    }
    let value = c.read(x)?;
    Ok(Out::Value(c.op(Reshape { shape }, [value.into()])?))
}

pub fn reshape(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    let sizes = if c.row.has("shape") { "shape" } else { "size" };
    let shape = target_shape(c, sizes, &extents)?;
    reshaped(c, x, shape)
}

pub fn flatten(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    let (start, end) = (c.axis("start_dim", extents.len())?, c.axis("end_dim", extents.len())?);
    if extents.is_empty() {
        return Ok(Out::Alias(c.view(x, Reshape { shape: Shape::from_iter([Dim::from(1)]) })?));
    }
    if start > end {
        return Err(Fault::Bad("its start dim comes after its end dim".into()));
    }
    let joined = types::numel(&extents[start..=end]);
    let shape = extents[..start].iter().cloned().chain([joined]).chain(extents[end + 1..].iter().cloned()).collect();
    reshaped(c, x, shape)
}

pub fn unflatten(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    let dim = c.axis("dim", extents.len())?;
    let whole = extents.get(dim).ok_or_else(|| Fault::Bad("a 0-d tensor has no dims".into()))?;
    let parts = resolve(c.dims("sizes")?, std::slice::from_ref(whole), None)?;
    let shape = extents[..dim].iter().cloned().chain(parts).chain(extents[dim + 1..].iter().cloned()).collect();
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

pub fn unsqueeze(c: &mut Call<'_, '_>) -> Built {
    let (x, mut shape) = source(c)?;
    let dim = c.axis("dim", shape.len() + 1)?;
    shape.insert(dim, Dim::from(1));
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

/// Drops the dims of extent 1, all or those named.
pub fn squeeze(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let named = if c.row.has("dim") { c.axes("dim", shape.len())? } else { None };
    let gone = |i: usize| named.as_ref().is_none_or(|axes| axes.contains(&i)) && shape[i].is(1);
    let shape = (0..shape.len()).filter(|&i| !gone(i)).map(|i| shape[i].clone()).collect();
    Ok(Out::Alias(c.view(x, Reshape { shape })?))
}

pub fn permute(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let rank = shape.len() as i64;
    let list = c.optional_ints("dims")?.unwrap_or_default();
    let dims: Axes = list.into_iter().map(|dim| if dim < 0 { dim + rank } else { dim } as usize).collect();
    Ok(Out::Alias(c.view(x, Permute { dims })?))
}

fn swapped(c: &mut Call<'_, '_>, x: AliasId, rank: usize, a: usize, b: usize) -> Built {
    let mut dims: Axes = (0..rank).collect();
    if rank > 0 {
        dims.swap(a, b);
    }
    Ok(Out::Alias(c.view(x, Permute { dims })?))
}

pub fn transpose(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let (a, b) = (c.axis("dim0", shape.len())?, c.axis("dim1", shape.len())?);
    swapped(c, x, shape.len(), a, b)
}

/// The transpose of a matrix; vectors and 0-d tensors stay.
pub fn t(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    match shape.len() {
        0 | 1 => Ok(Out::Alias(x)),
        2 => swapped(c, x, 2, 0, 1),
        rank => Err(Fault::Bad(format!("it takes a matrix, not {rank} dims"))),
    }
}

pub fn expand(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    let sizes = c.dims("size")?;
    let new = sizes.len().checked_sub(extents.len()).ok_or_else(|| Fault::Bad("it drops dims".into()))?;
    let kept = |i: usize, size: Dim| if size.is(-1) && i >= new { extents[i - new].clone() } else { size };
    let shape = sizes.into_iter().enumerate().map(|(i, size)| kept(i, size)).collect();
    Ok(Out::Alias(c.view(x, Expand { shape })?))
}

pub fn expand_as(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    let other = c.tensor("other")?;
    let shape = c.ty(other).shape.clone();
    Ok(Out::Alias(c.view(x, Expand { shape })?))
}

pub fn slice(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let slice = slices::from_arguments(c, &shape)?;
    Ok(Out::Alias(c.view(x, slice)?))
}

pub fn narrow(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let dim = c.axis("dim", shape.len())?;
    let start = slices::from_end(c.dim("start")?, &shape[dim]);
    let end = start.clone() + c.dim("length")?;
    Ok(Out::Alias(slices::part(c, x, dim, start, end)?))
}

pub fn select(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let dim = c.axis("dim", shape.len())?;
    let index = c.dim("index")?;
    Ok(Out::Alias(slices::one(c, x, dim, index)?))
}

/// Parts of these lengths along a dim.
fn parts(c: &mut Call<'_, '_>, x: AliasId, dim: usize, lengths: impl IntoIterator<Item = Dim>) -> Built {
    let mut aliases = Vec::new();
    let mut start = Dim::from(0);
    for length in lengths {
        let end = start.clone() + length;
        aliases.push(slices::part(c, x, dim, start, end.clone())?);
        start = end;
    }
    Ok(Out::Aliases(aliases))
}

/// The extents that the archive declares for a list of results along a dim, for splits of dynamic sizes.
fn declared_lengths(c: &mut Call<'_, '_>, dim: usize, whole: &Dim) -> Built<Vec<Dim>> {
    let mut lengths = Vec::new();
    while let Some(ty) = c.declared(lengths.len())? {
        lengths.push(ty.shape.get(dim).cloned().ok_or_else(|| Fault::Bad("its results are 0-d".into()))?);
    }
    let sum = lengths.iter().fold(Dim::from(0), |sum, length| sum + length.clone());
    if !same_dim(&sum, whole, &c.translator.graph.symbols) {
        return Err(Fault::Unsupported(format!("it splits the dynamic extent {whole}")));
    }
    Ok(lengths)
}

/// Refuses a list of more tensors than any graph has: every one becomes a node.
fn bounded(count: i64) -> Built<()> {
    if count > 1 << 16 { Err(Fault::Unsupported(format!("into {count} tensors"))) } else { Ok(()) }
}

/// Lengths of the parts of `whole` that have `size` elements, the last fewer.
fn even(whole: i64, size: i64) -> Built<Vec<Dim>> {
    if size < 1 {
        return if whole == 0 && size == 0 {
            Ok(vec![Dim::from(0)])
        } else {
            Err(Fault::Bad(format!("parts of {size} elements")))
        };
    }
    if whole == 0 {
        return Ok(vec![Dim::from(0)]);
    }
    bounded(whole / size)?;
    Ok((0..whole).step_by(size as usize).map(|start| Dim::from(size.min(whole - start))).collect())
}

fn split_by(c: &mut Call<'_, '_>, lengths: impl FnOnce(&Call<'_, '_>, i64) -> Built<Vec<Dim>>) -> Built {
    let (x, shape) = source(c)?;
    let dim = c.axis("dim", shape.len())?;
    let whole = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no parts".into()))?;
    let lengths = match whole.as_const() {
        Some(known) => lengths(c, known)?,
        None => declared_lengths(c, dim, &whole)?,
    };
    parts(c, x, dim, lengths)
}

/// Parts of `ceil(extent / chunks)` elements: possibly fewer than `chunks` of them.
pub fn chunk(c: &mut Call<'_, '_>) -> Built {
    split_by(c, |c, whole| {
        let chunks = c.int("chunks")?;
        if chunks < 1 {
            return Err(Fault::Bad(format!("{chunks} chunks")));
        }
        // An empty dim still gives that many chunks, all empty.
        if whole == 0 {
            Ok(vec![Dim::from(0); chunks.min(1 << 16) as usize])
        } else {
            even(whole, whole / chunks + i64::from(whole % chunks > 0))
        }
    })
}

pub fn split(c: &mut Call<'_, '_>) -> Built {
    split_by(c, |c, whole| even(whole, c.int("split_size")?))
}

/// Exactly `sections` parts, the first `extent % sections` of them one longer.
pub fn tensor_split(c: &mut Call<'_, '_>) -> Built {
    split_by(c, |c, whole| {
        let sections = c.int("sections")?;
        if !(1..=1 << 16).contains(&sections) {
            return Err(Fault::Bad(format!("{sections} sections")));
        }
        Ok((0..sections).map(|i| Dim::from(whole / sections + i64::from(i < whole % sections))).collect())
    })
}

/// `hsplit`, `vsplit`, `dsplit`: even sections along a dim; a vector's only one counts as its columns.
pub fn split_along(c: &mut Call<'_, '_>, dim: usize) -> Built {
    let (x, shape) = source(c)?;
    let dim = if dim == 1 && shape.len() == 1 { 0 } else { dim };
    let sections = c.int("sections")?;
    let whole = shape.get(dim).ok_or_else(|| Fault::Bad(format!("it needs more than {dim} dims")))?;
    let each = whole.exact_div(&Dim::from(sections)).filter(|_| (1..=1 << 16).contains(&sections));
    let each = each.ok_or_else(|| Fault::Bad(format!("{whole} does not divide into {sections} sections")))?;
    parts(c, x, dim, vec![each; sections as usize])
}

/// Parts between the given positions.
pub fn tensor_split_at(c: &mut Call<'_, '_>) -> Built {
    let at = c.optional_ints("indices")?.unwrap_or_default();
    split_by(c, |_, whole| {
        let ends = at.iter().map(|&end| if end < 0 { end + whole } else { end }.clamp(0, whole)).chain([whole]);
        let mut start = 0;
        Ok(ends
            .map(|end| {
                let length = (end - start).max(0);
                start = end;
                Dim::from(length)
            })
            .collect())
    })
}

/// Dims moved to other positions, the others in their order.
pub fn movedim(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let rank = shape.len() as i64;
    let own = |list: Option<Vec<i64>>| -> Built<Vec<usize>> {
        let wrap = |dim: i64| if dim < 0 { dim + rank } else { dim };
        let valid = |dim: i64| usize::try_from(wrap(dim)).ok().filter(|&dim| dim < rank as usize);
        let list = list.unwrap_or_default().into_iter();
        list.map(|dim| valid(dim).ok_or_else(|| Fault::Bad(format!("dim {dim} is out of range")))).collect()
    };
    let (from, to) = (own(c.optional_ints("source")?)?, own(c.optional_ints("destination")?)?);
    if from.len() != to.len() {
        return Err(Fault::Bad("it moves dims to another number of places".into()));
    }
    let mut rest = (0..shape.len()).filter(|dim| !from.contains(dim));
    let place = |i: usize| to.iter().position(|&at| at == i).map(|pair| from[pair]).or_else(|| rest.next());
    let dims: Option<Axes> = (0..shape.len()).map(place).collect();
    let dims = dims.ok_or_else(|| Fault::Bad("a dim is moved twice".into()))?;
    Ok(Out::Alias(c.view(x, Permute { dims })?))
}

/// All dims in reverse, or (`matrix`) the last two swapped.
pub fn transposed(c: &mut Call<'_, '_>, matrix: bool) -> Built {
    let (x, shape) = source(c)?;
    let mut dims: Axes = (0..shape.len()).collect();
    let from = if matrix { shape.len().saturating_sub(2) } else { 0 };
    dims[from..].reverse();
    Ok(Out::Alias(c.view(x, Permute { dims })?))
}

/// In one dim.
pub fn ravel(c: &mut Call<'_, '_>) -> Built {
    let (x, extents) = source(c)?;
    reshaped(c, x, Shape::from_iter([types::numel(&extents)]))
}

/// As `native_dropout`: the input, and a mask that keeps all.
pub fn native_dropout(c: &mut Call<'_, '_>) -> Built {
    if c.flag("train")? && c.float("p")? != 0.0 {
        return Err(Fault::Unsupported("in training: export the model in eval mode".into()));
    }
    let x = c.tensor("input")?;
    let shape = c.ty(x).shape.clone();
    let mask = c.op(crate::ops::Full { shape, value: crate::Scalar::Bool(true), dtype: crate::DType::Bool }, [])?;
    Ok(Out::Values([x, mask].into_iter().collect()))
}

pub fn split_with_sizes(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let dim = c.axis("dim", shape.len())?;
    let lengths = c.dims(if c.row.has("split_sizes") { "split_sizes" } else { "split_size" })?;
    parts(c, x, dim, lengths)
}

pub fn unbind(c: &mut Call<'_, '_>) -> Built {
    let (x, shape) = source(c)?;
    let dim = c.axis("dim", shape.len())?;
    let Some(count) = shape.get(dim).and_then(Dim::as_const) else {
        return Err(Fault::Unsupported("it takes a dynamic extent apart".into()));
    };
    bounded(count)?;
    Ok(Out::Aliases((0..count).map(|i| slices::one(c, x, dim, Dim::from(i))).collect::<Built<_>>()?))
}

pub fn identity(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Alias(c.alias("self")?))
}

/// Dropout at inference is its input; in training it is random.
pub fn dropout(c: &mut Call<'_, '_>) -> Built {
    if c.flag("train")? && c.float("p")? != 0.0 {
        return Err(Fault::Unsupported("in training: export the model in eval mode".into()));
    }
    Ok(Out::Alias(c.alias(if c.row.has("self") { "self" } else { "input" })?))
}

/// The same elements in a storage of their own.
pub fn copied(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Value(c.tensor("self")?))
}

/// A copy, unless the source is contiguous already.
pub fn contiguous(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    match layout(c)? {
        Some((sizes, strides)) if !strides::is_contiguous(&sizes, &strides) => Ok(Out::Value(c.read(x)?)),
        _ => Ok(Out::Alias(x)),
    }
}

fn converted(c: &mut Call<'_, '_>, dtype: crate::DType) -> Built<Option<Value>> {
    let x = c.tensor("self")?;
    if c.ty(x).dtype == dtype { Ok(None) } else { c.cast(x, dtype).map(Some) }
}

/// Conversion; the tensor itself where nothing changes and no copy is asked for.
pub fn to(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    let dtype = c.dtype("dtype")?.unwrap_or(c.alias_ty(x)?.dtype);
    if let Some(value) = converted(c, dtype)? {
        return Ok(Out::Value(value));
    }
    let device = |name: &str| c.scope.json.tensor_values.get(name).and_then(|meta| meta.device.clone());
    let output = match &c.node.outputs[..] {
        [super::super::schema::Argument::Tensor(name)] => device(name),
        _ => None,
    };
    let moved = output.is_some() && output != device(c.tensor_name("self")?);
    if c.flag("copy")? || moved { Ok(Out::Value(c.read(x)?)) } else { Ok(Out::Alias(x)) }
}

/// Conversion that always copies.
pub fn to_copy(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.dtype("dtype")?.unwrap_or(c.ty(x).dtype);
    Ok(Out::Value(c.cast(x, dtype)?))
}

pub fn type_as(c: &mut Call<'_, '_>) -> Built {
    let other = c.tensor("other")?;
    let dtype = c.ty(other).dtype;
    match converted(c, dtype)? {
        Some(value) => Ok(Out::Value(value)),
        None => Ok(Out::Alias(c.alias("self")?)),
    }
}

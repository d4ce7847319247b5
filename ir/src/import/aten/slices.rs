//! Bounds of slices: defaults, negative positions, clamping, also where extents are dynamic.

use super::super::{
    alias::AliasId,
    call::{Built, Call, Fault},
    translate::same_dim,
};
use crate::{
    Dim, Shape,
    ops::{Reshape, Slice},
};

/// A position counted from the end if it is negative.
pub fn from_end(position: Dim, extent: &Dim) -> Dim {
    if position.as_const().is_some_and(|p| p < 0) { position + extent.clone() } else { position }
}

/// A bound of a slice within the extent, as far as that is known.
fn clamp(bound: Dim, extent: &Dim) -> Dim {
    if bound.is(i64::MAX) {
        return extent.clone();
    }
    let bound = from_end(bound, extent);
    match (bound.as_const(), extent.as_const()) {
        (Some(b), Some(extent)) => Dim::from(b.clamp(0, extent)),
        _ => bound,
    }
}

/// The slice of the arguments `dim`, `start`, `end` and `step`. Whether a bound exceeds a dynamic extent, the declared result tells.
pub fn from_arguments(c: &mut Call<'_, '_>, shape: &Shape) -> Built<Slice> {
    let dim = c.axis("dim", shape.len())?;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no slices".into()))?;
    let step = c.int("step")?;
    if step < 1 {
        return Err(Fault::Bad(format!("its step is {step}")));
    }
    let start = clamp(c.optional_dim("start")?.unwrap_or(Dim::from(0)), &extent);
    let end = clamp(c.optional_dim("end")?.unwrap_or_else(|| extent.clone()), &extent);
    if let (Some(from), Some(to), Some(_)) = (start.as_const(), end.as_const(), extent.as_const()) {
        return Ok(Slice { dim, start, end: Dim::from(to.max(from)), step });
    }
    if end == extent && start.is(0) {
        return Ok(Slice { dim, start, end, step });
    }
    // A view declares the part's length; an update such as slice_scatter does not, its source has it.
    let declared = if c.row.has("src") { None } else { c.declared(0)?.and_then(|ty| ty.shape.get(dim).cloned()) };
    let Some(length) = declared else {
        let end = Dim::min(&end, &extent);
        return Ok(Slice { dim, start, end, step });
    };
    let symbols = &c.translator.graph.symbols;
    let fits = |start: &Dim, end: &Dim| same_dim(&(end.clone() - start.clone()).ceil_div(step), &length, symbols);
    // A symbolic bound may be negative, such as `-min(8, s)`, and then counts from the end.
    let starts = [start.clone(), Dim::min(&start, &extent), start.clone() + extent.clone()];
    let ends = [end.clone(), extent.clone(), Dim::min(&end, &extent), end.clone() + extent.clone()];
    let bounds = starts.iter().flat_map(|start| ends.iter().map(move |end| (start, end))).find(|(start, end)| fits(start, end));
    let Some((start, end)) = bounds else {
        return Err(Fault::Bad(format!("the bounds {start}..{end} of the extent {extent} do not give the declared {length}")));
    };
    // The archive's form of the length is kept where it is another, so that neighbours agree.
    let end = if step == 1 && end.clone() - start.clone() != length { start.clone() + length } else { end.clone() };
    Ok(Slice { dim, start: start.clone(), end, step })
}

/// The slice of the arguments within a tensor of `shape`, whatever the node's own result is: for gradients of slices.
pub fn within(c: &mut Call<'_, '_>, shape: &Shape) -> Built<Slice> {
    let dim = c.axis("dim", shape.len())?;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no slices".into()))?;
    let (start, end, step) = (clamp(c.dim("start")?, &extent), clamp(c.dim("end")?, &extent), c.int("step")?);
    if step < 1 {
        return Err(Fault::Bad(format!("its step is {step}")));
    }
    let end = match (start.as_const(), end.as_const()) {
        (Some(from), Some(to)) => Dim::from(to.max(from)),
        _ => end,
    };
    Ok(Slice { dim, start, end, step })
}

/// The part `start..end` along a dim.
pub fn part(c: &mut Call<'_, '_>, x: AliasId, dim: usize, start: Dim, end: Dim) -> Built<AliasId> {
    c.view(x, Slice { dim, start, end, step: 1 })
}

/// Position `index` along a dim, without the dim.
pub fn one(c: &mut Call<'_, '_>, x: AliasId, dim: usize, index: Dim) -> Built<AliasId> {
    let mut shape = c.alias_ty(x)?.shape;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no elements to select".into()))?;
    let start = from_end(index, &extent);
    let row = part(c, x, dim, start.clone(), start + Dim::from(1))?;
    shape.remove(dim);
    c.view(row, Reshape { shape })
}

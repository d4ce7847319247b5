//! Diagonals and triangles.

use super::{
    super::{
        alias::AliasId,
        call::{Built, Call, Fault, Out},
    },
    special::{select, two},
    updates::iota,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Axes, Full, Iota, Permute, Pointwise as P, ReduceKind, Reshape},
};

/// The dim `from` moved to the end.
pub fn to_end(c: &mut Call<'_, '_>, x: AliasId, from: usize) -> Built<AliasId> {
    let rank = c.alias_ty(x)?.rank();
    c.view(x, Permute { dims: (0..rank).filter(|&i| i != from).chain([from]).collect() })
}

/// An extent that must be known at import.
pub fn known(dim: &Dim, what: &str) -> Built<i64> {
    dim.as_const().ok_or_else(|| Fault::Unsupported(format!("{what} depends on the size {dim}")))
}

/// Elements of two dims at equal positions, as a last dim.
pub fn diagonal_of(c: &mut Call<'_, '_>, x: AliasId, offset: i64, first: usize, second: usize) -> Built<AliasId> {
    let shape = c.alias_ty(x)?.shape;
    if first == second {
        return Err(Fault::Bad("a diagonal lies between two dims".into()));
    }
    let (rows, columns) = (known(&shape[first], "a diagonal")?, known(&shape[second], "a diagonal")?);
    let (down, right) = (offset.saturating_neg().max(0), offset.max(0));
    let len = Dim::from(rows.saturating_sub(down).min(columns.saturating_sub(right)).max(0));
    let at = |c: &mut Call<'_, '_>, start: i64| c.op(Iota { len: len.clone(), start, step: 1, dtype: DType::I64 }, []);
    let (row, column) = (at(c, down)?, at(c, right)?);
    let (axes, indices) = match first < second {
        true => ([first, second], [row, column]),
        false => ([second, first], [column, row]),
    };
    let adjacent = axes[0] + 1 == axes[1];
    let picked = c.picked(x, &axes, &indices)?;
    to_end(c, picked, if adjacent { axes[0] } else { 0 })
}

/// The diagonal that the arguments name.
fn named_diagonal(c: &mut Call<'_, '_>, x: AliasId) -> Built<AliasId> {
    let rank = c.alias_ty(x)?.rank();
    if rank < 2 {
        return Err(Fault::Bad("a diagonal lies between two dims".into()));
    }
    let (offset, first, second) = (c.int("offset")?, c.axis("dim1", rank)?, c.axis("dim2", rank)?);
    diagonal_of(c, x, offset, first, second)
}

pub fn diagonal(c: &mut Call<'_, '_>) -> Built {
    let x = c.alias("self")?;
    Ok(Out::Alias(named_diagonal(c, x)?))
}

/// `x` with its diagonal replaced by `src`.
fn with_diagonal(c: &mut Call<'_, '_>, x: Value, src: Value) -> Built {
    // A storage of its own, so that the write stays here.
    let storage = c.translator.aliases.storage(x);
    let diagonal = named_diagonal(c, storage)?;
    let ty = c.alias_ty(diagonal)?;
    let src = c.cast(src, ty.dtype)?;
    let src = c.expand(src, &ty.shape)?;
    let name = c.name.clone();
    c.translator.aliases.write(&mut c.translator.graph, diagonal, src, &name)?;
    Ok(Out::Value(c.read(storage)?))
}

pub fn diagonal_scatter(c: &mut Call<'_, '_>) -> Built {
    let (x, src) = (c.tensor("self")?, c.tensor("src")?);
    with_diagonal(c, x, src)
}

/// The gradient of a diagonal: zero elsewhere.
pub fn diagonal_backward(c: &mut Call<'_, '_>) -> Built {
    let grad = c.tensor("grad_output")?;
    let (shape, dtype) = (c.dims("input_sizes")?.into(), c.ty(grad).dtype);
    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype }, [])?;
    with_diagonal(c, zero, grad)
}

/// A tensor with `x` on its diagonal, zero elsewhere.
fn on_diagonal(c: &mut Call<'_, '_>, x: Value, offset: i64, first: usize, second: usize) -> Built {
    let ty = c.ty(x).clone();
    let len = ty.shape.last().cloned().ok_or_else(|| Fault::Bad("a 0-d tensor makes no diagonal".into()))?;
    let extent = len + Dim::from(offset.checked_abs().ok_or_else(|| Fault::Bad("its offset overflows".into()))?);
    let mut shape: Shape = ty.shape[..ty.rank() - 1].iter().cloned().collect();
    for dim in [first.min(second), first.max(second)] {
        shape.insert(dim, extent.clone());
    }
    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype: ty.dtype }, [])?;
    let storage = c.translator.aliases.storage(zero);
    let diagonal = diagonal_of(c, storage, offset, first, second)?;
    let name = c.name.clone();
    c.translator.aliases.write(&mut c.translator.graph, diagonal, x, &name)?;
    Ok(Out::Value(c.read(storage)?))
}

pub fn diag_embed(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank() + 1;
    let (offset, first, second) = (c.int("offset")?, c.axis("dim1", rank)?, c.axis("dim2", rank)?);
    if first == second {
        return Err(Fault::Bad("a diagonal lies between two dims".into()));
    }
    on_diagonal(c, x, offset, first, second)
}

/// All elements on a diagonal.
pub fn diagflat(c: &mut Call<'_, '_>) -> Built {
    let (x, offset) = (c.tensor("self")?, c.int("offset")?);
    let count = c.ty(x).numel();
    let flat = c.op(Reshape { shape: Shape::from_iter([count]) }, [x.into()])?;
    on_diagonal(c, flat, offset, 0, 1)
}

/// A vector on a diagonal, or a matrix's diagonal.
pub fn diag(c: &mut Call<'_, '_>) -> Built {
    let (x, offset) = (c.tensor("self")?, c.int("diagonal")?);
    match c.ty(x).rank() {
        1 => on_diagonal(c, x, offset, 0, 1),
        2 => {
            let source = c.alias("self")?;
            let diagonal = diagonal_of(c, source, offset, 0, 1)?;
            Ok(Out::Value(c.read(diagonal)?))
        }
        rank => Err(Fault::Bad(format!("it takes a vector or a matrix, not {rank} dims"))),
    }
}

/// The sum of a matrix's diagonal.
pub fn trace(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    if c.ty(x).rank() != 2 {
        return Err(Fault::Bad("it needs a matrix".into()));
    }
    let source = c.alias("self")?;
    let diagonal = diagonal_of(c, source, 0, 0, 1)?;
    let diagonal = c.read(diagonal)?;
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

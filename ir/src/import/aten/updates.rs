//! Writes as values: copies into a tensor, and scatters of whole slices.

use super::{
    super::{
        alias::overwrite_slice,
        call::{Built, Call, Fault, Out},
    },
    slices,
};
use crate::{
    DType, Dim, Scalar, Value,
    ops::{Full, Iota, Reshape, Slice},
};

/// `0, 1, …` up to `len`.
pub fn iota(c: &mut Call<'_, '_>, len: Dim) -> Built<Value> {
    c.op(Iota { len, start: 0, step: 1, dtype: DType::I64 }, [])
}

/// `src` in the dtype and shape of `self`.
pub fn copy(c: &mut Call<'_, '_>) -> Built {
    let (x, src) = (c.tensor("self")?, c.tensor("src")?);
    let ty = c.ty(x).clone();
    let src = c.cast(src, ty.dtype)?;
    Ok(Out::Value(c.expand(src, &ty.shape)?))
}

/// A tensor of one value, in the dtype and shape of `self`.
fn full_of(c: &mut Call<'_, '_>, value: Scalar) -> Built<Value> {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    c.op(Full { shape: ty.shape, value, dtype: ty.dtype }, [])
}

pub fn fill(c: &mut Call<'_, '_>) -> Built {
    match c.operand("value")? {
        crate::Operand::Value(value) => {
            let x = c.tensor("self")?;
            let ty = c.ty(x).clone();
            let value = c.cast(value, ty.dtype)?;
            Ok(Out::Value(c.expand(value, &ty.shape)?))
        }
        _ => {
            let value = c.scalar("value")?;
            Ok(Out::Value(full_of(c, value)?))
        }
    }
}

pub fn zero(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Value(full_of(c, Scalar::Int(0))?))
}

/// `self` with `slice` replaced by `src`.
fn scattered(c: &mut Call<'_, '_>, slice: Slice, src: Value) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(x).dtype;
    let src = c.cast(src, dtype)?;
    let hint = c.name.clone();
    Ok(Out::Value(overwrite_slice(&mut c.translator.graph, x, &slice, src, &hint)?))
}

pub fn slice_scatter(c: &mut Call<'_, '_>) -> Built {
    let (x, src) = (c.tensor("self")?, c.tensor("src")?);
    let mut shape = c.ty(x).shape.clone();
    let slice = slices::from_arguments(c, &shape)?;
    shape[slice.dim] = (slice.end.clone() - slice.start.clone()).ceil_div(slice.step);
    let src = c.expand(src, &shape)?;
    scattered(c, slice, src)
}

pub fn select_scatter(c: &mut Call<'_, '_>) -> Built {
    let (x, src) = (c.tensor("self")?, c.tensor("src")?);
    let mut shape = c.ty(x).shape.clone();
    let dim = c.axis("dim", shape.len())?;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no elements to select".into()))?;
    let start = slices::from_end(c.dim("index")?, &extent);
    shape[dim] = Dim::from(1);
    let row = c.op(Reshape { shape }, [src.into()])?;
    scattered(c, Slice { dim, end: start.clone() + Dim::from(1), start, step: 1 }, row)
}

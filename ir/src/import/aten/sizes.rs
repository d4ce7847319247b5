//! Symbolic integers: they become dims, never nodes.

use super::super::call::{Built, Call, Fault, Out};
use crate::{Dim, types};

/// The builder of dropped rows, which are never built.
pub fn nothing(_: &mut Call<'_, '_>) -> Built {
    Err(Fault::Bad("a check computes nothing".into()))
}

pub fn size(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let axis = c.axis("dim", shape.len())?;
    shape.get(axis).cloned().map(Out::Int).ok_or_else(|| Fault::Bad("a 0-d tensor has no sizes".into()))
}

pub fn numel(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    Ok(Out::Int(types::numel(&c.ty(x).shape)))
}

pub fn binary(c: &mut Call<'_, '_>, by: fn(Dim, Dim) -> Option<Dim>) -> Built {
    let (a, b) = (c.dim("a")?, c.dim("b")?);
    let dim = by(a, b).ok_or_else(|| Fault::Bad("it divides by zero".into()))?;
    Ok(Out::Int(c.translator.simplified(&dim)))
}

pub fn neg(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Int(-c.dim("a")?))
}

pub fn floor_div(a: Dim, b: Dim) -> Option<Dim> {
    (!b.is(0)).then(|| a.floor_div(&b))
}

pub fn remainder(a: Dim, b: Dim) -> Option<Dim> {
    (!b.is(0)).then(|| a.rem(&b))
}

//! Gradients of reductions and running sums.

use super::Site;
use crate::autodiff::tape::Tape;
use eglu_ir::{
    DType, Dim, GraphError, Scalar, Value,
    ops::{Axes, Cumsum, Index, Pointwise, Reduce, ReduceKind, Slice},
    types::numel,
};

pub fn reduce(tape: &mut Tape, op: &Reduce, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let g = tape.keep(g, &ty.shape, &op.dims)?;
    let gradient = match op.kind {
        ReduceKind::Sum => g,
        ReduceKind::Mean => {
            let count = numel(&op.dims.iter().map(|&i| ty.shape[i].clone()).collect::<Vec<Dim>>());
            let count = tape.size(&count)?;
            tape.two(Pointwise::Div, g, count)?
        }
        ReduceKind::Prod => product(tape, op, x, g)?,
        ReduceKind::Amax | ReduceKind::Amin => extreme(tape, op, site, x, g)?,
        // Their results are no floats, so no gradient comes here.
        ReduceKind::Any | ReduceKind::All | ReduceKind::Argmax | ReduceKind::Argmin => return Ok(()),
    };
    let gradient = tape.cast(gradient, ty.dtype)?;
    let gradient = tape.expand(gradient, &ty.shape)?;
    tape.add(x, gradient);
    Ok(())
}

/// The product of all other factors: where none is zero the product by the factor; where one is, only that one has a gradient.
fn product(tape: &mut Tape, op: &Reduce, x: Value, g: Value) -> Result<Value, GraphError> {
    let wide = tape.cast(x, op.dtype)?;
    let zero = tape.two(Pointwise::Eq, wide, Scalar::Int(0))?;
    let others = tape.call(Pointwise::Where, [zero.into(), Scalar::Int(1).into(), wide.into()])?;
    let product = tape.reduce(others, ReduceKind::Prod, op.dims.clone(), true)?;
    let marks = tape.cast(zero, op.dtype)?;
    let zeros = tape.reduce(marks, ReduceKind::Sum, op.dims.clone(), true)?;
    let share = tape.two(Pointwise::Mul, g, product)?;
    let by_factor = tape.two(Pointwise::Div, share, others)?;
    // The number of zeros among the others.
    let left = tape.two(Pointwise::Sub, zeros, marks)?;
    let none_left = tape.two(Pointwise::Eq, left, Scalar::Int(0))?;
    tape.call(Pointwise::Where, [none_left.into(), by_factor.into(), Scalar::Float(0.0).into()])
}

/// Elements that reach the extreme share the gradient evenly.
fn extreme(tape: &mut Tape, op: &Reduce, site: &Site, x: Value, g: Value) -> Result<Value, GraphError> {
    let shape = tape.shape(x);
    let best = tape.keep(site.result(0), &shape, &op.dims)?;
    let wide = tape.cast(x, op.dtype)?;
    let reached = tape.two(Pointwise::Eq, wide, best)?;
    let reached = tape.cast(reached, op.dtype)?;
    let count = tape.reduce(reached, ReduceKind::Sum, op.dims.clone(), true)?;
    let each = tape.two(Pointwise::Div, g, count)?;
    tape.two(Pointwise::Mul, reached, each)
}

/// Running sums from the end: those of the reversed gradient, reversed.
pub fn cumsum(tape: &mut Tape, op: &Cumsum, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let mut gradient = g;
    if ty.rank() > 0 {
        let len = ty.shape[op.dim].clone();
        let positions = tape.iota(len.clone())?;
        let last = Slice { dim: 0, start: len.clone() - Dim::from(1), end: len, step: 1 };
        let last = tape.call(last, [positions.into()])?;
        let backwards = tape.two(Pointwise::Sub, last, positions)?;
        let reversed = Index { axes: Axes::from_iter([op.dim]) };
        let from_end = tape.call(reversed.clone(), [g.into(), backwards.into()])?;
        let dtype: DType = tape.dtype(g);
        let sums = tape.call(Cumsum { dim: op.dim, dtype }, [from_end.into()])?;
        gradient = tape.call(reversed, [sums.into(), backwards.into()])?;
    }
    let gradient = tape.cast(gradient, ty.dtype)?;
    tape.add(x, gradient);
    Ok(())
}

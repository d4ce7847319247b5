//! Gradients of gathers, scatters, joins and orders: a gather's is a scatter, and the other way round.

use super::Site;
use crate::autodiff::{slices, tape::Tape};
use eglu_ir::{
    Dim, GraphError, Operand, Shape, Value,
    ops::{Cat, Gather, Index, IndexPut, ScatterAdd, Slice},
};

/// Gradients of elements picked several times add up.
pub fn index(tape: &mut Tape, op: &Index, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let zeros = tape.zeros(&ty)?;
    let put = IndexPut { axes: op.axes.clone(), accumulate: true };
    let operands = [zeros.into(), g.into()].into_iter().chain(site.operands[1..].iter().copied());
    let gradient = tape.call(put, operands)?;
    tape.add(x, gradient);
    Ok(())
}

/// Replaced elements have no gradient; that by the values is read where they were put. Where several were put in one place, each reads it, as in
/// PyTorch.
pub fn index_put(tape: &mut Tape, op: &IndexPut, site: &Site, g: Value) -> Result<(), GraphError> {
    let indices = || site.operands[2..].iter().copied();
    if let Some(x) = site.wants(0) {
        let mut gradient = g;
        if !op.accumulate {
            let values = eglu_ir::TensorType::new(tape.dtype(g), []);
            let zero = tape.zeros(&values)?;
            let put = IndexPut { axes: op.axes.clone(), accumulate: false };
            gradient = tape.call(put, [g.into(), zero.into()].into_iter().chain(indices()))?;
        }
        tape.add(x, gradient);
    }
    if let Some(values) = site.wants(1) {
        let picked = Index { axes: op.axes.clone() };
        let gradient = tape.call(picked, [Operand::from(g)].into_iter().chain(indices()))?;
        let ty = tape.ty(values).clone();
        let gradient = tape.unbroadcast(gradient, &ty)?;
        tape.add(values, gradient);
    }
    Ok(())
}

pub fn gather(tape: &mut Tape, op: &Gather, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let zeros = tape.zeros(&ty)?;
    let gradient = tape.call(ScatterAdd { dim: op.dim }, [zeros.into(), site.operands[1], g.into()])?;
    tape.add(x, gradient);
    Ok(())
}

pub fn scatter_add(tape: &mut Tape, op: &ScatterAdd, site: &Site, g: Value) -> Result<(), GraphError> {
    if let Some(x) = site.wants(0) {
        tape.add(x, g);
    }
    if let Some(src) = site.wants(2) {
        let mut gradient = tape.call(Gather { dim: op.dim }, [g.into(), site.operands[1]])?;
        // What of the source lies beyond the index is not read.
        let whole = tape.ty(src).clone();
        for dim in 0..whole.rank() {
            let mut ty = tape.ty(gradient).clone();
            let part = slices::Part { slice: Slice { dim, start: Dim::from(0), end: ty.shape[dim].clone(), step: 1 }, gradient };
            ty.shape[dim] = whole.shape[dim].clone();
            gradient = slices::together(tape, &ty, vec![part])?.first().copied().unwrap_or(gradient);
        }
        tape.add(src, gradient);
    }
    Ok(())
}

/// Each operand's part of the gradient.
pub fn cat(tape: &mut Tape, op: &Cat, site: &Site, g: Value) -> Result<(), GraphError> {
    let mut start = Dim::from(0);
    for i in 0..site.operands.len() {
        let x = site.tensor(&tape.graph, i);
        let end = start.clone() + tape.shape(x)[op.dim].clone();
        if site.wants(i).is_some() {
            let slice = Slice { dim: op.dim, start: start.clone(), end: end.clone(), step: 1 };
            let gradient = tape.call(slice, [g.into()])?;
            tape.add(x, gradient);
        }
        start = end;
    }
    Ok(())
}

/// Values in an order, or the first of them, go back to the positions that the op returns; each position appears once.
pub fn ordered(tape: &mut Tape, dim: usize, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let zeros = tape.zeros(&ty)?;
    let mut operands: Vec<Operand> = vec![zeros.into(), g.into()];
    for axis in 0..ty.rank() {
        if axis == dim {
            operands.push(site.result(1).into());
            continue;
        }
        let positions = tape.iota(ty.shape[axis].clone())?;
        let mut along: Shape = (0..ty.rank()).map(|_| Dim::from(1)).collect();
        along[axis] = ty.shape[axis].clone();
        operands.push(tape.reshape(positions, &along)?.into());
    }
    let put = IndexPut { axes: (0..ty.rank()).collect(), accumulate: false };
    let gradient = tape.call(put, operands)?;
    tape.add(x, gradient);
    Ok(())
}

//! Gradients of softmax and norms. 16-bit floats are computed with in f32, as PyTorch's kernels do.

use super::Site;
use crate::autodiff::tape::Tape;
use eglu_ir::{
    Dim, GraphError, Operand, Shape, TensorType, Value,
    ops::{Axes, Pointwise, ReduceKind, RmsNorm, Softmax},
};

/// `y · g - y · Σ y · g` of a softmax y, `g - eʸ · Σ g` of its logarithm.
pub fn softmax(tape: &mut Tape, op: &Softmax, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let dtype = tape.dtype(x);
    let wide = op.dtype.opmath();
    let (g, y) = (tape.cast(g, wide)?, tape.cast(site.result(0), wide)?);
    let dims: Axes = if tape.ty(x).rank() == 0 { Axes::new() } else { Axes::from_iter([op.dim]) };
    let (from, by) = if op.log { (g, tape.one(Pointwise::Exp, y)?) } else { (tape.two(Pointwise::Mul, g, y)?, y) };
    let sum = tape.reduce(from, ReduceKind::Sum, dims, true)?;
    let share = tape.two(Pointwise::Mul, by, sum)?;
    let gradient = tape.two(Pointwise::Sub, from, share)?;
    let gradient = tape.cast(gradient, dtype)?;
    tape.add(x, gradient);
    Ok(())
}

/// An operand in `wide`, if it is given.
fn optional(tape: &mut Tape, operand: Option<&Operand>, wide: eglu_ir::DType) -> Result<Option<Value>, GraphError> {
    match operand.and_then(|operand| operand.value()) {
        Some(value) => tape.cast(value, wide).map(Some),
        None => Ok(None),
    }
}

/// The mean over the last dim, kept.
fn row_mean(tape: &mut Tape, x: Value) -> Result<Value, GraphError> {
    let last = tape.ty(x).rank() - 1;
    tape.reduce(x, ReduceKind::Mean, Axes::from_iter([last]), true)
}

/// The gradient by the input of a norm `(x - mean) · scale` from that by the normed values:
/// `scale · (g - mean(g) - normed · mean(g · normed))`, without the middle term where no mean was taken off.
fn of_normed(tape: &mut Tape, g: Value, normed: Value, scale: Value, centered: bool) -> Result<Value, GraphError> {
    let along = tape.two(Pointwise::Mul, g, normed)?;
    let along = row_mean(tape, along)?;
    let along = tape.two(Pointwise::Mul, normed, along)?;
    let mut rest = g;
    if centered {
        let mean = row_mean(tape, g)?;
        rest = tape.two(Pointwise::Sub, g, mean)?;
    }
    let rest = tape.two(Pointwise::Sub, rest, along)?;
    tape.two(Pointwise::Mul, rest, scale)
}

/// Adds the gradient of a per-column operand: the sum over rows.
fn add_column(tape: &mut Tape, of: Value, share: Value) -> Result<(), GraphError> {
    let ty = tape.ty(of).clone();
    let gradient = tape.unbroadcast(share, &ty)?;
    tape.add(of, gradient);
    Ok(())
}

pub fn rms_norm(tape: &mut Tape, op: &RmsNorm, site: &Site, g: Value) -> Result<(), GraphError> {
    let x = site.tensor(&tape.graph, 0);
    let dtype = tape.dtype(x);
    let wide = dtype.opmath();
    let (g, values) = (tape.cast(g, wide)?, tape.cast(x, wide)?);
    let weight = optional(tape, site.operands.get(1), wide)?;
    let squares = tape.two(Pointwise::Mul, values, values)?;
    let mean = row_mean(tape, squares)?;
    let shifted = tape.two(Pointwise::Add, mean, op.eps)?;
    let scale = tape.one(Pointwise::Rsqrt, shifted)?;
    let normed = tape.two(Pointwise::Mul, values, scale)?;
    if let Some(x) = site.wants(0) {
        let by_normed = match weight {
            Some(weight) => tape.two(Pointwise::Mul, g, weight)?,
            None => g,
        };
        let gradient = of_normed(tape, by_normed, normed, scale, false)?;
        let gradient = tape.cast(gradient, dtype)?;
        tape.add(x, gradient);
    }
    if let Some(of) = site.wants(1) {
        let share = tape.two(Pointwise::Mul, g, normed)?;
        add_column(tape, of, share)?;
    }
    Ok(())
}

pub fn layer_norm(tape: &mut Tape, site: &Site) -> Result<(), GraphError> {
    let x = site.tensor(&tape.graph, 0);
    let ty = tape.ty(x).clone();
    let wide = ty.dtype.opmath();
    let values = tape.cast(x, wide)?;
    let weight = optional(tape, site.operands.get(1), wide)?;
    let (mean, scale) = (tape.cast(site.result(1), wide)?, tape.cast(site.result(2), wide)?);
    let centered = tape.two(Pointwise::Sub, values, mean)?;
    let normed = tape.two(Pointwise::Mul, centered, scale)?;
    let mut shares: Vec<Value> = Vec::new();
    if let Some(g) = site.gradients[0] {
        let g = tape.cast(g, wide)?;
        let by_normed = match weight {
            Some(weight) => tape.two(Pointwise::Mul, g, weight)?,
            None => g,
        };
        if site.wants(0).is_some() {
            shares.push(of_normed(tape, by_normed, normed, scale, true)?);
        }
        if let Some(of) = site.wants(1) {
            let share = tape.two(Pointwise::Mul, g, normed)?;
            add_column(tape, of, share)?;
        }
        if let Some(of) = site.wants(2) {
            add_column(tape, of, g)?;
        }
    }
    let Some(x) = site.wants(0) else { return Ok(()) };
    shares.extend(of_statistics(tape, site, &ty, normed, scale)?);
    for share in shares {
        let share = tape.cast(share, ty.dtype)?;
        tape.add(x, share);
    }
    Ok(())
}

/// Gradients by the input through a row's mean, `g / n`, and through `1 / sqrt(variance + eps)`, `-g · scale² · normed / n`.
fn of_statistics(tape: &mut Tape, site: &Site, ty: &TensorType, normed: Value, scale: Value) -> Result<Vec<Value>, GraphError> {
    let width = ty.shape.last().cloned().unwrap_or(Dim::from(1));
    let full: Shape = ty.shape.clone();
    let mut shares = Vec::new();
    if let Some(g) = site.gradients[1] {
        let count = tape.size(&width)?;
        let each = tape.two(Pointwise::Div, g, count)?;
        shares.push(tape.expand(each, &full)?);
    }
    if let Some(g) = site.gradients[2] {
        let count = tape.size(&width)?;
        let each = tape.two(Pointwise::Div, g, count)?;
        let square = tape.two(Pointwise::Mul, scale, scale)?;
        let each = tape.two(Pointwise::Mul, each, square)?;
        let share = tape.two(Pointwise::Mul, normed, each)?;
        shares.push(tape.one(Pointwise::Neg, share)?);
    }
    Ok(shares)
}

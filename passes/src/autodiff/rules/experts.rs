//! Gradients of products by expert, which graphs in eglu's own form may hold before they are fused further.

use super::Site;
use crate::autodiff::tape::Tape;
use eglu_ir::{
    Dim, GraphError, Operand, Scalar, Shape, TensorType, Value,
    ops::{Axes, ExpertMatmul, ExpertOuter, Full, Index, Pointwise, ReduceKind},
};

/// By rows the product with transposed matrices, by matrices the sums of outer products, by biases the sums of rows.
pub fn matmul(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let (x, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    let ids = site.tensor(&tape.graph, 3);
    let experts = tape.shape(w)[0].clone();
    if site.wants(0).is_some() {
        let turned = tape.transpose(w)?;
        let gradient = tape.call(ExpertMatmul {}, [g.into(), turned.into(), Operand::None, ids.into()])?;
        tape.add(x, gradient);
    }
    let outer = |dtype| ExpertOuter { experts: experts.clone(), a_repeat: 1, b_repeat: 1, dtype };
    if site.wants(1).is_some() {
        let gradient = tape.call(outer(tape.dtype(w)), [g.into(), x.into(), ids.into()])?;
        tape.add(w, gradient);
    }
    if let Some(bias) = site.wants(2) {
        let ty = tape.ty(bias).clone();
        let column = Shape::from_iter([tape.shape(g)[0].clone(), Dim::from(1)]);
        let ones = tape.call(Full { shape: column, value: Scalar::Float(1.0), dtype: tape.dtype(g) }, [])?;
        let sums = tape.call(outer(ty.dtype), [g.into(), ones.into(), ids.into()])?;
        let gradient = tape.reshape(sums, &ty.shape)?;
        tape.add(bias, gradient);
    }
    Ok(())
}

/// Each row `repeat` times.
fn repeated(tape: &mut Tape, x: Value, repeat: &Dim) -> Result<Value, GraphError> {
    if repeat.is(1) {
        return Ok(x);
    }
    let rows = tape.shape(x)[0].clone() * repeat.clone();
    let positions = tape.iota(rows)?;
    let repeat = tape.size(repeat)?;
    let sources = tape.two(Pointwise::FloorDiv, positions, repeat)?;
    tape.call(Index { axes: Axes::from_iter([0]) }, [x.into(), sources.into()])
}

/// Adds the gradient by rows that are each read `repeat` times.
fn add_rows(tape: &mut Tape, of: Value, gradient: Value, repeat: usize) -> Result<(), GraphError> {
    let ty: TensorType = tape.ty(of).clone();
    let mut sum = gradient;
    if repeat != 1 {
        let apart = Shape::from_iter([ty.shape[0].clone(), Dim::from(repeat as i64), ty.shape[1].clone()]);
        let each = tape.reshape(gradient, &apart)?;
        sum = tape.reduce(each, ReduceKind::Sum, Axes::from_iter([1]), false)?;
    }
    let sum = tape.cast(sum, ty.dtype)?;
    tape.add(of, sum);
    Ok(())
}

/// By rows of one side, those of the other times the gradient of their expert.
pub fn outer(tape: &mut Tape, op: &ExpertOuter, site: &Site, g: Value) -> Result<(), GraphError> {
    let (a, b) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    let ids = site.tensor(&tape.graph, 2);
    if let Some(onto) = site.wants(3) {
        tape.add(onto, g);
    }
    let g = tape.cast(g, tape.dtype(a))?;
    if site.wants(0).is_some() {
        let rows = repeated(tape, b, &Dim::from(op.b_repeat as i64))?;
        let gradient = tape.call(ExpertMatmul {}, [rows.into(), g.into(), Operand::None, ids.into()])?;
        add_rows(tape, a, gradient, op.a_repeat)?;
    }
    if site.wants(1).is_some() {
        let rows = repeated(tape, a, &Dim::from(op.a_repeat as i64))?;
        let turned = tape.transpose(g)?;
        let gradient = tape.call(ExpertMatmul {}, [rows.into(), turned.into(), Operand::None, ids.into()])?;
        add_rows(tape, b, gradient, op.b_repeat)?;
    }
    Ok(())
}

/// `weights[t, j] · g[t]` by a row, and its product with g by its weight.
pub fn combine(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let (y, weights) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    let (rows, shares) = (tape.ty(y).clone(), tape.ty(weights).clone());
    let g = repeated(tape, g, &shares.shape[1])?;
    if site.wants(0).is_some() {
        let column = tape.reshape(weights, &Shape::from_iter([rows.shape[0].clone(), Dim::from(1)]))?;
        let gradient = tape.two(Pointwise::Mul, g, column)?;
        let gradient = tape.cast(gradient, rows.dtype)?;
        tape.add(y, gradient);
    }
    if site.wants(1).is_some() {
        let share = tape.two(Pointwise::Mul, g, y)?;
        let sums = tape.reduce(share, ReduceKind::Sum, Axes::from_iter([1]), false)?;
        let sums = tape.reshape(sums, &shares.shape)?;
        let gradient = tape.cast(sums, shares.dtype)?;
        tape.add(weights, gradient);
    }
    Ok(())
}

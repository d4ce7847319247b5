//! Gradients of matrix products.

use super::Site;
use crate::autodiff::tape::Tape;
use eglu_ir::{
    DType, Dim, GraphError, Shape, Value,
    ops::{Axes, ExpertOuter, GroupedMm, MatMul, Pointwise, ReduceKind},
    types::numel,
};

/// `g · bᵀ` and `aᵀ · g`, summed where leading dims were broadcast.
pub fn matmul(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let (a, b) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let turned = tape.transpose(b)?;
        let gradient = tape.call(MatMul {}, [g.into(), turned.into()])?;
        let ty = tape.ty(a).clone();
        let gradient = tape.unbroadcast(gradient, &ty)?;
        tape.add(a, gradient);
    }
    if site.wants(1).is_some() {
        let (mut rows, mut of) = (a, g);
        if tape.ty(b).rank() == 2 && tape.ty(a).rank() > 2 {
            // One product over all rows, where the sum over leading dims of a product each would be stored.
            (rows, of) = (as_rows(tape, a)?, as_rows(tape, g)?);
        }
        // Of a transposed weight the gradient is made in the weight's own order.
        let gradient = if tape.is_transposed(b) {
            let turned = tape.transpose(of)?;
            let gradient = tape.call(MatMul {}, [turned.into(), rows.into()])?;
            tape.transpose(gradient)?
        } else {
            let turned = tape.transpose(rows)?;
            tape.call(MatMul {}, [turned.into(), of.into()])?
        };
        let ty = tape.ty(b).clone();
        let gradient = tape.unbroadcast(gradient, &ty)?;
        tape.add(b, gradient);
    }
    Ok(())
}

/// All but the last dim as one.
fn as_rows(tape: &mut Tape, x: Value) -> Result<Value, GraphError> {
    let shape = tape.shape(x);
    let (width, rows) = (shape[shape.len() - 1].clone(), numel(&shape[..shape.len() - 1]));
    tape.reshape(x, &Shape::from_iter([rows, width]))
}

/// By rows the grouped product with transposed matrices; by matrices a product ragged in K. Row s belongs to the group that as many groups as end
/// at s or before precede; rows behind the last group belong to none.
pub fn grouped_mm(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let (x, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    let offs = site.tensor(&tape.graph, 2);
    if site.wants(0).is_some() {
        let turned = tape.transpose(w)?;
        let gradient = tape.call(GroupedMm {}, [g.into(), turned.into(), offs.into()])?;
        tape.add(x, gradient);
    }
    if site.wants(1).is_some() {
        let (rows, groups) = (tape.shape(x)[0].clone(), tape.shape(offs)[0].clone());
        let positions = tape.iota(rows)?;
        let ends = tape.reshape(offs, &Shape::from_iter([groups.clone(), Dim::from(1)]))?;
        let ended = tape.two(Pointwise::Ge, positions, ends)?;
        let count = eglu_ir::ops::Reduce { kind: ReduceKind::Sum, dims: Axes::from_iter([0]), keepdim: false, dtype: DType::I64 };
        let ids = tape.call(count, [ended.into()])?;
        let outer = ExpertOuter { experts: groups, a_repeat: 1, b_repeat: 1, dtype: tape.dtype(w) };
        let gradient = if tape.is_transposed(w) {
            let gradient = tape.call(outer, [g.into(), x.into(), ids.into()])?;
            tape.transpose(gradient)?
        } else {
            tape.call(outer, [x.into(), g.into(), ids.into()])?
        };
        tape.add(w, gradient);
    }
    Ok(())
}

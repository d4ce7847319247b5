//! Joins and gathers that pick everything.

use super::{Rewrite, call, first};
use eglu_ir::{
    Dim, Graph, Op, Operand,
    ops::{Cat, Index, Iota},
};

/// Rules that look at one op and what it reads.
pub(super) fn simplify(graph: &Graph, op: &Op, operands: &[Operand]) -> Option<Rewrite> {
    match op {
        Op::Cat(Cat { .. }) if operands.len() == 1 => Some(Rewrite::Forward(first(operands)?)),
        Op::Index(Index { axes }) if axes[..] == [0] => {
            let (x, index) = (first(operands)?, operands.get(1)?.value()?);
            counts_rows(call(graph, index)?.0, &graph.ty(x).shape[0]).then_some(Rewrite::Forward(x))
        }
        _ => None,
    }
}

/// True for 0, 1, … up to the number of rows: such an index picks every row in its place.
fn counts_rows(op: &Op, rows: &Dim) -> bool {
    matches!(op, Op::Iota(Iota { len, start: 0, step: 1, .. }) if len == rows)
}

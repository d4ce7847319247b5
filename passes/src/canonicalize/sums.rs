//! Sums that convert what they add: the conversion is theirs already.

use super::{Rewrite, call, first};
use eglu_ir::{
    DType, Graph, Op, Operand, Value,
    ops::{Cast, Cumsum, Reduce, ReduceKind},
};

/// `sum(cast(x, d), dtype=d)` is `sum(x, dtype=d)`: PyTorch converts elements to `dtype` before it adds them. Likewise `cumsum`, `prod` and `mean`.
pub(super) fn simplify(graph: &Graph, op: &Op, operands: &[Operand]) -> Option<Rewrite> {
    let dtype = match op {
        Op::Cumsum(Cumsum { dtype, .. }) => *dtype,
        Op::Reduce(Reduce { kind: ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean, dtype, .. }) => *dtype,
        _ => return None,
    };
    let x = converted(graph, first(operands)?, dtype)?;
    Some(Rewrite::Call(op.clone(), [x.into()].into_iter().collect()))
}

/// What a value converts to `dtype`.
fn converted(graph: &Graph, value: Value, dtype: DType) -> Option<Value> {
    match call(graph, value)? {
        (Op::Cast(Cast { dtype: to }), operands) if *to == dtype => first(operands),
        _ => None,
    }
}

//! Symbolic integers as tensors, for the ops that compute with a size.

use crate::{
    DType, Dim, Graph, GraphError, Operand, Scalar,
    ops::{Axes, Full, Reduce, ReduceKind},
};

/// The dim as an operand: a number where it is known, else a 0-d i64 tensor. The table has no row that yields a size, so a
/// symbolic one is counted: the sum of that many ones.
pub fn of_dim(graph: &mut Graph, dim: &Dim, hint: &str) -> Result<Operand, GraphError> {
    if let Some(value) = dim.as_const() {
        return Ok(Scalar::Int(value).into());
    }
    let ones = Full { shape: [dim.clone()].into_iter().collect(), value: Scalar::Int(1), dtype: DType::I64 };
    let ones = graph.add_call(&format!("{hint}.ones"), ones.into(), [])?;
    let sum = Reduce { kind: ReduceKind::Sum, dims: Axes::from_iter([0]), keepdim: false, dtype: DType::I64 };
    Ok(graph.add_call(&format!("{hint}.size"), sum.into(), [ones.into()])?.into())
}

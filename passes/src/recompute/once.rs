//! Fused nodes whose products the backward part needs as well are taken apart, so that no product of matrices is computed twice.
//!
//! Prices choose them where a kernel's launch costs more than a second product, as in small graphs, and know nothing of epilogues: the products with
//! the activation behind them are one kernel just as well.

use crate::{cse::merge_equal, rebuild::Rebuild};
use eglu_ir::{
    Graph, GraphError, NodeId, Op, Operand, Value,
    ops::{DenseGlu, Glu, MatMul, Permute, Pointwise},
};

/// Takes gated units apart where one of their products is in the graph by itself; true if there was one.
pub(super) fn unfuse(graph: &mut Graph) -> Result<bool, GraphError> {
    let twice: Vec<NodeId> = graph.node_ids().filter(|&id| is_computed_elsewhere(graph, id)).collect();
    if twice.is_empty() {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.topological()? {
        match graph.node(id).op() {
            Some(Op::DenseGlu(op)) if twice.contains(&id) => apart(&mut rebuild, op, id)?,
            _ => rebuild.copy(id)?,
        }
    }
    *graph = rebuild.finish();
    merge_equal(graph)?;
    Ok(true)
}

/// A gated unit with a product of the same rows by one of its weights, transposed, beside it.
fn is_computed_elsewhere(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Some(Op::DenseGlu(_)) = node.op() else { return false };
    let Some(rows) = node.operands[0].value() else { return false };
    let weights = [node.operands[1], node.operands[3]];
    let transposed = |operand: Operand| {
        let source = operand.value().map(|value| graph.node(value.node));
        let permute = source.filter(|source| matches!(source.op(), Some(Op::Permute(op)) if op.dims[..] == [1, 0]));
        permute.is_some_and(|permute| weights.contains(&permute.operands[0]))
    };
    graph.users(rows.node).into_iter().any(|user| {
        let user = graph.node(user);
        matches!(user.op(), Some(Op::MatMul(_))) && user.operands[0] == Operand::Value(rows) && transposed(user.operands[1])
    })
}

/// The unit as two products and its activation.
fn apart(rebuild: &mut Rebuild<'_>, op: &DenseGlu, id: NodeId) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let operands = rebuild.operands(id);
    let mut lane = |weight: Operand, bias: Operand| -> Result<Operand, GraphError> {
        let mut call = |op: Op, operands: &[Operand]| -> Result<Value, GraphError> {
            Ok(rebuild.call(&node.name, op, operands.iter().copied(), node.origins.iter().cloned())?.into())
        };
        let turned = call(Permute { dims: [1, 0].into_iter().collect() }.into(), &[weight])?;
        let product = call(MatMul {}.into(), &[operands[0], turned.into()])?;
        match bias {
            Operand::None => Ok(product.into()),
            bias => Ok(call(Pointwise::Add.into(), &[product.into(), bias])?.into()),
        }
    };
    let (gate, up) = (lane(operands[1], operands[2])?, lane(operands[3], operands[4])?);
    let glu = Glu { program: op.program.clone() };
    let new = rebuild.call(&node.name, glu.into(), [gate, up], node.origins.iter().cloned())?;
    rebuild.bind_all(id, new);
    Ok(())
}

//! Whole graphs, one op at a time.

use super::{EvalError, EvalOperand, eval_op};
use crate::{Bindings, Graph, Node, NodeId, NodeKind, Operand, Tensor, TensorType, Value, bind::bind, dim::DimError};
use std::{collections::HashMap, sync::Arc};

/// Evaluates a graph on user inputs in signature order; gives all its outputs in signature order, mutated state included.
///
/// `weights` finds a parameter or buffer by its fully qualified name. Every result is checked against the type that the graph records.
pub fn eval_graph(graph: &Graph, weights: &dyn Fn(&str) -> Option<Tensor>, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let signature: Vec<(Arc<str>, TensorType)> =
        graph.inputs().iter().map(|&id| (graph.node(id).name.clone(), graph.node(id).outputs[0].clone())).collect();
    let bindings = bind(&graph.symbols, &signature, inputs)?;
    let order = graph.topological()?;
    let mut values: HashMap<Value, Tensor> = HashMap::new();
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        values.insert(id.into(), tensor.clone());
    }
    let last_use = last_uses(graph, &order);
    for (position, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        let results = match &node.kind {
            NodeKind::Input => continue,
            NodeKind::Constant(tensor) => vec![tensor.clone()],
            NodeKind::Weight(path) => {
                let missing = || EvalError::MissingWeight { node: node.name.clone(), path: path.clone() };
                vec![weights(path).ok_or_else(missing)?]
            }
            NodeKind::Call(op) => {
                let at = |source| EvalError::Node { node: node.name.clone(), op: op.name(), source: Box::new(source) };
                let operands = operands(node, &values).map_err(at)?;
                eval_op(op, &operands, &bindings).map_err(at)?
            }
        };
        check(node, &results, &bindings)?;
        for (index, tensor) in results.into_iter().enumerate() {
            values.insert(Value { node: id, index: index as u32 }, tensor);
        }
        for operand in node.operands.iter().filter_map(|o| o.value()) {
            if last_use.get(&operand) == Some(&position) {
                values.remove(&operand);
            }
        }
    }
    graph.outputs().iter().map(|output| values.get(&output.value).cloned().ok_or_else(|| undefined(output.value))).collect()
}

fn undefined(value: Value) -> EvalError {
    EvalError::Data(format!("output {} of node {} does not exist: the graph does not verify", value.index, value.node.index()))
}

fn operands<'a>(node: &Node, values: &'a HashMap<Value, Tensor>) -> Result<Vec<EvalOperand<'a>>, EvalError> {
    node.operands
        .iter()
        .map(|operand| match operand {
            Operand::Value(value) => Ok(EvalOperand::Tensor(values.get(value).ok_or_else(|| undefined(*value))?)),
            Operand::Scalar(scalar) => Ok(EvalOperand::Scalar(*scalar)),
            Operand::None => Ok(EvalOperand::None),
        })
        .collect()
}

/// Position in `order` of the last reader of each value; outputs of the graph have none.
fn last_uses(graph: &Graph, order: &[NodeId]) -> HashMap<Value, usize> {
    let mut last = HashMap::new();
    for (position, &id) in order.iter().enumerate() {
        for value in graph.node(id).operands.iter().filter_map(|o| o.value()) {
            last.insert(value, position);
        }
    }
    for output in graph.outputs() {
        last.remove(&output.value);
    }
    last
}

/// Compares results with the types that the graph records.
fn check(node: &Node, results: &[Tensor], bindings: &Bindings) -> Result<(), EvalError> {
    for (i, (got, want)) in results.iter().zip(&node.outputs).enumerate() {
        let shape = want.concrete(bindings).map_err(|e: DimError| EvalError::Dim(e))?;
        if got.dtype() != want.dtype || got.shape() != shape {
            let what = format!("output {i}");
            let (want, got) = (Box::new(want.clone()), Box::new(got.ty()));
            return Err(EvalError::TypeMismatch { node: node.name.clone(), what, want, got });
        }
    }
    Ok(())
}

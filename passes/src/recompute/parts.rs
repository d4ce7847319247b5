//! The two parts of a joint graph.

use crate::cost::{bytes, typical_sizes};
use eglu_ir::{Graph, GraphError, NodeId, Op, OutputKind, Value, ops::Lowering};
use rustc_hash::FxHashSet;
use serde::Serialize;

/// What the user gets and what it is computed from, and everything else: what only gradients need.
pub(crate) struct Parts {
    /// All nodes, operands first.
    pub order: Vec<NodeId>,
    forward: FxHashSet<NodeId>,
}

/// True for a graph that computes gradients beside other results.
pub(super) fn is_joint(graph: &Graph) -> bool {
    let gradient = |kind: &OutputKind| matches!(kind, OutputKind::Gradient(_));
    let (mut some, mut others) = (false, false);
    for output in graph.outputs() {
        (some, others) = (some || gradient(&output.kind), others || !gradient(&output.kind));
    }
    some && others
}

impl Parts {
    pub fn of(graph: &Graph) -> Result<Parts, GraphError> {
        let results = graph.outputs().iter().filter(|output| !matches!(output.kind, OutputKind::Gradient(_)));
        let mut stack: Vec<NodeId> = results.map(|output| output.value.node).collect();
        let mut forward: FxHashSet<NodeId> = FxHashSet::default();
        while let Some(id) = stack.pop() {
            if forward.insert(id) {
                stack.extend(graph.node(id).operands.iter().filter_map(|operand| operand.value()).map(|value| value.node));
            }
        }
        Ok(Parts { order: graph.topological()?, forward })
    }

    /// An op that only gradients need. Inputs and weights belong to neither part.
    pub fn is_backward(&self, id: NodeId) -> bool {
        !self.forward.contains(&id)
    }

    /// An op that the user's results need.
    pub fn is_forward(&self, graph: &Graph, id: NodeId) -> bool {
        graph.node(id).op().is_some() && self.forward.contains(&id)
    }

    /// Ops of the backward part.
    pub fn readers<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = NodeId> + 'a {
        self.order.iter().copied().filter(|&id| graph.node(id).op().is_some() && self.is_backward(id))
    }
}

/// A view costs nothing, and nor does what is made of indices alone.
pub(super) fn is_free(op: &Op) -> bool {
    matches!(op.code().lowering(), Lowering::View | Lowering::Generator)
}

/// What a joint graph keeps between its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Tensors that the backward part reads of the forward part, without inputs, weights and results.
    pub tensors: usize,
    /// Their bytes, at [typical sizes](crate::cost::typical_sizes).
    pub bytes: u64,
}

/// What a graph keeps for its backward part; none for a graph without gradients.
pub fn kept(graph: &Graph) -> Option<Kept> {
    let parts = Parts::of(graph).ok().filter(|_| is_joint(graph))?;
    let returned: FxHashSet<Value> = graph.outputs().iter().map(|output| viewed(graph, output.value)).collect();
    let reads = parts.readers(graph).flat_map(|id| graph.node(id).operands.iter().filter_map(|operand| operand.value()));
    let stored = reads.map(|value| viewed(graph, value)).filter(|value| {
        let made = graph.node(value.node).op().is_some_and(|op| !is_free(op));
        made && !parts.is_backward(value.node) && !returned.contains(value)
    });
    let stored: FxHashSet<Value> = stored.collect();
    let sizes = typical_sizes(graph);
    let total: f64 = stored.iter().map(|&value| bytes(graph, value, &sizes)).sum();
    Some(Kept { tensors: stored.len(), bytes: total as u64 })
}

/// What a view, or a view of a view, shows.
fn viewed(graph: &Graph, mut value: Value) -> Value {
    while let Some(op) = graph.node(value.node).op()
        && op.code().lowering() == Lowering::View
        && let Some(source) = graph.node(value.node).operands[0].value()
    {
        value = source;
    }
    value
}

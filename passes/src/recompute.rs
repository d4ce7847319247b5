//! What the backward part of a joint graph reads of the forward part: kept in memory from then on, or computed again.
//!
//! Runs behind extraction, when it is settled what is computed at all, and before clustering, which takes what is computed again into the kernels
//! that read it. Products of matrices, orders and scatters are always kept: nothing that is dear is computed twice. What is kept of the rest is the
//! cheapest cut of the forward graph: bytes kept against time to compute them again (Chen et al. 2016, *Training Deep Nets with Sublinear Memory
//! Cost*; as a minimum cut in functorch's `min_cut_rematerialization_partition`).

mod cut;
mod flow;
mod once;
mod parts;
mod score_fold;
mod score_gradient;
mod scores;

pub(crate) use parts::Parts;
pub use parts::{Kept, kept};
pub(crate) use scores::leaves;

use crate::{
    pipeline::{Context, Failure, Pass},
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{Graph, GraphError, NodeId, Operand, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// What to compute again in a backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing: all that the backward part reads is kept.
    None,
    /// What takes less time than its bytes are worth: mostly elementwise ops, inside of the kernels that read them.
    #[default]
    Auto,
    /// All but products, orders and scatters.
    All,
}

/// Chooses what a joint graph keeps of its forward part.
pub struct ChooseKept;

impl Pass for ChooseKept {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn doc(&self) -> &'static str {
        "chooses what a backward pass keeps of the forward pass, and what it computes again"
    }

    fn run(&self, graph: &mut Graph, context: &mut Context<'_>) -> Result<bool, Failure> {
        if !parts::is_joint(graph) {
            return Ok(false);
        }
        let mut changed = once::unfuse(graph)?;
        if context.recompute != Recompute::None {
            changed |= scores::move_behind_products(graph)?;
            changed |= score_fold::through_products(graph)?;
        }
        changed |= score_gradient::read_rows_in_place(graph)?;
        if context.recompute != Recompute::None {
            let parts = Parts::of(graph)?;
            let again = cut::again(graph, &parts, context);
            if !again.is_empty() {
                *graph = apart(graph, &parts, &again)?;
                changed = true;
            }
        }
        graph.remove_dead();
        Ok(changed)
    }
}

/// The graph with nodes of the forward part computed once more for the backward part, right before they are first read there.
fn apart(graph: &Graph, parts: &Parts, again: &FxHashSet<NodeId>) -> Result<Graph, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut copies: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    for &id in &parts.order {
        let node = graph.node(id);
        // A constant that only gradients need belongs to the backward part, and has nothing to compute.
        let Some(op) = node.op().filter(|_| parts.is_backward(id)) else {
            rebuild.copy(id)?;
            continue;
        };
        let operands = copied(&mut rebuild, &mut copies, id, again)?;
        let new = rebuild.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?;
        rebuild.bind_all(id, new);
    }
    Ok(rebuild.finish())
}

/// The operands of a node in the new graph, those that are computed again as copies.
fn copied(
    rebuild: &mut Rebuild<'_>,
    copies: &mut FxHashMap<NodeId, NodeId>,
    id: NodeId,
    again: &FxHashSet<NodeId>,
) -> Result<Operands, GraphError> {
    let graph = rebuild.old;
    let mut stack: Vec<(NodeId, bool)> = Vec::new();
    let sources = |id: NodeId| graph.node(id).operands.iter().filter_map(|operand| operand.value()).map(|value| value.node);
    stack.extend(sources(id).map(|source| (source, false)));
    while let Some((at, ready)) = stack.pop() {
        if !again.contains(&at) || copies.contains_key(&at) {
            continue;
        }
        if !ready {
            stack.push((at, true));
            stack.extend(sources(at).map(|source| (source, false)));
            continue;
        }
        let node = graph.node(at);
        let Some(op) = node.op() else { continue };
        let operands = mapped(rebuild, copies, at);
        let copy = rebuild.call(&format!("{}.again", node.name), op.clone(), operands, node.origins.iter().cloned())?;
        copies.insert(at, copy);
    }
    Ok(mapped(rebuild, copies, id))
}

fn mapped(rebuild: &Rebuild<'_>, copies: &FxHashMap<NodeId, NodeId>, id: NodeId) -> Operands {
    let operand = |operand: &Operand| match operand {
        Operand::Value(Value { node, index }) => match copies.get(node) {
            Some(&copy) => Value { node: copy, index: *index }.into(),
            None => rebuild.operand(*operand),
        },
        other => *other,
    };
    rebuild.old.node(id).operands.iter().map(operand).collect()
}

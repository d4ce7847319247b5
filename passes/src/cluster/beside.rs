//! What does not depend on a product but is made of the tensors that are read behind it, and so leaves the same kernel: the activation that a
//! backward pass computes again, beside the gating's derivative.

use super::{
    inline::is_pointwise,
    partition::{Kind, Partition},
    product::{AGAIN, Plan},
};
use crate::recompute::{Parts, leaves};
use eglu_ir::{NodeId, Value};
use rustc_hash::FxHashSet;

/// Takes them in. What the forward pass needs is not made to wait.
pub(crate) fn take(partition: &Partition<'_>, plan: &mut Plan, parts: &Parts) {
    let graph = partition.graph;
    if !parts.is_backward(plan.product) {
        return;
    }
    let shape = &graph.node(plan.product).outputs[0].shape;
    let read = leaves(graph, plan.members.iter().copied(), shape);
    let read: FxHashSet<Value> = read.into_iter().filter(|value| value.node != plan.product).collect();
    let made_of = |id: NodeId| {
        let of = leaves(graph, [id].into_iter(), shape);
        !of.is_empty() && of.is_subset(&read)
    };
    let beside = |id: NodeId| {
        let free = partition.kind(id) == Kind::Single && !plan.members.contains(&id) && parts.is_backward(id);
        free && is_pointwise(graph, id) && graph.node(id).outputs[0].shape == *shape && made_of(id)
    };
    // Only readers of these tensors come in question, and readers of those.
    let (mut all, mut seen): (Vec<NodeId>, FxHashSet<NodeId>) = Default::default();
    let mut stack: Vec<NodeId> = read.iter().flat_map(|value| partition.users(value.node)).copied().collect();
    while let Some(id) = stack.pop() {
        if seen.insert(id) && beside(id) {
            all.push(id);
            stack.extend(partition.users(id));
        }
    }
    all.sort_unstable_by_key(|&id| partition.rank(id));
    for &id in &all {
        // Those inside of others are computed on the way.
        let inside = |user: &NodeId| all.contains(user) || plan.members.contains(user);
        if partition.users(id).iter().all(inside) && !partition.is_output(id) {
            continue;
        }
        let nodes: Vec<NodeId> = plan.nodes().into_iter().chain([id]).collect();
        if plan.members.len() < AGAIN && partition.is_convex(&nodes) {
            plan.members.push(id);
        }
    }
    plan.members.sort_by_key(|&id| partition.rank(id));
}

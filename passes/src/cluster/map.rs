//! Pointwise ops over one iteration space become one loop: producers with their readers, and readers of the same tensor.

use super::{
    inline::{Inliner, is_pointwise},
    partition::{Kind, Partition},
};
use crate::{cost, pipeline::Context, rebuild::Rebuild};
use eglu_ir::{GraphError, NodeId, Operand, Value, ops::Map};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Limits of one loop, so that its values stay in registers and its arguments fit a launch.
const NODES: usize = 48;
const TENSORS: usize = 16;

/// Groups pointwise nodes, readers first with their producers, then with those that read the same.
pub(crate) fn group(partition: &mut Partition<'_>, context: &Context<'_>) {
    let graph = partition.graph;
    for &id in partition.order.clone().iter().rev() {
        for value in graph.node(id).operands.iter().filter_map(|o| o.value()) {
            join(partition, value.node, id, context);
        }
    }
    for &id in &partition.order.clone() {
        let readers: Vec<NodeId> = partition.users(id).iter().copied().filter(|&user| free(partition, user)).collect();
        for pair in readers.windows(2) {
            join(partition, pair[0], pair[1], context);
        }
    }
}

/// True for a pointwise node that no other kind of kernel has taken.
fn free(partition: &Partition<'_>, id: NodeId) -> bool {
    matches!(partition.kind(id), Kind::Single | Kind::Map) && is_pointwise(partition.graph, id)
}

fn join(partition: &mut Partition<'_>, a: NodeId, b: NodeId, context: &Context<'_>) {
    let graph = partition.graph;
    if !free(partition, a) || !free(partition, b) || partition.group(a) == partition.group(b) {
        return;
    }
    if graph.node(a).outputs[0].shape != graph.node(b).outputs[0].shape {
        return;
    }
    let mut both = partition.members(a).to_vec();
    both.extend(partition.members(b));
    if both.len() <= NODES
        && tensors(partition, &both) <= TENSORS
        && partition.is_convex(&both)
        && cost::fusing_pays(graph, &both, context.profile)
    {
        partition.join(&both, Kind::Map);
    }
}

/// How many tensors the nodes would read and write as one loop.
fn tensors(partition: &Partition<'_>, nodes: &[NodeId]) -> usize {
    let graph = partition.graph;
    let read: FxHashSet<Value> = nodes
        .iter()
        .flat_map(|&id| graph.node(id).operands.iter().filter_map(|o| o.value()))
        .filter(|value| !nodes.contains(&value.node))
        .collect();
    read.len() + super::exits(graph, nodes).len()
}

/// Emits a group as one loop with an output for each exit.
pub(crate) fn emit(rebuild: &mut Rebuild<'_>, members: &[NodeId]) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let mut program = Inliner::new(graph);
    for &id in members {
        program.node(id)?;
    }
    let exits = super::exits(graph, members);
    for &exit in &exits {
        program.result(exit.into());
    }
    let operands: Vec<Operand> = program.captures.iter().map(|&value| rebuild.value(value).into()).collect();
    let name = &graph.node(*exits.last().unwrap_or(&members[0])).name;
    let op = Map { program: Arc::new(program.finish()) };
    let new = rebuild.call(name, op.into(), operands, super::origins(graph, members))?;
    for (index, &exit) in exits.iter().enumerate() {
        rebuild.bind(exit.into(), Value { node: new, index: index as u32 });
    }
    Ok(())
}

//! Pointwise ops over one iteration space become one loop: producers with their readers, and readers of the same tensor.

use super::{
    inline::{Inliner, is_pointwise},
    partition::{Kind, Partition},
};
use crate::{
    cost,
    pipeline::Context,
    rebuild::Rebuild,
    recompute::{Parts, Recompute},
};
use eglu_ir::{GraphError, NodeId, Operand, Ref, Value, ops::Map};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Limits of one loop, so that its values stay in registers and its arguments fit a launch.
const NODES: usize = 48;
const TENSORS: usize = 16;

/// Groups pointwise nodes, readers first with their producers, then with those that read the same.
pub(crate) fn group(partition: &mut Partition<'_>, parts: &Parts, context: &Context<'_>) {
    let graph = partition.graph;
    for &id in partition.order.clone().iter().rev() {
        for value in graph.node(id).operands.iter().filter_map(|o| o.value()) {
            join(partition, value.node, id, parts, context);
        }
    }
    for &id in &partition.order.clone() {
        let readers: Vec<NodeId> = partition.users(id).iter().copied().filter(|&user| free(partition, user)).collect();
        for pair in readers.windows(2) {
            join(partition, pair[0], pair[1], parts, context);
        }
    }
}

/// True for a pointwise node that no other kind of kernel has taken.
fn free(partition: &Partition<'_>, id: NodeId) -> bool {
    matches!(partition.kind(id), Kind::Single | Kind::Map) && is_pointwise(partition.graph, id)
}

fn join(partition: &mut Partition<'_>, a: NodeId, b: NodeId, parts: &Parts, context: &Context<'_>) {
    let graph = partition.graph;
    if !free(partition, a) || !free(partition, b) || partition.group(a) == partition.group(b) {
        return;
    }
    if graph.node(a).outputs[0].shape != graph.node(b).outputs[0].shape {
        return;
    }
    // A loop of both passes would keep for the one what it computes for the other.
    if context.recompute == Recompute::All && parts.is_backward(a) != parts.is_backward(b) {
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
    // What a backward pass would compute again in the loop that computes it first is one result.
    let exits = super::exits(graph, members);
    let (mut results, mut place): (Vec<Ref>, Vec<u32>) = (Vec::new(), Vec::new());
    for &exit in &exits {
        let result = program.value(exit.into());
        let at = results.iter().position(|&other| other == result && matches!(result, Ref::Instr(_)));
        place.push(at.unwrap_or(results.len()) as u32);
        if at.is_none() {
            program.result(exit.into());
            results.push(result);
        }
    }
    let operands: Vec<Operand> = program.captures.iter().map(|&value| rebuild.value(value).into()).collect();
    let name = &graph.node(*exits.last().unwrap_or(&members[0])).name;
    let op = Map { program: Arc::new(program.finish()) };
    let new = rebuild.call(name, op.into(), operands, super::origins(graph, members))?;
    for (&index, &exit) in place.iter().zip(&exits) {
        rebuild.bind(exit.into(), Value { node: new, index });
    }
    Ok(())
}

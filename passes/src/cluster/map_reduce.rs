//! Reductions take in the pointwise ops before and behind them, and the other reductions of the same elements.

use super::{
    absorb::next_exit,
    inline::{Inliner, is_pointwise},
    partition::{Kind, Partition},
};
use crate::{cost, pipeline::Context, rebuild::Rebuild};
use eglu_ir::{
    DType, Dim, Graph, GraphError, NodeId, Op, Operand, Shape, Value,
    ops::{MapReduce, Reduce, ReduceKind, Reshape},
};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// More instructions than this before a reduction stay a kernel of their own.
const PROLOGUE: usize = 32;

/// Reductions that read more tensors than this between them are apart.
const SHARED: usize = 4;

/// Groups reductions with each other, their prologue and their epilogue.
pub(crate) fn group(partition: &mut Partition<'_>, context: &Context<'_>) {
    for reductions in siblings(partition) {
        let mut members = reductions.clone();
        take_producers(partition, &mut members);
        for &reduction in &reductions {
            let mut exit = reduction;
            while let Some(taken) = next_exit(partition, exit) {
                let mut wider = members.clone();
                wider.extend(&taken);
                if !reads_alike(partition.graph, &taken) || !partition.is_convex(&wider) {
                    break;
                }
                exit = *taken.last().unwrap_or(&exit);
                members = wider;
            }
        }
        members.sort_unstable();
        members.dedup();
        if members.len() > 1 && cost::fusing_pays(partition.graph, &members, context.profile) {
            partition.join(&members, Kind::MapReduce);
        }
    }
}

/// Where what a reduced value is computed from, element by element, comes from: the groups of values of its shape.
fn sources(partition: &Partition<'_>, x: Value) -> FxHashSet<usize> {
    let graph = partition.graph;
    let (mut found, mut stack, mut seen) = (FxHashSet::default(), vec![x], FxHashSet::default());
    while let Some(value) = stack.pop() {
        if graph.ty(value).shape != graph.ty(x).shape || !seen.insert(value) {
            continue;
        }
        let computed = is_pointwise(graph, value.node) && partition.kind(value.node) == Kind::Single && seen.len() < PROLOGUE;
        match computed {
            true => stack.extend(graph.node(value.node).operands.iter().filter_map(|o| o.value())),
            false => drop(found.insert(partition.group(value.node))),
        }
    }
    found
}

/// Reductions over the same dims of one shape that read something in common.
struct Siblings<'a> {
    shape: &'a Shape,
    reduce: &'a Reduce,
    sources: FxHashSet<usize>,
    reductions: Vec<NodeId>,
}

/// True if one node reads this reduction and one of the others, as a mean that divides two sums.
fn meets(partition: &Partition<'_>, others: &[NodeId], id: NodeId) -> bool {
    let readers = partition.users(id);
    others.iter().flat_map(|&other| partition.users(other)).any(|reader| readers.contains(reader))
}

/// Reductions over the same dims that read something in common, or that one node reads, as far as none depends on another.
fn siblings(partition: &Partition<'_>) -> Vec<Vec<NodeId>> {
    let mut sets: Vec<Siblings<'_>> = Vec::new();
    for &id in partition.order.iter().filter(|&&id| partition.kind(id) == Kind::Single) {
        let Some((reduce, x)) = reduction(partition.graph, id) else { continue };
        let (shape, sources) = (&partition.graph.ty(x).shape, sources(partition, x));
        let joins = |set: &Siblings<'_>| {
            let alike = set.shape == shape && set.reduce.dims == reduce.dims && set.reduce.keepdim == reduce.keepdim;
            let tensors = set.sources.union(&sources).count();
            alike
                && (!set.sources.is_disjoint(&sources) || meets(partition, &set.reductions, id))
                && tensors <= SHARED
                && partition.is_convex(&[set.reductions.as_slice(), &[id]].concat())
        };
        match sets.iter_mut().find(|set| joins(set)) {
            Some(set) => {
                set.sources.extend(sources);
                set.reductions.push(id);
            }
            None => sets.push(Siblings { shape, reduce, sources, reductions: vec![id] }),
        }
    }
    sets.into_iter().map(|set| set.reductions).collect()
}

fn reduction(graph: &Graph, id: NodeId) -> Option<(&Reduce, Value)> {
    let node = graph.node(id);
    let Some(Op::Reduce(reduce)) = node.op() else { return None };
    let x = node.operands.first()?.value()?;
    let real = !graph.ty(x).dtype.is_complex() && !reduce.dtype.is_complex();
    // A pass accumulates in opmath, but products of halves are rounded after every factor.
    let narrow = reduce.kind == ReduceKind::Prod && reduce.dtype != reduce.dtype.opmath();
    // A position counts in the elements as they lie: with all dims reduced or one, which is all PyTorch has.
    (real && !narrow && !reduce.dims.is_empty()).then_some((reduce, x))
}

/// Takes in producers that nothing else reads and that have the shape of what is reduced.
fn take_producers(partition: &Partition<'_>, members: &mut Vec<NodeId>) {
    let graph = partition.graph;
    let Some((_, x)) = members.first().and_then(|&id| reduction(graph, id)) else { return };
    let shape = graph.ty(x).shape.clone();
    let mut at = 0;
    while at < members.len() && members.len() < PROLOGUE {
        for value in graph.node(members[at]).operands.iter().filter_map(|o| o.value()) {
            let id = value.node;
            let fits = !members.contains(&id)
                && partition.members(id).len() == 1
                && is_pointwise(graph, id)
                && graph.node(id).outputs[0].shape == shape
                && !partition.is_output(id)
                && partition.users(id).iter().all(|user| members.contains(user));
            if fits {
                members.push(id);
            }
        }
        at += 1;
    }
}

/// True if the nodes read only tensors of their own rank or less, which a capture needs.
fn reads_alike(graph: &Graph, nodes: &[NodeId]) -> bool {
    nodes.iter().all(|&id| {
        let rank = graph.node(id).outputs[0].rank();
        graph.node(id).operands.iter().filter_map(|o| o.value()).all(|value| graph.ty(value).rank() <= rank)
    })
}

/// Emits a group as one op with an output for each exit.
pub(crate) fn emit(rebuild: &mut Rebuild<'_>, members: &[NodeId]) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let reductions: Vec<(NodeId, &Reduce, Value)> =
        members.iter().filter_map(|&id| reduction(graph, id).map(|(reduce, x)| (id, reduce, x))).collect();
    let Some(&(_, first, x)) = reductions.first() else { return Ok(()) };
    let behind = behind(graph, members, &reductions);

    let mut prologue = Inliner::new(graph);
    for &id in members.iter().filter(|&&id| !behind.contains(&id)) {
        prologue.node(id)?;
    }
    for &(_, reduce, x) in &reductions {
        prologue.hand_on(x, accumulated(reduce, graph.ty(x).dtype));
    }
    let mut epilogue = Inliner::new(graph);
    for &(id, ..) in &reductions {
        epilogue.seed(id.into());
    }
    for &id in &behind {
        epilogue.node(id)?;
    }
    let exits = super::exits(graph, members);
    for &exit in &exits {
        epilogue.result(exit.into());
    }

    let mut operands: Vec<Operand> = prologue.captures.iter().map(|&value| rebuild.value(value).into()).collect();
    let full = &graph.ty(x).shape;
    for &value in &epilogue.captures {
        let capture = kept(rebuild, value, full, first)?;
        operands.push(capture.into());
    }
    let op = MapReduce {
        kinds: reductions.iter().map(|(_, reduce, _)| reduce.kind).collect(),
        dims: first.dims.clone(),
        keepdim: first.keepdim,
        prologue: Arc::new(prologue.finish()),
        epilogue: Arc::new(epilogue.finish()),
    };
    let name = &graph.node(*exits.last().unwrap_or(&members[0])).name;
    let new = rebuild.call(name, op.into(), operands, super::origins(graph, members))?;
    for (index, &exit) in exits.iter().enumerate() {
        rebuild.bind(exit.into(), Value { node: new, index: index as u32 });
    }
    Ok(())
}

/// The members that read a reduced value, directly or through others.
fn behind(graph: &Graph, members: &[NodeId], reductions: &[(NodeId, &Reduce, Value)]) -> Vec<NodeId> {
    let mut reduced: Vec<NodeId> = reductions.iter().map(|&(id, ..)| id).collect();
    let mut behind = Vec::new();
    for &id in members {
        let reads = graph.node(id).operands.iter().filter_map(|o| o.value()).any(|value| reduced.contains(&value.node));
        if reads {
            reduced.push(id);
            behind.push(id);
        }
    }
    behind
}

/// The dtype that values have when they are reduced: the result's, except where the result is a position or a truth.
fn accumulated(reduce: &Reduce, x: DType) -> DType {
    match reduce.kind {
        ReduceKind::Argmax | ReduceKind::Argmin | ReduceKind::Any | ReduceKind::All => x,
        _ => reduce.dtype,
    }
}

/// A capture of the epilogue as it broadcasts against the reduced shape with its dims kept.
fn kept(rebuild: &mut Rebuild<'_>, value: Value, full: &[Dim], reduce: &Reduce) -> Result<Value, GraphError> {
    let graph = rebuild.old;
    let (new, from) = (rebuild.value(value), &graph.ty(value).shape);
    if reduce.keepdim || from.is_empty() {
        return Ok(new);
    }
    let rank = full.len() - reduce.dims.len();
    let mut extents = std::iter::repeat_n(Dim::from(1), rank - from.len()).chain(from.iter().cloned());
    let shape: Shape = (0..full.len())
        .map(|i| if reduce.dims.contains(&i) { Dim::from(1) } else { extents.next().unwrap_or(Dim::from(1)) })
        .collect();
    let node = graph.node(value.node);
    let view = rebuild.call(&format!("{}_kept", node.name), Reshape { shape }.into(), [new.into()], std::iter::empty())?;
    Ok(view.into())
}

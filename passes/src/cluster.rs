//! Fusion into kernels: matmuls with epilogues, reductions with prologue and epilogue, pointwise loops.
//!
//! Runs after equality saturation, on what its rules left. Each step groups nodes so that no cycle arises and the roofline time on the device
//! falls, then emits a fused op for each group. Producers are never computed twice.

mod absorb;
mod beside;
mod chain;
mod chain_emit;
mod contract;
mod copies;
mod folded;
mod inline;
mod lines;
mod map;
mod map_reduce;
mod norms;
mod onto;
mod partition;
mod placed;
mod product;
mod product_emit;
mod regroup;
mod rounding;
mod store;
mod views;

use crate::{
    canonicalize::SimplifyViews,
    cse::merge_views,
    pipeline::{Context, Failure, Pass},
    rebuild::Rebuild,
    recompute::Parts,
};
use eglu_ir::{Graph, GraphError, NodeId};
use partition::{Kind, Partition};
use std::sync::Arc;

pub(crate) use inline::is_pointwise;
pub(crate) use product::repeated as repeated_rows;

/// Fuses what shares a loop.
pub struct Cluster;

impl Pass for Cluster {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn doc(&self) -> &'static str {
        "fuses epilogues into matmuls, prologues and epilogues into reductions, and pointwise chains into loops"
    }

    fn run(&self, graph: &mut Graph, context: &mut Context<'_>) -> Result<bool, Failure> {
        let stored = store::absorb_casts(graph)? | onto::accumulate(graph)?;
        let sunk = views::sink(graph)?;
        if sunk {
            // What was moved in front of one reader must be the same value for all.
            SimplifyViews.run(graph, context)?;
            merge_views(graph)?;
        }
        graph.remove_dead();
        let products = product::fuse(graph, context)?;
        let contracts = fuse(graph, &[], |partition| contract::group(partition, context))?;
        let hoisted = views::hoist(graph)?;
        if hoisted {
            // Readers of one tensor through equal views shall read the same value, or they would not meet in a loop.
            SimplifyViews.run(graph, context)?;
            merge_views(graph)?;
        }
        let placed = placed::compare(graph)?;
        let copied = copies::give(graph)?;
        let norms = norms::take_apart(graph)?;
        let parts = Parts::of(graph)?;
        let loops = fuse(graph, &norms, |partition| {
            chain::group(partition, &norms, &parts, context);
            map_reduce::group(partition, context);
            map::group(partition, &parts, context);
        })?;
        Ok(stored || sunk || products || contracts || hoisted || placed || copied || loops)
    }
}

fn fuse(graph: &mut Graph, norms: &[norms::Norm], group: impl FnOnce(&mut Partition<'_>)) -> Result<bool, GraphError> {
    let mut partition = Partition::new(graph)?;
    group(&mut partition);
    if !partition.groups_any() {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    for (kind, members) in partition.schedule() {
        match kind {
            Kind::Single => rebuild.copy(members[0])?,
            Kind::Contract => contract::emit(&mut rebuild, members)?,
            Kind::MapReduce => map_reduce::emit(&mut rebuild, members)?,
            Kind::Map => map::emit(&mut rebuild, members)?,
            Kind::Chain => chain_emit::emit(&mut rebuild, members)?,
            Kind::Norm(i) => norms[i as usize].emit(&mut rebuild)?,
        }
    }
    *graph = rebuild.finish();
    Ok(true)
}

/// The imported nodes that a group stands for, in order.
fn origins(graph: &Graph, members: &[NodeId]) -> Vec<Arc<str>> {
    let mut origins: Vec<Arc<str>> = Vec::new();
    for name in members.iter().flat_map(|&id| &graph.node(id).origins) {
        if !origins.contains(name) {
            origins.push(name.clone());
        }
    }
    origins
}

/// The members of a group whose value is needed outside.
fn exits(graph: &Graph, members: &[NodeId]) -> Vec<NodeId> {
    let returned = |id: NodeId| graph.outputs().iter().any(|output| output.value.node == id);
    let leaves = |id: NodeId| returned(id) || graph.users(id).iter().any(|user| !members.contains(user));
    members.iter().copied().filter(|&id| leaves(id)).collect()
}

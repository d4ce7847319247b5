//! Reductions of what a product's kernel computes: along its rows or, of a dense product, down its columns.

use super::{
    inline::is_pointwise,
    partition::{Kind, Partition},
    product::{Head, Plan, operands},
};
use crate::{cost, recompute::Parts};
use eglu_ir::{
    Bindings, DeviceProfile, Graph, NodeId, Op,
    ops::{Reduce, ReduceKind},
};

/// Most reductions of one kernel, and most pointwise nodes in front of one.
const MOST: usize = 2;
const IN_FRONT: usize = 8;

/// A reduction that a product's kernel makes.
pub(crate) struct Folded {
    /// The `reduce`.
    pub reduce: NodeId,
    /// What it reduces: an accumulator or a member.
    pub of: NodeId,
    /// A reshape between them.
    pub view: Option<NodeId>,
    pub kind: ReduceKind,
    /// Neighbouring columns that become one value; 0 for all rows.
    pub group: usize,
}

/// Takes in the reductions of a plan's values, with the pointwise nodes in front of them, as far as that pays.
pub(crate) fn find(partition: &Partition<'_>, plan: &mut Plan, parts: &Parts, profile: &DeviceProfile) {
    let graph = partition.graph;
    let seeds: Vec<NodeId> = plan.accumulators().into_iter().chain(plan.members.iter().copied()).collect();
    for &seed in &seeds {
        for Found { reduce, view, chain } in reductions(partition, plan, seed) {
            let of = chain.last().copied().unwrap_or(seed);
            let Some((kind, group)) = fold_of(graph, reduce, of) else { continue };
            let known = plan.folds.iter().any(|fold| fold.reduce == reduce);
            let wanted = match plan.head {
                Head::Dense => pays(graph, plan.product, of, profile),
                // Rows lie by expert, so only each by itself; and what the forward pass computes is not made to wait for a gradient.
                _ => group > 0 && view.is_none() && parts.is_backward(reduce) == parts.is_backward(plan.product),
            };
            if known || plan.folds.len() == MOST || !wanted {
                continue;
            }
            let added: Vec<NodeId> = chain.into_iter().filter(|id| !plan.members.contains(id)).collect();
            let all: Vec<NodeId> = plan.nodes().into_iter().chain(added.iter().copied()).chain(view).chain([reduce]).collect();
            if partition.is_convex(&all) {
                plan.members.extend(added);
                plan.folds.push(Folded { reduce, of, view, kind, group });
            }
        }
    }
    plan.members.sort_unstable_by_key(|&id| partition.rank(id));
}

/// A reduction, the reshape it reads, and the pointwise nodes between a value and that.
struct Found {
    reduce: NodeId,
    view: Option<NodeId>,
    chain: Vec<NodeId>,
}

/// Reductions of a value, behind pointwise nodes of the value's shape.
fn reductions(partition: &Partition<'_>, plan: &Plan, from: NodeId) -> Vec<Found> {
    let graph = partition.graph;
    let shape = &graph.node(from).outputs[0].shape;
    let free = |id: NodeId| partition.kind(id) == Kind::Single;
    let reduces = |id: NodeId| free(id) && matches!(graph.node(id).op(), Some(Op::Reduce(_)));
    let mut found = Vec::new();
    let mut stack: Vec<(NodeId, Vec<NodeId>)> = vec![(from, vec![])];
    while let Some((at, chain)) = stack.pop() {
        for &user in partition.users(at) {
            if reduces(user) {
                found.push(Found { reduce: user, view: None, chain: chain.clone() });
            } else if matches!(graph.node(user).op(), Some(Op::Reshape(_))) {
                let behind = partition.users(user).iter().copied().filter(|&next| reduces(next));
                found.extend(behind.map(|reduce| Found { reduce, view: Some(user), chain: chain.clone() }));
            } else if free(user) && chain.len() < IN_FRONT && is_pointwise(graph, user) {
                let node = graph.node(user);
                // Everything it reads besides is there before, so that it can be computed where the product is.
                let before = |source: NodeId| partition.rank(source) < partition.rank(from) || plan.computes(source);
                let there = operands(graph, user).all(|source| source == at || before(source));
                if node.outputs[0].shape == *shape && there {
                    stack.push((user, chain.iter().copied().chain([user]).collect()));
                }
            }
        }
    }
    found.sort_unstable_by_key(|found| partition.rank(found.reduce));
    found
}

/// How a product's kernel would make this reduction of a value `[M, N]` of its shape.
fn fold_of(graph: &Graph, reduce: NodeId, of: NodeId) -> Option<(ReduceKind, usize)> {
    let node = graph.node(reduce);
    let Some(Op::Reduce(Reduce { kind, dims, dtype, .. })) = node.op() else { return None };
    let (value, read) = (&graph.node(of).outputs[0], graph.ty(node.operands[0].value()?));
    let known = matches!(kind, ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax | ReduceKind::Amin);
    let compares = matches!(kind, ReduceKind::Amax | ReduceKind::Amin);
    if !known || !dtype.is_float() || !value.dtype.is_float() || (compares && *dtype != value.dtype) {
        return None;
    }
    let columns = value.shape.last()?.as_const()?;
    let (last, extent) = (read.rank() - 1, read.shape.last()?.as_const()?);
    if dims[..] == [last] {
        // Rows stay rows; tiles hold whole groups where these are powers of two.
        let whole = extent == columns || (extent.count_ones() == 1 && columns % extent == 0);
        return (whole && extent > 0).then_some((*kind, extent as usize));
    }
    let all_rows = dims.len() == last && (0..last).all(|dim| dims.contains(&dim)) && last > 0;
    (all_rows && extent == columns).then_some((*kind, 0))
}

/// True if reading the value once less is worth more than what the kernel loses: those with reductions do not use Hopper's warpgroup
/// products, which multiply about twice as fast.
fn pays(graph: &Graph, product: NodeId, of: NodeId, profile: &DeviceProfile) -> bool {
    let sizes: Bindings = cost::typical_sizes(graph);
    let count = |flops: &eglu_ir::Dim| flops.eval(&sizes).map_or(0.0, |count| count as f64);
    let node = graph.node(product);
    let Some(depth) = node.operands[0].value().and_then(|a| graph.ty(a).shape.last().cloned()) else { return false };
    let flops = 2.0 * count(&node.outputs[0].numel()) * count(&depth);
    let half = node.outputs[0].dtype.size() == 2 && profile.arch >= 90;
    let lost = if half { flops / profile.matrix_flops } else { 0.0 };
    cost::bytes(graph, of.into(), &sizes) / profile.bandwidth + profile.launch_seconds > lost
}

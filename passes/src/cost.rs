//! What fusing saves: launches, and bytes of intermediate results that are neither written nor read.

use eglu_ir::{Bindings, DeviceProfile, Dim, Graph, NodeId, Op, Value, ops::Lowering};
use rustc_hash::FxHashSet;

/// Values for the symbols of a graph, where a number is needed before sizes are known: 1024 (a usual batch of tokens) brought into each range.
pub fn typical_sizes(graph: &Graph) -> Bindings {
    const TYPICAL: i64 = 1024;
    graph.symbols.iter().map(|(name, range)| (name.clone(), TYPICAL.min(range.max.unwrap_or(i64::MAX)).max(range.min))).collect()
}

/// Bytes of a value; a size that does not fit or is negative counts as 0.
pub fn bytes(graph: &Graph, value: Value, sizes: &Bindings) -> f64 {
    let bytes: Dim = graph.ty(value).bytes();
    bytes.eval(sizes).map_or(0.0, |bytes| bytes.max(0) as f64)
}

/// True for a call that takes a launch of its own: neither a view nor a generator.
pub fn launches(op: &Op) -> bool {
    matches!(op.code().lowering(), Lowering::Pointwise | Lowering::Kernel)
}

/// Bytes that the nodes read and write as one kernel: operands from outside once, and results that are used outside.
fn traffic(graph: &Graph, nodes: &[NodeId], sizes: &Bindings) -> f64 {
    let inside: FxHashSet<NodeId> = nodes.iter().copied().collect();
    let operands = nodes.iter().flat_map(|&id| graph.node(id).operands.iter().filter_map(|o| o.value()));
    let read: FxHashSet<Value> = operands.filter(|value| !inside.contains(&value.node)).collect();
    let returned: FxHashSet<NodeId> = graph.outputs().iter().map(|output| output.value.node).collect();
    let leaves = |id: NodeId| returned.contains(&id) || graph.users(id).iter().any(|user| !inside.contains(user));
    let written = nodes.iter().copied().filter(|&id| leaves(id)).map(|id| bytes(graph, id.into(), sizes));
    read.into_iter().map(|value| bytes(graph, value, sizes)).sum::<f64>() + written.sum::<f64>()
}

/// True if the roofline time of the nodes as one kernel is below that of one kernel each. Arithmetic is the same either way.
pub fn fusing_pays(graph: &Graph, nodes: &[NodeId], profile: &DeviceProfile) -> bool {
    let sizes = typical_sizes(graph);
    let apart: f64 = nodes.iter().map(|&id| profile.roofline(0.0, traffic(graph, &[id], &sizes), false)).sum();
    profile.roofline(0.0, traffic(graph, nodes, &sizes), false) < apart
}

/// True if both groups as one kernel take no longer than one after the other.
pub fn joining_pays(graph: &Graph, [a, b]: [&[NodeId]; 2], profile: &DeviceProfile) -> bool {
    let sizes = typical_sizes(graph);
    let time = |nodes: &[NodeId]| profile.roofline(0.0, traffic(graph, nodes, &sizes), false);
    time(&[a, b].concat()) < time(a) + time(b)
}

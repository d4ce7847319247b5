//! Common subexpressions: nodes that compute the same from the same operands become one.

use crate::{
    pipeline::{Context, Failure, Pass},
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{DType, Graph, GraphError, NodeId, NodeKind, Op, Operand, ops::Lowering};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

/// Merges equal nodes; every op of the table is a pure function, so equal operands give equal results.
pub struct MergeEqual;

/// What makes two nodes equal, beside their operands.
#[derive(PartialEq, Eq, Hash)]
enum Kind<'g> {
    Weight(&'g str),
    Constant(DType, &'g [usize], &'g [u8]),
    Call(&'g Op),
}

/// Constants above this many bytes are not compared.
const COMPARED_BYTES: usize = 1 << 20;

impl Pass for MergeEqual {
    fn name(&self) -> &'static str {
        "cse"
    }

    fn doc(&self) -> &'static str {
        "merges nodes that compute the same from the same operands"
    }

    fn run(&self, graph: &mut Graph, _: &mut Context<'_>) -> Result<bool, Failure> {
        Ok(merge_equal(graph)?)
    }
}

/// Merges all equal nodes.
pub(crate) fn merge_equal(graph: &mut Graph) -> Result<bool, GraphError> {
    merge(graph, |_| true)
}

/// Merges equal views, and leaves alone what is computed twice on purpose.
pub(crate) fn merge_views(graph: &mut Graph) -> Result<bool, GraphError> {
    merge(graph, |op| op.code().lowering() == Lowering::View)
}

/// Merges equal nodes, those ops for which `among` holds.
fn merge(graph: &mut Graph, among: impl Fn(&Op) -> bool) -> Result<bool, GraphError> {
    let order = graph.topological()?;
    // The first of two equal nodes that there are at all reads what was not merged before.
    let mut kinds: FxHashSet<(Kind<'_>, &[Operand])> = FxHashSet::with_capacity_and_hasher(order.len(), FxBuildHasher);
    let compared = |id: &NodeId| graph.node(*id).op().is_none_or(&among);
    let mut each =
        order.iter().filter(|id| compared(id)).filter_map(|&id| Some((kind(graph, id)?, &graph.node(id).operands[..])));
    if each.all(|node| kinds.insert(node)) {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    let mut seen: FxHashMap<(Kind<'_>, Operands), NodeId> = FxHashMap::default();
    for &id in &order {
        let key = if compared(&id) { kind(graph, id).map(|kind| (kind, rebuild.operands(id))) } else { None };
        if let Some(&first) = key.as_ref().and_then(|key| seen.get(key)) {
            rebuild.bind_all(id, first);
            rebuild.adopt(first, id);
            continue;
        }
        rebuild.copy(id)?;
        if let Some(key) = key {
            seen.insert(key, rebuild.value(id.into()).node);
        }
    }
    let merged = rebuild.finish();
    *graph = merged;
    Ok(true)
}

fn kind(graph: &Graph, id: NodeId) -> Option<Kind<'_>> {
    match &graph.node(id).kind {
        NodeKind::Input => None,
        NodeKind::Weight(path) => Some(Kind::Weight(path)),
        NodeKind::Constant(tensor) => {
            (tensor.bytes().len() <= COMPARED_BYTES).then(|| Kind::Constant(tensor.dtype(), tensor.shape(), tensor.bytes()))
        }
        NodeKind::Call(op) => Some(Kind::Call(op)),
    }
}

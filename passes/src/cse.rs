//! Common subexpressions: nodes that compute the same from the same operands become one.

use crate::{
    pipeline::{Context, Failure, Pass},
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{DType, Graph, GraphError, NodeId, NodeKind, Op, ops::Lowering};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Merges equal nodes; every op of the table is a pure function, so equal operands give equal results.
pub struct MergeEqual;

/// What makes two nodes equal.
#[derive(PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "nearly every key is a call")]
enum Key {
    Weight(Arc<str>),
    Constant(DType, Vec<usize>, Vec<u8>),
    Call(Op, Operands),
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
    let mut rebuild = Rebuild::new(graph);
    let mut seen: FxHashMap<Key, NodeId> = FxHashMap::default();
    let mut changed = false;
    for id in graph.topological()? {
        let key = if graph.node(id).op().is_none_or(&among) { key(&rebuild, id) } else { None };
        if let Some(&first) = key.as_ref().and_then(|key| seen.get(key)) {
            rebuild.bind_all(id, first);
            rebuild.adopt(first, id);
            changed = true;
            continue;
        }
        rebuild.copy(id)?;
        if let Some(key) = key {
            seen.insert(key, rebuild.value(id.into()).node);
        }
    }
    if changed {
        *graph = rebuild.finish();
    }
    Ok(changed)
}

fn key(rebuild: &Rebuild<'_>, id: NodeId) -> Option<Key> {
    match &rebuild.old.node(id).kind {
        NodeKind::Input => None,
        NodeKind::Weight(path) => Some(Key::Weight(path.clone())),
        NodeKind::Constant(tensor) => (tensor.bytes().len() <= COMPARED_BYTES)
            .then(|| Key::Constant(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec())),
        NodeKind::Call(op) => Some(Key::Call(op.clone(), rebuild.operands(id))),
    }
}

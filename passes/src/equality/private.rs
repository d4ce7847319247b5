//! Index maps of their own for every reader.
//!
//! Rules must see that an index is `iota`, or `floor_divide(iota, k)`. Merging equal nodes makes all layers of a model share one of each, which
//! then enters all regions but the first from outside, where nothing is known of it. They cost nothing, so each reader gets its own.

use crate::rebuild::Rebuild;
use eglu_ir::{
    Graph, GraphError, NodeId, Op, Operand, Value,
    ops::{Lowering, Pointwise},
};
use rustc_hash::FxHashSet;

/// Copies generators, and what is made of them alone by views and divisions, for each of their readers.
pub(super) fn unshare(graph: &Graph) -> Result<Graph, GraphError> {
    let order = graph.topological()?;
    let mut maps: FxHashSet<NodeId> = FxHashSet::default();
    for &id in &order {
        if is_map(graph, id, &maps) {
            maps.insert(id);
        }
    }
    let mut rebuild = Rebuild::new(graph);
    for id in order {
        let node = graph.node(id);
        match node.op() {
            Some(_) if maps.contains(&id) && !returned(graph, id) => {}
            Some(op) => {
                let operands = node.operands.clone();
                let operands = operands
                    .into_iter()
                    .map(|operand| own(&mut rebuild, operand, &maps))
                    .collect::<Result<Vec<Operand>, GraphError>>()?;
                let new = rebuild.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?;
                rebuild.bind_all(id, new);
            }
            None => rebuild.copy(id)?,
        }
    }
    Ok(rebuild.finish())
}

fn is_map(graph: &Graph, id: NodeId, maps: &FxHashSet<NodeId>) -> bool {
    let node = graph.node(id);
    let from_maps = || node.operands.iter().all(|operand| operand.value().is_none_or(|value| maps.contains(&value.node)));
    node.op().is_some_and(|op| match op {
        Op::Pointwise(Pointwise::FloorDiv) => from_maps(),
        _ => match op.code().lowering() {
            Lowering::Generator => true,
            Lowering::View => from_maps(),
            _ => false,
        },
    })
}

fn returned(graph: &Graph, id: NodeId) -> bool {
    graph.outputs().iter().any(|output| output.value.node == id)
}

/// The operand in the new graph; an index map is copied.
fn own(rebuild: &mut Rebuild<'_>, operand: Operand, maps: &FxHashSet<NodeId>) -> Result<Operand, GraphError> {
    let graph = rebuild.old;
    match operand {
        Operand::Value(Value { node: id, .. }) if maps.contains(&id) => {
            let node = graph.node(id);
            let mut operands: Vec<Operand> = Vec::with_capacity(node.operands.len());
            for &inner in &node.operands {
                operands.push(own(rebuild, inner, maps)?);
            }
            let Some(op) = node.op().cloned() else { return Ok(rebuild.operand(operand)) };
            Ok(rebuild.call(&node.name, op, operands, node.origins.iter().cloned())?.into())
        }
        other => Ok(rebuild.operand(other)),
    }
}

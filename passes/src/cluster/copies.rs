//! Values that are computed where they are read rather than stored: widened 16-bit floats, and what sums across lines read beside others.

use super::inline::is_pointwise;
use crate::rebuild::{Operands, Rebuild};
use eglu_ir::{Graph, GraphError, NodeId, Op, Operand, Value, ops::Cast};
use rustc_hash::FxHashSet;

/// More ops than this before a reduction are not computed again.
const COMPUTED: usize = 12;

/// Gives each reader its own copy of what is cheaper to compute than to read.
pub(crate) fn give(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in graph.topological()? {
        let node = graph.node(id);
        let Some(op) = node.op().filter(|op| matches!(op, Op::Reduce(_)) || is_pointwise(graph, id)) else {
            rebuild.copy(id)?;
            continue;
        };
        let again = before_sum(graph, id);
        let mut operands = Operands::new();
        for &operand in &node.operands {
            operands.push(match operand {
                Operand::Value(value) if !again.is_empty() || widens(graph, value) => {
                    changed = true;
                    copied(&mut rebuild, value, &again)?.into()
                }
                other => rebuild.operand(other),
            });
        }
        let new = rebuild.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?;
        rebuild.bind_all(id, new);
    }
    if changed {
        *graph = rebuild.finish();
        graph.remove_dead();
    }
    Ok(changed)
}

/// True for 16-bit floats as f32 or f64 that several nodes read.
fn widens(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value.node);
    let Some(Op::Cast(Cast { dtype })) = node.op() else { return false };
    let from = node.operands[0].value().map(|x| graph.ty(x).dtype);
    let widens = from.is_some_and(|from| from.is_float() && dtype.is_float() && from.size() < dtype.size());
    widens && graph.use_count(value) > 1
}

/// The value as this reader computes it: the nodes `again`, or a cast.
fn copied(rebuild: &mut Rebuild<'_>, value: Value, again: &FxHashSet<NodeId>) -> Result<Value, GraphError> {
    let graph = rebuild.old;
    let node = graph.node(value.node);
    let Some(op) = node.op().filter(|_| again.contains(&value.node) || widens(graph, value)) else {
        return Ok(rebuild.value(value));
    };
    let mut operands = Operands::new();
    for &operand in &node.operands {
        operands.push(match operand {
            Operand::Value(value) => copied(rebuild, value, again)?.into(),
            other => other,
        });
    }
    Ok(rebuild.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?.into())
}

/// The elementwise ops in front of a sum across lines, or of everything, that others read too, and those before them, where reading what they read is no more than
/// storing and reading what they make.
fn before_sum(graph: &Graph, id: NodeId) -> FxHashSet<NodeId> {
    let none = FxHashSet::default();
    let Some(x) = graph.node(id).operands.first().and_then(|o| o.value()) else { return none };
    let rank = graph.ty(x).rank();
    // Lines are reduced where their elements are made.
    let apart = matches!(graph.node(id).op(), Some(Op::Reduce(reduce)) if !reduce.dims.contains(&rank.saturating_sub(1)) || reduce.dims.len() == rank);
    if !apart {
        return none;
    }
    let shape = &graph.ty(x).shape;
    let bytes = |value: Value| graph.ty(value).bytes().as_const();
    // Values on the way, and if they are read only for what is computed again.
    let (mut again, mut stack) = (FxHashSet::default(), vec![(x, false)]);
    let (mut more, mut anyway, mut shared): (FxHashSet<Value>, FxHashSet<Value>, FxHashSet<Value>) = Default::default();
    while let Some((value, under)) = stack.pop() {
        let computed = is_pointwise(graph, value.node) && graph.ty(value).shape == *shape;
        if !computed {
            if under {
                more.insert(value)
            } else {
                anyway.insert(value)
            };
        } else if again.insert(value.node) {
            let under = under || graph.use_count(value) > 1;
            if graph.use_count(value) > 1 {
                shared.insert(value);
            }
            stack.extend(graph.node(value.node).operands.iter().filter_map(|o| o.value()).map(|value| (value, under)));
        }
    }
    more.retain(|value| !anyway.contains(value));
    let total = |values: &FxHashSet<Value>| values.iter().map(|&value| bytes(value)).sum::<Option<i64>>();
    let pays = match (total(&more), total(&shared)) {
        (Some(more), Some(stored)) => more <= 2 * stored,
        _ => more.iter().filter(|&&value| graph.ty(value).shape == *shape).count() <= 2 * shared.len(),
    };
    if pays && !shared.is_empty() && again.len() <= COMPUTED { again } else { none }
}

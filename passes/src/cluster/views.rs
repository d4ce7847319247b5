//! Views moved out of the way of fusion: reshapes below the pointwise ops that could be epilogues, other views above the pointwise ops
//! that could be part of a loop.

use super::{inline::is_pointwise, regroup::regroup};
use crate::rebuild::{Operands, Rebuild};
use eglu_ir::{
    Dim, Graph, GraphError, NodeId, Op, Operand, Shape, Value,
    ops::{Cat, Permute, Reshape, Slice},
};
use rustc_hash::FxHashSet;

/// `f(reshape(matmul), y)` becomes `reshape(f(matmul, y'))`, so that f can be the matmul's epilogue; likewise behind reductions.
pub(crate) fn sink(graph: &mut Graph) -> Result<bool, GraphError> {
    if !graph.node_ids().any(|id| matches!(graph.node(id).op(), Some(Op::Reshape(_)))) {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    // Values of the new graph that an epilogue could start from.
    let mut anchored: FxHashSet<Value> = FxHashSet::default();
    let mut changed = false;
    for id in graph.topological()? {
        let node = graph.node(id);
        if let Some((op, operands)) = sunk(&rebuild, id, &anchored) {
            changed = true;
            let operands = reshaped(&mut rebuild, &node.name, operands)?;
            let new = rebuild.call(&node.name, op, operands, node.origins.iter().cloned())?;
            if starts(graph, id) {
                anchored.insert(new.into());
            }
            let back = Reshape { shape: node.outputs[0].shape.clone() };
            let view = rebuild.call(&format!("{}_view", node.name), back.into(), [new.into()], std::iter::empty())?;
            rebuild.bind(id.into(), view.into());
            continue;
        }
        rebuild.copy(id)?;
        let value = rebuild.value(id.into());
        let product = matches!(node.op(), Some(Op::MatMul(_)));
        let goes_on = is_pointwise(graph, id)
            && rebuild
                .new
                .node(value.node)
                .operands
                .iter()
                .filter_map(|o| o.value())
                .any(|x| anchored.contains(&x) && rebuild.new.ty(x).shape == rebuild.new.ty(value).shape);
        let alone = graph.use_count(id.into()) == 1 && (matches!(node.op(), Some(Op::Reduce(_))) || goes_on);
        if (product || alone) && starts(graph, id) {
            anchored.insert(value);
        }
    }
    if changed {
        *graph = rebuild.finish();
    }
    Ok(changed)
}

/// True for a value that one node reads, or that only pointwise nodes and products read, as the pre-activations of a forward pass: then all
/// of them can work on the shape that the product has.
fn starts(graph: &Graph, id: NodeId) -> bool {
    let views = |id: NodeId| matches!(graph.node(id).op(), Some(Op::Reshape(_) | Op::Slice(_) | Op::Permute(_)));
    let reads = |id: NodeId| is_pointwise(graph, id) || matches!(graph.node(id).op(), Some(Op::MatMul(_) | Op::Cat(_)));
    let on = |user: NodeId| reads(user) || (views(user) && graph.users(user).into_iter().all(|next| reads(next) || views(next)));
    let alone = graph.node(id).outputs.len() == 1;
    alone && (graph.use_count(id.into()) == 1 || graph.users(id).into_iter().all(on))
}

/// Operands with the shape each needs to take.
type Shaped = Vec<(Operand, Option<Shape>)>;

/// A node that reads an anchored value through a reshape, as it works on the shape in front of that reshape, and its operands.
fn sunk(rebuild: &Rebuild<'_>, id: NodeId, anchored: &FxHashSet<Value>) -> Option<(Op, Shaped)> {
    let (old, new) = (rebuild.old, &rebuild.new);
    let node = old.node(id);
    let shape = &node.outputs[0].shape;
    let source = |operand: &Operand| {
        let view = operand.value()?;
        let node = new.node(rebuild.value(view).node);
        let value = node.operands.first()?.value()?;
        let reshapes = matches!(node.op(), Some(Op::Reshape(_)));
        (reshapes && anchored.contains(&value) && !new.ty(value).shape.is_empty()).then_some(value)
    };
    match node.op()? {
        // The last dim stays the last.
        Op::Slice(slice) => {
            let through = source(node.operands.first()?)?;
            let (from, before) = (&old.ty(node.operands[0].value()?).shape, &new.ty(through).shape);
            let last = slice.dim + 1 == from.len() && from.last() == before.last() && before.len() < from.len();
            last.then(|| (Slice { dim: before.len() - 1, ..slice.clone() }.into(), vec![(through.into(), None)]))
        }
        Op::Cat(cat) if cat.dim + 1 == shape.len() => {
            let parts: Option<Vec<Value>> = node.operands.iter().map(source).collect();
            let parts = parts.filter(|parts| parts.iter().all(|&part| new.ty(part).rank() < shape.len()))?;
            let lead = |shape: &Shape| shape[..shape.len() - 1].to_vec();
            let first = lead(&new.ty(*parts.first()?).shape);
            let whole = parts.iter().zip(&node.operands).all(|(&part, operand)| {
                let given = operand.value().map(|value| &old.ty(value).shape);
                lead(&new.ty(part).shape) == first && given.is_some_and(|given| given.last() == new.ty(part).shape.last())
            });
            whole.then(|| (Cat { dim: first.len() }.into(), parts.into_iter().map(|part| (part.into(), None)).collect()))
        }
        op if is_pointwise(old, id) => {
            let alike = |operand: &&Operand| operand.value().is_some_and(|value| old.ty(value).shape == *shape);
            let through = node.operands.iter().filter(alike).find_map(source)?;
            let before = new.ty(through).shape.clone();
            let operands = node.operands.iter().map(|operand| {
                if source(operand) == Some(through) {
                    return Some((through.into(), None));
                }
                match operand {
                    Operand::Value(value) => {
                        let wanted = regroup(&old.ty(*value).shape, shape, &before)?;
                        Some((rebuild.value(*value).into(), Some(wanted)))
                    }
                    other => Some((*other, None)),
                }
            });
            Some((op.clone(), operands.collect::<Option<Shaped>>()?))
        }
        _ => None,
    }
}

fn reshaped(rebuild: &mut Rebuild<'_>, name: &str, operands: Shaped) -> Result<Operands, GraphError> {
    operands
        .into_iter()
        .map(|(operand, shape)| match (operand, shape) {
            (Operand::Value(value), Some(shape)) if rebuild.new.ty(value).shape != shape => {
                let op = Reshape { shape };
                Ok(rebuild.call(&format!("{name}_operand"), op.into(), [operand], std::iter::empty())?.into())
            }
            _ => Ok(operand),
        })
        .collect()
}

/// `view(f(x, y))` becomes `f(view(x), view(y))` where nothing else reads f and the view's reader is pointwise or a reduction, so that both
/// work on one iteration space.
pub(crate) fn hoist(graph: &mut Graph) -> Result<bool, GraphError> {
    if !graph.node_ids().any(|id| movable(graph, id).is_some()) {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    for id in graph.topological()? {
        match movable(graph, id) {
            Some((view, source)) => {
                let value = view.apply(&mut rebuild, source, &graph.node(id).name)?;
                rebuild.bind(id.into(), value);
            }
            None => rebuild.copy(id)?,
        }
    }
    *graph = rebuild.finish();
    graph.remove_dead();
    Ok(true)
}

/// A view that moves above what computes the value it is of, and that value.
fn movable(graph: &Graph, id: NodeId) -> Option<(View<'_>, Value)> {
    let node = graph.node(id);
    let (view, source) = (View::of(node.op()?)?, node.operands.first()?.value()?);
    (joins(graph, id) && view.moves(graph, source)).then_some((view, source))
}

fn joins(graph: &Graph, view: NodeId) -> bool {
    let reads = |user: NodeId| is_pointwise(graph, user) || matches!(graph.node(user).op(), Some(Op::Reduce(_)));
    graph.users(view).into_iter().any(reads)
}

/// A view that can move above pointwise ops.
enum View<'a> {
    Reshape(&'a Shape),
    Permute(&'a [usize]),
    Slice(&'a Slice),
}

impl<'a> View<'a> {
    fn of(op: &'a Op) -> Option<View<'a>> {
        match op {
            Op::Reshape(Reshape { shape }) if !shape.is_empty() => Some(View::Reshape(shape)),
            Op::Permute(Permute { dims }) => Some(View::Permute(dims)),
            Op::Slice(slice) => Some(View::Slice(slice)),
            _ => None,
        }
    }

    /// True if `source` is a pointwise node with no other reader, all of whose operands can be viewed instead.
    fn moves(&self, graph: &Graph, source: Value) -> bool {
        // With rank 0 an operand ranks lower in promotion, so it stays at that.
        is_pointwise(graph, source.node)
            && !graph.ty(source).shape.is_empty()
            && graph.use_count(source) == 1
            && graph.node(source.node).operands.iter().all(|operand| {
                operand.value().is_none_or(|value| self.on(&graph.ty(value).shape, &graph.ty(source).shape).is_some())
            })
    }

    /// The views that do to an operand of `shape`, broadcast against `full`, what this view does to `full`; in order of application.
    fn on(&self, shape: &Shape, full: &Shape) -> Option<Vec<Op>> {
        if shape.is_empty() {
            return Some(vec![]);
        }
        let new = full.len() - shape.len();
        let padded: Shape = std::iter::repeat_n(Dim::from(1), new).chain(shape.iter().cloned()).collect();
        let pad = (new > 0).then(|| Op::from(Reshape { shape: padded.clone() }));
        match self {
            View::Reshape(to) => Some(vec![Reshape { shape: regroup(shape, full, to)? }.into()]),
            View::Permute(dims) => {
                Some(pad.into_iter().chain([Permute { dims: dims.iter().copied().collect() }.into()]).collect())
            }
            View::Slice(slice) if padded[slice.dim] == full[slice.dim] => {
                Some(pad.into_iter().chain([Op::from((*slice).clone())]).collect())
            }
            View::Slice(_) => Some(vec![]),
        }
    }

    /// The view of an old value in the new graph, moved as far up as it goes.
    fn apply(&self, rebuild: &mut Rebuild<'_>, source: Value, name: &str) -> Result<Value, GraphError> {
        let graph = rebuild.old;
        let node = graph.node(source.node);
        let Some(op) = node.op().cloned() else { return Ok(rebuild.value(source)) };
        let mut operands = Operands::new();
        for &operand in &node.operands {
            let viewed = match operand {
                Operand::Value(value) if !graph.ty(value).shape.is_empty() => {
                    if graph.ty(value).shape == graph.ty(source).shape && self.moves(graph, value) {
                        self.apply(rebuild, value, name)?.into()
                    } else {
                        let views = self.on(&graph.ty(value).shape, &graph.ty(source).shape).unwrap_or_default();
                        let mut viewed = rebuild.value(value);
                        for view in views {
                            viewed = rebuild.call(&format!("{name}_operand"), view, [viewed.into()], std::iter::empty())?.into();
                        }
                        viewed.into()
                    }
                }
                other => rebuild.operand(other),
            };
            operands.push(viewed);
        }
        Ok(rebuild.call(&node.name, op, operands, node.origins.iter().cloned())?.into())
    }
}

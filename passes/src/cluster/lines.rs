//! What can share the passes over a tensor's lines: elementwise ops, reductions of each line, and ops on what a line has one of.

use super::inline::is_pointwise;
use eglu_ir::{
    Dim, Graph, NodeId, Op, Operand, Shape, Value,
    ops::{Axes, Gather, Iota, Reduce, ReduceKind, Reshape},
};
use rustc_hash::FxHashMap;

/// A tensor's shape, and the dims, its last, that make one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub full: Shape,
    pub dims: Axes,
}

/// What a node does in passes over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Makes elements of lines, one by one.
    Element,
    /// Works on values of which a line has one.
    Stat,
    /// Reduces each line.
    Reduce,
    /// Picks one element of each line.
    Pick,
}

impl Lines {
    /// The lines that a node reduces.
    pub fn of(graph: &Graph, id: NodeId) -> Option<Lines> {
        let node = graph.node(id);
        let Some(Op::Reduce(Reduce { kind, dims, dtype, .. })) = node.op() else { return None };
        let ty = graph.ty(node.operands.first()?.value()?);
        let mut dims = dims.clone();
        dims.sort_unstable();
        let real = !ty.dtype.is_complex() && !dtype.is_complex();
        // Products of halves are rounded after every factor.
        let narrow = *kind == ReduceKind::Prod && *dtype != dtype.opmath();
        let position = matches!(kind, ReduceKind::Argmax | ReduceKind::Argmin);
        let last = !dims.is_empty() && dims.iter().copied().eq(ty.rank() - dims.len()..ty.rank());
        let lines = Lines { full: ty.shape.clone(), dims };
        (real && !narrow && !position && last && lines.kept() != lines.full).then_some(lines)
    }

    /// The shape of one value for each line, the lines' dims kept.
    pub fn kept(&self) -> Shape {
        (0..self.full.len()).map(|i| if self.dims.contains(&i) { Dim::from(1) } else { self.full[i].clone() }).collect()
    }

    /// The shape of one value for each line, without the lines' dims.
    pub fn bare(&self) -> Shape {
        self.full[..self.full.len() - self.dims.len()].iter().cloned().collect()
    }

    /// What a node could do in passes over these lines.
    pub fn role(&self, graph: &Graph, id: NodeId) -> Option<Role> {
        let node = graph.node(id);
        let shape = &node.outputs.first()?.shape;
        let stat = |shape: &Shape| *shape == self.kept() || *shape == self.bare();
        let from = |i: usize| node.operands.get(i).and_then(|o| o.value()).map(|value| &graph.ty(value).shape);
        match node.op()? {
            Op::Reduce(_) => (Lines::of(graph, id)? == *self).then_some(Role::Reduce),
            Op::Gather(Gather { dim }) => {
                let short = self.full.get(*dim).and_then(Dim::as_const).is_some_and(|extent| extent <= i64::from(i32::MAX));
                let one = self.dims[..] == [*dim] && from(0) == Some(&self.full) && from(1) == Some(&self.kept());
                (one && short && !node.outputs[0].dtype.is_complex()).then_some(Role::Pick)
            }
            Op::Expand(_) if *shape == self.full => (!graph.node(id).outputs[0].dtype.is_complex()).then_some(Role::Element),
            Op::Reshape(_) if stat(shape) && from(0).is_some_and(stat) => Some(Role::Stat),
            _ if !is_pointwise(graph, id) => None,
            _ if *shape == self.full => Some(Role::Element),
            _ if stat(shape) => Some(Role::Stat),
            _ => self.is_shared(shape).then_some(Role::Element),
        }
    }

    /// True for the shape of elements that several lines share, such as a weight's: they are computed as they are read, and never stored.
    pub fn is_shared(&self, shape: &Shape) -> bool {
        let fits = |(extent, full): (&Dim, &Dim)| extent.is(1) || extent == full;
        let broadcasts = shape.len() <= self.full.len() && shape.iter().rev().zip(self.full.iter().rev()).all(fits);
        broadcasts && !shape.is_empty() && *shape != self.full && *shape != self.kept() && *shape != self.bare()
    }

    /// True for a view of the numbers from 0 on along the lines: each element's position.
    pub fn is_position(&self, graph: &Graph, value: Value) -> bool {
        let [dim] = self.dims[..] else { return false };
        let node = graph.node(value.node);
        let counts = |op: &Op| matches!(op, Op::Iota(Iota { start: 0, step: 1, len, .. }) if *len == self.full[dim]);
        let short = self.full[dim].as_const().is_some_and(|extent| extent <= i64::from(i32::MAX));
        short
            && match node.op() {
                Some(Op::Reshape(Reshape { shape })) => {
                    let inner = node.operands[0].value().and_then(|value| graph.node(value.node).op());
                    inner.is_some_and(counts) && shape.last() == Some(&self.full[dim]) && dim + 1 == self.full.len()
                }
                Some(op) => counts(op) && dim + 1 == self.full.len(),
                None => false,
            }
    }

    /// True if `reader` takes this value of another member as it stands against the lines: by its own element, or by its line.
    pub fn aligned(&self, graph: &Graph, reader: NodeId, value: Value) -> bool {
        let (own, shape) = (&graph.node(reader).outputs[0].shape, &graph.ty(value).shape);
        shape.is_empty()
            || shape == own
            || *own == self.full && (*shape == self.full || *shape == self.kept() || self.is_shared(shape))
            || {
                // Reductions and views say themselves what they read.
                matches!(graph.node(reader).op(), Some(Op::Reduce(_) | Op::Gather(_) | Op::Reshape(_)))
            }
    }
}

/// When each member's value is there: elements in the pass of that number, values of lines behind the pass before. Members are in topological
/// order.
pub(crate) fn levels(graph: &Graph, members: &[(NodeId, Role)]) -> FxHashMap<NodeId, usize> {
    let mut levels: FxHashMap<NodeId, usize> = FxHashMap::default();
    for &(id, role) in members {
        let level = |i: usize| operand_level(&levels, graph.node(id).operands.get(i));
        let found = match role {
            Role::Element | Role::Stat => (0..graph.node(id).operands.len()).map(level).max().unwrap_or(0),
            Role::Reduce => level(0) + 1,
            Role::Pick => level(0).max(level(1) + 1),
        };
        levels.insert(id, found);
    }
    levels
}

fn operand_level(levels: &FxHashMap<NodeId, usize>, operand: Option<&Operand>) -> usize {
    operand.and_then(|o| o.value()).and_then(|value| levels.get(&value.node)).copied().unwrap_or(0)
}

/// The pass in which a member that reduces does so.
pub(crate) fn pass(levels: &FxHashMap<NodeId, usize>, graph: &Graph, id: NodeId, role: Role) -> Option<usize> {
    match role {
        Role::Reduce => Some(operand_level(levels, graph.node(id).operands.first())),
        // Where the element's own value is computed, so that it costs no pass more.
        Role::Pick => levels.get(&id).map(|level| level - 1),
        Role::Element | Role::Stat => None,
    }
}

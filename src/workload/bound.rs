//! What an integer input may hold, from how the graph uses it.

use eglu_ir::{
    Graph, Op, Operand, Value,
    ops::{Gather, Histc, Index, Sort},
};
use std::collections::HashSet;

/// What the elements of an integer input stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Positions of an extent.
    Positions(i64),
    /// Experts, by number.
    Experts(usize),
}

/// Follows an input through the ops that keep its values, to the op that says what they may be.
///
/// Experts win over positions: ids that choose experts often index weights as well.
pub fn bound(graph: &Graph, input: Value) -> Option<Bound> {
    let mut found = None;
    let mut seen = HashSet::new();
    let mut stack = vec![input];
    while let Some(value) = stack.pop() {
        if !seen.insert(value) {
            continue;
        }
        for user in graph.users(value.node) {
            let node = graph.node(user);
            let places =
                node.operands.iter().enumerate().filter(|(_, operand)| **operand == Operand::Value(value)).map(|(i, _)| i);
            for place in places {
                let Some(op) = node.op() else { continue };
                match verdict(graph, op, &node.operands, place) {
                    Verdict::Bound(bound @ Bound::Experts(_)) => return Some(bound),
                    Verdict::Bound(bound) => found = Some(found.unwrap_or(bound)),
                    Verdict::Same => stack.push(user.into()),
                    Verdict::Nothing => {}
                }
            }
        }
    }
    found
}

enum Verdict {
    Bound(Bound),
    /// The op's first output holds the same values.
    Same,
    Nothing,
}

fn verdict(graph: &Graph, op: &Op, operands: &[Operand], place: usize) -> Verdict {
    let extent = |dim: usize| {
        let ty = operands.first().and_then(|operand| operand.value()).map(|value| graph.ty(value));
        ty.and_then(|ty| ty.shape.get(dim)).and_then(|dim| dim.as_const())
    };
    match op {
        Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Slice(_) | Op::Cast(_) | Op::Sort(Sort { .. }) => Verdict::Same,
        Op::Histc(Histc { bins, .. }) => Verdict::Bound(Bound::Experts(*bins)),
        // Operands of `index`: the tensor, then one index for each axis. Three-dimensional tensors hold a matrix for each expert.
        Op::Index(Index { axes }) if place > 0 => {
            let rank = operands.first().and_then(|operand| operand.value()).map_or(0, |value| graph.ty(value).rank());
            match axes.get(place - 1).and_then(|&axis| extent(axis)) {
                Some(experts) if rank == 3 && axes[..] == [0] => {
                    usize::try_from(experts).map_or(Verdict::Nothing, |n| Verdict::Bound(Bound::Experts(n)))
                }
                Some(extent) => Verdict::Bound(Bound::Positions(extent)),
                None => Verdict::Nothing,
            }
        }
        Op::Gather(Gather { dim }) if place == 1 => {
            extent(*dim).map_or(Verdict::Nothing, |extent| Verdict::Bound(Bound::Positions(extent)))
        }
        _ => Verdict::Nothing,
    }
}

//! Views: merged where two follow each other, dropped where they change nothing.

use super::{Rewrite, call, first};
use eglu_ir::{
    Dim, Graph, Op, Operand, Shape,
    ops::{Expand, Full, Iota, Permute, Reshape, Slice},
};

/// Rules for a view over any value.
pub(super) fn simplify(graph: &Graph, op: &Op, operands: &[Operand]) -> Option<Rewrite> {
    let x = first(operands)?;
    let from = &graph.ty(x).shape;
    let inner = call(graph, x).and_then(|(op, operands)| Some((op, first(operands)?)));
    let on = |op: Op, x| Some(Rewrite::Call(op, [Operand::Value(x)].into_iter().collect()));
    match op {
        Op::Reshape(Reshape { shape }) => match inner {
            _ if shape == from => Some(Rewrite::Forward(x)),
            Some((Op::Reshape(_), y)) => on(op.clone(), y),
            _ => None,
        },
        Op::Permute(Permute { dims }) => match inner {
            _ if dims.iter().copied().eq(0..dims.len()) => Some(Rewrite::Forward(x)),
            Some((Op::Permute(Permute { dims: first }), y)) => {
                on(Permute { dims: dims.iter().map(|&i| first[i]).collect() }.into(), y)
            }
            // Extents of 1 may stand anywhere: only the order of the others counts.
            _ if dims.iter().filter(|&&i| !from[i].is(1)).is_sorted() => {
                on(Reshape { shape: dims.iter().map(|&i| from[i].clone()).collect() }.into(), x)
            }
            _ => None,
        },
        Op::Expand(Expand { shape }) => match inner {
            _ if shape == from => Some(Rewrite::Forward(x)),
            Some((Op::Expand(_), y)) => on(op.clone(), y),
            _ if adds_unit_dims(from, shape) => on(Reshape { shape: shape.clone() }.into(), x),
            _ => None,
        },
        Op::Slice(slice) => match inner {
            _ if slice.step == 1 && slice.start.is(0) && slice.end == from[slice.dim] => Some(Rewrite::Forward(x)),
            Some((Op::Slice(before), y)) if before.dim == slice.dim => on(compose(before, slice)?, y),
            _ => None,
        },
        _ => None,
    }
}

/// Views of generators are generators.
pub(super) fn generators(graph: &Graph, op: &Op, operands: &[Operand]) -> Option<Rewrite> {
    let x = first(operands)?;
    let leaf = |op: Op| Some(Rewrite::Call(op, std::iter::empty().collect()));
    match (op, call(graph, x)?.0) {
        (Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Slice(_), Op::Full(full)) => {
            let shape = graph.infer(op, operands).ok()?.first()?.shape.clone();
            leaf(Full { shape, ..full.clone() }.into())
        }
        (Op::Slice(slice), Op::Iota(iota)) => {
            let start = iota.start.checked_add(iota.step.checked_mul(slice.start.as_const()?)?)?;
            let step = iota.step.checked_mul(slice.step)?;
            let len = (slice.end.clone() - slice.start.clone()).ceil_div(slice.step);
            leaf(Iota { len, start, step, dtype: iota.dtype }.into())
        }
        _ => None,
    }
}

fn adds_unit_dims(from: &Shape, to: &Shape) -> bool {
    to.len().checked_sub(from.len()).is_some_and(|new| to[new..] == from[..] && to[..new].iter().all(|extent| extent.is(1)))
}

/// One slice that picks what `second` picks of `first`.
fn compose(first: &Slice, second: &Slice) -> Option<Op> {
    let scaled = |dim: &Dim| first.start.clone() + dim.clone() * Dim::from(first.step);
    let step = first.step.checked_mul(second.step)?;
    let end = match first.step {
        1 => scaled(&second.end),
        // The end is that of the last element picked, so that it lies within the extent; with no element there is none.
        _ if second.start.as_const()? < second.end.as_const()? => scaled(&(second.end.clone() - Dim::from(1))) + Dim::from(1),
        _ => return None,
    };
    Some(Slice { dim: second.dim, start: scaled(&second.start), end, step }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(start: i64, end: i64, step: i64) -> Slice {
        Slice { dim: 0, start: start.into(), end: end.into(), step }
    }

    fn picked(slice: &Slice, of: &[i64]) -> Vec<i64> {
        let (Some(start), Some(end)) = (slice.start.as_const(), slice.end.as_const()) else { return vec![] };
        of[start as usize..end as usize].iter().copied().step_by(slice.step as usize).collect()
    }

    #[test]
    fn composed_slices_pick_the_same_elements() {
        let all: Vec<i64> = (0..20).collect();
        for (a, b) in [((1, 19, 2), (2, 8, 3)), ((0, 20, 1), (3, 9, 2)), ((4, 12, 1), (0, 8, 1)), ((0, 19, 3), (1, 7, 1))] {
            let (a, b) = (slice(a.0, a.1, a.2), slice(b.0, b.1, b.2));
            let Some(Op::Slice(both)) = compose(&a, &b) else { panic!("not composed") };
            assert_eq!(picked(&both, &all), picked(&b, &picked(&a, &all)));
        }
    }
}

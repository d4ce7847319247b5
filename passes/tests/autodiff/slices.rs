//! Gradients by parts of one tensor: right whatever the parts, and one tensor where the parts tile it.

use crate::{differences::agree, draw::Draw};
use eglu_ir::{Graph, Op, OutputKind, ops::Slice};
use eglu_passes::{Gradients, autodiff::differentiate};
use proptest::prelude::*;

/// Outputs that are slices `start..end` by `step` of a row of `extent`.
fn sliced(seed: u64, extent: usize, slices: &[(i64, i64, i64)]) -> Draw {
    let mut draw = Draw::new(seed);
    let x = draw.numbers(&[2, extent]);
    for &(start, end, step) in slices {
        let op = Slice { dim: 1, start: start.into(), end: end.into(), step };
        let part = draw.graph.add_call("part", op.into(), [x.into()]).expect("a slice");
        draw.graph.add_output(part.into(), OutputKind::User);
    }
    draw
}

fn count(graph: &Graph, wanted: impl Fn(&Op) -> bool) -> usize {
    graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| wanted(op)).count()
}

#[test]
fn tiles_are_joined() {
    for slices in [&[(0, 3, 1), (3, 6, 1)][..], &[(3, 6, 1), (0, 3, 1)], &[(0, 6, 2), (1, 6, 2)], &[(1, 6, 2), (0, 6, 2)]] {
        let draw = sliced(1, 6, slices);
        let joint = differentiate(&draw.graph, &Gradients::default()).expect("differentiable");
        assert_eq!(count(&joint, |op| matches!(op, Op::Cat(_))), 1, "{slices:?}");
        assert_eq!(count(&joint, |op| matches!(op, Op::Pointwise(_) | Op::Full(_))), 0, "{slices:?}");
    }
}

proptest! {
    #[test]
    fn any_parts(
        seed in any::<u64>(),
        extent in 1i64..9,
        parts in prop::collection::vec((0i64..8, 0i64..9, 1i64..4), 1..5),
    ) {
        let within = |&(start, length, step): &(i64, i64, i64)| {
            let start = start.min(extent);
            (start, (start + length).min(extent), step)
        };
        let slices: Vec<_> = parts.iter().map(within).filter(|(start, end, _)| start < end).collect();
        prop_assume!(!slices.is_empty());
        let draw = sliced(seed, extent as usize, &slices);
        agree(&format!("{slices:?} of {extent}"), &draw.graph, &draw.inputs, seed);
    }
}

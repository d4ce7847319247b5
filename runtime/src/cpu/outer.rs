//! Weight gradients by expert.

use super::{
    block::Block,
    call::{Call, Outcome, Source, Taken},
    epilogue::{Epilogue, Lane, places},
    experts::{Groups, gather, read_ids},
    matrix::{Number, Panel, even_ranges, multiply, ranges, tiling, with_number},
    view::View,
};
use rayon::prelude::*;

/// `Σ a[s]ᵀ · b[s]` over each expert's rows; row s of an operand is row `s / repeat` of its tensor. Each block of a matrix is one task, which
/// sums the rows in their order.
pub fn expert_outer(call: &mut Call<'_>, block: &Block, repeats: [usize; 2]) -> Outcome {
    let (a, b, ids) = (call.view(0)?.clone(), call.view(1)?.clone(), read_ids(call.view(2)?));
    if ids.iter().any(|&id| id < 0) {
        return Ok(Taken::Refused);
    }
    let groups = Groups::of(&ids, call.outputs[0].shape[0]);
    with_number!(a.dtype, T => run::<T>(call, [&a, &b], repeats, &groups, block))
}

fn run<T: Number>(
    call: &mut Call<'_>,
    [a, b]: [&View<'_>; 2],
    [a_repeat, b_repeat]: [usize; 2],
    groups: &Groups,
    block: &Block,
) -> Outcome {
    if block.param_class(0) != T::CLASS {
        return Ok(Taken::Refused);
    }
    let (n, k, count) = (a.shape[1], b.shape[1], groups.rows.len());
    let scratch = call.scratch;
    let (mut left, mut right) = (scratch.lend::<T>(count * n), scratch.lend::<T>(count * k));
    let (left, right) = (left.get::<T>(count * n), right.get::<T>(count * k));
    gather(a, &groups.rows, a_repeat, left);
    gather(b, &groups.rows, b_repeat, right);
    let (left, right) = (&*left, &*right);
    let (rows, cols) = tiling(n, k, groups.ranges.len());
    let tiles = || even_ranges(n, rows).flat_map(move |r| ranges(k, cols).map(move |c| (r.clone(), c)));
    let tasks: Vec<_> = (0..groups.ranges.len()).flat_map(|expert| tiles().map(move |(r, c)| (expert, r, c))).collect();
    // What sums are added to has their elements in their order.
    let captures = call.optional(3).into_iter().map(Source::new).collect();
    let epilogue = Epilogue { block, captures, places: places(&call.shared(), 0, false, k), columns: k };
    tasks.into_par_iter().for_each_init(Vec::new, |tile: &mut Vec<T>, (expert, r, c)| {
        let group = &groups.ranges[expert];
        tile.clear();
        tile.resize(r.len() * c.len(), T::default());
        if !group.is_empty() {
            let a = Panel::strided(&left[group.start * n + r.start..], r.len(), group.len(), 1, n);
            let b = Panel::strided(&right[group.start * k + c.start..], group.len(), c.len(), k, 1);
            multiply(a, b, tile, c.len(), k);
        }
        // SAFETY: tasks cover disjoint blocks of disjoint matrices. The program rounds and adds floats: always defined.
        unsafe { epilogue.apply(&[Lane { tile, bias: None }], r, c, |i| expert * n + i) };
    });
    Ok(Taken::Done)
}

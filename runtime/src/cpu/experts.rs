//! Products of rows with the matrix of their expert.

use super::{
    block::Block,
    call::{Call, Outcome, Source, Taken},
    epilogue::{Epilogue, Lane, places},
    matrix::{Number, Panel, even_ranges, multiply, ranges, tiling, with_number},
    view::View,
};
use rayon::prelude::*;
use std::ops::Range;

/// Rows in order of their expert, each expert's in their own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The rows, by expert; those of no expert are left out.
    pub rows: Vec<usize>,
    /// Which of `rows` each expert has.
    pub ranges: Vec<Range<usize>>,
}

impl Groups {
    /// Groups rows by their ids; rows whose id is no expert are dropped.
    pub fn of(ids: &[i64], experts: usize) -> Groups {
        let expert = |id: i64| usize::try_from(id).ok().filter(|&e| e < experts);
        let mut starts = vec![0usize; experts + 1];
        for e in ids.iter().filter_map(|&id| expert(id)) {
            starts[e + 1] += 1;
        }
        for e in 0..experts {
            starts[e + 1] += starts[e];
        }
        let ranges = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let mut rows = vec![0; starts[experts]];
        for (row, e) in ids.iter().enumerate().filter_map(|(row, &id)| Some((row, expert(id)?))) {
            rows[starts[e]] = row;
            starts[e] += 1;
        }
        Groups { rows, ranges }
    }

    /// Rows that lie by expert, each expert's up to its end; `None` where the ends do not ascend within so many rows.
    pub fn by_ends(ends: &[i64], rows: usize) -> Option<Groups> {
        let bounds = std::iter::once(0).chain(ends.iter().map(|&end| usize::try_from(end).unwrap_or(usize::MAX)));
        let bounds: Vec<usize> = bounds.collect();
        let last = bounds.last().copied().filter(|&end| end <= rows && bounds.is_sorted())?;
        Some(Groups { rows: (0..last).collect(), ranges: bounds.windows(2).map(|pair| pair[0]..pair[1]).collect() })
    }

    /// Blocks of work: an expert, some of its rows (positions in `rows`), some columns.
    ///
    /// Row blocks are innermost, so that neighbouring tasks read one weight block.
    pub fn tasks(&self, n: usize) -> Vec<(usize, Range<usize>, Range<usize>)> {
        let busy = self.ranges.iter().filter(|range| !range.is_empty()).count();
        let largest = self.ranges.iter().map(|range| range.len()).max().unwrap_or(0);
        let (rows, cols) = tiling(largest, n, busy);
        let mut tasks = Vec::new();
        for (expert, group) in self.ranges.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
            for c in ranges(n, cols) {
                for r in even_ranges(group.len(), rows) {
                    tasks.push((expert, group.start + r.start..group.start + r.end, c.clone()));
                }
            }
        }
        tasks
    }
}

/// The ids of a view, in row-major order.
pub fn read_ids(view: &View<'_>) -> Vec<i64> {
    let mut ids = vec![0i64; view.numel()];
    Source::new(view).read(0, &mut ids);
    ids
}

/// Rows of a 2-d view, widened and packed into `packed`: row i is row `rows[i] / divisor` of the view.
pub fn gather<T: Number>(view: &View<'_>, rows: &[usize], divisor: usize, packed: &mut [T]) {
    packed.par_chunks_mut(view.shape[1].max(1)).zip(rows).for_each(|(line, &row)| {
        T::load(view.dtype, view.bytes, view.offset + row / divisor * view.strides[0], view.strides[1], line);
    });
}

/// `x[s] · w[ids[s]]ᵀ + bias[ids[s]]`.
pub fn expert_matmul(call: &mut Call<'_>, block: &Block) -> Outcome {
    let (x, w, ids) = (call.view(0)?.clone(), call.view(1)?.clone(), read_ids(call.view(3)?));
    let bias = call.optional(2).cloned();
    let groups = Groups::of(&ids, w.shape[0]);
    if groups.rows.len() < ids.len() {
        call.outputs[0].bytes.fill(0);
        if ids.iter().any(|&id| id < 0) {
            return Ok(Taken::Refused);
        }
    }
    with_number!(x.dtype, T => {
        let len = groups.rows.len() * x.shape[1];
        let mut loan = call.scratch.lend::<T>(len);
        let packed = loan.get::<T>(len);
        gather(&x, &groups.rows, 1, packed);
        grouped::<T>(call, packed, &w.permute(&[0, 2, 1]), bias, &groups, block)
    })
}

/// `x[offs[e-1]..offs[e]] · w[e]`.
pub fn grouped_mm(call: &mut Call<'_>, block: &Block) -> Outcome {
    let (x, w, offs) = (call.view(0)?.clone(), call.view(1)?.clone(), read_ids(call.view(2)?));
    let rows = x.shape[0];
    let Some(groups) = Groups::by_ends(&offs, rows) else { return Ok(Taken::Refused) };
    let row_bytes = call.outputs[0].bytes.len() / rows.max(1);
    call.outputs[0].bytes[groups.rows.len() * row_bytes..].fill(0);
    with_number!(x.dtype, T => {
        let len = groups.rows.len() * x.shape[1];
        let mut loan = call.scratch.lend::<T>(len);
        let packed = loan.get::<T>(len);
        gather(&x, &groups.rows, 1, packed);
        grouped::<T>(call, packed, &w, None, &groups, block)
    })
}

/// Packed rows times `w[e]`, `[K, N]` each; row i goes to row `groups.rows[i]` of the output.
fn grouped<T: Number>(
    call: &mut Call<'_>,
    packed: &[T],
    w: &View<'_>,
    bias: Option<View<'_>>,
    groups: &Groups,
    block: &Block,
) -> Outcome {
    if block.param_class(0) != T::CLASS {
        return Ok(Taken::Refused);
    }
    let (k, n) = (w.shape[1], w.shape[2]);
    let bias = bias.map(|bias| super::contract::read_all::<T>(&bias));
    let epilogue = Epilogue { block, captures: vec![], places: places(&call.shared(), 0, false, n), columns: n };
    groups.tasks(n).into_par_iter().for_each_init(
        || (Vec::new(), Vec::new()),
        |(scratch, tile), (expert, r, c)| {
            tile.resize((r.len() * c.len()).max(tile.len()), T::default());
            let left = Panel::dense(&packed[r.start * k..r.end * k], r.len(), k);
            multiply(left, Panel::of(&w.at(expert), 0..k, c.clone(), scratch), tile, c.len(), n);
            let bias = bias.as_ref().map(|bias| &bias[expert * n + c.start..expert * n + c.end]);
            // SAFETY: each row belongs to one expert, and tasks cover disjoint columns. The program is a rounding: always defined.
            unsafe { epilogue.apply(&[Lane { tile, bias }], r, c, |i| groups.rows[i]) };
        },
    );
    Ok(Taken::Done)
}

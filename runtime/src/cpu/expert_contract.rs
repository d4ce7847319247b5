//! Products by expert with an epilogue.

use super::{
    block::{BLOCK, Block},
    call::{Call, Outcome, Source, Taken},
    contract::{Contraction, read_all},
    epilogue::{Lane, Place, fill_lane},
    experts::{Groups, gather, read_ids},
    matrix::{Number, Panel, multiply, with_number},
    view::View,
};
use eglu_ir::ops::ExpertContract;
use rayon::prelude::*;
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

/// `program` of the lanes' accumulators, the tables at each row's expert, and captures.
pub fn expert_contract(call: &mut Call<'_>, op: &ExpertContract, contraction: &Contraction) -> Outcome {
    let (x, ids) = (call.view(0)?.clone(), read_ids(call.view(1)?));
    let weights = (2..2 + op.lanes).map(|i| call.view(i).map(|w| w.permute(&[0, 2, 1]))).collect::<Result<Vec<_>, _>>()?;
    let rows = if op.grouped { x.shape[0] } else { ids.len() };
    let groups = if op.grouped { Groups::by_ends(&ids, rows) } else { Some(Groups::of(&ids, weights[0].shape[0])) };
    // Rows of no expert, and tables of another class, are the evaluator's.
    let Some(groups) = groups.filter(|groups| groups.rows.len() == rows) else { return Ok(Taken::Refused) };
    with_number!(x.dtype, T => run::<T>(call, op, &x, &weights, &groups, contraction))
}

fn run<T: Number>(
    call: &mut Call<'_>,
    op: &ExpertContract,
    x: &View<'_>,
    weights: &[View<'_>],
    groups: &Groups,
    contraction: &Contraction,
) -> Outcome {
    let (params, block) = (op.lanes + op.tables, &contraction.block);
    if (0..params).any(|i| block.param_class(i) != T::CLASS) {
        return Ok(Taken::Refused);
    }
    let (k, n, first) = (weights[0].shape[1], weights[0].shape[2], 2 + op.lanes);
    let tables = (first..first + op.tables).map(|i| call.view(i).map(read_all::<T>)).collect::<Result<Vec<_>, _>>()?;
    let shape = [groups.rows.len(), n];
    let captures: Vec<Source<'_>> =
        call.views_from(first + op.tables)?.iter().map(|capture| Source::new(&capture.broadcast(&shape))).collect();
    let len = groups.rows.len() * k;
    let scratch = call.scratch;
    let mut loan = scratch.lend::<T>(len);
    let packed = loan.get::<T>(len);
    gather(x, &groups.rows, op.repeat, packed);
    let packed = &*packed;
    let mut loans = contraction.lend(scratch, shape[0] * n);
    let outputs = call.shared();
    let places = contraction.places(&outputs, &mut loans, shape);
    let epilogue = Epilogue { block, tables: &tables, captures, places, columns: n };
    let defined = AtomicBool::new(true);
    groups.tasks(n).into_par_iter().for_each_init(
        || (Vec::new(), vec![Vec::new(); op.lanes]),
        |(widened, tiles), (expert, r, c)| {
            let left = Panel::dense(&packed[r.start * k..r.end * k], r.len(), k);
            for (tile, w) in tiles.iter_mut().zip(weights) {
                tile.resize((r.len() * c.len()).max(tile.len()), T::default());
                // Lanes are parts of one product, whose width decides the order of sums.
                multiply(left, Panel::of(&w.at(expert), 0..k, c.clone(), widened), tile, c.len(), op.lanes * n);
            }
            // SAFETY: each row belongs to one expert, and tasks cover disjoint columns.
            if !unsafe { epilogue.apply(tiles, expert, &groups.rows[r], c) } {
                defined.store(false, Ordering::Relaxed);
            }
        },
    );
    contraction.reduce(&mut loans, &outputs, shape);
    Ok(if defined.into_inner() { Taken::Done } else { Taken::Refused })
}

struct Epilogue<'a, T> {
    block: &'a Block,
    tables: &'a [Vec<T>],
    captures: Vec<Source<'a>>,
    places: Vec<Place<'a>>,
    columns: usize,
}

impl<T: Number> Epilogue<'_, T> {
    /// Applies the program to tiles of these columns of these rows, all of one expert; false where an integer op has no value.
    ///
    /// # Safety
    /// No other task may write these elements.
    unsafe fn apply(&self, tiles: &[Vec<T>], expert: usize, rows: &[usize], columns: Range<usize>) -> bool {
        let mut registers = self.block.registers();
        let mut defined = true;
        let mut stored = Vec::new();
        for (r, &row) in rows.iter().enumerate() {
            for start in (0..columns.len()).step_by(BLOCK) {
                let (len, column) = (BLOCK.min(columns.len() - start), columns.start + start);
                for (i, tile) in tiles.iter().enumerate() {
                    let lane = Lane { tile: &tile[r * columns.len() + start..][..len], bias: None };
                    fill_lane(self.block.param(&mut registers, i, len), lane.tile, lane.bias);
                }
                for (i, table) in self.tables.iter().enumerate() {
                    let line = &table[expert * self.columns + column..][..len];
                    fill_lane(self.block.param(&mut registers, tiles.len() + i, len), line, None);
                }
                let first = tiles.len() + self.tables.len();
                for (i, capture) in self.captures.iter().enumerate() {
                    capture.fill(self.block, &mut registers, first + i, row * self.columns + column, len);
                }
                defined &= self.block.run(&mut registers, len);
                for (i, place) in self.places.iter().enumerate() {
                    // SAFETY: as the caller promises.
                    unsafe { place.write(self.block, &registers, i, [row, column, len], &mut stored) };
                }
            }
        }
        defined
    }
}

//! Whole mixture-of-experts blocks.

use super::{
    block::{BLOCK, Block},
    call::{Call, Outcome, Taken},
    contract::read_all,
    convert::{Class, round},
    epilogue::{Lane, fill_lane},
    experts::{Groups, gather, read_ids},
    matrix::{Number, Panel, multiply, with_number},
    shared::Shared,
    simd,
    view::View,
};
use eglu_ir::DType;
use rayon::prelude::*;
use std::ops::Range;

/// Gate and up products, the program while their blocks are hot, down, and the weighted sum.
///
/// Sums over a token's experts run in the order of its ids, whatever the threads do.
pub fn moe(call: &mut Call<'_>, block: &Block) -> Outcome {
    let x = call.view(0)?.clone();
    with_number!(x.dtype, T => {
        let (gate, up, down) = (turned(call.view(1)?), call.optional(3).map(turned), turned(call.view(5)?));
        let lanes: Vec<View<'_>> = [Some(gate), up].into_iter().flatten().collect();
        let routing = (call.view(7)?.clone(), call.view(8)?.clone());
        run::<T>(call, &x, (&lanes, &down), routing, block)
    })
}

/// Matrices `[E, K, N]` of `[E, N, K]`.
fn turned<'a>(weight: &View<'a>) -> View<'a> {
    weight.permute(&[0, 2, 1])
}

/// The gate and perhaps up, `lanes`, then down.
fn run<T: Number>(
    call: &mut Call<'_>,
    x: &View<'_>,
    (lanes, down): (&[View<'_>], &View<'_>),
    (ids, weights): (View<'_>, View<'_>),
    block: &Block,
) -> Outcome {
    let gate = &lanes[0];
    let stored = lanes.iter().map(|lane| lane.dtype).chain([down.dtype, weights.dtype, call.outputs[0].dtype]);
    let (tokens, k) = (ids.shape[0], ids.shape[1]);
    let ids = read_ids(&ids);
    if stored.chain(block.results()).any(|d| Class::of(d) != Some(T::CLASS)) || ids.iter().any(|&id| id < 0) {
        return Ok(Taken::Refused);
    }
    let biases = [2, 4, 6].map(|i| call.optional(i).map(read_all::<T>));
    let [gate_bias, up_bias, down_bias] = biases;
    let groups = Groups::of(&ids, gate.shape[0]);
    let (pairs, inner, n) = (groups.rows.len(), gate.shape[2], down.shape[2]);
    let lens = [pairs * x.shape[1], pairs * inner, pairs * n];
    let scratch = call.scratch;
    let mut loans = lens.map(|len| scratch.lend::<T>(len));
    let [packed, active, results] = loans.each_mut();
    let (packed, active, results) = (packed.get::<T>(lens[0]), active.get::<T>(lens[1]), results.get::<T>(lens[2]));
    gather(x, &groups.rows, k.max(1), packed);

    let memory = Shared::new(bytemuck::cast_slice_mut(active));
    groups.tasks(inner).into_par_iter().for_each_init(Tiles::default, |scratch, (expert, r, c)| {
        for (i, lane) in lanes.iter().enumerate() {
            scratch.multiply(i, packed, lane, expert, (r.clone(), c.clone()), lanes.len() * inner);
        }
        let at = expert * inner + c.start..expert * inner + c.end;
        let bias = |bias: &'_ Option<Vec<T>>| -> Option<Vec<T>> { bias.as_ref().map(|bias| bias[at.clone()].to_vec()) };
        let (gate_bias, up_bias) = (bias(&gate_bias), bias(&up_bias));
        let [gates, ups] = &scratch.tiles;
        let tiles = [Lane { tile: gates, bias: gate_bias.as_deref() }, Lane { tile: ups, bias: up_bias.as_deref() }];
        // SAFETY: tasks cover disjoint rows and columns of the activations.
        unsafe { activate(block, &tiles[..lanes.len()], (r, c), inner, &memory, x.dtype) };
    });

    let memory = Shared::new(bytemuck::cast_slice_mut(results));
    groups.tasks(n).into_par_iter().for_each_init(Tiles::default, |scratch, (expert, r, c)| {
        scratch.multiply(0, active, down, expert, (r.clone(), c.clone()), n);
        for (line, row) in scratch.tiles[0].chunks_exact(c.len()).zip(r) {
            let at = (row * n + c.start) * size_of::<T>();
            // SAFETY: tasks cover disjoint rows and columns of the results.
            let to: &mut [T] = bytemuck::cast_slice_mut(unsafe { memory.piece(at..at + size_of_val(line)) });
            match &down_bias {
                None => to.copy_from_slice(line),
                Some(bias) => {
                    let bias = &bias[expert * n + c.start..expert * n + c.end];
                    to.iter_mut().zip(line).zip(bias).for_each(|((d, &y), &b)| *d = y + b);
                }
            }
            round(x.dtype, to);
        }
    });
    combine(call, results, &groups, &read_all::<T>(&weights), (tokens, k, n));
    Ok(Taken::Done)
}

/// One thread's accumulators.
#[derive(Default)]
struct Tiles<T> {
    widened: Vec<T>,
    tiles: [Vec<T>; 2],
}

impl<T: Number> Tiles<T> {
    /// Tile `i` = rows `r` of `packed` times columns `c` of the expert's matrix, which are some of so many.
    fn multiply(
        &mut self,
        i: usize,
        packed: &[T],
        w: &View<'_>,
        expert: usize,
        (r, c): (Range<usize>, Range<usize>),
        columns: usize,
    ) {
        let k = w.shape[1];
        let tile = &mut self.tiles[i];
        tile.resize((r.len() * c.len()).max(tile.len()), T::default());
        let left = Panel::dense(&packed[r.start * k..r.end * k], r.len(), k);
        multiply(left, Panel::of(&w.at(expert), 0..k, c.clone(), &mut self.widened), tile, c.len(), columns);
    }
}

/// Runs the gating program over a block and keeps its result in `T`, rounded to `dtype` as PyTorch stores it.
///
/// # Safety
/// No other task may write these rows and columns.
unsafe fn activate<T: Number>(
    block: &Block,
    lanes: &[Lane<'_, T>],
    (rows, cols): (Range<usize>, Range<usize>),
    row_len: usize,
    memory: &Shared<'_>,
    dtype: DType,
) {
    let mut registers = block.registers();
    for (i, row) in rows.enumerate() {
        for start in (0..cols.len()).step_by(BLOCK) {
            let len = BLOCK.min(cols.len() - start);
            for (param, lane) in lanes.iter().enumerate() {
                let from = &lane.tile[i * cols.len() + start..][..len];
                fill_lane(block.param(&mut registers, param, len), from, lane.bias.map(|b| &b[start..start + len]));
            }
            // Gating programs are float arithmetic, which is always defined.
            let _ = block.run(&mut registers, len);
            let at = (row * row_len + cols.start + start) * size_of::<T>();
            // SAFETY: as the caller promises.
            let to: &mut [T] = bytemuck::cast_slice_mut(unsafe { memory.piece(at..at + len * size_of::<T>()) });
            to.copy_from_slice(block.result::<T>(&registers, 0, len));
            round(dtype, to);
        }
    }
}

/// `out[t] = Σ_j weights[t, j] · results[(t, j)]`, by ascending j; pairs that were dropped add nothing.
fn combine<T: Number>(call: &mut Call<'_>, results: &[T], groups: &Groups, weights: &[T], (tokens, k, n): (usize, usize, usize)) {
    let mut places: Vec<Option<usize>> = vec![None; tokens * k];
    for (place, &pair) in groups.rows.iter().enumerate() {
        places[pair] = Some(place);
    }
    let out = &mut call.outputs[0];
    let (dtype, row_bytes) = (out.dtype, n * out.dtype.size());
    let sum_up = |sum: &mut Vec<T>, (token, to): (usize, &mut [u8])| {
        sum.fill(T::default());
        for pair in token * k..(token + 1) * k {
            if let Some(place) = places[pair] {
                let (row, weight) = (&results[place * n..(place + 1) * n], weights[pair]);
                simd(|| sum.iter_mut().zip(row).for_each(|(s, &y)| *s = *s + weight * y));
            }
        }
        T::store(dtype, sum, to);
    };
    out.bytes.par_chunks_mut(row_bytes.max(1)).enumerate().for_each_init(|| vec![T::default(); n], sum_up);
}

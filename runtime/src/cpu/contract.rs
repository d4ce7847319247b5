//! Dense and batched products with an epilogue, block by block.

use super::{
    block::Block,
    call::{Call, Outcome, Source, Taken},
    convert::Class,
    epilogue::{Epilogue, Lane, Place, places},
    fold::Fold,
    matrix::{Number, Panel, even_ranges, multiply, ranges, tiling, with_number},
    scratch::{Loan, Scratch},
    shared::Shared,
    view::{Extents, View},
};
use eglu_ir::{
    Program,
    ops::{Axes, Contract, ExpertContract, ReduceKind},
};
use rayon::prelude::*;
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

/// A product's epilogue made ready: the program, and where its results go.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// Accumulators of an element.
    pub lanes: usize,
    /// Results that share the first output.
    pub packed: usize,
    /// They do so column by column.
    pub interleaved: bool,
    /// The program.
    pub block: Block,
    folds: Vec<Fold>,
}

impl Contraction {
    /// `None` where only the evaluator knows what to do.
    pub fn new(op: &Contract) -> Option<Contraction> {
        let (folds, block) = reducing(&op.program, &op.folds, &op.groups)?;
        Some(Contraction { lanes: op.lanes, packed: op.packed, interleaved: op.interleaved, folds, block })
    }

    /// That of products by expert.
    pub fn by_expert(op: &ExpertContract) -> Option<Contraction> {
        let (folds, block) = reducing(&op.program, &op.folds, &op.groups)?;
        Some(Contraction { lanes: op.lanes, packed: op.packed, interleaved: op.interleaved, folds, block })
    }

    /// One lane, one result.
    pub fn plain(block: Block) -> Contraction {
        Contraction { lanes: 1, packed: 0, interleaved: false, folds: Vec::new(), block }
    }

    /// A gated unit: two lanes, one result.
    pub fn gated(block: Block) -> Contraction {
        Contraction { lanes: 2, ..Contraction::plain(block) }
    }

    /// Memory for so many values of each result that is reduced.
    pub fn lend<'a>(&self, scratch: &'a Scratch, values: usize) -> Vec<Loan<'a>> {
        self.folds.iter().map(|fold| fold.lend(scratch, values)).collect()
    }

    /// Where the results of `[rows, columns]` products go: to outputs, or to the memory lent for what is reduced.
    pub fn places<'a>(&self, outputs: &[(Shared<'a>, usize)], loans: &'a mut [Loan<'_>], extents: [usize; 2]) -> Vec<Place<'a>> {
        let mut destinations = outputs[..outputs.len() - self.folds.len()].to_vec();
        let values = extents[0] * extents[1];
        destinations.extend(self.folds.iter().zip(loans).map(|(fold, loan)| fold.values(loan, values)));
        places(&destinations, self.packed, self.interleaved, extents[1])
    }

    /// Reduces what `[rows, columns]` products left in the memory lent, to the last outputs.
    pub fn reduce(&self, loans: &mut [Loan<'_>], outputs: &[(Shared<'_>, usize)], extents: [usize; 2]) {
        let folded = &outputs[outputs.len() - self.folds.len()..];
        for ((fold, loan), &(memory, size)) in self.folds.iter().zip(loans).zip(folded) {
            fold.reduce(loan, extents, memory, size);
        }
    }
}

/// The reductions of a program's last results, and the program, which leaves these results as they are computed.
fn reducing(program: &Program, kinds: &[ReduceKind], groups: &Axes) -> Option<(Vec<Fold>, Block)> {
    let mut program = program.clone();
    let first = program.results.len() - kinds.len();
    let mut folds = Vec::new();
    for (result, (&kind, &group)) in program.results[first..].iter_mut().zip(kinds.iter().zip(groups)) {
        folds.push(Fold::new(kind, group, result.1)?);
        result.1 = result.1.opmath();
    }
    Some((folds, Block::new(&program)?))
}

/// `program(a · b₀, a · b₁, …, captures)`.
pub fn contract(call: &mut Call<'_>, contraction: &Contraction) -> Outcome {
    let lanes = contraction.lanes;
    let a = call.view(0)?.clone();
    let bs = (1..=lanes).map(|i| call.view(i).cloned()).collect::<Result<Vec<_>, _>>()?;
    let captures = call.views_from(lanes + 1)?;
    run(call, a, bs, vec![None; lanes], captures, contraction)
}

/// `program(x · gateᵀ + gate_bias, x · upᵀ + up_bias)`.
pub fn dense_glu(call: &mut Call<'_>, contraction: &Contraction) -> Outcome {
    let x = call.view(0)?.clone();
    let weights = [1, 3].map(|i| call.view(i).map(|w| w.permute(&[1, 0])));
    let [gate, up] = weights;
    let biases = vec![call.optional(2).cloned(), call.optional(4).cloned()];
    // A vector is a matrix of one row.
    let x = if x.shape.len() == 1 { x.broadcast(&[1, x.shape[0]]) } else { x };
    run(call, x, vec![gate?, up?], biases, vec![], contraction)
}

fn run<'a>(
    call: &mut Call<'a>,
    a: View<'a>,
    bs: Vec<View<'a>>,
    biases: Vec<Option<View<'a>>>,
    captures: Vec<View<'a>>,
    contraction: &Contraction,
) -> Outcome {
    with_number!(a.dtype, T => run_in::<T>(call, a, bs, biases, captures, contraction))
}

/// The extents of `a · b`, leading dims broadcast.
fn product_shape(a: &View<'_>, b: &View<'_>) -> Extents {
    let batches = [a, b].map(|view| &view.shape[..view.shape.len() - 2]);
    let rank = batches[0].len().max(batches[1].len());
    let at = |batch: &[usize], i: usize| (i + batch.len()).checked_sub(rank).map_or(1, |i| batch[i]);
    let extent = |i: usize| match (at(batches[0], i), at(batches[1], i)) {
        (1, other) => other,
        (own, _) => own,
    };
    (0..rank).map(extent).chain([a.shape[a.shape.len() - 2], b.shape[b.shape.len() - 1]]).collect()
}

/// The batches of a view's last two dims, broadcast against the output's.
struct Batches<'a> {
    view: View<'a>,
    rank: usize,
}

impl<'a> Batches<'a> {
    /// Leading dims that the batch lacks have an extent of 1.
    fn new(view: &View<'a>, batch: &[usize]) -> Batches<'a> {
        let rank = view.shape.len();
        let extra = (rank - 2).saturating_sub(batch.len());
        let matrix = View { shape: view.shape[extra..].into(), strides: view.strides[extra..].into(), ..view.clone() };
        let shape: Extents = batch.iter().chain(&view.shape[rank - 2..]).copied().collect();
        Batches { view: matrix.broadcast(&shape), rank: batch.len() }
    }

    fn get(&self, mut index: usize) -> View<'a> {
        let mut offset = self.view.offset;
        for i in (0..self.rank).rev() {
            offset += index % self.view.shape[i] * self.view.strides[i];
            index /= self.view.shape[i];
        }
        let (shape, strides) = (self.view.shape[self.rank..].into(), self.view.strides[self.rank..].into());
        View { shape, strides, offset, ..self.view.clone() }
    }
}

fn run_in<'a, T: Number>(
    call: &mut Call<'a>,
    a: View<'a>,
    bs: Vec<View<'a>>,
    biases: Vec<Option<View<'a>>>,
    captures: Vec<View<'a>>,
    contraction: &Contraction,
) -> Outcome {
    let block = &contraction.block;
    if (0..bs.len()).any(|i| block.param_class(i) != T::CLASS) || bs.iter().any(|b| Class::of(b.dtype) != Some(T::CLASS)) {
        return Ok(Taken::Refused);
    }
    let shape = product_shape(&a, &bs[0]);
    let (batch, matrix) = shape.split_at(shape.len() - 2);
    let (m, n, k) = (matrix[0], matrix[1], a.shape[a.shape.len() - 1]);
    let (batch, m, a) = fold_rows(batch, m, a, &bs);
    let copies: usize = batch.iter().product();
    let a = Batches::new(&a, &batch);
    let bs: Vec<Batches<'a>> = bs.iter().map(|b| Batches::new(b, &batch)).collect();
    let biases: Vec<Option<Vec<T>>> = biases.iter().map(|bias| bias.as_ref().map(|bias| read_all(bias))).collect();
    let captures: Vec<Source<'a>> = captures.iter().map(|c| Source::new(&c.broadcast(&shape))).collect();
    let (rows, cols) = tiling(m, n, copies);
    let tasks: Vec<(usize, Range<usize>, Range<usize>)> = (0..copies)
        .flat_map(|copy| ranges(n, cols).flat_map(move |c| even_ranges(m, rows).map(move |r| (copy, r, c.clone()))))
        .collect();
    let all = shape.iter().product();
    let mut loans = contraction.lend(call.scratch, all);
    let outputs = call.shared();
    let places = contraction.places(&outputs, &mut loans, [all / n.max(1), n]);
    let epilogue = Epilogue { block, captures, places, columns: n };
    let defined = AtomicBool::new(true);
    tasks.into_par_iter().for_each_init(Tiles::default, |scratch: &mut Tiles<T>, (copy, r, c)| {
        let left = Panel::of(&a.get(copy), r.clone(), 0..k, &mut scratch.a);
        scratch.tiles.resize_with(bs.len(), Vec::new);
        for (b, tile) in bs.iter().zip(&mut scratch.tiles) {
            tile.resize((r.len() * c.len()).max(tile.len()), T::default());
            multiply(left, Panel::of(&b.get(copy), 0..k, c.clone(), &mut scratch.b), tile, c.len(), bs.len() * n);
        }
        let lanes: Vec<Lane<'_, T>> = scratch
            .tiles
            .iter()
            .zip(&biases)
            .map(|(tile, bias)| Lane { tile, bias: bias.as_ref().map(|bias| &bias[c.clone()]) })
            .collect();
        // SAFETY: tasks cover disjoint blocks of the output.
        let whole = unsafe { epilogue.apply(&lanes, r, c, |row| copy * m + row) };
        if !whole {
            defined.store(false, Ordering::Relaxed);
        }
    });
    contraction.reduce(&mut loans, &outputs, [all / n.max(1), n]);
    Ok(if defined.into_inner() { Taken::Done } else { Taken::Refused })
}

struct Tiles<T> {
    a: Vec<T>,
    b: Vec<T>,
    tiles: Vec<Vec<T>>,
}

impl<T> Default for Tiles<T> {
    fn default() -> Tiles<T> {
        Tiles { a: Vec::new(), b: Vec::new(), tiles: Vec::new() }
    }
}

/// All elements of a view.
pub fn read_all<T: Number>(view: &View<'_>) -> Vec<T> {
    let mut all = vec![T::default(); view.numel()];
    Source::new(view).read(0, &mut all);
    all
}

/// Where no b has batches, a's batches are further rows, if its strides allow: one large product instead of many small ones.
fn fold_rows<'a>(batch: &[usize], m: usize, a: View<'a>, bs: &[View<'a>]) -> (Extents, usize, View<'a>) {
    let rank = a.shape.len();
    let unbatched = bs.iter().all(|b| b.shape[..b.shape.len() - 2].iter().all(|&extent| extent == 1));
    let same = a.shape[..rank - 2] == *batch;
    let outer = View { shape: a.shape[..rank - 1].into(), strides: a.strides[..rank - 1].into(), ..a.clone() };
    match outer.runs().single() {
        Some(stride) if unbatched && same && !batch.is_empty() => {
            let rows = batch.iter().product::<usize>() * m;
            let (k, last) = (a.shape[rank - 1], a.strides[rank - 1]);
            (
                Extents::new(),
                rows,
                View { shape: Extents::from_slice(&[rows, k]), strides: Extents::from_slice(&[stride, last]), ..a },
            )
        }
        _ => (batch.into(), m, a),
    }
}

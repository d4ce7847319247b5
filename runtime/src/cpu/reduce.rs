//! Reductions with a prologue and an epilogue: one pass over the operands.

use super::{
    block::{BLOCK, Block, Fill},
    call::{Call, Outcome, Source, Taken},
    convert::Class,
    simd,
    view::{Extents, View},
};
use eglu_ir::ops::{Axes, ReduceKind};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A set of reductions made ready.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// Operands to the values that are reduced.
    pub prologue: Block,
    /// How each value is reduced.
    pub kinds: Vec<ReduceKind>,
    /// The dims that are reduced.
    pub dims: Axes,
    /// Reduced values and captures to results.
    pub epilogue: Block,
}

/// Shortest reduced extent for which a reduction runs along it; below, it runs across outputs.
const ALONG: usize = 64;

impl Reduction {
    /// `None` where only the reference evaluator knows a kind, or a value's class is not that of the epilogue's parameter.
    pub fn new(prologue: Block, kinds: &[ReduceKind], dims: &Axes, epilogue: Block) -> Option<Reduction> {
        let native = kinds.iter().all(|&kind| native(kind));
        let classes = prologue.results().enumerate().all(|(i, dtype)| Class::of(dtype) == Some(epilogue.param_class(i)));
        (native && classes).then(|| Reduction { prologue, kinds: kinds.to_vec(), dims: dims.clone(), epilogue })
    }

    /// Runs the step: its first operands are the prologue's, the rest captures. `inputs` is the number of the first.
    pub fn run(&self, call: &mut Call<'_>, inputs: usize) -> Outcome {
        let views = call.views_from(0)?;
        let (inputs, captures) = views.split_at(inputs);
        let full = broadcast_shape(inputs);
        let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..full.len()).partition(|i| self.dims.contains(i));
        let outer: Extents = kept.iter().map(|&i| full[i]).collect();
        let (rows, len): (usize, usize) = (outer.iter().product(), reduced.iter().map(|&i| full[i]).product());
        let empty = self.kinds.iter().any(|kind| matches!(kind, ReduceKind::Amax | ReduceKind::Amin | ReduceKind::Mean));
        if len == 0 && empty {
            return Ok(Taken::Refused);
        }
        let last_reduced = reduced.last().is_some_and(|&dim| dim + 1 == full.len());
        let along = last_reduced && len >= ALONG;
        let order: Vec<usize> =
            if along { kept.iter().chain(&reduced).copied().collect() } else { reduced.iter().chain(&kept).copied().collect() };
        let sources: Vec<Source<'_>> = inputs.iter().map(|v| Source::new(&v.broadcast(&full).permute(&order))).collect();
        // Captures broadcast against the reduced shape with its dims kept; those of extent 1 then drop out.
        let keep: Extents = (0..full.len()).map(|i| if self.dims.contains(&i) { 1 } else { full[i] }).collect();
        let captures: Vec<Source<'_>> = captures.iter().map(|v| Source::new(&v.broadcast(&keep))).collect();
        let pass = Pass { reduction: self, sources, captures, rows, len };
        let outputs = call.shared();
        let defined = AtomicBool::new(true);
        let chunk = if along { (1 << 15) / len.max(1) } else { rows.div_ceil(4 * rayon::current_num_threads()) };
        let chunk = chunk.clamp(1, BLOCK);
        let task = |start: usize| {
            let count = chunk.min(rows - start);
            let mut values: Vec<Vec<f64>> = vec![vec![0.0; count]; self.kinds.len()];
            let mut ints: Vec<Vec<i64>> = vec![vec![0; count]; self.kinds.len()];
            let done =
                if along { pass.along(start, &mut values, &mut ints) } else { pass.across(start, count, &mut values, &mut ints) };
            let mut registers = self.epilogue.registers();
            for (i, (value, int)) in values.iter().zip(&ints).enumerate() {
                match self.epilogue.param(&mut registers, i, count) {
                    Fill::F32(dst) => dst.iter_mut().zip(value).for_each(|(d, &x)| *d = x as f32),
                    Fill::F64(dst) => dst.copy_from_slice(value),
                    Fill::Int(dst) => dst.copy_from_slice(int),
                }
            }
            for (i, capture) in pass.captures.iter().enumerate() {
                capture.fill(&self.epilogue, &mut registers, self.kinds.len() + i, start, count);
            }
            if !(self.epilogue.run(&mut registers, count) && done) {
                defined.store(false, Ordering::Relaxed);
            }
            for (i, (memory, size)) in outputs.iter().enumerate() {
                // SAFETY: chunks of rows do not overlap.
                self.epilogue.store(&registers, i, unsafe { memory.piece(start * size..(start + count) * size) });
            }
        };
        (0..rows.div_ceil(chunk)).into_par_iter().for_each(|i| task(i * chunk));
        Ok(if defined.into_inner() { Taken::Done } else { Taken::Refused })
    }
}

/// True for a kind that these kernels know; the rest is the reference evaluator's.
pub(super) fn native(kind: ReduceKind) -> bool {
    !matches!(kind, ReduceKind::Argmax | ReduceKind::Argmin)
}

/// The shape that views broadcast to.
pub(super) fn broadcast_shape(views: &[View<'_>]) -> Extents {
    let rank = views.iter().map(|v| v.shape.len()).max().unwrap_or(0);
    (0..rank)
        .map(|i| {
            let extents = views.iter().filter_map(|v| Some(v.shape[(i + v.shape.len()).checked_sub(rank)?]));
            extents.fold(1, |a, b| if a == 1 { b } else { a })
        })
        .collect()
}

struct Pass<'a> {
    reduction: &'a Reduction,
    sources: Vec<Source<'a>>,
    captures: Vec<Source<'a>>,
    rows: usize,
    len: usize,
}

impl Pass<'_> {
    /// Each output by itself, along the reduced elements. Floats are summed in f64.
    fn along(&self, start: usize, values: &mut [Vec<f64>], ints: &mut [Vec<i64>]) -> bool {
        let Reduction { prologue, kinds, .. } = self.reduction;
        let mut registers = prologue.registers();
        let mut defined = true;
        for row in 0..values.first().map_or(0, Vec::len) {
            for (i, &kind) in kinds.iter().enumerate() {
                (values[i][row], ints[i][row]) = identity(kind);
            }
            for at in (0..self.len).step_by(BLOCK) {
                let count = BLOCK.min(self.len - at);
                for (i, source) in self.sources.iter().enumerate() {
                    source.fill(prologue, &mut registers, i, (start + row) * self.len + at, count);
                }
                defined &= prologue.run(&mut registers, count);
                for (i, (&kind, dtype)) in kinds.iter().zip(prologue.results()).enumerate() {
                    match Class::of(dtype) {
                        Some(Class::F32) => {
                            values[i][row] = join(kind, values[i][row], fold(kind, prologue.result::<f32>(&registers, i, count)));
                        }
                        Some(Class::F64) => {
                            values[i][row] = join(kind, values[i][row], fold(kind, prologue.result::<f64>(&registers, i, count)));
                        }
                        _ => {
                            let all = prologue.result::<i64>(&registers, i, count);
                            ints[i][row] = all.iter().fold(ints[i][row], |a, &b| join_int(kind, a, b));
                        }
                    }
                }
            }
        }
        self.finish(values);
        defined
    }

    /// Many outputs at once, across the reduced elements.
    fn across(&self, start: usize, count: usize, values: &mut [Vec<f64>], ints: &mut [Vec<i64>]) -> bool {
        let Reduction { prologue, kinds, .. } = self.reduction;
        let mut registers = prologue.registers();
        let mut defined = true;
        for (i, &kind) in kinds.iter().enumerate() {
            let (value, int) = identity(kind);
            values[i].fill(value);
            ints[i].fill(int);
        }
        for element in 0..self.len {
            for (i, source) in self.sources.iter().enumerate() {
                source.fill(prologue, &mut registers, i, element * self.rows + start, count);
            }
            defined &= prologue.run(&mut registers, count);
            for (i, (&kind, dtype)) in kinds.iter().zip(prologue.results()).enumerate() {
                match Class::of(dtype) {
                    Some(Class::F32) => {
                        let value = prologue.result::<f32>(&registers, i, count);
                        accumulate(kind, &mut values[i], value, f64::from);
                    }
                    Some(Class::F64) => accumulate(kind, &mut values[i], prologue.result::<f64>(&registers, i, count), |x| x),
                    _ => {
                        let value = prologue.result::<i64>(&registers, i, count);
                        ints[i].iter_mut().zip(value).for_each(|(a, &b)| *a = join_int(kind, *a, b));
                    }
                }
            }
        }
        self.finish(values);
        defined
    }

    fn finish(&self, values: &mut [Vec<f64>]) {
        for (value, _) in values.iter_mut().zip(&self.reduction.kinds).filter(|(_, kind)| **kind == ReduceKind::Mean) {
            value.iter_mut().for_each(|x| *x /= self.len as f64);
        }
    }
}

fn accumulate<T: Copy>(kind: ReduceKind, into: &mut [f64], value: &[T], wide: impl Fn(T) -> f64 + Copy) {
    match kind {
        ReduceKind::Sum | ReduceKind::Mean => simd(|| into.iter_mut().zip(value).for_each(|(a, &b)| *a += wide(b))),
        _ => into.iter_mut().zip(value).for_each(|(a, &b)| *a = join(kind, *a, wide(b))),
    }
}

/// What a reduction starts from, as a float and as an integer.
pub(super) fn identity(kind: ReduceKind) -> (f64, i64) {
    match kind {
        ReduceKind::Prod | ReduceKind::All => (1.0, 1),
        ReduceKind::Amax => (f64::NEG_INFINITY, i64::MIN),
        ReduceKind::Amin => (f64::INFINITY, i64::MAX),
        _ => (0.0, 0),
    }
}

/// NaN wins in `amax` and `amin`, as in PyTorch.
pub(super) fn join(kind: ReduceKind, a: f64, b: f64) -> f64 {
    match kind {
        ReduceKind::Prod => a * b,
        ReduceKind::Amax if b.is_nan() || b > a => b,
        ReduceKind::Amin if b.is_nan() || b < a => b,
        ReduceKind::Amax | ReduceKind::Amin => a,
        ReduceKind::Any => f64::from(u8::from(a != 0.0 || b != 0.0)),
        ReduceKind::All => f64::from(u8::from(a != 0.0 && b != 0.0)),
        _ => a + b,
    }
}

pub(super) fn join_int(kind: ReduceKind, a: i64, b: i64) -> i64 {
    match kind {
        ReduceKind::Prod => a.wrapping_mul(b),
        ReduceKind::Amax => a.max(b),
        ReduceKind::Amin => a.min(b),
        ReduceKind::Any => i64::from(a != 0 || b != 0),
        ReduceKind::All => i64::from(a != 0 && b != 0),
        _ => a.wrapping_add(b),
    }
}

/// One block: sums in 16 lanes of f64, so that the loop vectorises and sums of any length are exact to f32.
pub(super) fn fold<T: super::vector::Vector + Into<f64>>(kind: ReduceKind, all: &[T]) -> f64 {
    const LANES: usize = 16;
    match kind {
        ReduceKind::Sum | ReduceKind::Mean => simd(|| {
            let mut lanes = [0.0f64; LANES];
            let chunks = all.chunks_exact(LANES);
            let rest = chunks.remainder().iter().fold(0.0, |a, &b| a + b.into());
            for chunk in chunks {
                lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += x.into());
            }
            lanes.iter().fold(rest, |a, &b| a + b)
        }),
        ReduceKind::Amax | ReduceKind::Amin => simd(|| {
            let larger = kind == ReduceKind::Amax;
            let start = if larger { T::neg_infinity() } else { T::infinity() };
            let pick = |a: T, b: T| if b.is_nan() || (if larger { b > a } else { b < a }) { b } else { a };
            all.iter().fold(start, |a, &b| if a.is_nan() { a } else { pick(a, b) }).into()
        }),
        _ => all.iter().fold(identity(kind).0, |a, &b| join(kind, a, b.into())),
    }
}

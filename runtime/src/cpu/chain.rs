//! Chains of reductions: each line in several passes while it is in the cache.

use super::{
    block::{BLOCK, Block, Fill, Registers},
    call::{Call, Outcome, Source, Taken},
    convert::{Class, Lane},
    reduce::{broadcast_shape, fold, identity, join, join_int, native},
    view::Extents,
};
use eglu_ir::{
    DType, Program,
    ops::{Axes, ReduceChain, ReduceKind},
};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements one task handles.
const TASK: usize = 1 << 14;

/// A program, and which of its parameters it reads.
#[derive(Clone, Debug)]
struct Part {
    block: Block,
    reads: Vec<bool>,
}

/// One pass over a line.
#[derive(Clone, Debug)]
struct Pass {
    prologue: Part,
    kinds: Vec<ReduceKind>,
    epilogue: Part,
}

/// A chain made ready.
#[derive(Clone, Debug)]
pub struct Passes {
    dims: Axes,
    passes: Vec<Pass>,
    kept: Axes,
    end: Part,
    /// Dtypes of what the passes give.
    stats: Vec<DType>,
}

/// What a pass gives a line, as it is stored.
#[derive(Clone, Copy, Debug)]
struct Stat {
    dtype: DType,
    /// The bytes in front are the value's; a word, so that they are aligned.
    word: u64,
}

impl Stat {
    fn bytes(&self) -> &[u8] {
        &bytemuck::bytes_of(&self.word)[..self.dtype.size()]
    }
}

/// What a line's programs read: operands, positions, and what earlier passes gave, as it is stored.
struct Line<'a> {
    elements: &'a [Source<'a>],
    /// Operands of one element for each line, by place.
    lines: &'a [Option<Source<'a>>],
    row: usize,
    len: usize,
    stats: &'a [Stat],
}

impl Part {
    fn new(program: &Program) -> Option<Part> {
        Some(Part { block: Block::new(program)?, reads: program.used() })
    }

    /// Fills the parameters from `first` on for the elements from `at` on; `alone` where only what lines have is read.
    fn fill(&self, registers: &mut Registers, first: usize, line: &Line<'_>, [at, count]: [usize; 2], alone: bool) {
        let (operands, block) = (line.elements.len(), &self.block);
        for (i, param) in (first..self.reads.len()).enumerate().filter(|&(_, param)| self.reads[param]) {
            if i < operands {
                match &line.lines[i] {
                    Some(source) if alone => source.fill(block, registers, param, line.row, count),
                    _ => line.elements[i].fill(block, registers, param, line.row * line.len + at, count),
                }
            } else if i == operands {
                if let Fill::Int(dst) = block.param(registers, param, count) {
                    dst.iter_mut().enumerate().for_each(|(e, slot)| *slot = (at + e) as i64);
                }
            } else {
                let stat = &line.stats[i - operands - 1];
                match block.param(registers, param, count) {
                    Fill::F32(dst) => f32::load(stat.dtype, stat.bytes(), 0, 0, dst),
                    Fill::F64(dst) => f64::load(stat.dtype, stat.bytes(), 0, 0, dst),
                    Fill::Int(dst) => i64::load(stat.dtype, stat.bytes(), 0, 0, dst),
                }
            }
        }
    }
}

impl Passes {
    /// `None` where only the reference evaluator knows a kind or a dtype.
    pub fn new(op: &ReduceChain) -> Option<Passes> {
        let mut kinds = op.kinds.iter().copied();
        let mut passes = Vec::new();
        for (prologue, epilogue) in op.prologues.iter().zip(&op.epilogues) {
            let kinds: Vec<ReduceKind> = kinds.by_ref().take(prologue.results.len()).collect();
            let (prologue, epilogue) = (Part::new(prologue)?, Part::new(epilogue)?);
            let fits = |(i, dtype)| Class::of(dtype) == Some(epilogue.block.param_class(i));
            if !kinds.iter().all(|&kind| native(kind)) || !prologue.block.results().enumerate().all(fits) {
                return None;
            }
            passes.push(Pass { prologue, kinds, epilogue });
        }
        let stats = op.epilogues.iter().flat_map(|epilogue| epilogue.results.iter().map(|&(_, dtype)| dtype)).collect();
        Some(Passes { dims: op.dims.clone(), passes, kept: op.kept.clone(), end: Part::new(&op.end)?, stats })
    }

    /// Runs the step.
    pub fn run(&self, call: &mut Call<'_>) -> Outcome {
        let views = call.views_from(0)?;
        let full = broadcast_shape(&views);
        let inner = full.len() - self.dims.len();
        // Lines of other dims, and of no elements, are rare: the reference evaluator knows them.
        let (rows, len): (usize, usize) = (full[..inner].iter().product(), full[inner..].iter().product());
        if self.dims.iter().any(|&dim| dim < inner) || rows * len == 0 {
            return Ok(Taken::Refused);
        }
        let lines: Extents = (0..full.len()).map(|i| if i < inner { full[i] } else { 1 }).collect();
        let elements: Vec<Source<'_>> = views.iter().map(|view| Source::new(&view.broadcast(&full))).collect();
        let of_lines: Vec<Option<Source<'_>>> = views
            .iter()
            .map(|view| {
                let inside = view.shape.iter().rev().take(self.dims.len());
                inside.into_iter().all(|&extent| extent == 1).then(|| Source::new(&view.broadcast(&lines)))
            })
            .collect();
        let (outputs, defined) = (call.shared(), AtomicBool::new(true));
        let chunk = (TASK / len).max(1);
        (0..rows.div_ceil(chunk)).into_par_iter().for_each(|task| {
            let mut files: Vec<[Registers; 2]> =
                self.passes.iter().map(|pass| [pass.prologue.block.registers(), pass.epilogue.block.registers()]).collect();
            let mut end = self.end.block.registers();
            let mut stats: Vec<Stat> = Vec::with_capacity(self.stats.len());
            for row in task * chunk..rows.min((task + 1) * chunk) {
                stats.clear();
                for (pass, files) in self.passes.iter().zip(&mut files) {
                    let line = Line { elements: &elements, lines: &of_lines, row, len, stats: &stats };
                    let Some(more) = pass.run(files, &line) else { return defined.store(false, Ordering::Relaxed) };
                    stats.extend(more);
                }
                for (&stat, (memory, size)) in self.kept.iter().zip(&outputs) {
                    // SAFETY: lines do not overlap.
                    unsafe { memory.piece(row * size..(row + 1) * size) }.copy_from_slice(stats[stat].bytes());
                }
                let line = Line { elements: &elements, lines: &of_lines, row, len, stats: &stats };
                let ends = &outputs[self.kept.len()..];
                for at in (0..if ends.is_empty() { 0 } else { len }).step_by(BLOCK) {
                    let count = BLOCK.min(len - at);
                    self.end.fill(&mut end, 0, &line, [at, count], false);
                    if !self.end.block.run(&mut end, count) {
                        return defined.store(false, Ordering::Relaxed);
                    }
                    let first = row * len + at;
                    for (i, (memory, size)) in ends.iter().enumerate() {
                        // SAFETY: lines do not overlap.
                        self.end.block.store(&end, i, unsafe { memory.piece(first * size..(first + count) * size) });
                    }
                }
            }
        });
        Ok(if defined.into_inner() { Taken::Done } else { Taken::Refused })
    }
}

impl Pass {
    /// What the pass gives the line; `None` where an integer op has no value.
    fn run(&self, [prologue, epilogue]: &mut [Registers; 2], line: &Line<'_>) -> Option<Vec<Stat>> {
        let block = &self.prologue.block;
        let (mut values, mut ints): (Vec<f64>, Vec<i64>) = self.kinds.iter().map(|&kind| identity(kind)).unzip();
        for at in (0..line.len).step_by(BLOCK) {
            let count = BLOCK.min(line.len - at);
            self.prologue.fill(prologue, 0, line, [at, count], false);
            if !block.run(prologue, count) {
                return None;
            }
            for (i, (&kind, dtype)) in self.kinds.iter().zip(block.results()).enumerate() {
                match Class::of(dtype) {
                    Some(Class::F32) => values[i] = join(kind, values[i], fold(kind, block.result::<f32>(prologue, i, count))),
                    Some(Class::F64) => values[i] = join(kind, values[i], fold(kind, block.result::<f64>(prologue, i, count))),
                    _ => {
                        let all = block.result::<i64>(prologue, i, count);
                        ints[i] = all.iter().fold(ints[i], |a, &b| join_int(kind, a, b));
                    }
                }
            }
        }
        for (i, &kind) in self.kinds.iter().enumerate() {
            let value = if kind == ReduceKind::Mean { values[i] / line.len as f64 } else { values[i] };
            match self.epilogue.block.param(epilogue, i, 1) {
                Fill::F32(dst) => dst[0] = value as f32,
                Fill::F64(dst) => dst[0] = value,
                Fill::Int(dst) => dst[0] = ints[i],
            }
        }
        self.epilogue.fill(epilogue, self.kinds.len(), line, [0, 1], true);
        if !self.epilogue.block.run(epilogue, 1) {
            return None;
        }
        let given = self.epilogue.block.results().enumerate().map(|(i, dtype)| {
            let mut word = 0u64;
            self.epilogue.block.store(epilogue, i, &mut bytemuck::bytes_of_mut(&mut word)[..dtype.size()]);
            Stat { dtype, word }
        });
        Some(given.collect())
    }
}

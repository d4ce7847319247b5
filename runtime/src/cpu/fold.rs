//! Reductions behind a product: values that its epilogue made, over neighbouring columns or over all rows.

use super::{
    block::{BLOCK, Block, Fill},
    matrix::Number,
    scratch::{Loan, Scratch},
    shared::Shared,
};
use eglu_ir::{DType, Program, ops::ReduceKind};
use rayon::prelude::*;
use std::ops::Range;

/// One reduction made ready.
#[derive(Clone, Debug)]
pub struct Fold {
    kind: ReduceKind,
    /// Neighbouring columns that become one value; 0 for all rows.
    group: usize,
    /// The dtype of the values.
    wide: DType,
    /// Rounds a reduced value to the dtype that it is stored in.
    round: Block,
}

impl Fold {
    /// `None` for what is no reduction of floats.
    pub fn new(kind: ReduceKind, group: usize, stored: DType) -> Option<Fold> {
        let round = Block::new(&Program::identity(stored.opmath(), stored))?;
        let known = matches!(kind, ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax | ReduceKind::Amin);
        (known && stored.is_float()).then_some(Fold { kind, group, wide: stored.opmath(), round })
    }

    /// Memory for the values.
    pub fn lend<'a>(&self, scratch: &'a Scratch, len: usize) -> Loan<'a> {
        if self.wide == DType::F64 { scratch.lend::<f64>(len) } else { scratch.lend::<f32>(len) }
    }

    /// The same, to be written by tasks, with the bytes of a value.
    pub fn values<'a>(&self, loan: &'a mut Loan<'_>, len: usize) -> (Shared<'a>, usize) {
        match self.wide {
            DType::F64 => (Shared::new(bytemuck::cast_slice_mut(loan.get::<f64>(len))), 8),
            _ => (Shared::new(bytemuck::cast_slice_mut(loan.get::<f32>(len))), 4),
        }
    }

    /// Reduces `[rows, columns]` values to elements of `size` bytes.
    pub fn reduce(&self, loan: &mut Loan<'_>, extents: [usize; 2], out: Shared<'_>, size: usize) {
        let len = extents[0] * extents[1];
        match self.wide {
            DType::F64 => self.reduce_in(&*loan.get::<f64>(len), extents, out, size),
            _ => self.reduce_in(&*loan.get::<f32>(len), extents, out, size),
        }
    }

    fn reduce_in<T: Number + Into<f64>>(&self, values: &[T], [rows, columns]: [usize; 2], out: Shared<'_>, size: usize) {
        let count = columns.checked_div(self.group).map_or(columns, |groups| rows * groups);
        let ranges: Vec<Range<usize>> = (0..count).step_by(BLOCK).map(|start| start..count.min(start + BLOCK)).collect();
        ranges.into_par_iter().for_each(|range| {
            let mut states = vec![self.start(); range.len()];
            if self.group > 0 {
                let lines = values[range.start * self.group..range.end * self.group].chunks_exact(self.group);
                for (state, line) in states.iter_mut().zip(lines) {
                    line.iter().for_each(|&x| self.add(state, x.into()));
                }
            } else {
                for line in values.chunks_exact(columns.max(1)) {
                    states.iter_mut().zip(&line[range.clone()]).for_each(|(state, &x)| self.add(state, x.into()));
                }
            }
            let each = if self.group > 0 { self.group } else { rows };
            if self.kind == ReduceKind::Mean {
                states.iter_mut().for_each(|state| *state /= each as f64);
            }
            let mut registers = self.round.registers();
            match self.round.param(&mut registers, 0, range.len()) {
                Fill::F32(to) => to.iter_mut().zip(&states).for_each(|(to, &state)| *to = state as f32),
                Fill::F64(to) => to.copy_from_slice(&states),
                Fill::Int(_) => unreachable!("reductions are of floats: checked when the step was loaded"),
            }
            let _defined = self.round.run(&mut registers, range.len());
            // SAFETY: ranges are disjoint.
            self.round.store(&registers, 0, unsafe { out.piece(range.start * size..range.end * size) });
        });
    }

    fn start(&self) -> f64 {
        match self.kind {
            ReduceKind::Amax => f64::NEG_INFINITY,
            ReduceKind::Amin => f64::INFINITY,
            _ => 0.0,
        }
    }

    /// NaN wins over every number.
    fn add(&self, state: &mut f64, x: f64) {
        match self.kind {
            ReduceKind::Amax if x > *state || x.is_nan() => *state = x,
            ReduceKind::Amin if x < *state || x.is_nan() => *state = x,
            ReduceKind::Amax | ReduceKind::Amin => {}
            _ => *state += x,
        }
    }
}

//! Where everything lies that a run touches: in the arena, in memory that stays, or in what the caller lends.

use super::{CudaError, bound::eval};
use crate::memory::{self, MemoryPlan};
use eglu_codegen::{BufferId, Source, cuda::CudaPlan};
use eglu_ir::Bindings;

/// What of a plan decides where its buffers lie, the same for every choice of dims.
pub(super) struct Layout {
    /// The buffers that the plan's outputs view and its steps write, each once, in the outputs' order.
    pub(super) results: Vec<BufferId>,
    /// For each buffer the one whose place it takes over; most keep their own.
    shares: Vec<BufferId>,
}

/// What an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// Nothing.
    Fixed,
    /// The start of the arena (0), of a lent input, or of lent memory for results: a position in the list that
    /// [`Layout::bases`] counts.
    At(usize),
}

impl Layout {
    pub(super) fn of(plan: &CudaPlan) -> Layout {
        let plan = &plan.plan;
        let mut results = vec![];
        for output in &plan.outputs {
            let id = output.tensor.buffer;
            if plan.buffers[id].source == Source::Step && !results.contains(&id) {
                results.push(id);
            }
        }
        Layout { results, shares: memory::in_place(plan) }
    }

    /// How many bases there are: the arena, inputs, blocks of results.
    pub(super) fn bases(&self, plan: &CudaPlan) -> usize {
        1 + plan.plan.inputs.len() + self.results.len()
    }

    /// The base of a buffer that is neither weight nor constant. Inputs and results are `lent`, or have their place in the arena.
    pub(super) fn base(&self, plan: &CudaPlan, id: BufferId, lent: bool) -> Base {
        let result = || self.results.iter().position(|&result| result == id);
        match plan.plan.buffers[id].source {
            Source::Input(i) if lent => Base::At(1 + i),
            Source::Step if lent => Base::At(result().map_or(0, |block| 1 + plan.plan.inputs.len() + block)),
            _ => Base::At(0),
        }
    }

    /// Places intermediate values and scratch in one arena, and inputs and results that are not `lent`. Also the bytes of each buffer, then of each scratch.
    pub(super) fn place(&self, plan: &CudaPlan, bindings: &Bindings, lent: bool) -> Result<(MemoryPlan, Vec<u64>), CudaError> {
        let mut lives = plan.plan.lifetimes();
        let mut bytes = vec![];
        for (id, (buffer, life)) in plan.plan.buffers.iter().zip(&mut lives).enumerate() {
            let numel = eval(&buffer.numel, bindings, || buffer.name.to_string())?;
            bytes.push(size(plan, &buffer.name, numel, buffer.dtype.size() as i64)?);
            match buffer.source {
                // To the end, so that the same inputs can be run again.
                Source::Input(_) => *life = life.map(|_| (0, plan.plan.steps.len())),
                Source::Weight(_) | Source::Constant(_) => *life = None,
                Source::Step => {}
            }
            if self.base(plan, id, lent) != Base::At(0) {
                *life = None;
            }
        }
        for scratch in &plan.scratch {
            bytes.push(size(plan, &scratch.name, eval(&scratch.bytes, bindings, || scratch.name.clone())?, 1)?);
            lives.push(Some((scratch.step, scratch.last)));
        }
        Ok((memory::plan_sharing(&lives, &bytes, &self.shares), bytes))
    }
}

fn size(plan: &CudaPlan, name: &str, count: i64, each: i64) -> Result<u64, CudaError> {
    let bytes = count.checked_mul(each).filter(|bytes| (0..1 << 48).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| CudaError::TooLarge { plan: plan.plan.name.clone(), name: name.into() })
}

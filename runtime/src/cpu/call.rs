//! What a kernel is given: views to read, dense outputs to write.

use super::{
    block::{Block, Fill, Registers},
    convert::Lane,
    scratch::Scratch,
    shared::Shared,
    view::{Extents, Runs, View},
};
use crate::RuntimeError;
use eglu_codegen::Step;
use eglu_ir::{DType, Scalar};

/// What a step reads.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Operand<'a> {
    Tensor(View<'a>),
    Scalar(Scalar),
    None,
}

/// Where a result goes: dense memory.
pub struct Out<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Extents,
    /// Its memory.
    pub bytes: &'a mut [u8],
}

impl Out<'_> {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One step with its operands in place.
pub struct Call<'a> {
    /// The step.
    pub step: &'a Step,
    /// Operands in the op's order.
    pub operands: Vec<Operand<'a>>,
    /// Results in order.
    pub outputs: Vec<Out<'a>>,
    /// Memory for the kernel's own use.
    pub scratch: &'a Scratch,
}

/// How a kernel took a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The outputs are written.
    Done,
    /// The kernel does not cover these operands; the reference evaluator must run the step, or report what is wrong with it.
    Refused,
}

/// What kernels return.
pub type Outcome = Result<Taken, RuntimeError>;

impl<'a> Call<'a> {
    /// The tensor operand at `i`; the plan's inference has checked that it is one.
    pub fn view(&self, i: usize) -> Result<&View<'a>, RuntimeError> {
        match self.operands.get(i) {
            Some(Operand::Tensor(view)) => Ok(view),
            _ => Err(self.error(format!("operand {i} must be a tensor"))),
        }
    }

    /// The tensor operand at `i`, if one is given.
    pub fn optional(&self, i: usize) -> Option<&View<'a>> {
        match self.operands.get(i) {
            Some(Operand::Tensor(view)) => Some(view),
            _ => None,
        }
    }

    /// The tensor operands from `i` on.
    pub fn views_from(&self, i: usize) -> Result<Vec<View<'a>>, RuntimeError> {
        (i..self.operands.len()).map(|i| self.view(i).cloned()).collect()
    }

    /// An error of this step.
    pub fn error(&self, why: impl Into<String>) -> RuntimeError {
        RuntimeError::Step { step: self.step.name.clone(), op: self.step.op.name(), why: why.into() }
    }

    /// The outputs, lent to parallel tasks.
    pub fn shared(&mut self) -> Vec<(Shared<'_>, usize)> {
        self.outputs.iter_mut().map(|out| (Shared::new(out.bytes), out.dtype.size())).collect()
    }
}

/// A view read block by block in row-major order.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    dtype: DType,
    bytes: &'a [u8],
    runs: Runs,
}

impl<'a> Source<'a> {
    /// The elements of a view.
    pub fn new(view: &View<'a>) -> Source<'a> {
        Source { dtype: view.dtype, bytes: view.bytes, runs: view.runs() }
    }

    /// Reads `dst.len()` elements from element `start`.
    pub fn read<T: Lane>(&self, start: usize, dst: &mut [T]) {
        self.runs.each(start, dst.len(), |position, offset, stride, len| {
            T::load(self.dtype, self.bytes, offset, stride, &mut dst[position..position + len]);
        });
    }

    /// Fills a parameter of a block with `len` elements from element `start`.
    pub fn fill(&self, block: &Block, registers: &mut Registers, param: usize, start: usize, len: usize) {
        match block.param(registers, param, len) {
            Fill::F32(dst) => self.read(start, dst),
            Fill::F64(dst) => self.read(start, dst),
            Fill::Int(dst) => self.read(start, dst),
        }
    }
}

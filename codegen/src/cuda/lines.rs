//! Kernels that work along one dim: how a line starts and steps in each operand.

use super::{
    error::Emit,
    kernel::{Kernel, without},
    loops::Loop,
};
use crate::TensorRef;
use eglu_ir::{Dim, types::numel};

/// The lines of several operands of one shape along `dim`.
pub(super) struct Lines {
    /// Extent of the dim.
    pub length: Dim,
    /// Number of lines.
    pub count: Dim,
    /// Each operand's stride along the dim.
    steps: Vec<Dim>,
    outer: Loop,
}

impl Lines {
    /// Operands may differ in their extent along `dim`; the first gives the length.
    pub fn new(operands: &[&TensorRef], dim: usize) -> Lines {
        let shape = &operands[0].layout.shape;
        let strides: Vec<Vec<Dim>> = operands.iter().map(|t| without(&t.layout.strides, &[dim])).collect();
        let outer = Loop::new(&without(shape, &[dim]), &strides);
        Lines {
            length: shape[dim].clone(),
            count: numel(&outer.shape),
            steps: operands.iter().map(|t| t.layout.strides[dim].clone()).collect(),
            outer,
        }
    }

    /// Statements that set `b0`, `b1`, … to where line `line` starts in each operand.
    pub fn starts(&self, kernel: &mut Kernel) -> Emit<String> {
        let (mut text, names) = kernel.split("line", "i", &self.outer.shape);
        for (i, strides) in self.outer.strides.iter().enumerate() {
            text += &format!("const i64 b{i} = {};\n", kernel.offset(&names, strides));
        }
        Ok(text)
    }

    /// The element of operand `operand` (pointer `pointer`) at position `at` of the line.
    pub fn element(&self, kernel: &mut Kernel, operand: usize, pointer: &str, at: &str) -> String {
        format!("{pointer}[b{operand} + {}]", kernel.offset(&[at.to_string()], &self.steps[operand..=operand]))
    }
}

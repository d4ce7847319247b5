//! What becomes of the accumulators of products: a program whose results are stored, some of them together, or reduced.

use super::{EvalError, program::run, reduce::fold_accumulators, values::Values};
use crate::{
    Program, Tensor,
    ops::{Axes, Contract, ExpertContract, ReduceKind},
};

/// A program behind products, with what becomes of its results.
pub(super) struct Epilogue<'a> {
    program: &'a Program,
    packed: usize,
    interleaved: bool,
    folds: &'a [ReduceKind],
    groups: &'a Axes,
}

impl<'a> From<&'a Contract> for Epilogue<'a> {
    fn from(op: &'a Contract) -> Epilogue<'a> {
        let Contract { packed, interleaved, folds, groups, program, .. } = op;
        Epilogue { program, packed: *packed, interleaved: *interleaved, folds, groups }
    }
}

impl<'a> From<&'a ExpertContract> for Epilogue<'a> {
    fn from(op: &'a ExpertContract) -> Epilogue<'a> {
        let ExpertContract { packed, interleaved, folds, groups, program, .. } = op;
        Epilogue { program, packed: *packed, interleaved: *interleaved, folds, groups }
    }
}

impl Epilogue<'_> {
    /// The outputs, of these shapes, for accumulators and captures of the products' shape.
    pub fn run(&self, params: &[Values<'_>], shape: &[usize], outputs: &[Vec<usize>]) -> Result<Vec<Tensor>, EvalError> {
        let mut program = self.program.clone();
        let first_folded = program.results.len() - self.folds.len();
        // What is reduced is not rounded before.
        program.results[first_folded..].iter_mut().for_each(|(_, dtype)| *dtype = dtype.opmath());
        let mut results = run(&program, params, shape)?;
        let folded = results.split_off(first_folded);
        let apart = results.split_off(self.packed);
        let together = if results.is_empty() { None } else { Some(packed(&results, self.interleaved)?) };
        let mut made: Vec<Tensor> = together.into_iter().chain(apart).collect();
        for (i, values) in folded.iter().enumerate() {
            let (dtype, shape) = (self.program.results[first_folded + i].1, &outputs[made.len()]);
            made.push(fold_accumulators(self.folds[i], self.groups[i], values, dtype, shape)?);
        }
        Ok(made)
    }
}

/// Results of one shape as one tensor, side by side along the last dim or column by column.
fn packed(results: &[Tensor], interleaved: bool) -> Result<Tensor, EvalError> {
    let (first, count) = (&results[0], results.len());
    let (dtype, columns) = (first.dtype(), first.shape().last().copied().unwrap_or(1));
    let (size, rows) = (dtype.size(), first.numel() / columns.max(1));
    let mut bytes = Vec::with_capacity(rows * columns * count * size);
    for row in 0..rows {
        if interleaved {
            for column in row * columns..(row + 1) * columns {
                results.iter().for_each(|result| bytes.extend_from_slice(&result.bytes()[column * size..][..size]));
            }
        } else {
            results.iter().for_each(|result| bytes.extend_from_slice(&result.bytes()[row * columns * size..][..columns * size]));
        }
    }
    let mut shape = first.shape().to_vec();
    shape.last_mut().into_iter().for_each(|last| *last *= count);
    Ok(Tensor::from_bytes(dtype, &shape, &bytes)?)
}

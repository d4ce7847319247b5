//! Chains of reductions.

use super::{
    Call, EvalError,
    program::{run, unrounded},
    reduce::{Groups, fold_values},
    strides::broadcast_shape,
    values::Values,
};
use crate::{DType, Program, Tensor, ops::ReduceChain};

/// What a program reads of its parameters, at every element of `shape`; parameters that it does not read are one number.
fn params<'a>(program: &Program, from: usize, tensors: &[&'a Tensor], shape: &[usize]) -> Vec<Values<'a>> {
    let (used, len) = (program.used(), shape.iter().product());
    let value = |(i, x): (usize, &&'a Tensor)| match used.get(from + i) {
        Some(true) => Values::load(x).broadcast(x.shape(), shape),
        _ => Values::splat(crate::Scalar::Int(0), x.dtype(), len),
    };
    tensors.iter().enumerate().map(value).collect()
}

/// Each element's position in its line.
fn positions(full: &[usize], dims: &[usize]) -> Result<Tensor, EvalError> {
    let groups = Groups::new(full, dims);
    let mut positions = vec![0i32; full.iter().product()];
    for base in &groups.bases {
        for (position, at) in groups.members.iter().enumerate() {
            positions[base + at] = position as i32;
        }
    }
    Ok(Tensor::from_slice(DType::I32, full, &positions)?)
}

pub(super) fn reduce_chain(op: &ReduceChain, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let operands = call.tensors(0..call.count())?;
    let full = broadcast_shape(&operands);
    let lines: Vec<usize> = (0..full.len()).map(|i| if op.dims.contains(&i) { 1 } else { full[i] }).collect();
    let (len, groups, position) = (full.iter().product(), Groups::new(&full, &op.dims), positions(&full, &op.dims)?);
    let mut stats: Vec<Tensor> = Vec::new();
    let mut kinds = op.kinds.iter();
    for (prologue, epilogue) in op.prologues.iter().zip(&op.epilogues) {
        let known: Vec<&Tensor> = operands.iter().copied().chain([&position]).chain(&stats).collect();
        let values = unrounded(prologue, &params(prologue, 0, &known, &full), len)?;
        let mut given = Vec::with_capacity(epilogue.params.len());
        for (i, (values, &kind)) in values.iter().zip(kinds.by_ref()).enumerate() {
            let (folded, from) = fold_values(kind, &groups, values, prologue.results[i].1)?;
            given.push(folded.converted(from, epilogue.params[i]));
        }
        given.extend(params(epilogue, given.len(), &known, &lines));
        let more = run(epilogue, &given, &lines)?;
        stats.extend(more);
    }
    let known: Vec<&Tensor> = operands.iter().copied().chain([&position]).chain(&stats).collect();
    let ends = run(&op.end, &params(&op.end, 0, &known, &full), &full)?;
    Ok(op.kept.iter().map(|&i| stats[i].clone()).chain(ends).collect())
}

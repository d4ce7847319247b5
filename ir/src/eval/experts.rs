//! Products by expert beyond the plain one.

use super::{
    Call, EvalError,
    element::decode,
    matmul::{Experts, Matrix, Multiply, experts_of},
    program::run,
    values::{Column, Values, with_work},
};
use crate::{
    Tensor,
    ops::{ExpertContract, ExpertOuter},
};

/// The rows of `x`, `width` wide, that rows of a repeated tensor are.
fn repeated<W: Column>(x: &[W], width: usize, repeat: usize, rows: &[usize]) -> Vec<W> {
    rows.iter().flat_map(|&s| &x[s / repeat * width..][..width]).copied().collect()
}

pub(super) fn expert_outer(op: &ExpertOuter, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (a, b, ids) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (n, k, experts) = (a.shape()[1], b.shape()[1], call.shape()[0]);
    let chosen = experts_of(ids, experts)?;
    let dtype = a.dtype();
    with_work!(dtype, W => {
        let (a, b) = (decode::<W>(a), decode::<W>(b));
        let mut out = vec![W::default(); experts * n * k];
        for (expert, sum) in out.chunks_exact_mut((n * k).max(1)).enumerate() {
            let rows: Vec<usize> = (0..chosen.len()).filter(|&s| chosen[s] == Some(expert)).collect();
            let (left, right) = (repeated(&a, n, op.a_repeat, &rows), repeated(&b, k, op.b_repeat, &rows));
            let left = Matrix { data: &left, rows: n, cols: rows.len(), transposed: true };
            W::multiply(sum, left, Matrix { data: &right, rows: rows.len(), cols: k, transposed: false }, k);
        }
        W::values(out).store(dtype.opmath(), op.dtype, call.shape())
    })
}

pub(super) fn expert_contract(op: &ExpertContract, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let (x, ids) = (call.tensor(0)?, call.tensor(1)?);
    let (weights, captures) = (call.tensors(2..2 + op.lanes)?, call.tensors(2 + op.lanes..call.count())?);
    let &[experts, outputs, inputs] = weights[0].shape() else { return Err(EvalError::Data("w must have 3 dims".into())) };
    let chosen = experts_of(ids, experts)?;
    let shape = [chosen.len(), outputs];
    let all: Vec<usize> = (0..chosen.len()).collect();
    let mut params = Vec::with_capacity(op.program.params.len());
    for w in weights {
        params.push(with_work!(x.dtype(), W => {
            let (rows, weight) = (repeated(&decode::<W>(x), inputs, op.repeat, &all), decode::<W>(w));
            W::values(Experts { weight: &weight, bias: None, experts, outputs, inputs, lanes: 1 }.apply(&rows, &chosen))
        }));
    }
    let (tables, broadcast) = captures.split_at(op.tables);
    for table in tables {
        params.push(with_work!(table.dtype(), W => {
            let table = decode::<W>(table);
            let row = |e: &Option<usize>| e.map_or_else(|| vec![W::default(); outputs], |e| table[e * outputs..][..outputs].to_vec());
            W::values(chosen.iter().flat_map(row).collect())
        }));
    }
    for capture in broadcast {
        params.push(Values::load(capture).broadcast(capture.shape(), &shape));
    }
    let mut results = run(&op.program, &params, &shape)?;
    let apart = results.split_off(op.packed);
    let together = if results.is_empty() { None } else { Some(packed(&results, shape, op.interleaved)?) };
    Ok(together.into_iter().chain(apart).collect())
}

/// Results of one shape as one tensor, side by side or column by column.
fn packed(results: &[Tensor], [rows, columns]: [usize; 2], interleaved: bool) -> Result<Tensor, EvalError> {
    let (dtype, count) = (results[0].dtype(), results.len());
    let (size, mut bytes) = (dtype.size(), Vec::with_capacity(rows * columns * count * dtype.size()));
    for row in 0..rows {
        if interleaved {
            for column in row * columns..(row + 1) * columns {
                results.iter().for_each(|result| bytes.extend_from_slice(&result.bytes()[column * size..][..size]));
            }
        } else {
            results.iter().for_each(|result| bytes.extend_from_slice(&result.bytes()[row * columns * size..][..columns * size]));
        }
    }
    Ok(Tensor::from_bytes(dtype, &[rows, columns * count], &bytes)?)
}

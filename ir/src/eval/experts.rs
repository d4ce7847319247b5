//! Products by expert beyond the plain one.

use super::{
    Call, EvalError,
    element::decode,
    epilogue::Epilogue,
    matmul::{Experts, Matrix, Multiply, experts_of},
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
    let sums = with_work!(dtype, W => {
        let (a, b) = (decode::<W>(a), decode::<W>(b));
        let mut out = vec![W::default(); experts * n * k];
        for (expert, sum) in out.chunks_exact_mut((n * k).max(1)).enumerate() {
            let rows: Vec<usize> = (0..chosen.len()).filter(|&s| chosen[s] == Some(expert)).collect();
            let (left, right) = (repeated(&a, n, op.a_repeat, &rows), repeated(&b, k, op.b_repeat, &rows));
            let left = Matrix { data: &left, rows: n, cols: rows.len(), transposed: true };
            W::multiply(sum, left, Matrix { data: &right, rows: rows.len(), cols: k, transposed: false }, k);
        }
        W::values(out).store(dtype.opmath(), op.dtype, call.shape())
    })?;
    let Some(onto) = call.optional(3) else { return Ok(sums) };
    with_work!(op.dtype, W => {
        let (onto, sums) = (decode::<W>(onto), decode::<W>(&sums));
        W::values(onto.iter().zip(sums.iter()).map(|(&onto, &sum)| onto + sum).collect()).store(op.dtype.opmath(), op.dtype, call.shape())
    })
}

pub(super) fn expert_contract(op: &ExpertContract, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let (x, ids) = (call.tensor(0)?, call.tensor(1)?);
    let (weights, captures) = (call.tensors(2..2 + op.lanes)?, call.tensors(2 + op.lanes..call.count())?);
    let &[experts, outputs, inputs] = weights[0].shape() else { return Err(EvalError::Data("w must have 3 dims".into())) };
    let chosen = if op.grouped { experts_by_ends(&decode::<i64>(ids), x.shape()[0])? } else { experts_of(ids, experts)? };
    let shape = [chosen.len(), outputs];
    let all: Vec<usize> = (0..chosen.len()).collect();
    let mut params = Vec::with_capacity(op.program.params.len());
    for w in weights {
        params.push(with_work!(x.dtype(), W => {
            let (rows, weight) = (repeated(&decode::<W>(x), inputs, op.repeat, &all), decode::<W>(w));
            W::values(Experts { weight: &weight, bias: None, experts, outputs, inputs, lanes: op.lanes }.apply(&rows, &chosen))
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
    Epilogue::from(op).run(&params, &shape, call.shapes)
}

/// The expert of each row where expert e's rows end at `ends[e]`.
fn experts_by_ends(ends: &[i64], rows: usize) -> Result<Vec<Option<usize>>, EvalError> {
    let mut experts = Vec::with_capacity(rows);
    for (expert, &end) in ends.iter().enumerate() {
        let fits = usize::try_from(end).ok().filter(|&end| end >= experts.len() && end <= rows);
        let end = fits.ok_or_else(|| {
            let start = experts.len();
            EvalError::Data(format!(
                "expert_contract: offset {expert} is {end}, but offsets must ascend from {start} and end within the {rows} rows"
            ))
        })?;
        experts.resize(end, Some(expert));
    }
    experts.resize(rows, None);
    Ok(experts)
}

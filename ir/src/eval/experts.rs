//! Products by expert beyond the plain one.

use super::{
    Call, EvalError,
    element::decode,
    matmul::{Matrix, Multiply, experts_of},
    values::{Column, with_work},
};
use crate::{Tensor, ops::ExpertOuter};

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

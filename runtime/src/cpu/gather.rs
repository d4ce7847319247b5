//! Whole slices picked by one index tensor.

use super::{
    call::{Call, Outcome, Taken},
    experts::read_ids,
};
use eglu_ir::ops::Axes;
use rayon::prelude::*;

/// `x[…, index, …]` for one indexed dim, where what follows that dim is dense in memory.
pub fn index(call: &mut Call<'_>, axes: &Axes) -> Outcome {
    let ([axis], true) = (&axes[..], call.operands.len() == 2) else { return Ok(Taken::Refused) };
    let (x, picks) = (call.view(0)?.clone(), read_ids(call.view(1)?));
    let (outer, extent) = (&x.shape[..*axis], x.shape[*axis]);
    let mut slice = x.clone();
    slice.shape.drain(..=axis);
    slice.strides.drain(..=axis);
    // Negative indices count from the end; what is out of range, the reference evaluator reports.
    let picks: Option<Vec<usize>> = picks
        .iter()
        .map(|&i| if i < 0 { i + extent as i64 } else { i })
        .map(|i| usize::try_from(i).ok().filter(|&i| i < extent))
        .collect();
    let Some(picks) = picks else { return Ok(Taken::Refused) };
    // Where there is nothing to pick from, a slice lies outside of the buffer.
    if call.outputs[0].bytes.is_empty() {
        return Ok(Taken::Done);
    }
    let Some(dense) = slice.as_dense_bytes() else { return Ok(Taken::Refused) };
    let (len, size) = (dense.len(), x.dtype.size());
    let copy = |(i, to): (usize, &mut [u8])| {
        let mut at = x.offset + picks[i % picks.len()] * x.strides[*axis];
        let mut rest = i / picks.len();
        for dim in (0..outer.len()).rev() {
            at += rest % outer[dim] * x.strides[dim];
            rest /= outer[dim];
        }
        to.copy_from_slice(&x.bytes[at * size..at * size + len]);
    };
    let rows = (1usize << 16).div_ceil(len);
    call.outputs[0].bytes.par_chunks_mut(len).enumerate().with_min_len(rows).for_each(copy);
    Ok(Taken::Done)
}

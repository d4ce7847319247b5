//! Strided copies of any dtype, and joins.

use super::{
    call::{Call, Outcome, Taken},
    shared::Shared,
    view::{Runs, View},
};
use rayon::prelude::*;

/// Elements one task copies.
const TASK: usize = 1 << 15;

/// Writes the view's elements, row-major, to `bytes`.
pub fn densify(view: &View<'_>, bytes: &mut [u8]) {
    let (numel, size) = (view.numel(), view.dtype.size());
    if let Some(dense) = view.as_dense_bytes() {
        let chunk = TASK * size;
        return bytes.par_chunks_mut(chunk).zip(dense.par_chunks(chunk)).for_each(|(to, from)| to.copy_from_slice(from));
    }
    let runs = view.runs();
    bytes[..numel * size].par_chunks_mut(TASK * size).enumerate().for_each(|(task, to)| range(view, &runs, task * TASK, to));
}

/// Tensors joined along a dim.
pub fn cat(call: &mut Call<'_>, dim: usize) -> Outcome {
    let parts = call.views_from(0)?;
    let out = &mut call.outputs[0];
    let size = out.dtype.size();
    let outer: usize = out.shape[..dim].iter().product();
    let row = out.shape[dim..].iter().product::<usize>() * size;
    let memory = Shared::new(out.bytes);
    let mut start = 0;
    for part in &parts {
        let (runs, len) = (part.runs(), part.shape[dim..].iter().product::<usize>());
        let at = start;
        (0..outer).into_par_iter().with_min_len(TASK.div_ceil(len.max(1))).for_each(|i| {
            // SAFETY: parts and rows do not overlap.
            let to = unsafe { memory.piece(i * row + at..i * row + at + len * size) };
            range(part, &runs, i * len, to);
        });
        start += len * size;
    }
    Ok(Taken::Done)
}

/// Writes elements from `start` on, as many as fit `to`.
fn range(view: &View<'_>, runs: &Runs, start: usize, to: &mut [u8]) {
    match view.dtype.size() {
        1 => typed_range::<u8>(view, runs, start, to),
        2 => typed_range::<u16>(view, runs, start, to),
        4 => typed_range::<u32>(view, runs, start, to),
        8 => typed_range::<u64>(view, runs, start, to),
        _ => typed_range::<[u64; 2]>(view, runs, start, to),
    }
}

fn typed_range<T: bytemuck::Pod>(view: &View<'_>, runs: &Runs, start: usize, to: &mut [u8]) {
    let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(view.bytes), bytemuck::cast_slice_mut(to));
    runs.each(start, to.len(), |position, offset, stride, len| {
        let to = &mut to[position..position + len];
        match stride {
            1 => to.copy_from_slice(&from[offset..offset + len]),
            0 => to.fill(from[offset]),
            _ => to.iter_mut().zip(from[offset..].iter().step_by(stride)).for_each(|(d, &x)| *d = x),
        }
    });
}

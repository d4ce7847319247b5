//! Strided copies of any dtype.

use super::{shared::Shared, view::View};
use rayon::prelude::*;

/// Elements one task copies.
const TASK: usize = 1 << 15;

/// Writes the view's elements, row-major, to `bytes`.
pub fn densify(view: &View<'_>, bytes: &mut [u8]) {
    let numel = view.numel();
    if let Some(dense) = view.as_dense_bytes() {
        let chunk = TASK * view.dtype.size();
        return bytes.par_chunks_mut(chunk).zip(dense.par_chunks(chunk)).for_each(|(to, from)| to.copy_from_slice(from));
    }
    match view.dtype.size() {
        1 => strided::<u8>(view, bytes, numel),
        2 => strided::<u16>(view, bytes, numel),
        4 => strided::<u32>(view, bytes, numel),
        8 => strided::<u64>(view, bytes, numel),
        _ => strided::<[u64; 2]>(view, bytes, numel),
    }
}

fn strided<T: bytemuck::Pod + Send + Sync>(view: &View<'_>, bytes: &mut [u8], numel: usize) {
    let from: &[T] = bytemuck::cast_slice(view.bytes);
    let (runs, size) = (view.runs(), size_of::<T>());
    let memory = Shared::new(&mut bytes[..numel * size]);
    (0..numel.div_ceil(TASK)).into_par_iter().for_each(|task| {
        let (start, len) = (task * TASK, TASK.min(numel - task * TASK));
        // SAFETY: tasks do not overlap.
        let to: &mut [T] = bytemuck::cast_slice_mut(unsafe { memory.piece(start * size..(start + len) * size) });
        runs.each(start, len, |position, offset, stride, len| {
            let to = &mut to[position..position + len];
            match stride {
                1 => to.copy_from_slice(&from[offset..offset + len]),
                0 => to.fill(from[offset]),
                _ => to.iter_mut().zip(from[offset..].iter().step_by(stride)).for_each(|(d, &x)| *d = x),
            }
        });
    });
}

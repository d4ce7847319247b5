//! What happens to a block of accumulators while it is hot.

use super::{
    block::{BLOCK, Block, Fill},
    call::Source,
    matrix::Number,
    shared::Shared,
};
use std::ops::Range;

/// A program over accumulators and captures.
pub struct Epilogue<'a> {
    /// Its first parameters are the lanes' accumulators, then captures.
    pub block: &'a Block,
    /// Captures, broadcast to the output's shape.
    pub captures: Vec<Source<'a>>,
    /// Where each result goes, with its element size.
    pub outputs: Vec<(Shared<'a>, usize)>,
}

/// One lane's accumulators: a row-major block, and a bias added to each of its rows.
pub struct Lane<'a, T> {
    /// The block.
    pub tile: &'a [T],
    /// One number for each column.
    pub bias: Option<&'a [T]>,
}

impl Epilogue<'_> {
    /// Applies the program to accumulators of class `T` and writes its results. Row r of the block is elements `at(r) .. at(r) + cols` of
    /// the output; false where an integer op has no value.
    ///
    /// # Safety
    /// No other task may write these elements.
    pub unsafe fn apply<T: Number>(
        &self,
        lanes: &[Lane<'_, T>],
        rows: Range<usize>,
        cols: usize,
        at: impl Fn(usize) -> usize,
    ) -> bool {
        let mut registers = self.block.registers();
        let mut defined = true;
        for (r, row) in rows.enumerate() {
            for start in (0..cols).step_by(BLOCK) {
                let len = BLOCK.min(cols - start);
                for (i, lane) in lanes.iter().enumerate() {
                    let from = &lane.tile[r * cols + start..][..len];
                    let bias = lane.bias.map(|bias| &bias[start..start + len]);
                    fill_lane(self.block.param(&mut registers, i, len), from, bias);
                }
                let element = at(row) + start;
                for (i, capture) in self.captures.iter().enumerate() {
                    capture.fill(self.block, &mut registers, lanes.len() + i, element, len);
                }
                defined &= self.block.run(&mut registers, len);
                for (i, (memory, size)) in self.outputs.iter().enumerate() {
                    // SAFETY: these elements are this task's own, as the caller promises.
                    self.block.store(&registers, i, unsafe { memory.piece(element * size..(element + len) * size) });
                }
            }
        }
        defined
    }
}

/// Fills a parameter with accumulators plus their bias.
pub fn fill_lane<T: Number>(register: Fill<'_>, from: &[T], bias: Option<&[T]>) {
    match register {
        Fill::F32(dst) => add_bias(bytemuck::cast_slice_mut(dst), from, bias),
        Fill::F64(dst) => add_bias(bytemuck::cast_slice_mut(dst), from, bias),
        Fill::Int(_) => unreachable!("lanes are floats: checked when the step was loaded"),
    }
}

fn add_bias<T: Number>(dst: &mut [T], from: &[T], bias: Option<&[T]>) {
    match bias {
        None => dst.copy_from_slice(from),
        Some(bias) => dst.iter_mut().zip(from).zip(bias).for_each(|((d, &x), &b)| *d = x + b),
    }
}

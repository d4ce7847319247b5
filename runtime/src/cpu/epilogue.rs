//! What happens to a block of accumulators while it is hot.

use super::{
    block::{BLOCK, Block, Fill, Registers},
    call::Source,
    matrix::Number,
    shared::Shared,
};
use std::ops::Range;

/// A program over accumulators and captures.
pub struct Epilogue<'a> {
    /// Its first parameters are the lanes' accumulators, then captures.
    pub block: &'a Block,
    /// Captures, broadcast to the shape of the products.
    pub captures: Vec<Source<'a>>,
    /// Where each result goes.
    pub places: Vec<Place<'a>>,
    /// Columns of the products.
    pub columns: usize,
}

/// Where a result goes: element (row, column) is `row · row_stride + column · column_stride` from `start`.
pub struct Place<'a> {
    /// The output's memory.
    pub memory: Shared<'a>,
    /// Bytes of an element.
    pub size: usize,
    /// Elements before the first.
    pub start: usize,
    /// Elements from row to row.
    pub row_stride: usize,
    /// Elements from column to column.
    pub column_stride: usize,
}

/// Where results of `columns` columns go: the first `packed` together in the first output, the others in one each.
pub fn places<'a>(outputs: &[(Shared<'a>, usize)], packed: usize, interleaved: bool, columns: usize) -> Vec<Place<'a>> {
    let together = (0..packed).map(|i| {
        let (memory, size) = outputs[0];
        let (start, column_stride) = if interleaved { (i, packed) } else { (i * columns, 1) };
        Place { memory, size, start, row_stride: packed * columns, column_stride }
    });
    let apart = outputs[usize::from(packed > 0)..].iter();
    let apart = apart.map(|&(memory, size)| Place { memory, size, start: 0, row_stride: columns, column_stride: 1 });
    together.chain(apart).collect()
}

impl Place<'_> {
    /// Writes `len` elements of a result from (row, column).
    ///
    /// # Safety
    /// No other task may write these elements.
    pub unsafe fn write(&self, block: &Block, registers: &Registers, result: usize, at: [usize; 3], stored: &mut Vec<u8>) {
        let [row, column, len] = at;
        let (size, from) = (self.size, self.start + row * self.row_stride + column * self.column_stride);
        if self.column_stride == 1 {
            // SAFETY: as the caller promises.
            return block.store(registers, result, unsafe { self.memory.piece(from * size..(from + len) * size) });
        }
        stored.resize(len * size, 0);
        block.store(registers, result, stored);
        for (i, element) in stored.chunks_exact(size).enumerate() {
            let to = (from + i * self.column_stride) * size;
            // SAFETY: as the caller promises.
            unsafe { self.memory.piece(to..to + size) }.copy_from_slice(element);
        }
    }
}

/// One lane's accumulators: a row-major block, and a bias added to each of its rows.
pub struct Lane<'a, T> {
    /// The block.
    pub tile: &'a [T],
    /// One number for each column.
    pub bias: Option<&'a [T]>,
}

impl Epilogue<'_> {
    /// Applies the program to accumulators of class `T` and writes its results. Row r of the block is row `row_of(r)` of the products; false
    /// where an integer op has no value.
    ///
    /// # Safety
    /// No other task may write these elements.
    pub unsafe fn apply<T: Number>(
        &self,
        lanes: &[Lane<'_, T>],
        rows: Range<usize>,
        columns: Range<usize>,
        row_of: impl Fn(usize) -> usize,
    ) -> bool {
        let mut registers = self.block.registers();
        let (mut defined, mut stored) = (true, Vec::new());
        for (r, row) in rows.enumerate() {
            let row = row_of(row);
            for start in (0..columns.len()).step_by(BLOCK) {
                let (len, column) = (BLOCK.min(columns.len() - start), columns.start + start);
                for (i, lane) in lanes.iter().enumerate() {
                    let from = &lane.tile[r * columns.len() + start..][..len];
                    let bias = lane.bias.map(|bias| &bias[start..start + len]);
                    fill_lane(self.block.param(&mut registers, i, len), from, bias);
                }
                for (i, capture) in self.captures.iter().enumerate() {
                    capture.fill(self.block, &mut registers, lanes.len() + i, row * self.columns + column, len);
                }
                defined &= self.block.run(&mut registers, len);
                for (i, place) in self.places.iter().enumerate() {
                    // SAFETY: these elements are this task's own, as the caller promises.
                    unsafe { place.write(self.block, &registers, i, [row, column, len], &mut stored) };
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

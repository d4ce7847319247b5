//! Operands and results of dense products as the bulk copy engine (TMA) moves them.

use super::{
    super::{
        Memory, TensorMap,
        emitter::Target,
        kernel::{Kernel, byte_offset, divisible},
    },
    operand::Walk,
    product::{Product, Walked, k_stride, row_stride},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, types::numel};
use std::fmt::Write;

/// Elements of K in a stage: 128 bytes, the widest swizzle.
pub(super) const DEPTH: u32 = 64;
/// Rows that lie in a line of 128 bytes where rows are contiguous, not K.
const CHUNK: i64 = 64;

/// Multiprocessors of the device that choices are made for, an H200.
pub(super) const MULTIPROCESSORS: i64 = 132;

/// Division rounding up.
pub(super) fn ceil_div(a: i64, b: i64) -> i64 {
    (a + b - 1).div_euclid(b)
}

/// How `a` and every `b` lie, if the copy engine can bring their tiles, or why it cannot.
pub(super) fn walks(target: Target, product: &Product<'_>, walked: &Walked) -> Result<[Walk; 2], &'static str> {
    if target.arch < 90 {
        return Err("the target has no warpgroup products");
    }
    if !matches!(product.a.dtype, DType::Bf16 | DType::F16) {
        return Err("operands are not 16 bits wide");
    }
    if walked.batches.shape.len() > 1 {
        return Err("batches lie along several dims");
    }
    let walk = |tensor: &TensorRef, row: &Dim, extent: &Dim, batch: &[Dim]| {
        let bases: Vec<&Dim> = batch.iter().chain([&tensor.layout.offset]).collect();
        let repeats = (row.is(0) && !extent.is(1)) || k_stride(tensor).is(0);
        if repeats { Walk::Strided } else { Walk::of(row, &k_stride(tensor), &bases) }
    };
    let a = walk(&product.a, &walked.row_strides[0], &walked.rows, &walked.batches.strides[0]);
    let mut bs = product.bs.iter().zip(&walked.b_strides).map(|(b, batch)| walk(b, &row_stride(b), &walked.columns, batch));
    let first = bs.next().unwrap_or(Walk::Strided);
    let b = bs.fold(first, Walk::join);
    if [a, b].contains(&Walk::Strided) {
        return Err("an operand does not lie in lines that start on 16 bytes");
    }
    Ok([a, b])
}

/// The device library's name of a walk.
pub(super) fn major(walk: Walk) -> &'static str {
    if walk == Walk::KMajor { "along_k" } else { "along_rows" }
}

/// Parameters for the tensor maps of a and each b, whose boxes have these heights where K is contiguous; returns their names.
pub(super) fn operands(
    kernel: &mut Kernel,
    product: &Product<'_>,
    walked: &Walked,
    walks: [Walk; 2],
    heights: [i64; 2],
) -> (String, Vec<String>) {
    let batches = numel(&walked.batches.shape);
    let mut map = |tensor: &TensorRef, walk: Walk, row: &Dim, rows: &Dim, batch: &[Dim], height: i64| {
        let depth = product.depth().clone();
        // A map wants strides also where there is one row.
        let row = if row.is(0) { &depth } else { row };
        let lines = if walk == Walk::KMajor { row.clone() } else { k_stride(tensor) };
        let (dims, tile) = if walk == Walk::KMajor {
            ([depth, rows.clone()], [DEPTH, height as u32, 1])
        } else {
            ([rows.clone(), depth], [CHUNK as u32, DEPTH, 1])
        };
        let [inner, outer] = dims;
        let (repeats, batch) = match batch.first() {
            Some(stride) if !stride.is(0) => (batches.clone(), stride.clone()),
            _ => (Dim::from(1), lines.clone()),
        };
        let bytes = |stride: Dim| stride * Dim::from(tensor.dtype.size() as i64);
        kernel.tensor_map(TensorMap {
            memory: Memory::Buffer(tensor.buffer),
            offset: byte_offset(tensor),
            dtype: tensor.dtype,
            dims: vec![inner, outer, repeats],
            strides: vec![bytes(lines), bytes(batch)],
            tile: tile.to_vec(),
            follows: true,
        })
    };
    let a = map(&product.a, walks[0], &walked.row_strides[0], &walked.rows, &walked.batches.strides[0], heights[0]);
    let bs = product.bs.iter().zip(&walked.b_strides);
    let bs = bs.map(|(b, batch)| map(b, walks[1], &row_stride(b), &walked.columns, batch, heights[1])).collect();
    (a, bs)
}

/// A statement by which `thread` fetches these maps ahead of their first use.
pub(super) fn prefetch<'a>(thread: i64, maps: impl Iterator<Item = &'a String>) -> String {
    let each: String = maps.map(|map| format!("prefetch_map({map});\n")).collect();
    format!("if (threadIdx.x == {thread}) {{\n{each}}}\n")
}

/// Expressions of the matrix of a and of each b that a tile reads, given the index `i0` of the batch.
pub(super) fn batches(walked: &Walked) -> (&'static str, Vec<&'static str>) {
    let name = |strides: &[Dim]| if strides.first().is_none_or(|stride| stride.is(0)) { "0" } else { "(int)i0" };
    (name(&walked.batches.strides[0]), walked.b_strides.iter().map(|strides| name(strides)).collect())
}

/// The first result that the copy engine can store, if there is one.
pub(super) fn staged(step: &Step, product: &Product<'_>, walked: &Walked) -> Option<usize> {
    let fits = |y: &TensorRef| matches!(y.dtype, DType::Bf16 | DType::F16) && divisible(&y.layout.offset, 8);
    if product.packed > 0 || !divisible(&walked.columns, 8) {
        return None;
    }
    step.outputs.iter().position(fits)
}

/// The map of a result, `[batches, rows, columns]` without gaps, in boxes of a warp's 16 rows by 64 columns.
pub(super) fn map_of_results(y: &TensorRef, walked: &Walked) -> TensorMap {
    let row = walked.columns.clone() * Dim::from(y.dtype.size() as i64);
    TensorMap {
        memory: Memory::Buffer(y.buffer),
        offset: byte_offset(y),
        dtype: y.dtype,
        dims: vec![walked.columns.clone(), walked.rows.clone(), numel(&walked.batches.shape)],
        strides: vec![row.clone(), row * walked.rows.clone()],
        tile: vec![64, 16, 1],
        follows: true,
    }
}

/// Part of an operand's tile: `height` rows from `origin + first`, which go to row `at` of the tile at `to`.
pub(super) struct Box {
    pub call: &'static str,
    pub to: &'static str,
    pub at: i64,
    pub origin: &'static str,
    pub first: i64,
    pub height: i64,
}

impl Box {
    /// Statements that load it at `k` of matrix `batch`: at once where K is contiguous, else in chunks of 64 rows. Either way 64 rows take 8 KB.
    pub fn text(&self, walk: Walk, map: &str, batch: &str) -> String {
        let Box { call, to, at, origin, first, height } = self;
        if walk == Walk::KMajor {
            return format!("{call}({to} + {}, {map}, full, k, {origin} + {first}, {batch});\n", at * 128);
        }
        let mut text = String::new();
        for chunk in (0..*height).step_by(CHUNK as usize) {
            let (byte, row) = ((at + chunk) * 128, first + chunk);
            let _ = writeln!(text, "{call}({to} + {byte}, {map}, full, {origin} + {row}, k, {batch});");
        }
        text
    }
}

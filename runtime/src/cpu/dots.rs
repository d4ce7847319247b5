//! f32 products of rows with rows: `out[i][j] = Σ_k a[i][k] · b[j][k]`, both contiguous along k.
//!
//! That is what a linear layer's weight `[N, K]` makes of `x · Wᵀ`. A general product would pack (and here transpose) the weight first,
//! which costs more than the product itself where few rows share it, as in a mixture of experts. This kernel reads both in place:
//! 4 × 6 accumulators of a whole vector each, summed across their lanes at the end.

use pulp::{Simd, WithSimd};

/// Rows of `a` and of `b` that one block of accumulators covers.
const ROWS: usize = 4;
const COLS: usize = 6;
/// Along k, so much of the block's rows of `b` stays in a first-level cache.
const DEPTH: usize = 1024;

/// Rows in memory: row i is `data[i · stride ..][.. len]`.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// The memory.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// How many rows.
    pub count: usize,
    /// Elements of a row.
    pub len: usize,
}

impl<'a> Lines<'a> {
    fn part(&self, row: usize, at: usize, len: usize) -> &'a [f32] {
        &self.data[row * self.stride + at..][..len]
    }
}

/// Writes all products; row i of `out` starts at `out[i · out_stride]`.
pub fn multiply(a: Lines<'_>, b: Lines<'_>, out: &mut [f32], out_stride: usize) {
    assert_eq!(a.len, b.len, "inner extents");
    pulp::Arch::new().dispatch(Product { a, b, out, out_stride });
}

struct Product<'a> {
    a: Lines<'a>,
    b: Lines<'a>,
    out: &'a mut [f32],
    out_stride: usize,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Product { a, b, out, out_stride } = self;
        for at in (0..a.len).step_by(DEPTH) {
            let mut part = Part { simd, a, b, out: &mut *out, out_stride, at, len: DEPTH.min(a.len - at) };
            let (rows, cols) = (a.count - a.count % ROWS, b.count - b.count % COLS);
            // Plain loops: a closure that is not inlined would be compiled without the vector instructions.
            for j in (0..cols).step_by(COLS) {
                for i in (0..rows).step_by(ROWS) {
                    part.block::<ROWS, COLS>(i, j);
                }
                for i in rows..a.count {
                    part.block::<1, COLS>(i, j);
                }
            }
            for j in cols..b.count {
                for i in (0..rows).step_by(ROWS) {
                    part.block::<ROWS, 1>(i, j);
                }
                for i in rows..a.count {
                    part.block::<1, 1>(i, j);
                }
            }
        }
    }
}

/// What elements `at .. at + len` along k add to the products.
struct Part<'a, S> {
    simd: S,
    a: Lines<'a>,
    b: Lines<'a>,
    out: &'a mut [f32],
    out_stride: usize,
    at: usize,
    len: usize,
}

impl<S: Simd> Part<'_, S> {
    /// Rows `i .. i + M` of a times rows `j .. j + N` of b.
    #[inline(always)]
    fn block<const M: usize, const N: usize>(&mut self, i: usize, j: usize) {
        let a = std::array::from_fn(|x| self.a.part(i + x, self.at, self.len));
        let b = std::array::from_fn(|y| self.b.part(j + y, self.at, self.len));
        let products = products::<S, M, N>(self.simd, a, b);
        for (x, row) in products.iter().enumerate() {
            let line: &mut [f32] = &mut self.out[(i + x) * self.out_stride + j..][..N];
            match self.at {
                0 => line.copy_from_slice(row),
                _ => line.iter_mut().zip(row).for_each(|(slot, value)| *slot += value),
            }
        }
    }
}

/// The products of M rows with N rows.
#[inline(always)]
fn products<S: Simd, const M: usize, const N: usize>(simd: S, a: [&[f32]; M], b: [&[f32]; N]) -> [[f32; N]; M] {
    let a = a.map(|row| S::as_simd_f32s(row));
    let b = b.map(|row| S::as_simd_f32s(row));
    let vectors = a[0].0.len();
    let (ends_a, ends_b) = (a.map(|row| row.1), b.map(|row| row.1));
    let (a, b) = (a.map(|row| &row.0[..vectors]), b.map(|row| &row.0[..vectors]));
    let mut sums = [[simd.splat_f32s(0.0); N]; M];
    for k in 0..vectors {
        let left = a.map(|row| row[k]);
        for (j, row) in b.iter().enumerate() {
            let right = row[k];
            for (sums, &left) in sums.iter_mut().zip(&left) {
                sums[j] = simd.mul_add_e_f32s(left, right, sums[j]);
            }
        }
    }
    let mut out = [[0.0; N]; M];
    for ((out, sums), end_a) in out.iter_mut().zip(&sums).zip(&ends_a) {
        for ((out, &sum), end_b) in out.iter_mut().zip(sums).zip(&ends_b) {
            *out = simd.reduce_sum_f32s(sum) + end_a.iter().zip(*end_b).fold(0.0, |sum, (&x, &y)| sum + x * y);
        }
    }
    out
}

//! Matrix products of blocks, over the `gemm` crate. Halves are widened block by block and accumulate in f32.

use super::{block::File, convert::Class, dots, vector::Vector, view::View};
use eglu_ir::{DType, narrow};
use std::ops::Range;

/// A type that products are computed in.
pub trait Number: File + Vector + bytemuck::Pod {
    /// The dtype stored as this type.
    const DTYPE: DType;
    /// The class of dtypes computed in this type.
    const CLASS: Class;

    /// Multiplies by a product of few columns, of which `b` may be a part; false where there are more.
    fn narrowly(_a: Panel<'_, Self>, _b: Panel<'_, Self>, _out: &mut [Self], _out_rs: usize, _columns: usize) -> bool {
        false
    }

    /// Multiplies rows with rows where that is the fastest way; false where it is not.
    fn by_dots(_a: Panel<'_, Self>, _b: Panel<'_, Self>, _out: &mut [Self], _out_rs: usize) -> bool {
        false
    }
}

impl Number for f32 {
    const DTYPE: DType = DType::F32;
    const CLASS: Class = Class::F32;

    fn narrowly(a: Panel<'_, f32>, b: Panel<'_, f32>, out: &mut [f32], out_rs: usize, columns: usize) -> bool {
        if !narrow::COLUMNS.contains(&columns) {
            return false;
        }
        let left = narrow::Strided { data: a.data, row: a.rs, col: a.cs };
        let right = narrow::Strided { data: b.data, row: b.rs, col: b.cs };
        super::simd(|| narrow::multiply([a.rows, a.cols, b.cols], left, right, out, out_rs));
        true
    }

    fn by_dots(a: Panel<'_, f32>, b: Panel<'_, f32>, out: &mut [f32], out_rs: usize) -> bool {
        // Measured on AVX-512: below this depth the sums across lanes cost too much, above so many rows packing pays.
        const LEAST_DEPTH: usize = 256;
        const MOST_ROWS: usize = 191;
        let along_k = a.cs == 1 && b.rs == 1 && b.cs != 1;
        if !along_k || a.cols < LEAST_DEPTH || a.rows > MOST_ROWS {
            return false;
        }
        let left = dots::Lines { data: a.data, stride: a.rs, count: a.rows, len: a.cols };
        let right = dots::Lines { data: b.data, stride: b.cs, count: b.cols, len: b.rows };
        dots::multiply(left, right, out, out_rs);
        true
    }
}

impl Number for f64 {
    const DTYPE: DType = DType::F64;
    const CLASS: Class = Class::F64;
}

/// A matrix in memory: element (i, j) is `data[i · rs + j · cs]`.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}

impl<'a, T: Number> Panel<'a, T> {
    /// A row-major matrix without gaps.
    pub fn dense(data: &'a [T], rows: usize, cols: usize) -> Panel<'a, T> {
        assert!(data.len() >= rows * cols);
        Panel { data, rows, cols, rs: cols, cs: 1 }
    }

    /// A matrix with element (i, j) at `i · rs + j · cs`.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, rs: usize, cs: usize) -> Panel<'a, T> {
        let panel = Panel { data, rows, cols, rs, cs };
        panel.check();
        panel
    }

    /// Part of a 2-d view: in place where it is stored in this type, else widened into `scratch`.
    pub fn of<'b: 'a>(view: &View<'b>, rows: Range<usize>, cols: Range<usize>, scratch: &'a mut Vec<T>) -> Panel<'a, T> {
        let (rs, cs) = (view.strides[0], view.strides[1]);
        let offset = view.offset + rows.start * rs + cols.start * cs;
        let (rows, cols) = (rows.len(), cols.len());
        if rows * cols == 0 {
            return Panel { data: &[], rows, cols, rs, cs };
        }
        if view.dtype == T::DTYPE {
            return Panel { data: &bytemuck::cast_slice(view.bytes)[offset..], rows, cols, rs, cs };
        }
        scratch.resize(rows * cols, T::default());
        // The dim that is contiguous in memory stays contiguous.
        let by_columns = rs == 1 && cs != 1;
        let (outer, inner, outer_stride, stride) = if by_columns { (cols, rows, cs, rs) } else { (rows, cols, rs, cs) };
        for (i, line) in scratch.chunks_exact_mut(inner).take(outer).enumerate() {
            T::load(view.dtype, view.bytes, offset + i * outer_stride, stride, line);
        }
        let (rs, cs) = if by_columns { (1, rows) } else { (cols, 1) };
        Panel { data: scratch, rows, cols, rs, cs }
    }

    fn check(&self) {
        let last = self.rows.saturating_sub(1) * self.rs + self.cols.saturating_sub(1) * self.cs;
        assert!(self.rows * self.cols == 0 || last < self.data.len(), "a {}×{} matrix leaves its memory", self.rows, self.cols);
    }
}

/// `out = a · b`, on this thread; row i of `out` starts at `out[i · out_rs]`. `columns` is how many the whole product has, of which `b`
/// may be a part: few are summed in another order, as in the reference evaluator.
pub fn multiply<T: Number>(a: Panel<'_, T>, b: Panel<'_, T>, out: &mut [T], out_rs: usize, columns: usize) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "inner extents");
    if m * n == 0 {
        return;
    }
    assert!(n <= out_rs && (m - 1) * out_rs + n <= out.len(), "a {m}×{n} product leaves its memory");
    if k == 0 {
        return out.chunks_mut(out_rs).take(m).for_each(|row| row[..n].fill(T::default()));
    }
    a.check();
    b.check();
    if T::narrowly(a, b, out, out_rs, columns) || T::by_dots(a, b, out, out_rs) {
        return;
    }
    // SAFETY: all three matrices lie within their slices, as checked above, and `out` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_rs as isize,
            false,
            a.data.as_ptr(),
            a.cs as isize,
            a.rs as isize,
            b.data.as_ptr(),
            b.cs as isize,
            b.rs as isize,
            T::zero(),
            T::one(),
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Runs the body with `$t` the type that products of a dtype are computed in; refuses other dtypes.
macro_rules! with_number {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $crate::cpu::convert::Class::of($dtype) {
            Some($crate::cpu::convert::Class::F32) => {
                type $t = f32;
                $body
            }
            Some($crate::cpu::convert::Class::F64) => {
                type $t = f64;
                $body
            }
            _ => Ok($crate::cpu::call::Taken::Refused),
        }
    };
}
pub(crate) use with_number;

/// How a product is cut into tasks: rows and columns of one task's block.
///
/// Blocks are small enough to stay in a second-level cache until their epilogue has run, and large enough that packing them costs little
/// beside the product; `copies` is how many equal products there are.
pub fn tiling(m: usize, n: usize, copies: usize) -> (usize, usize) {
    const ROWS: usize = 256;
    const COLS: usize = 512;
    const LEAST: usize = 64;
    let rows = m.clamp(1, ROWS);
    let tasks = 3 * rayon::current_num_threads();
    let others = (m.div_ceil(rows) * copies).max(1);
    let parts = tasks.div_ceil(others).max(n.div_ceil(COLS)).max(1);
    let cols = n.div_ceil(parts).next_multiple_of(LEAST).min(n.max(1));
    (rows, cols)
}

/// As few ranges of at most `most` elements as make up `0..len`, all but the last of one length: a rest of few rows would be multiplied in
/// another way, with other digits.
pub fn even_ranges(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    ranges(len, len.div_ceil(len.div_ceil(most.max(1)).max(1)))
}

/// The ranges of `step` elements that make up `0..len`.
pub fn ranges(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..len).step_by(step.max(1)).map(move |start| start..(start + step).min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the order of [`narrow`] is set against.
    #[test]
    fn wide_products_add_by_fused_steps_along_k() {
        let number = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 487.0;
        for (m, n, k) in [(64, 16, 8), (257, 70, 31), (256, 16, 8), (33, 512, 100)] {
            let a: Vec<f32> = (0..m * k).map(number).collect();
            let b: Vec<f32> = (0..k * n).map(|i| number(i + 13)).collect();
            for by_columns in [false, true] {
                let (rs, cs) = if by_columns { (1, k) } else { (n, 1) };
                let mut out = vec![0f32; m * n];
                multiply(Panel::dense(&a, m, k), Panel::strided(&b, k, n, rs, cs), &mut out, n, n);
                for (at, &got) in out.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let want = (0..k).fold(0f32, |sum, at| a[i * k + at].mul_add(b[at * rs + j * cs], sum));
                    assert_eq!(got, want, "({i}, {j}) of {m}×{k} · {k}×{n}, by columns: {by_columns}");
                }
            }
        }
    }

    #[test]
    fn even_ranges_leave_no_short_rest() {
        for (len, most) in [(16385, 256), (257, 256), (256, 256), (1, 256), (1000, 7)] {
            let parts: Vec<Range<usize>> = even_ranges(len, most).collect();
            assert_eq!(parts.len(), len.div_ceil(most));
            assert!(parts.iter().all(|part| part.len() <= most && part.len() > most / 4 || part.len() == len), "{parts:?}");
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start) && parts[parts.len() - 1].end == len);
        }
        assert_eq!(even_ranges(0, 256).count(), 0);
    }
}

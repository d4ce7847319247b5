//! f32 products of few columns, in the order in which BLAS libraries sum them.
//!
//! A product in f32 depends on the order of its sums. Wide products are summed alike everywhere: in the order of k, by one fused
//! multiply-add for each k, which is what `gemm` does. For narrow ones a vector holds neighbours along k instead, and PyTorch's CPU
//! results (MKL's kernel for at most eleven columns) come from four running sums of rounded products. Routers with few experts are
//! such products, and where two experts are nearly alike, the order of the sums is what decides between them.

/// How many columns a narrow product has. One column is a product with a vector, which every library sums in its own way.
pub const COLUMNS: std::ops::RangeInclusive<usize> = 2..=11;

/// Running sums of one product: the vectors of MKL's kernel.
const LANES: usize = 4;

/// A matrix in memory: element (i, j) is `data[i · row + j · col]`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// The memory.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next.
    pub col: usize,
}

/// `a[m, k] · b[k, n]`; row i of the product starts at `out[i · out_row]`.
///
/// # Panics
/// If a matrix leaves its memory.
#[inline(always)]
pub fn multiply([m, k, n]: [usize; 3], a: Strided<'_>, b: Strided<'_>, out: &mut [f32], out_row: usize) {
    let columns: Vec<f32> = (0..n).flat_map(|j| (0..k).map(move |i| b.data[i * b.row + j * b.col])).collect();
    let mut gathered = Vec::new();
    for i in 0..m {
        let row = if a.col == 1 && k > 0 {
            &a.data[i * a.row..][..k]
        } else {
            gathered.clear();
            gathered.extend((0..k).map(|at| a.data[i * a.row + at * a.col]));
            &gathered
        };
        for (j, slot) in out[i * out_row..][..n].iter_mut().enumerate() {
            *slot = dot(row, &columns[j * k..(j + 1) * k]);
        }
    }
}

/// `Σ x[k] · y[k]`: each product is rounded and joins the sum of its k modulo 4; what is left over joins their total in turn.
#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (chunks, rest) = (x.len() - x.len() % LANES, x.len() % LANES);
    for (x, y) in x[..chunks].chunks_exact(LANES).zip(y.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let total = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    (chunks..chunks + rest).fold(total, |total, k| total + x[k] * y[k])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_the_order_of_four_lanes() {
        // 2²⁴ swallows a single 1, but not two that met before.
        let large = 16_777_216.0;
        let x = [large, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
        let ones = [1.0; 8];
        assert_eq!(dot(&x, &ones), large + 2.0, "k = 1 and 3 meet in the second half, k = 6 is swallowed by k = 0");
        assert_eq!(dot(&[large, 1.0, 1.0, 1.0, 1.0], &[1.0; 5]), large + 4.0, "what is left over comes last");
    }

    #[test]
    fn strides_are_those_given() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0, 0.0, -1.0, 2.0, 1.0, 0.5];
        let mut out = [0.0; 5];
        multiply([2, 3, 2], Strided { data: &a, row: 3, col: 1 }, Strided { data: &b, row: 2, col: 1 }, &mut out, 3);
        assert_eq!(out, [2.0, 5.5, 0.0, 5.0, 13.0]);
        let mut transposed = [0.0; 4];
        multiply([2, 3, 2], Strided { data: &a, row: 1, col: 2 }, Strided { data: &b, row: 1, col: 3 }, &mut transposed, 2);
        assert_eq!(transposed, [-4.0, 7.5, -4.0, 11.0]);
        let mut empty = [7.0; 4];
        multiply([2, 0, 2], Strided { data: &[], row: 0, col: 1 }, Strided { data: &[], row: 2, col: 1 }, &mut empty, 2);
        assert_eq!(empty, [0.0; 4]);
    }
}

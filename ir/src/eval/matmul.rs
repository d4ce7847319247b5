//! Matrix products: f32 and f64 through the `gemm` crate (few columns of f32 in the order of [`narrow`]), halves in f32 with one
//! rounding, the rest by plain loops.

use super::{
    Call, EvalError,
    element::decode,
    epilogue::Epilogue,
    strides::{Offsets, broadcast_strides},
    values::{Column, Values, with_work},
};
use crate::{Tensor, narrow, ops::Contract};
use num_complex::Complex64;

/// A row-major or transposed matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, W> {
    pub data: &'a [W],
    pub rows: usize,
    pub cols: usize,
    /// True if element (i, j) is at `j * rows + i`.
    pub transposed: bool,
}

impl<W> Matrix<'_, W> {
    fn strides(&self) -> (usize, usize) {
        if self.transposed { (1, self.rows) } else { (self.cols, 1) }
    }
}

/// An arithmetic with matrix products.
pub(super) trait Multiply: Column {
    /// Writes `a · b`, row-major. `columns` is how many the product has of which `b` may be a part: gate and up are one in PyTorch.
    fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, columns: usize);
}

macro_rules! by_gemm {
    ($ty:ty, $few:expr) => {
        impl Multiply for $ty {
            fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, columns: usize) {
                let (m, n, k) = (a.rows, b.cols, a.cols);
                assert!(out.len() == m * n && a.data.len() == m * k && b.data.len() == k * n && b.rows == k);
                if out.is_empty() || k == 0 {
                    return out.fill(0.0);
                }
                if $few(&mut *out, a, b, columns) {
                    return;
                }
                let ((a_row, a_col), (b_row, b_col)) = (a.strides(), b.strides());
                // SAFETY: the lengths checked above cover every element that these extents and strides reach, and `out` is borrowed
                // mutably, so nothing aliases it.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        out.as_mut_ptr(),
                        1,
                        n as isize,
                        false,
                        a.data.as_ptr(),
                        a_col as isize,
                        a_row as isize,
                        b.data.as_ptr(),
                        b_col as isize,
                        b_row as isize,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::None,
                    );
                }
            }
        }
    };
}

by_gemm!(f32, narrowly);
by_gemm!(f64, |_: &mut [f64], _, _, _| false);

/// Writes a product of few columns; false for others.
fn narrowly(out: &mut [f32], a: Matrix<'_, f32>, b: Matrix<'_, f32>, columns: usize) -> bool {
    if !narrow::COLUMNS.contains(&columns) {
        return false;
    }
    let ((row, col), (b_row, b_col)) = (a.strides(), b.strides());
    let (left, right) = (narrow::Strided { data: a.data, row, col }, narrow::Strided { data: b.data, row: b_row, col: b_col });
    narrow::multiply([a.rows, a.cols, b.cols], left, right, out, b.cols);
    true
}

macro_rules! by_loops {
    ($ty:ty, $fma:expr) => {
        impl Multiply for $ty {
            fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, _columns: usize) {
                let ((a_row, a_col), (b_row, b_col)) = (a.strides(), b.strides());
                for i in 0..a.rows {
                    for j in 0..b.cols {
                        out[i * b.cols + j] = (0..a.cols).fold(<$ty>::default(), |sum, k| {
                            $fma(sum, a.data[i * a_row + k * a_col], b.data[k * b_row + j * b_col])
                        });
                    }
                }
            }
        }
    };
}

by_loops!(i64, |sum: i64, x: i64, y: i64| sum.wrapping_add(x.wrapping_mul(y)));
by_loops!(Complex64, |sum: Complex64, x: Complex64, y: Complex64| sum + x * y);

/// The products of two stacks of matrices, whose batch dims broadcast, as one dense column; b is one of so many lanes.
fn batched<W: Multiply>(a: &Tensor, b: &Tensor, shape: &[usize], lanes: usize) -> Vec<W> {
    let (a_batch, a_matrix) = a.shape().split_at(a.shape().len() - 2);
    let (b_batch, b_matrix) = b.shape().split_at(b.shape().len() - 2);
    let batch = &shape[..shape.len() - 2];
    let (m, k, n) = (a_matrix[0], a_matrix[1], b_matrix[1]);
    let (x, y) = (decode::<W>(a), decode::<W>(b));
    let mut out = vec![W::default(); shape.iter().product()];
    let starts = |from: &[usize]| Offsets::new(batch, broadcast_strides(from, batch), 0);
    for (i, (at, bt)) in starts(a_batch).zip(starts(b_batch)).enumerate() {
        let left = Matrix { data: &x[at * m * k..(at + 1) * m * k], rows: m, cols: k, transposed: false };
        let right = Matrix { data: &y[bt * k * n..(bt + 1) * k * n], rows: k, cols: n, transposed: false };
        W::multiply(&mut out[i * m * n..(i + 1) * m * n], left, right, lanes * n);
    }
    out
}

pub(super) fn matmul(call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (a, b, dtype) = (call.tensor(0)?, call.tensor(1)?, call.dtype());
    with_work!(dtype, W => W::values(batched::<W>(a, b, call.shape(), 1)).store(dtype, dtype, call.shape()))
}

pub(super) fn contract(op: &Contract, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let a = call.tensor(0)?;
    let shape = &product_shape(a, call.tensor(1)?);
    let mut params = Vec::with_capacity(op.program.params.len());
    for (lane, b) in call.tensors(1..1 + op.lanes)?.into_iter().enumerate() {
        let products = with_work!(a.dtype(), W => W::values(batched::<W>(a, b, shape, op.lanes)));
        params.push(products.converted(a.dtype(), op.program.params[lane]));
    }
    for capture in call.tensors(1 + op.lanes..call.count())? {
        params.push(Values::load(capture).broadcast(capture.shape(), shape));
    }
    Epilogue::from(op).run(&params, shape, call.shapes)
}

/// The shape of `a · b`, leading dims broadcast.
fn product_shape(a: &Tensor, b: &Tensor) -> Vec<usize> {
    let (a_batch, a_matrix) = a.shape().split_at(a.shape().len() - 2);
    let (b_batch, b_matrix) = b.shape().split_at(b.shape().len() - 2);
    let rank = a_batch.len().max(b_batch.len());
    let at = |batch: &[usize], i: usize| (i + batch.len()).checked_sub(rank).map_or(1, |i| batch[i]);
    let extent = |i: usize| match (at(a_batch, i), at(b_batch, i)) {
        (1, other) => other,
        (own, _) => own,
    };
    (0..rank).map(extent).chain([a_matrix[0], b_matrix[1]]).collect()
}

pub(super) fn grouped_mm(call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, w, offs) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (rows, k, n) = (x.shape()[0], x.shape()[1], w.shape()[2]);
    let ends = decode::<i64>(offs);
    let mut start = 0;
    for (group, &end) in ends.iter().enumerate() {
        if end < start || end > rows as i64 {
            return Err(EvalError::Data(format!(
                "grouped_mm: offset {group} is {end}, but offsets must ascend from {start} and end within the {rows} rows"
            )));
        }
        start = end;
    }
    let dtype = call.dtype();
    with_work!(dtype, W => {
        let (x, w) = (decode::<W>(x), decode::<W>(w));
        let mut out = vec![W::default(); rows * n];
        let mut start = 0;
        for (group, &end) in ends.iter().enumerate() {
            let end = end as usize;
            let left = Matrix { data: &x[start * k..end * k], rows: end - start, cols: k, transposed: false };
            let right = Matrix { data: &w[group * k * n..(group + 1) * k * n], rows: k, cols: n, transposed: false };
            W::multiply(&mut out[start * n..end * n], left, right, n);
            start = end;
        }
        W::values(out).store(dtype, dtype, call.shape())
    })
}

/// Weights `[E, N, K]` and biases `[E, N]` of experts.
pub(super) struct Experts<'a, W> {
    pub weight: &'a [W],
    pub bias: Option<&'a [W]>,
    pub experts: usize,
    pub outputs: usize,
    pub inputs: usize,
    /// How many matrices make up one product: gate and up together are two.
    pub lanes: usize,
}

impl<W: Multiply + std::ops::AddAssign> Experts<'_, W> {
    /// Row s of `x[S, K]` times its expert's transposed matrix, plus its bias; zero where `experts[s]` is `None`.
    pub fn apply(&self, x: &[W], experts: &[Option<usize>]) -> Vec<W> {
        let (n, k) = (self.outputs, self.inputs);
        let mut out = vec![W::default(); experts.len() * n];
        for expert in 0..self.experts {
            let rows: Vec<usize> = (0..experts.len()).filter(|&s| experts[s] == Some(expert)).collect();
            if rows.is_empty() {
                continue;
            }
            let gathered: Vec<W> = rows.iter().flat_map(|&s| &x[s * k..(s + 1) * k]).copied().collect();
            let mut products = vec![W::default(); rows.len() * n];
            let left = Matrix { data: &gathered, rows: rows.len(), cols: k, transposed: false };
            let matrix = &self.weight[expert * n * k..(expert + 1) * n * k];
            W::multiply(&mut products, left, Matrix { data: matrix, rows: k, cols: n, transposed: true }, self.lanes * n);
            for (i, s) in rows.into_iter().enumerate() {
                let row = &mut out[s * n..(s + 1) * n];
                row.copy_from_slice(&products[i * n..(i + 1) * n]);
                if let Some(bias) = self.bias {
                    row.iter_mut().zip(&bias[expert * n..]).for_each(|(slot, &b)| *slot += b);
                }
            }
        }
        out
    }
}

/// The expert of each row; ids of `count` or more are dropped.
pub(super) fn experts_of(ids: &Tensor, count: usize) -> Result<Vec<Option<usize>>, EvalError> {
    let ids = decode::<i64>(ids);
    let expert = |(row, &id): (usize, &i64)| match usize::try_from(id) {
        Ok(id) => Ok((id < count).then_some(id)),
        Err(_) => Err(EvalError::Data(format!("id {id} of row {row} is negative: an expert is 0..{count}"))),
    };
    ids.iter().enumerate().map(expert).collect()
}

pub(super) fn expert_matmul(call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, w, bias, ids) = (call.tensor(0)?, call.tensor(1)?, call.optional(2), call.tensor(3)?);
    let &[experts, outputs, inputs] = w.shape() else { return Err(EvalError::Data("w must have 3 dims".into())) };
    let rows = experts_of(ids, experts)?;
    let dtype = call.dtype();
    with_work!(dtype, W => {
        let (x, weight, bias) = (decode::<W>(x), decode::<W>(w), bias.map(|bias| decode::<W>(bias)));
        let out = Experts { weight: &weight, bias: bias.as_deref(), experts, outputs, inputs, lanes: 1 }.apply(&x, &rows);
        W::values(out).store(dtype, dtype, call.shape())
    })
}

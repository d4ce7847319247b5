//! The fused vocabulary: gated units and mixture-of-experts blocks.

use super::{
    Call, EvalError,
    element::{decode, encode},
    matmul::{Experts, Matrix, Multiply, experts_of},
    program::run,
    values::{Class, Column, cast, class},
};
use crate::{
    DType, Program, Tensor,
    ops::{Combine, DenseGlu, Moe},
};

/// Runs the body with `$w` the real arithmetic of a dtype; an error for integers and complex numbers.
macro_rules! with_real {
    ($op:literal, $dtype:expr, $w:ident => $body:expr) => {
        match class($dtype) {
            Class::F32 => {
                type $w = f32;
                $body
            }
            Class::F64 => {
                type $w = f64;
                $body
            }
            Class::Int | Class::Complex => Err(EvalError::Unsupported { op: $op, dtype: $dtype }),
        }
    };
}

/// `Σ_j weights[t, j] · y[t, j]` for rows `y[T·k, H]`, in f64.
fn weighted_sum(y: &[f64], weights: &[f64], k: usize, width: usize) -> Vec<f64> {
    let tokens = weights.len().checked_div(k).unwrap_or(0);
    let mut out = vec![0.0; tokens * width];
    for (slot, &weight) in weights.iter().enumerate() {
        let row = &y[slot * width..(slot + 1) * width];
        let sum = &mut out[slot / k * width..(slot / k + 1) * width];
        sum.iter_mut().zip(row).for_each(|(sum, y)| *sum += weight * y);
    }
    out
}

pub(super) fn combine(op: &Combine, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (y, weights) = (call.tensor(0)?, call.tensor(1)?);
    let out = match weights.shape()[1] {
        0 => vec![0.0; call.shape().iter().product()],
        k => weighted_sum(&decode::<f64>(y), &decode::<f64>(weights), k, y.shape()[1]),
    };
    encode(op.dtype, call.shape(), &out)
}

/// A gating program on columns of accumulators; its one result is stored in the program's dtype.
fn gate<W: Column>(program: &Program, dtype: DType, columns: Vec<Vec<W>>, shape: &[usize]) -> Result<Tensor, EvalError> {
    let params: Vec<_> = columns.into_iter().map(|column| W::values(column).converted(dtype, program.params[0])).collect();
    run(program, &params, shape)?.pop().ok_or_else(|| EvalError::Data("a gating program has one result".into()))
}

pub(super) fn dense_glu(op: &DenseGlu, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    with_real!("dense_glu", x.dtype(), W => {
        let values = decode::<W>(x);
        let product = |weight: usize| -> Result<Vec<W>, EvalError> {
            let w = call.tensor(weight)?;
            let (n, k) = (w.shape()[0], w.shape()[1]);
            let rows = call.shape().iter().rev().skip(1).product();
            let mut out = vec![W::default(); rows * n];
            let left = Matrix { data: &values, rows, cols: k, transposed: false };
            W::multiply(&mut out, left, Matrix { data: &decode::<W>(w), rows: k, cols: n, transposed: true }, 2 * n);
            if let Some(bias) = call.optional(weight + 1) {
                let bias = decode::<W>(bias);
                out.iter_mut().enumerate().for_each(|(i, slot)| *slot += bias[i % n]);
            }
            Ok(out)
        };
        gate(&op.program, x.dtype(), vec![product(1)?, product(3)?], call.shape())
    })
}

pub(super) fn moe(op: &Moe, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, ids, weights) = (call.tensor(0)?, call.tensor(7)?, call.tensor(8)?);
    let k = ids.shape()[1];
    let (experts, hidden) = (call.tensor(1)?.shape()[0], x.shape()[1]);
    let chosen = experts_of(ids, experts)?;
    with_real!("moe", x.dtype(), W => {
        let project = |rows: &[W], weight: usize, lanes: usize| -> Result<Vec<W>, EvalError> {
            let w = call.tensor(weight)?;
            let (outputs, inputs) = (w.shape()[1], w.shape()[2]);
            let bias = call.optional(weight + 1).map(|bias| decode::<W>(bias));
            let w = decode::<W>(w);
            Ok(Experts { weight: &w, bias: bias.as_deref(), experts, outputs, inputs, lanes }.apply(rows, &chosen))
        };
        let tokens = decode::<W>(x);
        let rows: Vec<W> = tokens.chunks_exact(hidden.max(1)).flat_map(|row| row.repeat(k)).collect();
        let lanes: Vec<usize> = [1, 3].into_iter().filter(|&lane| call.optional(lane).is_some()).collect();
        let columns = lanes.iter().map(|&lane| project(&rows, lane, lanes.len())).collect::<Result<Vec<_>, _>>()?;
        let inner = call.tensor(1)?.shape()[1];
        // Rounded to x's dtype where PyTorch stores: after the gating and after the down projection.
        let gated = cast(&gate(&op.program, x.dtype(), columns, &[chosen.len(), inner])?, x.dtype())?;
        let width = call.shape()[1];
        let y = encode(x.dtype(), &[chosen.len(), width], &project(&decode::<W>(&gated), 5, 1)?)?;
        let mut y = decode::<f64>(&y).into_owned();
        // A dropped row is absent: a program that maps zeros elsewhere must not leak into the sum.
        for slot in (0..chosen.len()).filter(|&slot| chosen[slot].is_none()) {
            y[slot * width..(slot + 1) * width].fill(0.0);
        }
        let out = match k {
            0 => vec![0.0; call.shape().iter().product()],
            k => weighted_sum(&y, &decode::<f64>(weights), k, width),
        };
        encode(op.dtype, call.shape(), &out)
    })
}

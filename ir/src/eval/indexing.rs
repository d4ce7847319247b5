//! Gathers, scatters and joins.

use super::{
    Call, EvalError,
    element::decode,
    reduce::Fold,
    strides::{Offsets, broadcast_shape, broadcast_strides, dense_strides, pick},
    values::with_work,
};
use crate::{
    Tensor,
    ops::{Axes, Cat, Gather, Index, IndexPut, ScatterAdd},
};

fn out_of_range(index: i64, dim: usize, extent: usize) -> EvalError {
    EvalError::Data(format!("index {index} is out of range for dim {dim}, whose extent is {extent}"))
}

/// The places of `x[indices]`: their shape, and the offset in `x` of each, in row-major order. Negative indices count from the end.
fn indexed(x: &[usize], axes: &Axes, indices: &[&Tensor]) -> Result<(Vec<usize>, Vec<usize>), EvalError> {
    let strides = dense_strides(x);
    let shape = broadcast_shape(indices);
    let mut picked = vec![0; shape.iter().product()];
    for (&axis, index) in axes.iter().zip(indices) {
        let positions = decode::<i64>(index);
        for (slot, at) in picked.iter_mut().zip(Offsets::new(&shape, broadcast_strides(index.shape(), &shape), 0)) {
            let position = positions[at];
            let wrapped = if position < 0 { position + x[axis] as i64 } else { position };
            match usize::try_from(wrapped) {
                Ok(wrapped) if wrapped < x[axis] => *slot += wrapped * strides[axis],
                _ => return Err(out_of_range(position, axis, x[axis])),
            }
        }
    }
    // PyTorch's rule: adjacent indexed dims are replaced in place, separated ones go to the front.
    let adjacent = axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let front = if adjacent { axes[0] } else { 0 };
    let before: Vec<usize> = Offsets::along(x, |i| i < front).collect();
    let after: Vec<usize> = Offsets::along(x, |i| i >= front && !axes.contains(&i)).collect();
    let mut offsets = Vec::with_capacity(before.len() * picked.len() * after.len());
    for b in &before {
        for p in &picked {
            offsets.extend(after.iter().map(|a| a + b + p));
        }
    }
    let rest: Vec<usize> = (0..x.len()).filter(|i| !axes.contains(i)).map(|i| x[i]).collect();
    let places = rest[..front].iter().chain(&shape).chain(&rest[front..]).copied().collect();
    Ok((places, offsets))
}

pub(super) fn index(op: &Index, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    let indices = call.tensors(1..call.count())?;
    let (places, offsets) = indexed(x.shape(), &op.axes, &indices)?;
    pick(x, &places, offsets.into_iter())
}

/// Adds `src[from]` to `x[to]` for each pair of offsets; sums are rounded once.
fn add_at(x: &Tensor, src: &Tensor, pairs: impl Iterator<Item = (usize, usize)>) -> Result<Tensor, EvalError> {
    fn run<W: Fold>(x: &Tensor, src: &Tensor, pairs: impl Iterator<Item = (usize, usize)>) -> Result<Tensor, EvalError> {
        let values = decode::<W>(src);
        let mut sums: Vec<W::Sum> = decode::<W>(x).iter().map(|&x| W::plus(W::zero(), x)).collect();
        for (to, from) in pairs {
            sums[to] = W::plus(sums[to], values[from]);
        }
        let rounded = sums.into_iter().map(W::rounded).collect();
        W::values(rounded).store(x.dtype(), x.dtype(), x.shape())
    }
    with_work!(x.dtype(), W => run::<W>(x, src, pairs))
}

pub(super) fn index_put(op: &IndexPut, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, values) = (call.tensor(0)?, call.tensor(1)?);
    let indices = call.tensors(2..call.count())?;
    let (places, to) = indexed(x.shape(), &op.axes, &indices)?;
    let from = Offsets::new(&places, broadcast_strides(values.shape(), &places), 0);
    if op.accumulate {
        return add_at(x, values, to.into_iter().zip(from));
    }
    let mut out = x.clone();
    let size = x.dtype().size();
    let bytes = out.bytes_mut();
    for (to, from) in to.into_iter().zip(from) {
        bytes[to * size..(to + 1) * size].copy_from_slice(&values.bytes()[from * size..(from + 1) * size]);
    }
    Ok(out)
}

pub(super) fn gather(op: &Gather, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, index) = (call.tensor(0)?, call.tensor(1)?);
    let offsets = along(x.shape(), index, op.dim)?;
    pick(x, call.shape(), offsets.into_iter())
}

/// For each element of `index`, the offset of the element it names in a dense tensor of `shape`: its own position, but `index` along `dim`.
fn along(shape: &[usize], index: &Tensor, dim: usize) -> Result<Vec<usize>, EvalError> {
    let stride = dense_strides(shape)[dim];
    let mut strides = dense_strides(shape);
    strides[dim] = 0;
    let positions = decode::<i64>(index);
    let offset = |(base, &position): (usize, &i64)| match usize::try_from(position) {
        Ok(at) if at < shape[dim] => Ok(base + at * stride),
        _ => Err(out_of_range(position, dim, shape[dim])),
    };
    Offsets::new(index.shape(), strides, 0).zip(positions.iter()).map(offset).collect()
}

pub(super) fn scatter_add(op: &ScatterAdd, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, index, src) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let to = along(x.shape(), index, op.dim)?;
    let from = Offsets::new(index.shape(), dense_strides(src.shape()), 0);
    add_at(x, src, to.into_iter().zip(from))
}

pub(super) fn cat(op: &Cat, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let mut out = Tensor::zeros(call.dtype(), call.shape())?;
    let size = call.dtype().size();
    let row = |shape: &[usize]| shape[op.dim..].iter().product::<usize>() * size;
    let (out_row, bytes) = (row(call.shape()), out.bytes_mut());
    let mut start = 0;
    for x in call.tensors(0..call.count())? {
        let own = row(x.shape());
        if own > 0 {
            for (to, from) in bytes.chunks_exact_mut(out_row).zip(x.bytes().chunks_exact(own)) {
                to[start..start + own].copy_from_slice(from);
            }
        }
        start += own;
    }
    Ok(out)
}

pub(super) fn inverse_permutation(call: &Call<'_>) -> Result<Tensor, EvalError> {
    let perm = decode::<i64>(call.tensor(0)?);
    let mut inverse = vec![-1i64; perm.len()];
    for (i, &at) in perm.iter().enumerate() {
        let slot = usize::try_from(at).ok().and_then(|at| inverse.get_mut(at));
        match slot {
            Some(slot) if *slot < 0 => *slot = i as i64,
            _ => return Err(EvalError::Data(format!("element {i} is {at}: not a permutation of 0..{}", perm.len()))),
        }
    }
    super::element::encode(call.dtype(), call.shape(), &inverse)
}

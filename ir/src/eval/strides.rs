//! Walks over strided shapes.

use super::EvalError;
use crate::Tensor;

/// Row-major strides, in elements.
pub(super) fn dense_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// Strides with which a dense tensor of shape `from` reads as one of `shape`: 0 where it repeats.
pub(super) fn broadcast_strides(from: &[usize], shape: &[usize]) -> Vec<usize> {
    let (own, new) = (dense_strides(from), shape.len() - from.len());
    (0..shape.len())
        .map(|i| match i.checked_sub(new) {
            Some(j) if from[j] == shape[i] => own[j],
            _ => 0,
        })
        .collect()
}

/// The shape that tensors broadcast to; inference has checked that they do.
pub(super) fn broadcast_shape(tensors: &[&Tensor]) -> Vec<usize> {
    let rank = tensors.iter().map(|x| x.shape().len()).max().unwrap_or(0);
    let extent = |x: &Tensor, i: usize| (i + x.shape().len()).checked_sub(rank).map_or(1, |at| x.shape()[at]);
    (0..rank).map(|i| tensors.iter().map(|x| extent(x, i)).find(|&n| n != 1).unwrap_or(1)).collect()
}

/// The offsets of a strided shape's elements, in row-major order.
#[derive(Clone, Debug)]
pub(super) struct Offsets {
    shape: Vec<usize>,
    strides: Vec<usize>,
    index: Vec<usize>,
    offset: usize,
    left: usize,
}

impl Offsets {
    pub fn new(shape: &[usize], strides: Vec<usize>, start: usize) -> Offsets {
        let left = shape.iter().product();
        Offsets { shape: shape.to_vec(), strides, index: vec![0; shape.len()], offset: start, left }
    }

    /// Offsets of a dense tensor of `shape` along only the dims that `keep` accepts; the others stay at 0.
    pub fn along(shape: &[usize], keep: impl Fn(usize) -> bool) -> Offsets {
        let strides = dense_strides(shape);
        let kept: Vec<usize> = (0..shape.len()).filter(|&i| keep(i)).collect();
        let extents: Vec<usize> = kept.iter().map(|&i| shape[i]).collect();
        Offsets::new(&extents, kept.iter().map(|&i| strides[i]).collect(), 0)
    }
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let offset = self.offset;
        for i in (0..self.shape.len()).rev() {
            self.index[i] += 1;
            self.offset += self.strides[i];
            if self.index[i] < self.shape[i] {
                break;
            }
            self.offset -= self.strides[i] * self.shape[i];
            self.index[i] = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// A tensor of the elements of `x` at `offsets`, whatever its dtype.
pub(super) fn pick(x: &Tensor, shape: &[usize], offsets: impl Iterator<Item = usize>) -> Result<Tensor, EvalError> {
    let mut out = Tensor::zeros(x.dtype(), shape)?;
    fn copy<T: bytemuck::Pod>(from: &[u8], to: &mut [u8], offsets: impl Iterator<Item = usize>) {
        let from: &[T] = bytemuck::cast_slice(from);
        for (slot, at) in bytemuck::cast_slice_mut::<u8, T>(to).iter_mut().zip(offsets) {
            *slot = from[at];
        }
    }
    let (from, to) = (x.bytes(), out.bytes_mut());
    match x.dtype().size() {
        1 => copy::<u8>(from, to, offsets),
        2 => copy::<u16>(from, to, offsets),
        4 => copy::<u32>(from, to, offsets),
        8 => copy::<u64>(from, to, offsets),
        _ => copy::<u128>(from, to, offsets),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_in_row_major_order() {
        let transposed = Offsets::new(&[3, 2], vec![1, 3], 0);
        assert_eq!(transposed.collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(Offsets::new(&[2, 0], vec![1, 1], 0).count(), 0);
        assert_eq!(Offsets::new(&[], vec![], 7).collect::<Vec<_>>(), [7]);
        assert_eq!(Offsets::along(&[2, 3, 4], |i| i != 1).collect::<Vec<_>>(), [0, 1, 2, 3, 12, 13, 14, 15]);
    }
}

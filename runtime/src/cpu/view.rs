//! Strided views of host memory with known extents.

use eglu_ir::{Bindings, DType, Shape, dim::DimError};
use smallvec::SmallVec;

/// Extents or strides.
pub type Extents = SmallVec<[usize; 6]>;

/// A strided view of a buffer. Every element it addresses lies within `bytes` (checked when it is made).
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Extents,
    /// Elements between neighbours along each dim.
    pub strides: Extents,
    /// Element of the buffer at which the view starts.
    pub offset: usize,
    /// The whole buffer.
    pub bytes: &'a [u8],
}

/// Why a view cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ViewError {
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error("a view of extents {shape:?}, strides {strides:?} and offset {offset} leaves its buffer of {len} elements")]
    OutOfBounds { shape: Vec<usize>, strides: Vec<usize>, offset: usize, len: usize },
}

/// The values of dims.
pub fn extents(shape: &Shape, bindings: &Bindings) -> Result<Extents, DimError> {
    shape.iter().map(|d| d.extent(bindings)).collect()
}

impl<'a> View<'a> {
    /// The view of `layout` under `bindings`.
    pub fn new(dtype: DType, layout: &eglu_codegen::Layout, bindings: &Bindings, bytes: &'a [u8]) -> Result<View<'a>, ViewError> {
        let shape = extents(&layout.shape, bindings)?;
        let strides = extents(&layout.strides, bindings)?;
        let view = View { dtype, shape, strides, offset: layout.offset.extent(bindings)?, bytes };
        let len = bytes.len() / dtype.size();
        let reach = view
            .shape
            .iter()
            .zip(&view.strides)
            .try_fold(view.offset, |at, (&extent, &stride)| at.checked_add(extent.saturating_sub(1).checked_mul(stride)?));
        if view.numel() > 0 && reach.is_none_or(|last| last >= len) {
            let (shape, strides) = (view.shape.to_vec(), view.strides.to_vec());
            return Err(ViewError::OutOfBounds { shape, strides, offset: view.offset, len });
        }
        Ok(view)
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same elements seen in `shape`, to which this one broadcasts (checked by inference).
    pub fn broadcast(&self, shape: &[usize]) -> View<'a> {
        let new = shape.len() - self.shape.len();
        let stride = |i: usize| match i.checked_sub(new) {
            Some(j) if self.shape[j] == shape[i] => self.strides[j],
            _ => 0,
        };
        View { shape: shape.into(), strides: (0..shape.len()).map(stride).collect(), ..self.clone() }
    }

    /// Dims in another order.
    pub fn permute(&self, dims: &[usize]) -> View<'a> {
        View {
            shape: dims.iter().map(|&d| self.shape[d]).collect(),
            strides: dims.iter().map(|&d| self.strides[d]).collect(),
            ..self.clone()
        }
    }

    /// Element `index` of the first dim, that dim dropped.
    pub fn at(&self, index: usize) -> View<'a> {
        View {
            dtype: self.dtype,
            shape: self.shape[1..].into(),
            strides: self.strides[1..].into(),
            offset: self.offset + index * self.strides[0],
            bytes: self.bytes,
        }
    }

    /// The elements as a slice if they are dense in memory.
    pub fn as_dense_bytes(&self) -> Option<&'a [u8]> {
        let numel = self.numel();
        if numel == 0 {
            return Some(&[]);
        }
        let size = self.dtype.size();
        let runs = self.runs();
        match runs.dims[..] {
            [(_, 1)] => Some(&self.bytes[self.offset * size..(self.offset + numel) * size]),
            _ if numel == 1 => Some(&self.bytes[self.offset * size..(self.offset + 1) * size]),
            _ => None,
        }
    }

    /// The view as (extent, stride) pairs with neighbouring dims merged where one stride serves both; never empty.
    pub fn runs(&self) -> Runs {
        let mut dims: SmallVec<[(usize, usize); 6]> = SmallVec::new();
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).filter(|(extent, _)| **extent != 1) {
            match dims.last_mut() {
                Some((outer, outer_stride)) if *outer_stride == extent * stride => {
                    (*outer, *outer_stride) = (*outer * extent, stride)
                }
                _ => dims.push((extent, stride)),
            }
        }
        if dims.is_empty() {
            dims.push((1, 1));
        }
        Runs { offset: self.offset, dims }
    }
}

/// A view's elements in row-major order, as runs of one stride.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    offset: usize,
    dims: SmallVec<[(usize, usize); 6]>,
}

impl Runs {
    /// The stride, if one run covers the whole view.
    pub fn single(&self) -> Option<usize> {
        match self.dims[..] {
            [(_, stride)] => Some(stride),
            _ => None,
        }
    }

    /// Calls `f(position, offset, stride, len)` for the runs that make up elements `start .. start + len` of the view: `len` elements of the
    /// buffer from `offset` in steps of `stride`, the first of which is element `start + position`.
    #[inline]
    pub fn each(&self, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let (inner, stride) = self.dims[self.dims.len() - 1];
        if len == 0 {
            return;
        }
        if self.dims.len() == 1 {
            return f(0, self.offset + start * stride, stride, len);
        }
        let (mut done, mut row, mut column) = (0, start / inner, start % inner);
        while done < len {
            let mut offset = self.offset + column * stride;
            let mut rest = row;
            for &(extent, stride) in self.dims[..self.dims.len() - 1].iter().rev() {
                offset += (rest % extent) * stride;
                rest /= extent;
            }
            let count = (inner - column).min(len - done);
            f(done, offset, stride, count);
            (done, row, column) = (done + count, row + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk(view: &View<'_>, start: usize, len: usize) -> Vec<usize> {
        let mut at = vec![usize::MAX; len];
        view.runs().each(start, len, |position, offset, stride, count| {
            for i in 0..count {
                at[position + i] = offset + i * stride;
            }
        });
        at
    }

    proptest! {
        #[test]
        fn runs_follow_row_major_order(dims in prop::collection::vec((1usize..5, 0usize..7), 0..5), from in 0usize..50, take in 0usize..50) {
            let shape: Extents = dims.iter().map(|d| d.0).collect();
            let view = View { dtype: DType::U8, shape: shape.clone(), strides: dims.iter().map(|d| d.1).collect(), offset: 3, bytes: &[] };
            let want = |mut i: usize| {
                let mut at = 3;
                for (extent, stride) in dims.iter().rev() {
                    at += (i % extent) * stride;
                    i /= extent;
                }
                at
            };
            let start = from.min(view.numel());
            let len = take.min(view.numel() - start);
            prop_assert_eq!(walk(&view, start, len), (start..start + len).map(want).collect::<Vec<_>>());
        }
    }

    #[test]
    fn views_stay_in_their_buffer() {
        let layout = eglu_codegen::Layout::dense([4i64, 4].into_iter().map(Into::into).collect());
        let bytes = [0u8; 64];
        assert!(View::new(DType::F32, &layout, &Bindings::new(), &bytes).is_ok());
        assert!(matches!(View::new(DType::F32, &layout, &Bindings::new(), &bytes[..60]), Err(ViewError::OutOfBounds { .. })));
    }
}

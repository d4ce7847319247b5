//! Strided views of device memory, made dense on the host.

use eglu_codegen::Layout;
use eglu_ir::{Bindings, dim::DimError};

/// A layout with all dims known, in elements.
pub(super) struct Reading {
    pub(super) shape: Vec<usize>,
    strides: Vec<i64>,
    offset: i64,
}

impl Reading {
    pub(super) fn of(layout: &Layout, bindings: &Bindings) -> Result<Reading, DimError> {
        Ok(Reading {
            shape: layout.shape.iter().map(|dim| dim.extent(bindings)).collect::<Result<_, _>>()?,
            strides: layout.strides.iter().map(|dim| dim.eval(bindings)).collect::<Result<_, _>>()?,
            offset: layout.offset.eval(bindings)?,
        })
    }

    /// Extents, strides and offset, in elements.
    pub(super) fn into_parts(self) -> (Vec<usize>, Vec<i64>, i64) {
        (self.shape, self.strides, self.offset)
    }

    /// The first element read and how many from there to the last, both included; `None` for an empty view.
    pub(super) fn span(&self) -> Option<(usize, usize)> {
        if self.shape.contains(&0) {
            return None;
        }
        let reach = |negative: bool| -> i64 {
            let strides = self.strides.iter().zip(&self.shape).filter(|(stride, _)| (**stride < 0) == negative);
            strides.map(|(stride, &extent)| stride * (extent as i64 - 1)).sum()
        };
        let (first, last) = (self.offset + reach(true), self.offset + reach(false));
        Some((usize::try_from(first).ok()?, (last - first) as usize + 1))
    }

    /// True if elements lie one after the other in row-major order.
    pub(super) fn is_dense(&self) -> bool {
        let mut want = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == want;
            want *= extent as i64;
            fits
        })
    }
}

/// Copies the elements of a view, of `size` bytes each, from `span`, which starts at element `first`, to `dense`.
pub(super) fn gather(reading: &Reading, first: usize, size: usize, span: &[u8], dense: &mut [u8]) {
    let mut index = vec![0usize; reading.shape.len()];
    let mut at = reading.offset - first as i64;
    for out in dense.chunks_exact_mut(size) {
        let from = at as usize * size;
        out.copy_from_slice(&span[from..from + size]);
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            at += reading.strides[dim];
            if index[dim] < reading.shape[dim] {
                break;
            }
            at -= reading.strides[dim] * index[dim] as i64;
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_ir::{Dim, Shape};

    fn read(layout: &Layout, memory: &[u8]) -> (Reading, Vec<u8>) {
        let reading = Reading::of(layout, &Bindings::new()).unwrap();
        let mut dense = vec![0; reading.shape.iter().product()];
        if let Some((first, count)) = reading.span() {
            gather(&reading, first, 1, &memory[first..first + count], &mut dense);
        }
        (reading, dense)
    }

    fn dense(dims: &[i64]) -> Layout {
        Layout::dense(Shape::from_iter(dims.iter().map(|&d| Dim::from(d))))
    }

    #[test]
    fn reads_views_as_the_plan_means_them() {
        let memory: Vec<u8> = (0..24).collect();
        let layout = dense(&[4, 6]);
        let (reading, all) = read(&layout, &memory);
        assert!(reading.is_dense() && all == memory);
        let (reading, transposed) = read(&layout.permute(&[1, 0]), &memory);
        assert!(!reading.is_dense());
        assert_eq!(transposed[..5], [0, 6, 12, 18, 1]);
        let lanes = layout.slice(1, &Dim::from(1), &Dim::from(6), 2).slice(0, &Dim::from(2), &Dim::from(4), 1);
        assert_eq!(read(&lanes, &memory).1, [13, 15, 17, 19, 21, 23]);
        let row = dense(&[1, 3]).expand(&Shape::from_iter([Dim::from(2), Dim::from(3)]));
        assert_eq!(read(&row, &memory).1, [0, 1, 2, 0, 1, 2]);
        let (reading, nothing) = read(&layout.slice(0, &Dim::from(2), &Dim::from(2), 1), &memory);
        assert!(nothing.is_empty() && reading.span().is_none());
    }
}

//! Weights in an archive: windows of whole storages, by size, stride and offset.

use super::WeightError;
use crate::{DType, Tensor, archive::Archive, tensor::TensorError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A window of a storage, in elements, as an archive declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<i64>,
    /// Elements between neighbours along each dim.
    pub strides: Vec<i64>,
    /// The first element.
    pub offset: i64,
}

/// A weight that lies in an archive, checked to lie within its storage.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    archive: Arc<Archive>,
    file: String,
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
}

impl Placement {
    /// Elements of the storage that the window needs; `None` where the numbers are negative or overflow.
    fn needs(&self) -> Option<u64> {
        let mut last = u64::try_from(self.offset).ok()?;
        let mut empty = false;
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let (size, stride) = (u64::try_from(size).ok()?, u64::try_from(stride).ok()?);
            empty |= size == 0;
            last = last.checked_add(size.saturating_sub(1).checked_mul(stride)?)?;
        }
        if empty { Some(0) } else { last.checked_add(1) }
    }
}

impl Stored {
    /// The weight `name` in the entry `file`.
    pub fn new(archive: &Arc<Archive>, name: &str, file: &str, place: &Placement) -> Result<Stored, WeightError> {
        let damaged = |why: &str| WeightError::Damaged { name: name.into(), why: why.into() };
        let entry = archive.entry(file).ok_or_else(|| damaged(&format!("it has no entry `{file}`")))?;
        if place.shape.len() != place.strides.len() {
            return Err(damaged("it has not as many strides as sizes"));
        }
        let needs = place.needs().and_then(|elements| elements.checked_mul(place.dtype.size() as u64));
        if needs.is_none_or(|needs| needs > entry.size) {
            let window = format!("size {:?} with strides {:?} from {}", place.shape, place.strides, place.offset);
            let needs = needs.map_or_else(|| "more than 2^64".to_owned(), |needs| needs.to_string());
            return Err(WeightError::OutOfStorage { name: name.into(), file: file.into(), window, needs, has: entry.size });
        }
        // Within a storage that exists, each number is within usize; a stride of a dim of one element may be anything.
        let sizes = |list: &[i64]| list.iter().map(|&v| usize::try_from(v).unwrap_or(0)).collect();
        Ok(Stored {
            archive: archive.clone(),
            file: file.into(),
            dtype: place.dtype,
            shape: sizes(&place.shape),
            strides: sizes(&place.strides),
            offset: place.offset as usize,
        })
    }

    /// The archive, the entry in it, and the window of that.
    pub fn placement(&self) -> (&Arc<Archive>, &str, Placement) {
        let signed = |list: &[usize]| list.iter().map(|&v| v as i64).collect();
        let (shape, strides) = (signed(&self.shape), signed(&self.strides));
        (&self.archive, &self.file, Placement { dtype: self.dtype, shape, strides, offset: self.offset as i64 })
    }

    /// Bytes of the dense tensor.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.size() as u64, |n, &d| n.saturating_mul(d as u64))
    }

    fn is_dense(&self) -> bool {
        let mut dense = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == dense;
            dense *= size;
            fits
        })
    }

    /// The dense tensor.
    pub fn load(&self, name: &str) -> Result<Tensor, WeightError> {
        let damaged = |why: String| WeightError::Damaged { name: name.into(), why };
        let failed = |source: TensorError| WeightError::Tensor { name: name.into(), source };
        if self.shape.contains(&0) {
            return Tensor::zeros(self.dtype, &self.shape).map_err(failed);
        }
        let entry = self.archive.entry(&self.file).ok_or_else(|| damaged(format!("it has no entry `{}`", self.file)))?;
        let size = self.dtype.size();
        if self.is_dense()
            && let Some(start) = self.archive.stored_at(entry)
        {
            return Tensor::from_mmap(self.dtype, &self.shape, self.archive.map(), start + self.offset * size).map_err(failed);
        }
        let storage = self.archive.bytes(entry).map_err(damaged)?;
        let mut tensor = Tensor::zeros(self.dtype, &self.shape).map_err(failed)?;
        gather(&storage[self.offset * size..], &self.shape, &self.strides, size, tensor.bytes_mut());
        Ok(tensor)
    }
}

/// Copies the elements of a strided window to their dense order.
fn gather(from: &[u8], shape: &[usize], strides: &[usize], size: usize, to: &mut [u8]) {
    let Some((&row, outer)) = shape.split_last() else {
        to.copy_from_slice(&from[..size]);
        return;
    };
    let step = strides[outer.len()];
    let mut index = vec![0; outer.len()];
    let mut start = 0;
    for line in to.chunks_exact_mut(row * size) {
        if step == 1 {
            line.copy_from_slice(&from[start * size..(start + row) * size]);
        } else {
            for (i, element) in line.chunks_exact_mut(size).enumerate() {
                let at = (start + i * step) * size;
                element.copy_from_slice(&from[at..at + size]);
            }
        }
        for dim in (0..outer.len()).rev() {
            index[dim] += 1;
            start += strides[dim];
            if index[dim] < outer[dim] {
                break;
            }
            start -= index[dim] * strides[dim];
            index[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_transposed_and_strided_windows() {
        let storage: Vec<u8> = (0..12).collect();
        let mut out = [0; 6];
        gather(&storage, &[3, 2], &[1, 3], 1, &mut out);
        assert_eq!(out, [0, 3, 1, 4, 2, 5]);
        gather(&storage[1..], &[2, 3], &[6, 2], 1, &mut out);
        assert_eq!(out, [1, 3, 5, 7, 9, 11]);
    }

    #[test]
    fn windows_are_measured_without_overflow() {
        let place = |shape: &[i64], strides: &[i64], offset| {
            Placement { dtype: DType::F32, shape: shape.into(), strides: strides.into(), offset }.needs()
        };
        assert_eq!(place(&[2, 3], &[3, 1], 4), Some(10));
        assert_eq!(place(&[], &[], 0), Some(1));
        assert_eq!(place(&[0, 3], &[3, 1], 9), Some(0));
        assert_eq!(place(&[i64::MAX, i64::MAX], &[i64::MAX, 1], 0), None);
        assert_eq!(place(&[2], &[-1], 3), None);
    }
}

//! Strided layouts: how a view reads its buffer.

use eglu_ir::{Dim, Shape, types::numel};
use serde::{Deserialize, Serialize};

/// Element `i` of the view is at `offset + Σ i[d] · strides[d]` of its buffer, all in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Extents.
    pub shape: Shape,
    /// Elements between neighbours along each dim; 0 where a dim repeats.
    pub strides: Shape,
    /// Where the view starts.
    pub offset: Dim,
}

impl Layout {
    /// Row-major without gaps.
    pub fn dense(shape: Shape) -> Layout {
        let mut strides: Shape = shape.iter().map(|_| Dim::from(1)).collect();
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i].clone() * shape[i].clone();
        }
        Layout { shape, strides, offset: Dim::from(0) }
    }

    /// True if the view is row-major without gaps (its offset may be anything).
    pub fn is_dense(&self) -> bool {
        let dense = Layout::dense(self.shape.clone());
        let mut dims = self.shape.iter().zip(&self.strides).zip(&dense.strides);
        dims.all(|((extent, stride), want)| extent.is(1) || stride == want)
    }

    /// Dims in another order.
    pub fn permute(&self, dims: &[usize]) -> Layout {
        Layout {
            shape: dims.iter().map(|&i| self.shape[i].clone()).collect(),
            strides: dims.iter().map(|&i| self.strides[i].clone()).collect(),
            offset: self.offset.clone(),
        }
    }

    /// Broadcast to `shape`.
    pub fn expand(&self, shape: &Shape) -> Layout {
        let new = shape.len() - self.shape.len();
        let stride = |i: usize| match i.checked_sub(new) {
            Some(j) if self.shape[j] == shape[i] => self.strides[j].clone(),
            _ => Dim::from(0),
        };
        Layout { shape: shape.clone(), strides: (0..shape.len()).map(stride).collect(), offset: self.offset.clone() }
    }

    /// Elements `start, start + step, …` before `end` of one dim.
    pub fn slice(&self, dim: usize, start: &Dim, end: &Dim, step: i64) -> Layout {
        let mut layout = self.clone();
        layout.offset = layout.offset + start.clone() * self.strides[dim].clone();
        layout.shape[dim] = (end.clone() - start.clone()).ceil_div(step);
        layout.strides[dim] = layout.strides[dim].clone() * Dim::from(step);
        layout
    }

    /// The same elements in another shape, if strides can express it; `None` means a copy is needed.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        let from: Vec<(Dim, Dim)> =
            self.shape.iter().cloned().zip(self.strides.iter().cloned()).filter(|(extent, _)| !extent.is(1)).collect();
        let mut strides: Shape = shape.iter().map(|_| Dim::from(0)).collect();
        let (mut old, mut new) = (0, 0);
        // Walks both shapes in groups of equal size; a group of old dims must be dense in itself.
        while new < shape.len() {
            if shape[new].is(1) {
                new += 1;
                continue;
            }
            let (first_old, first_new) = (old, new);
            let (mut have, mut want) = (from.get(old)?.0.clone(), shape[new].clone());
            (old, new) = (old + 1, new + 1);
            while have != want {
                if new < shape.len() && (want.is(1) || have.exact_div(&want).is_some()) {
                    want = want * shape[new].clone();
                    new += 1;
                } else {
                    have = have * from.get(old)?.0.clone();
                    old += 1;
                }
            }
            for pair in from[first_old..old].windows(2) {
                if pair[0].1 != pair[1].1.clone() * pair[1].0.clone() {
                    return None;
                }
            }
            let mut stride = from[old - 1].1.clone();
            for i in (first_new..new).rev() {
                strides[i] = stride.clone();
                stride = stride * shape[i].clone();
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset.clone() })
    }

    /// Number of elements.
    pub fn numel(&self) -> Dim {
        numel(&self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> Shape {
        dims.iter().map(|&d| Dim::from(d)).collect()
    }

    #[test]
    fn reshape_of_a_dense_view_is_dense() {
        let layout = Layout::dense(shape(&[2, 8, 64])).reshape(&shape(&[16, 1, 4, 16]));
        assert!(layout.is_some_and(|l| l.is_dense()));
    }

    #[test]
    fn reshape_across_a_gap_needs_a_copy() {
        let half = Layout::dense(shape(&[4, 8])).slice(1, &Dim::from(0), &Dim::from(4), 1);
        assert_eq!(half.reshape(&shape(&[16])), None);
        assert_eq!(half.reshape(&shape(&[2, 2, 4])).map(|l| l.strides), Some(shape(&[16, 8, 1])));
    }

    #[test]
    fn reshape_with_symbols() {
        let s = Dim::symbol("s0");
        let flat = Layout::dense(Shape::from_iter([s.clone() * Dim::from(2), Dim::from(8)]));
        let split = flat.reshape(&Shape::from_iter([s, Dim::from(2), Dim::from(8)]));
        assert!(split.is_some_and(|l| l.is_dense()));
    }
}

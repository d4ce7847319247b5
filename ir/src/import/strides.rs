//! Whether a tensor is contiguous, and whether a reshape is a view: by the source's strides, as `at::detail::computeStride` decides it (aten/src/ATen/TensorUtils.cpp).

use crate::Dim;

/// True if a tensor of these sizes and strides can be seen in `shape` without a copy. Dynamic extents count as equal only where
/// their expressions are, as `torch.export` does for unguarded ones.
pub fn can_view(sizes: &[Dim], strides: &[Dim], shape: &[Dim]) -> bool {
    if sizes.is_empty() || sizes.iter().any(|d| d.is(0)) {
        return true;
    }
    let one = Dim::from(1);
    let mut shape_left = shape.iter().rev().peekable();
    let (mut have, mut seen) = (one.clone(), one.clone());
    let mut base = strides[strides.len() - 1].clone();
    for i in (0..sizes.len()).rev() {
        have = have * sizes[i].clone();
        let ends_chunk = i == 0 || (!sizes[i - 1].is(1) && strides[i - 1] != have.clone() * base.clone());
        if !ends_chunk {
            continue;
        }
        while shape_left
            .next_if(|extent| seen != have || extent.is(1))
            .map(|extent| seen = seen.clone() * extent.clone())
            .is_some()
        {}
        if seen != have {
            return false;
        }
        if i > 0 {
            base = strides[i - 1].clone();
            (have, seen) = (one.clone(), one.clone());
        }
    }
    shape_left.next().is_none()
}

/// True if the elements stand densely in row-major order; strides of dims of one element do not count.
pub fn is_contiguous(sizes: &[Dim], strides: &[Dim]) -> bool {
    let mut dense = Dim::from(1);
    sizes.iter().any(|size| size.is(0))
        || sizes.iter().zip(strides).rev().all(|(size, stride)| {
            let fits = size.is(1) || *stride == dense;
            dense = dense.clone() * size.clone();
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(list: &[i64]) -> Vec<Dim> {
        list.iter().map(|&d| Dim::from(d)).collect()
    }

    fn views(sizes: &[i64], strides: &[i64], shape: &[i64]) -> bool {
        can_view(&dims(sizes), &dims(strides), &dims(shape))
    }

    #[test]
    fn agrees_with_pytorch() {
        assert!(views(&[4, 6], &[6, 1], &[24]));
        assert!(views(&[4, 6], &[6, 1], &[2, 2, 6]));
        assert!(!views(&[6, 4], &[1, 6], &[24]));
        assert!(views(&[6, 4], &[1, 6], &[2, 3, 4]));
        assert!(!views(&[4, 3], &[6, 1], &[12]));
        assert!(views(&[4, 3], &[6, 1], &[2, 2, 3]));
        assert!(views(&[4, 1], &[6, 99], &[4]));
        assert!(views(&[2, 1, 3], &[3, 7, 1], &[6, 1]));
        assert!(!views(&[2, 4], &[0, 1], &[8]));
        assert!(is_contiguous(&dims(&[2, 1, 3]), &dims(&[3, 9, 1])) && !is_contiguous(&dims(&[3, 2]), &dims(&[1, 3])));
    }

    #[test]
    fn dynamic_extents_compare_by_expression() {
        let s = Dim::symbol("s0");
        let sizes = [s.clone(), Dim::from(8)];
        assert!(can_view(&sizes, &dims(&[8, 1]), &[s.clone() * Dim::from(8)]));
        assert!(!can_view(&sizes, &[Dim::from(1), s.clone()], &[s * Dim::from(8)]));
    }
}

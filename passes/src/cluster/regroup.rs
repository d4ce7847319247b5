//! Shapes that differ only in how dims are grouped: how a reshape acts on an operand that broadcasts.

use eglu_ir::{Dim, Shape};

/// The shape that `operand`, broadcast against `from`, must take so that it broadcasts the same way once `from` is reshaped to `to`.
///
/// Both shapes fall into groups of equal size; in each group the operand must repeat over all dims or over none. `None` if it does not,
/// or if symbols hide the groups. An operand of rank 0 stays as it is.
pub(crate) fn regroup(operand: &Shape, from: &Shape, to: &Shape) -> Option<Shape> {
    if operand.is_empty() {
        return Some(Shape::new());
    }
    let new = from.len().checked_sub(operand.len())?;
    let extent = |i: usize| i.checked_sub(new).map_or(Dim::from(1), |i| operand[i].clone());
    let mut shape = Shape::new();
    for (old, fresh) in groups(from, to)? {
        let inner: Vec<usize> = old.filter(|&i| !from[i].is(1)).collect();
        let full = inner.iter().all(|&i| extent(i) == from[i]);
        let repeats = inner.iter().all(|&i| extent(i).is(1));
        if !full && !repeats {
            return None;
        }
        shape.extend(fresh.map(|i| if full { to[i].clone() } else { Dim::from(1) }));
    }
    Some(shape)
}

type Range = std::ops::Range<usize>;

/// The finest split of both shapes into runs of equal size, in order.
fn groups(from: &Shape, to: &Shape) -> Option<Vec<(Range, Range)>> {
    let mut groups = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (start_i, start_j) = (i, j);
        let (mut left, mut right) = (Dim::from(1), Dim::from(1));
        if i < from.len() && j < to.len() {
            (left, right) = (from[i].clone(), to[j].clone());
            (i, j) = (i + 1, j + 1);
        }
        while left != right {
            // The side whose product divides the other's lags behind.
            let left_lags = right.exact_div(&left).is_some() || j == to.len();
            if left_lags && i < from.len() {
                left = left * from[i].clone();
                i += 1;
            } else if j < to.len() {
                right = right * to[j].clone();
                j += 1;
            } else {
                return None;
            }
        }
        // Trailing extents of 1 on either side belong to the last group.
        if i == from.len() || j == to.len() {
            let rest_is_one = from[i..].iter().chain(&to[j..]).all(|extent| extent.is(1));
            if !rest_is_one {
                return None;
            }
            (i, j) = (from.len(), to.len());
        }
        groups.push((start_i..i, start_j..j));
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> Shape {
        dims.iter().map(|&d| Dim::from(d)).collect()
    }

    #[test]
    fn broadcast_operands_follow_the_groups() {
        let (from, to) = (shape(&[16, 64]), shape(&[2, 8, 64]));
        assert_eq!(regroup(&shape(&[64]), &from, &to), Some(shape(&[1, 1, 64])));
        assert_eq!(regroup(&shape(&[16, 1]), &from, &to), Some(shape(&[2, 8, 1])));
        assert_eq!(regroup(&shape(&[2, 1, 64]), &to, &from), None);
        assert_eq!(regroup(&shape(&[1, 1, 64]), &to, &from), Some(shape(&[1, 64])));
        assert_eq!(regroup(&shape(&[]), &from, &to), Some(shape(&[])));
    }

    #[test]
    fn unit_dims_and_symbols() {
        let s = Dim::symbol("s0");
        let from = Shape::from_iter([s.clone() * Dim::from(2), Dim::from(8)]);
        let to = Shape::from_iter([s, Dim::from(2), Dim::from(8), Dim::from(1)]);
        assert_eq!(regroup(&from, &from, &to), Some(to.clone()));
        assert_eq!(regroup(&shape(&[8]), &from, &to), Some(shape(&[1, 1, 8, 1])));
    }
}

//! Loops over the elements of several strided operands at once.

use super::kernel::divisible;
use eglu_ir::Dim;

/// Extents, and each operand's strides, after dims of extent 1 went and neighbouring dims that every operand walks alike merged.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loop {
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
    /// `strides[operand][dim]`, in elements.
    pub strides: Vec<Vec<Dim>>,
}

impl Loop {
    /// The loop over `shape` of operands with these strides.
    pub fn new(shape: &[Dim], operands: &[Vec<Dim>]) -> Loop {
        let mut merged = Loop { shape: Vec::new(), strides: vec![Vec::new(); operands.len()] };
        for (i, extent) in shape.iter().enumerate() {
            if extent.is(1) {
                continue;
            }
            let joins = merged.shape.last().is_some()
                && operands
                    .iter()
                    .zip(&merged.strides)
                    .all(|(operand, strides)| strides.last().is_some_and(|outer| *outer == operand[i].clone() * extent.clone()));
            if joins {
                if let Some(last) = merged.shape.last_mut() {
                    *last = last.clone() * extent.clone();
                }
                for (strides, operand) in merged.strides.iter_mut().zip(operands) {
                    strides.pop();
                    strides.push(operand[i].clone());
                }
            } else {
                merged.shape.push(extent.clone());
                for (strides, operand) in merged.strides.iter_mut().zip(operands) {
                    strides.push(operand[i].clone());
                }
            }
        }
        merged
    }

    /// How many neighbouring elements may move as one access: the innermost dim must be contiguous (or repeat) in every operand, and groups
    /// must start on their own size. `sizes` has the bytes of an element and the offset of each operand that moves in groups; an operand
    /// without must repeat along the innermost dim.
    pub fn vector_width(&self, sizes: &[Option<(usize, Dim)>]) -> i64 {
        let largest = sizes.iter().flatten().map(|(size, _)| *size).max().unwrap_or(16);
        let width = (16 / largest.max(1)) as i64;
        let Some(inner) = self.shape.last() else { return 1 };
        let whole = self.shape.len() == 1 || divisible(inner, width);
        let aligned = self.strides.iter().zip(sizes).all(|(strides, size)| match (strides.split_last(), size) {
            (Some((inner, _)), _) if inner.is(0) => true,
            (Some((inner, outer)), Some((_, offset))) => {
                inner.is(1) && outer.iter().all(|s| divisible(s, width)) && divisible(offset, width)
            }
            _ => false,
        });
        if whole && aligned { width } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(values: &[i64]) -> Vec<Dim> {
        values.iter().map(|&v| Dim::from(v)).collect()
    }

    #[test]
    fn dense_operands_walk_one_dim() {
        let whole = Loop::new(&dims(&[4, 1, 8]), &[dims(&[8, 8, 1]), dims(&[8, 3, 1])]);
        assert_eq!(whole, Loop { shape: dims(&[32]), strides: vec![dims(&[1]), dims(&[1])] });
    }

    #[test]
    fn a_broadcast_row_keeps_dims_apart() {
        let bias = Loop::new(&dims(&[2, 4, 8]), &[dims(&[32, 8, 1]), dims(&[0, 0, 1])]);
        assert_eq!(bias, Loop { shape: dims(&[8, 8]), strides: vec![dims(&[8, 1]), dims(&[0, 1])] });
        let halves = [Some((2, Dim::from(0))), Some((2, Dim::from(0)))];
        assert_eq!(bias.vector_width(&halves), 8);
        let odd = [Some((2, Dim::from(0))), Some((2, Dim::from(3)))];
        assert_eq!(bias.vector_width(&odd), 1);
    }
}

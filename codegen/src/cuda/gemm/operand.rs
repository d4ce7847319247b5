//! How an operand of a product lies in memory, and so how its tiles travel.

use super::super::kernel::divisible;
use eglu_ir::Dim;

/// How tiles of an operand (rows × K) are read; names follow the device library's `Walk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Walk {
    /// K is contiguous, rows start on 16 bytes.
    KMajor,
    /// Rows are contiguous, each k starts on 16 bytes.
    RowMajor,
    /// Anything else.
    Strided,
}

impl Walk {
    /// The walk of 16-bit elements with these strides; `bases` are further offsets that a tile may start at.
    pub fn of(row_stride: &Dim, k_stride: &Dim, bases: &[&Dim]) -> Walk {
        let aligned = |dim: &Dim| divisible(dim, 8);
        if !bases.iter().all(|base| aligned(base)) {
            Walk::Strided
        } else if k_stride.is(1) && aligned(row_stride) {
            Walk::KMajor
        } else if row_stride.is(1) && aligned(k_stride) {
            Walk::RowMajor
        } else {
            Walk::Strided
        }
    }

    /// The walk that serves both.
    pub fn join(self, other: Walk) -> Walk {
        if self == other { self } else { Walk::Strided }
    }

    pub fn name(self) -> &'static str {
        match self {
            Walk::KMajor => "k_major",
            Walk::RowMajor => "row_major",
            Walk::Strided => "strided",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_follow_strides() {
        let d = |v: i64| Dim::from(v);
        assert_eq!(Walk::of(&d(64), &d(1), &[&d(0)]), Walk::KMajor);
        assert_eq!(Walk::of(&d(1), &d(192), &[&d(8)]), Walk::RowMajor);
        assert_eq!(Walk::of(&d(100), &d(1), &[]), Walk::Strided);
        assert_eq!(Walk::of(&d(64), &d(1), &[&d(4)]), Walk::Strided);
        assert_eq!(Walk::of(&(Dim::symbol("s0") * d(8)), &d(1), &[]), Walk::KMajor);
    }
}

//! Element types, their sizes, and PyTorch's promotion among them.

use serde::{Deserialize, Serialize};

/// The dtype of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F8E4M3Fn,
    F8E4M3FnUz,
    F8E5M2,
    F8E5M2FnUz,
    F8E8M0,
    F16,
    Bf16,
    F32,
    F64,
    C32,
    C64,
    C128,
}

/// The rungs of PyTorch's promotion lattice: a value of a higher category wins over any dtype of a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Category {
    Bool,
    Int,
    Float,
    Complex,
}

use DType::*;

/// Every dtype with its name in the textual form, its size in bytes and its number in `torch.export`'s schema.
const TABLE: [(DType, &str, usize, i64); 21] = [
    (Bool, "bool", 1, 12),
    (U8, "u8", 1, 1),
    (I8, "i8", 1, 2),
    (I16, "i16", 2, 3),
    (U16, "u16", 2, 28),
    (I32, "i32", 4, 4),
    (U32, "u32", 4, 34),
    (I64, "i64", 8, 5),
    (U64, "u64", 8, 35),
    (F8E4M3Fn, "f8e4m3fn", 1, 29),
    (F8E4M3FnUz, "f8e4m3fnuz", 1, 31),
    (F8E5M2, "f8e5m2", 1, 30),
    (F8E5M2FnUz, "f8e5m2fnuz", 1, 32),
    (F8E8M0, "f8e8m0", 1, 33),
    (F16, "f16", 2, 6),
    (Bf16, "bf16", 2, 13),
    (F32, "f32", 4, 7),
    (F64, "f64", 8, 8),
    (C32, "c32", 4, 9),
    (C64, "c64", 8, 10),
    (C128, "c128", 16, 11),
];

impl DType {
    /// All dtypes, in ascending order of category.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name used in the textual form, e.g. `bf16`.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The dtype of that name, if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        TABLE[self as usize].2
    }

    /// The dtype of a `ScalarType` number of `torch.export`'s schema (its own numbering, not c10's).
    pub fn from_export_code(code: i64) -> Option<DType> {
        TABLE.iter().find(|row| row.3 == code).map(|row| row.0)
    }

    /// The number of the dtype in `torch.export`'s schema.
    pub fn export_code(self) -> i64 {
        TABLE.iter().find(|row| row.0 == self).map_or(0, |row| row.3)
    }

    /// Where the dtype stands in the promotion lattice.
    pub fn category(self) -> Category {
        match self {
            Bool => Category::Bool,
            U8 | I8 | I16 | U16 | I32 | U32 | I64 | U64 => Category::Int,
            C32 | C64 | C128 => Category::Complex,
            _ => Category::Float,
        }
    }

    /// True for the floating-point dtypes, fp8 included.
    pub fn is_float(self) -> bool {
        self.category() == Category::Float
    }

    /// True for integers, `bool` excluded.
    pub fn is_int(self) -> bool {
        self.category() == Category::Int
    }

    /// True for the complex dtypes.
    pub fn is_complex(self) -> bool {
        self.category() == Category::Complex
    }

    /// The dtype PyTorch computes in (`opmath_t`): halves and fp8 in f32, the rest in themselves.
    pub fn opmath(self) -> DType {
        match self {
            F16 | Bf16 | F8E4M3Fn | F8E4M3FnUz | F8E5M2 | F8E5M2FnUz | F8E8M0 => F32,
            C32 => C64,
            other => other,
        }
    }

    /// `torch.promote_types`: the smallest dtype that both convert to; `None` where PyTorch refuses (two fp8 kinds).
    pub fn promote(self, other: DType) -> Option<DType> {
        if self == other {
            return Some(self);
        }
        let (low, high) = if self.category() <= other.category() { (self, other) } else { (other, self) };
        if low.category() < high.category() {
            if high.category() == Category::Complex && low.is_float() {
                return Some(match (low, high) {
                    (F64, _) => C128,
                    (F32 | Bf16, C32) => C64,
                    _ => high,
                });
            }
            return Some(high);
        }
        match low.category() {
            Category::Bool => Some(Bool),
            Category::Complex => Some(self.max(other)),
            Category::Int => promote_ints(self, other),
            Category::Float => {
                let (a, b) = (self.min(other), self.max(other));
                match (a, b) {
                    (F16, Bf16) => Some(F32),
                    (a, b) if a.size() == 1 && b.size() == 1 => None,
                    _ => Some(b),
                }
            }
        }
    }
}

fn promote_ints(a: DType, b: DType) -> Option<DType> {
    let signed = |t: DType| matches!(t, I8 | I16 | I32 | I64);
    match (signed(a), signed(b)) {
        (true, true) => Some(if a.size() >= b.size() { a } else { b }),
        (false, false) if a == U8 || b == U8 => Some(if a.size() >= b.size() { a } else { b }),
        (false, true) if a == U8 => Some(if b == I8 { I16 } else { b }),
        (true, false) if b == U8 => promote_ints(b, a),
        _ => None,
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_indexed_by_the_enum() {
        for (i, dtype) in DType::all().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
    }

    #[test]
    fn promotion_follows_pytorch() {
        assert_eq!(Bf16.promote(F16), Some(F32));
        assert_eq!(I64.promote(F16), Some(F16));
        assert_eq!(U8.promote(I8), Some(I16));
        assert_eq!(F64.promote(C32), Some(C128));
        assert_eq!(F8E4M3Fn.promote(F8E5M2), None);
        assert_eq!(Bool.promote(U8), Some(U8));
    }
}

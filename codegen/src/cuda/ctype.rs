//! C++ names of dtypes and spellings of numbers.

use super::error::{Emit, Unsupported};
use eglu_ir::{DType, Scalar};

/// The C++ type that elements are stored as.
pub(super) fn storage(dtype: DType) -> Emit<&'static str> {
    Ok(match dtype {
        DType::Bool => "bool",
        DType::U8 => "u8",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::U16 => "u16",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::I64 => "i64",
        DType::U64 => "u64",
        DType::F8E4M3Fn => "f8e4m3fn",
        DType::F8E4M3FnUz => "f8e4m3fnuz",
        DType::F8E5M2 => "f8e5m2",
        DType::F8E5M2FnUz => "f8e5m2fnuz",
        DType::F8E8M0 => "f8e8m0",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
        DType::C64 => "c64",
        DType::C128 => "c128",
        DType::C32 => return Err(Unsupported::new("c32 is not supported on CUDA: run on the CPU, or cast to c64")),
    })
}

/// The C++ type that values are computed in.
pub(super) fn opmath(dtype: DType) -> Emit<&'static str> {
    storage(dtype.opmath())
}

/// The dtype that sums and products of `dtype` accumulate in.
pub(super) fn accumulator(dtype: DType) -> DType {
    match dtype.opmath() {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 => DType::I64,
        other => other,
    }
}

/// A number as an expression of `dtype`'s opmath.
pub(super) fn literal(scalar: Scalar, dtype: DType) -> Emit<String> {
    Ok(match dtype.opmath() {
        DType::Bool => format!("{}", scalar.as_f64() != 0.0),
        DType::F32 => float(f64::from(scalar.as_f64() as f32), "F32", |x| format!("{:?}f", x as f32)),
        DType::F64 => float(scalar.as_f64(), "F64", |x| format!("{x:?}")),
        DType::C64 => format!("c64({})", literal(scalar, DType::F32)?),
        DType::C128 => format!("c128({})", literal(scalar, DType::F64)?),
        other => format!("({})({}ull)", storage(other)?, scalar.as_i64() as u64),
    })
}

fn float(value: f64, prefix: &str, finite: impl Fn(f64) -> String) -> String {
    if value.is_nan() {
        format!("{prefix}_NAN")
    } else if value.is_infinite() {
        format!("({}{prefix}_INF)", if value < 0.0 { "-" } else { "" })
    } else {
        format!("({})", finite(value))
    }
}

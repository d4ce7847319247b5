//! Columns of elements in one of the evaluator's arithmetics, and casts among dtypes.

use super::{
    EvalError,
    element::{Work, decode, encode},
    strides::{Offsets, broadcast_strides},
};
use crate::{DType, Scalar, Tensor, dtype::Category};
use num_complex::Complex64;
use std::{borrow::Cow, ops::Range};

/// Which arithmetic a dtype is computed in: that of its [`opmath`](DType::opmath).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    F32,
    F64,
    Int,
    Complex,
}

pub(super) fn class(dtype: DType) -> Class {
    match (dtype.category(), dtype) {
        (Category::Bool | Category::Int, _) => Class::Int,
        (Category::Complex, _) => Class::Complex,
        (Category::Float, DType::F64) => Class::F64,
        (Category::Float, _) => Class::F32,
    }
}

/// Runs the body with `$w` naming the Rust type that a dtype is computed in.
macro_rules! with_work {
    ($dtype:expr, $w:ident => $body:expr) => {
        match $crate::eval::values::class($dtype) {
            $crate::eval::values::Class::F32 => {
                type $w = f32;
                $body
            }
            $crate::eval::values::Class::F64 => {
                type $w = f64;
                $body
            }
            $crate::eval::values::Class::Int => {
                type $w = i64;
                $body
            }
            $crate::eval::values::Class::Complex => {
                type $w = num_complex::Complex64;
                $body
            }
        }
    };
}
pub(super) use with_work;

/// Elements in the arithmetic of some dtype.
#[derive(Clone, Debug)]
pub(super) enum Values<'a> {
    F32(Cow<'a, [f32]>),
    F64(Cow<'a, [f64]>),
    Int(Cow<'a, [i64]>),
    Complex(Cow<'a, [Complex64]>),
}

/// A type that [`Values`] hold.
pub(super) trait Column: Work {
    fn values(column: Vec<Self>) -> Values<'static>;
}

macro_rules! columns {
    ($($ty:ty => $variant:ident;)+) => {
        $(impl Column for $ty {
            fn values(column: Vec<Self>) -> Values<'static> {
                Values::$variant(Cow::Owned(column))
            }
        })+
    };
}

columns! { f32 => F32; f64 => F64; i64 => Int; Complex64 => Complex; }

/// Runs the body with `$x` the slice that the values hold.
macro_rules! each_class {
    ($values:expr, $x:ident => $body:expr) => {
        match $values {
            Values::F32($x) => $body,
            Values::F64($x) => $body,
            Values::Int($x) => $body,
            Values::Complex($x) => $body,
        }
    };
}

impl<'a> Values<'a> {
    /// The elements of a tensor, in the arithmetic of its dtype.
    pub fn load(tensor: &'a Tensor) -> Values<'a> {
        match class(tensor.dtype()) {
            Class::F32 => Values::F32(decode(tensor)),
            Class::F64 => Values::F64(decode(tensor)),
            Class::Int => Values::Int(decode(tensor)),
            Class::Complex => Values::Complex(decode(tensor)),
        }
    }

    /// The elements repeated along the dims that `shape` has and the tensor lacks.
    pub fn broadcast(self, from: &[usize], shape: &[usize]) -> Values<'a> {
        if from == shape {
            return self;
        }
        let offsets = || Offsets::new(shape, broadcast_strides(from, shape), 0);
        each_class!(self, x => Column::values(offsets().map(|at| x[at]).collect()))
    }

    /// `len` copies of a number, in the arithmetic of `dtype`.
    pub fn splat(scalar: Scalar, dtype: DType, len: usize) -> Values<'static> {
        match class(dtype) {
            Class::F32 => f32::values(vec![scalar.as_f64() as f32; len]),
            Class::F64 => f64::values(vec![scalar.as_f64(); len]),
            Class::Int => {
                let value = match dtype {
                    DType::Bool => i64::from(scalar.as_f64() != 0.0),
                    _ => scalar.as_i64(),
                };
                i64::values(vec![value; len]).wrapped(dtype)
            }
            Class::Complex => Complex64::values(vec![scalar.as_f64().into(); len]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each_class!(self, x => x.len())
    }

    /// A range of the elements.
    pub fn slice(&self, range: Range<usize>) -> Values<'_> {
        match self {
            Values::F32(x) => Values::F32(Cow::Borrowed(&x[range])),
            Values::F64(x) => Values::F64(Cow::Borrowed(&x[range])),
            Values::Int(x) => Values::Int(Cow::Borrowed(&x[range])),
            Values::Complex(x) => Values::Complex(Cow::Borrowed(&x[range])),
        }
    }

    /// The same numbers in the arithmetic of `to`. Floats are not rounded to it; integers are cut to its width.
    pub fn converted(self, from: DType, to: DType) -> Values<'a> {
        fn unsigned(x: &[i64]) -> Values<'static> {
            f64::values(x.iter().map(|&x| x as u64 as f64).collect())
        }
        match (self, class(to)) {
            (Values::F32(x), Class::F32) => Values::F32(x),
            (Values::F64(x), Class::F64) => Values::F64(x),
            (Values::Complex(x), Class::Complex) => Values::Complex(x),
            (Values::Int(x), Class::Int) if from == to => Values::Int(x),
            (Values::Int(x), class) if from == DType::U64 && class != Class::Int => unsigned(&x).converted(DType::F64, to),
            (values, Class::F32) => f32::values(each_class!(values, x => x.iter().map(|x| x.to_f32()).collect())),
            (values, Class::F64) => f64::values(each_class!(values, x => x.iter().map(|x| x.to_f64()).collect())),
            (values, Class::Complex) => Complex64::values(each_class!(values, x => x.iter().map(|x| x.to_complex()).collect())),
            (values, Class::Int) => match to {
                DType::Bool => i64::values(each_class!(values, x => x.iter().map(|x| i64::from(x.truth())).collect())),
                DType::U64 => i64::values(each_class!(values, x => x.iter().map(|x| x.to_u64() as i64).collect())),
                _ => i64::values(each_class!(values, x => x.iter().map(|x| x.to_i64()).collect())).wrapped(to),
            },
        }
    }

    /// Integers cut to the width of `dtype`; floats stay as they are.
    pub fn wrapped(self, dtype: DType) -> Values<'a> {
        let Values::Int(x) = self else { return self };
        let cut: fn(i64) -> i64 = match dtype {
            DType::Bool => |x| i64::from(x != 0),
            DType::U8 => |x| (x as u8).into(),
            DType::I8 => |x| (x as i8).into(),
            DType::U16 => |x| (x as u16).into(),
            DType::I16 => |x| (x as i16).into(),
            DType::U32 => |x| (x as u32).into(),
            DType::I32 => |x| (x as i32).into(),
            _ => return Values::Int(x),
        };
        i64::values(x.iter().map(|&x| cut(x)).collect())
    }

    /// A tensor of the elements, each rounded once.
    pub fn store(&self, from: DType, dtype: DType, shape: &[usize]) -> Result<Tensor, EvalError> {
        if from == DType::U64 && dtype.category() > Category::Int {
            return self.slice(0..self.len()).converted(from, dtype).store(dtype, dtype, shape);
        }
        each_class!(self, x => encode(dtype, shape, x))
    }

    /// The elements rounded to `to` and back, as an explicit cast does.
    pub fn cast(self, from: DType, to: DType) -> Result<Values<'static>, EvalError> {
        let len = self.len();
        let stored = self.store(from, to, &[len])?;
        Ok(Values::load(&stored).into_owned())
    }

    /// The same elements, owned.
    pub fn into_owned(self) -> Values<'static> {
        each_class!(self, x => Column::values(x.into_owned()))
    }
}

/// The tensor in another dtype: `torch.Tensor.to`.
pub(super) fn cast(tensor: &Tensor, dtype: DType) -> Result<Tensor, EvalError> {
    if tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    Values::load(tensor).store(tensor.dtype(), dtype, tensor.shape())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn scalar<T: crate::tensor::Element>(dtype: DType, x: T) -> Tensor {
        Tensor::from_slice(dtype, &[], &[x]).expect("small")
    }

    fn cast_f32<T: crate::tensor::Element>(x: f32, dtype: DType) -> T {
        cast(&scalar(DType::F32, x), dtype).expect("casts").as_slice::<T>()[0]
    }

    #[test]
    fn halves_round_to_nearest_even() {
        assert_eq!(cast_f32::<bf16>(1.0 + 1.0 / 256.0, DType::Bf16).to_f32(), 1.0);
        assert_eq!(cast_f32::<bf16>(1.0 + 3.0 / 256.0, DType::Bf16).to_f32(), 1.015625);
        assert_eq!(cast_f32::<half::f16>(65520.0, DType::F16), half::f16::INFINITY);
    }

    #[test]
    fn doubles_reach_halves_by_way_of_f32() {
        // Just above the tie 1 + 2⁻⁸: f32 rounds onto the tie, then bf16 to even, as c10::BFloat16(double) does.
        let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        let y = cast(&scalar(DType::F64, x), DType::Bf16).expect("casts");
        assert_eq!(y.as_slice::<bf16>()[0].to_f32(), 1.0);
    }

    #[test]
    fn integers_truncate_wrap_and_saturate() {
        assert_eq!(cast_f32::<i32>(-2.9, DType::I32), -2);
        assert_eq!(cast_f32::<u8>(-1.0, DType::U8), 255);
        assert_eq!(cast_f32::<i8>(1000.0, DType::I8), 127);
        assert_eq!(cast(&scalar(DType::I64, 300i64), DType::I8).expect("casts").as_slice::<i8>()[0], 44);
        assert_eq!(cast(&scalar(DType::I64, -1i64), DType::U64).expect("casts").as_slice::<u64>()[0], u64::MAX);
        assert_eq!(cast(&scalar(DType::U64, u64::MAX), DType::F32).expect("casts").as_slice::<f32>()[0], 2f32.powi(64));
        assert_eq!(cast_f32::<u8>(f32::NAN, DType::Bool), 1);
    }
}

//! Elements between their stored form and the four arithmetics of the evaluator: f32, f64, wrapping 64-bit integers and complex f64.

use super::{EvalError, float8};
use crate::{DType, Tensor, tensor::Element};
use half::{bf16, f16};
use num_complex::Complex64;
use std::borrow::Cow;

/// A type the evaluator computes in. Integers of every width are kept sign- or zero-extended, u64 by its bits.
pub(crate) trait Work: Copy + Default + PartialEq + 'static {
    /// True if conversions to narrower integers wrap; they saturate otherwise.
    const WRAPS: bool;

    /// The elements, if they are stored as they are computed with.
    fn stored(tensor: &Tensor) -> Option<&[Self]>;

    fn of_real(value: f64) -> Self;
    fn of_f32(value: f32) -> Self;
    fn of_int(value: i64) -> Self;
    fn of_u64(value: u64) -> Self;
    fn of_complex(value: Complex64) -> Self;

    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// Truncated toward zero and saturated.
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_complex(self) -> Complex64;
    /// Not zero; NaN is true.
    fn truth(self) -> bool;
}

macro_rules! real_work {
    ($ty:ty, $dtype:ident) => {
        impl Work for $ty {
            const WRAPS: bool = false;

            fn stored(tensor: &Tensor) -> Option<&[Self]> {
                (tensor.dtype() == DType::$dtype).then(|| tensor.as_slice())
            }

            fn of_real(value: f64) -> Self {
                value as $ty
            }

            fn of_f32(value: f32) -> Self {
                <$ty>::from(value)
            }

            fn of_int(value: i64) -> Self {
                value as $ty
            }

            fn of_u64(value: u64) -> Self {
                value as $ty
            }

            fn of_complex(value: Complex64) -> Self {
                value.re as $ty
            }

            fn to_f32(self) -> f32 {
                self as f32
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn to_i64(self) -> i64 {
                self as i64
            }

            fn to_u64(self) -> u64 {
                if self < 0.0 { self as i64 as u64 } else { self as u64 }
            }

            fn to_complex(self) -> Complex64 {
                Complex64::new(self.into(), 0.0)
            }

            fn truth(self) -> bool {
                self != 0.0
            }
        }
    };
}

real_work!(f32, F32);
real_work!(f64, F64);

impl Work for i64 {
    const WRAPS: bool = true;

    fn stored(tensor: &Tensor) -> Option<&[Self]> {
        match tensor.dtype() {
            DType::I64 => Some(tensor.as_slice()),
            DType::U64 => Some(bytemuck::cast_slice(tensor.as_slice::<u64>())),
            _ => None,
        }
    }

    fn of_real(value: f64) -> Self {
        value as i64
    }

    fn of_f32(value: f32) -> Self {
        value as i64
    }

    fn of_int(value: i64) -> Self {
        value
    }

    fn of_u64(value: u64) -> Self {
        value as i64
    }

    fn of_complex(value: Complex64) -> Self {
        value.re as i64
    }

    fn to_f32(self) -> f32 {
        self as f32
    }

    fn to_f64(self) -> f64 {
        self as f64
    }

    fn to_i64(self) -> i64 {
        self
    }

    fn to_u64(self) -> u64 {
        self as u64
    }

    fn to_complex(self) -> Complex64 {
        Complex64::new(self as f64, 0.0)
    }

    fn truth(self) -> bool {
        self != 0
    }
}

impl Work for Complex64 {
    const WRAPS: bool = false;

    fn stored(_: &Tensor) -> Option<&[Self]> {
        None
    }

    fn of_real(value: f64) -> Self {
        value.into()
    }

    fn of_f32(value: f32) -> Self {
        f64::from(value).into()
    }

    fn of_int(value: i64) -> Self {
        (value as f64).into()
    }

    fn of_u64(value: u64) -> Self {
        (value as f64).into()
    }

    fn of_complex(value: Complex64) -> Self {
        value
    }

    fn to_f32(self) -> f32 {
        self.re as f32
    }

    fn to_f64(self) -> f64 {
        self.re
    }

    fn to_i64(self) -> i64 {
        self.re as i64
    }

    fn to_u64(self) -> u64 {
        self.re.to_u64()
    }

    fn to_complex(self) -> Complex64 {
        self
    }

    fn truth(self) -> bool {
        self.re != 0.0 || self.im != 0.0
    }
}

/// The elements of a tensor as `W`, borrowed where they are stored so.
pub(crate) fn decode<W: Work>(tensor: &Tensor) -> Cow<'_, [W]> {
    fn map<T: Element, W>(tensor: &Tensor, convert: impl Fn(T) -> W) -> Cow<'_, [W]>
    where
        W: Clone,
    {
        Cow::Owned(tensor.as_slice::<T>().iter().map(|&x| convert(x)).collect())
    }
    let pair = |re: f64, im: f64| W::of_complex(Complex64::new(re, im));
    if let Some(stored) = W::stored(tensor) {
        return Cow::Borrowed(stored);
    }
    let dtype = tensor.dtype();
    match dtype {
        DType::Bool => map(tensor, |x: u8| W::of_int(i64::from(x != 0))),
        DType::U8 => map(tensor, |x: u8| W::of_int(x.into())),
        DType::I8 => map(tensor, |x: i8| W::of_int(x.into())),
        DType::I16 => map(tensor, |x: i16| W::of_int(x.into())),
        DType::U16 => map(tensor, |x: u16| W::of_int(x.into())),
        DType::I32 => map(tensor, |x: i32| W::of_int(x.into())),
        DType::U32 => map(tensor, |x: u32| W::of_int(x.into())),
        DType::I64 => map(tensor, W::of_int),
        DType::U64 => map(tensor, W::of_u64),
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 => {
            let table = float8::decode_table(dtype);
            map(tensor, |x: u8| W::of_f32(table[usize::from(x)]))
        }
        DType::F16 => map(tensor, |x: f16| W::of_f32(x.to_f32())),
        DType::Bf16 => map(tensor, |x: bf16| W::of_f32(x.to_f32())),
        DType::F32 => map(tensor, W::of_f32),
        DType::F64 => map(tensor, W::of_real),
        DType::C32 => map(tensor, |[re, im]: [f16; 2]| pair(re.into(), im.into())),
        DType::C64 => map(tensor, |[re, im]: [f32; 2]| pair(re.into(), im.into())),
        DType::C128 => map(tensor, |[re, im]: [f64; 2]| pair(re, im)),
    }
}

/// A tensor of these elements, each rounded once as `c10::convert` does (halves and 8-bit floats by way of f32).
pub(crate) fn encode<W: Work>(dtype: DType, shape: &[usize], values: &[W]) -> Result<Tensor, EvalError> {
    let mut tensor = Tensor::zeros(dtype, shape)?;
    fn fill<T: Element, W: Copy>(tensor: &mut Tensor, values: &[W], convert: impl Fn(W) -> T) {
        for (slot, &value) in tensor.as_mut_slice::<T>().iter_mut().zip(values) {
            *slot = convert(value);
        }
    }
    macro_rules! integer {
        ($ty:ty) => {
            fill(&mut tensor, values, |x| {
                let x = x.to_i64();
                if W::WRAPS { x as $ty } else { x.clamp(<$ty>::MIN.into(), <$ty>::MAX.into()) as $ty }
            })
        };
    }
    match dtype {
        DType::Bool => fill(&mut tensor, values, |x| u8::from(x.truth())),
        // c10 converts floats to unsigned integers by way of i64: -1.0 becomes 255.
        DType::U8 => fill(&mut tensor, values, |x| x.to_i64() as u8),
        DType::U16 => fill(&mut tensor, values, |x| x.to_i64() as u16),
        DType::U32 => fill(&mut tensor, values, |x| x.to_i64() as u32),
        DType::U64 => fill(&mut tensor, values, W::to_u64),
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => fill(&mut tensor, values, W::to_i64),
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 => {
            let encode = float8::encoder(dtype);
            fill(&mut tensor, values, |x| encode(x.to_f32()));
        }
        DType::F16 => fill(&mut tensor, values, |x| f16::from_f32(x.to_f32())),
        DType::Bf16 => fill(&mut tensor, values, |x| bf16::from_f32(x.to_f32())),
        DType::F32 => fill(&mut tensor, values, W::to_f32),
        DType::F64 => fill(&mut tensor, values, W::to_f64),
        DType::C32 => fill(&mut tensor, values, |x| {
            let x = x.to_complex();
            [f16::from_f32(x.re as f32), f16::from_f32(x.im as f32)]
        }),
        DType::C64 => fill(&mut tensor, values, |x| {
            let x = x.to_complex();
            [x.re as f32, x.im as f32]
        }),
        DType::C128 => fill(&mut tensor, values, |x| {
            let x = x.to_complex();
            [x.re, x.im]
        }),
    }
    Ok(tensor)
}

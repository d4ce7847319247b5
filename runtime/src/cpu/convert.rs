//! Between memory and registers: halves are widened to f32, integers and bool to i64.

use eglu_ir::{DType, tensor::Element};
use half::{bf16, f16};

/// What a value is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Class {
    F32,
    F64,
    Int,
}

impl Class {
    /// The class of a dtype; `None` for dtypes that only the reference evaluator computes with (fp8, complex, u64).
    pub fn of(dtype: DType) -> Option<Class> {
        use DType::*;
        match dtype {
            F16 | Bf16 | F32 => Some(Class::F32),
            F64 => Some(Class::F64),
            Bool | U8 | I8 | I16 | U16 | I32 | U32 | I64 => Some(Class::Int),
            _ => None,
        }
    }
}

/// A register's element type.
pub trait Lane: Copy + Default + Send + Sync + 'static {
    /// Reads `dst.len()` elements of `bytes` from element `offset` in steps of `stride`; the dtype is of this lane's class.
    fn load(dtype: DType, bytes: &[u8], offset: usize, stride: usize, dst: &mut [Self]);

    /// Writes `src` densely, rounded or wrapped to the dtype, which is of this lane's class.
    fn store(dtype: DType, src: &[Self], bytes: &mut [u8]);

    /// Rounds to a 16-bit float; only f32 holds such values.
    fn narrow(_: DType, _: &mut [Self]) {}
}

#[inline(always)]
fn widen<T: Element, U: Copy>(bytes: &[u8], offset: usize, stride: usize, dst: &mut [U], f: impl Fn(T) -> U) {
    if dst.is_empty() {
        return;
    }
    let src = &bytemuck::cast_slice::<u8, T>(bytes)[offset..];
    match stride {
        0 => dst.fill(f(src[0])),
        1 => dst.iter_mut().zip(src).for_each(|(d, &x)| *d = f(x)),
        _ => dst.iter_mut().zip(src.iter().step_by(stride)).for_each(|(d, &x)| *d = f(x)),
    }
}

#[inline(always)]
fn narrow<T: Copy, U: Element>(src: &[T], bytes: &mut [u8], f: impl Fn(T) -> U) {
    bytemuck::cast_slice_mut::<u8, U>(bytes).iter_mut().zip(src).for_each(|(d, &x)| *d = f(x));
}

/// To nearest, ties to even; NaN stays NaN. Without branches, so that loops over it vectorise.
#[inline(always)]
pub fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded })
}

#[inline(always)]
fn from_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

impl Lane for f32 {
    fn load(dtype: DType, bytes: &[u8], offset: usize, stride: usize, dst: &mut [f32]) {
        match dtype {
            DType::F32 => widen::<f32, _>(bytes, offset, stride, dst, |x| x),
            DType::Bf16 => super::simd(|| widen::<bf16, _>(bytes, offset, stride, dst, from_bf16)),
            DType::F16 => widen::<f16, _>(bytes, offset, stride, dst, f16::to_f32),
            other => unreachable!("{other} is not of class f32"),
        }
    }

    fn store(dtype: DType, src: &[f32], bytes: &mut [u8]) {
        match dtype {
            DType::F32 => narrow::<_, f32>(src, bytes, |x| x),
            DType::Bf16 => super::simd(|| narrow::<_, bf16>(src, bytes, to_bf16)),
            DType::F16 => narrow::<_, f16>(src, bytes, f16::from_f32),
            other => unreachable!("{other} is not of class f32"),
        }
    }

    fn narrow(dtype: DType, values: &mut [f32]) {
        match dtype {
            DType::Bf16 => super::simd(|| values.iter_mut().for_each(|x| *x = from_bf16(to_bf16(*x)))),
            _ => values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        }
    }
}

impl Lane for f64 {
    fn load(_: DType, bytes: &[u8], offset: usize, stride: usize, dst: &mut [f64]) {
        widen::<f64, _>(bytes, offset, stride, dst, |x| x);
    }

    fn store(_: DType, src: &[f64], bytes: &mut [u8]) {
        narrow::<_, f64>(src, bytes, |x| x);
    }
}

macro_rules! int_lane {
    ($($dtype:ident $ty:ty),+) => {
        impl Lane for i64 {
            fn load(dtype: DType, bytes: &[u8], offset: usize, stride: usize, dst: &mut [i64]) {
                match dtype {
                    $(DType::$dtype => widen::<$ty, _>(bytes, offset, stride, dst, |x| x as i64),)+
                    other => unreachable!("{other} is not of class int"),
                }
            }

            fn store(dtype: DType, src: &[i64], bytes: &mut [u8]) {
                match dtype {
                    DType::Bool => narrow::<_, u8>(src, bytes, |x| u8::from(x != 0)),
                    $(DType::$dtype => narrow::<_, $ty>(src, bytes, |x| x as $ty),)+
                    other => unreachable!("{other} is not of class int"),
                }
            }
        }
    };
}

#[allow(unreachable_patterns)]
mod ints {
    use super::*;
    int_lane!(Bool u8, U8 u8, I8 i8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64);
}

/// Rounds each element to what `dtype`, a float of this lane's class, can hold.
pub fn round<T: Lane>(dtype: DType, values: &mut [T]) {
    if matches!(dtype, DType::F16 | DType::Bf16) {
        T::narrow(dtype, values);
    }
}

/// `x` as an element of an integer dtype holds it: wrapped to its width, bool to 0 or 1.
#[inline(always)]
pub fn wrap(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0),
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::I16 => x as i16 as i64,
        DType::U16 => x as u16 as i64,
        DType::I32 => x as i32 as i64,
        DType::U32 => x as u32 as i64,
        _ => x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_half_does() {
        for bits in (0..=u32::MAX).step_by(9973).chain([0x3f80_8000, 0x3f81_8000, 0x7f7f_ffff, 0x7f80_0001, 0xff80_0000]) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (to_bf16(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn stores_read_back() {
        let values = [0.0f32, 1.5, -2.0, f32::INFINITY];
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let mut words = [0u64; 4];
            let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..4 * dtype.size()];
            f32::store(dtype, &values, bytes);
            let mut back = [0f32; 2];
            f32::load(dtype, bytes, 1, 2, &mut back);
            assert_eq!(back, [1.5, f32::INFINITY]);
        }
    }
}

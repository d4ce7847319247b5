//! How far a result is from its reference: ‖out − ref‖ / ‖ref‖ in f64, and how far each dtype may be.

use eglu_ir::{DType, Tensor};

/// The distance of one result from its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// ‖out − ref‖ / ‖ref‖; 0 where both are zero, infinite where only the reference is. For dtypes that must agree exactly: the share of
    /// elements that differ.
    pub error: f64,
    /// The largest error that passes.
    pub tolerance: f64,
}

impl Comparison {
    /// True within tolerance.
    pub fn passes(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// The largest relative error that passes; `None` where elements must be equal (integers, bool, fp8).
pub fn tolerance(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F64 | DType::C128 => Some(1e-12),
        DType::F32 | DType::C64 => Some(1e-5),
        DType::F16 | DType::C32 => Some(2e-3),
        DType::Bf16 => Some(2e-2),
        _ => None,
    }
}

/// Compares a result with its reference. `Err` says how their types differ.
pub fn compare(out: &Tensor, reference: &Tensor) -> Result<Comparison, String> {
    if out.dtype() != reference.dtype() || out.shape() != reference.shape() {
        return Err(format!("the result is {}, the reference {}", out.ty(), reference.ty()));
    }
    Ok(match tolerance(out.dtype()) {
        Some(tolerance) => Comparison { error: relative(&components(out), &components(reference)), tolerance },
        None => Comparison { error: share_different(out, reference), tolerance: 0.0 },
    })
}

/// The elements as f64, complex ones as two. Only for the dtypes that have a tolerance.
fn components(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F64 => tensor.as_slice::<f64>().to_vec(),
        DType::F32 => tensor.as_slice::<f32>().iter().map(|&x| x.into()).collect(),
        DType::F16 => tensor.as_slice::<half::f16>().iter().map(|&x| x.into()).collect(),
        DType::Bf16 => tensor.as_slice::<half::bf16>().iter().map(|&x| x.into()).collect(),
        DType::C128 => tensor.as_slice::<[f64; 2]>().as_flattened().to_vec(),
        DType::C64 => tensor.as_slice::<[f32; 2]>().as_flattened().iter().map(|&x| x.into()).collect(),
        DType::C32 => tensor.as_slice::<[half::f16; 2]>().as_flattened().iter().map(|&x| x.into()).collect(),
        _ => Vec::new(),
    }
}

/// NaN equals NaN and an infinity equals itself; such pairs count in neither norm.
fn relative(out: &[f64], reference: &[f64]) -> f64 {
    let counted = || out.iter().zip(reference).filter(|(a, b)| !(a == b && a.is_infinite() || a.is_nan() && b.is_nan()));
    // Scaled by the largest magnitude, so that squares of large doubles stay finite.
    let scale = counted().map(|(a, b)| a.abs().max(b.abs())).fold(0.0, f64::max);
    if counted().any(|(a, b)| !a.is_finite() || !b.is_finite()) {
        return f64::INFINITY;
    }
    if scale == 0.0 {
        return 0.0;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| (x / scale).powi(2)).sum::<f64>().sqrt();
    let difference = norm(&mut counted().map(|(a, b)| a - b));
    let size = norm(&mut counted().map(|(_, b)| *b));
    if difference == 0.0 { 0.0 } else { difference / size }
}

fn share_different(out: &Tensor, reference: &Tensor) -> f64 {
    let size = out.dtype().size();
    let nan = |code: &[u8]| matches!(code, [code] if is_float8_nan(out.dtype(), *code));
    let pairs = out.bytes().chunks_exact(size).zip(reference.bytes().chunks_exact(size));
    let different = pairs.filter(|(a, b)| a != b && !(nan(a) && nan(b))).count();
    if different == 0 { 0.0 } else { different as f64 / out.numel() as f64 }
}

/// True for the codes of the fp8 formats that are not a number (OCP FP8 specification; PyTorch's `fnuz` variants have one, 0x80).
fn is_float8_nan(dtype: DType, code: u8) -> bool {
    match dtype {
        DType::F8E4M3Fn => code & 0x7f == 0x7f,
        DType::F8E5M2 => code & 0x7f > 0x7c,
        DType::F8E4M3FnUz | DType::F8E5M2FnUz => code == 0x80,
        DType::F8E8M0 => code == 0xff,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(data: &[f32]) -> Tensor {
        Tensor::from_slice(DType::F32, &[data.len()], data).unwrap()
    }

    fn error(out: &[f32], reference: &[f32]) -> f64 {
        compare(&f32s(out), &f32s(reference)).unwrap().error
    }

    #[test]
    fn equal_specials_are_equal() {
        assert_eq!(error(&[f32::NAN, f32::INFINITY, 2.0], &[f32::NAN, f32::INFINITY, 2.0]), 0.0);
        assert_eq!(error(&[f32::NEG_INFINITY], &[f32::INFINITY]), f64::INFINITY);
        assert_eq!(error(&[1.0], &[f32::NAN]), f64::INFINITY);
        assert_eq!(error(&[f32::NAN], &[1.0]), f64::INFINITY);
    }

    #[test]
    fn the_error_is_relative_to_the_reference() {
        assert_eq!(error(&[0.0, 0.0], &[3.0, 4.0]), 1.0);
        assert_eq!(error(&[0.0], &[0.0]), 0.0);
        assert_eq!(error(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(error(&[], &[]), 0.0);
    }

    #[test]
    fn doubles_near_the_limit_do_not_overflow() {
        let of = |x: f64| Tensor::from_slice(DType::F64, &[1], &[x]).unwrap();
        let comparison = compare(&of(1.5e300), &of(1e300)).unwrap();
        assert!((comparison.error - 0.5).abs() < 1e-12 && !comparison.passes());
    }

    #[test]
    fn integers_and_float8_codes_must_agree() {
        let of = |data: &[i64]| Tensor::from_slice(DType::I64, &[data.len()], data).unwrap();
        assert_eq!(compare(&of(&[1, 2, 3, 4]), &of(&[1, 2, 3, 5])).unwrap().error, 0.25);
        let codes = |data: &[u8]| Tensor::from_slice(DType::F8E4M3Fn, &[data.len()], data).unwrap();
        assert!(compare(&codes(&[0x7f, 1]), &codes(&[0xff, 1])).unwrap().passes());
        assert!(!compare(&codes(&[0x00]), &codes(&[0x80])).unwrap().passes());
    }

    #[test]
    fn other_types_do_not_compare() {
        let wrong = compare(&f32s(&[1.0]), &f32s(&[1.0, 2.0]));
        assert_eq!(wrong, Err("the result is f32[1], the reference f32[2]".to_owned()));
    }
}

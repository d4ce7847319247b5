//! Results against reference tensors.

use eglu_ir::{
    Bindings, DType, Tensor,
    dtype::Category,
    eval::{EvalError, EvalOperand, eval_op},
    ops::Cast,
};
use indexmap::IndexMap;

/// How close a result must come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Bound on ‖out − ref‖ / ‖ref‖.
    Relative(f64),
    /// Every element equal (NaN equals NaN); 8-bit floats by their codes.
    Exact,
}

/// How far one output is from its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Name of the reference tensor, e.g. `output.0`.
    pub name: String,
    /// Dtype of the output.
    pub dtype: DType,
    /// ‖out − ref‖ / ‖ref‖ in f64; equal infinities and two NaNs count as no difference, other non-finite pairs as an infinite one.
    pub relative: f64,
    /// Largest |out − ref|.
    pub max_abs: f64,
    /// What is allowed.
    pub tolerance: Tolerance,
    /// True within tolerance.
    pub within: bool,
}

/// Why outputs cannot be compared with their references.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompareError {
    #[error("the reference tensor `{0}` is missing: the file must hold one for each user output")]
    Missing(String),
    #[error("the reference tensor `{name}` belongs to no output: the graph has {outputs} user outputs")]
    Extra { name: String, outputs: usize },
    #[error("`{name}` is {got}, its reference is {want}")]
    Type { name: String, want: String, got: String },
    #[error("`{name}` cannot be read: {source}")]
    Eval { name: String, source: Box<EvalError> },
}

/// What PyTorch's own kernels differ by among themselves, by dtype.
pub fn tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::F64 | DType::C128 => Tolerance::Relative(1e-12),
        DType::F32 | DType::C64 => Tolerance::Relative(1e-5),
        DType::F16 | DType::C32 => Tolerance::Relative(2e-3),
        DType::Bf16 => Tolerance::Relative(2e-2),
        _ => Tolerance::Exact,
    }
}

/// Compares user outputs, in signature order, with the reference tensors `output.0`, `output.1`, …; other names than `output.…` are not looked at.
pub fn compare_all(outputs: &[Tensor], references: &IndexMap<String, Tensor>) -> Result<Vec<Difference>, CompareError> {
    let names: Vec<String> = (0..outputs.len()).map(|i| format!("output.{i}")).collect();
    if let Some(name) = references.keys().find(|name| name.starts_with("output.") && !names.contains(name)) {
        return Err(CompareError::Extra { name: name.clone(), outputs: outputs.len() });
    }
    outputs
        .iter()
        .zip(&names)
        .map(|(output, name)| {
            let reference = references.get(name).ok_or_else(|| CompareError::Missing(name.clone()))?;
            compare(name, output, reference)
        })
        .collect()
}

/// Compares one output with its reference of the same dtype and shape; a complex output's reference may have a trailing axis of 2 instead.
pub fn compare(name: &str, output: &Tensor, reference: &Tensor) -> Result<Difference, CompareError> {
    let (out, want) = (as_real(output), as_real(reference));
    if out.dtype() != want.dtype() || out.shape() != want.shape() {
        let (want, got) = (reference.ty().to_string(), output.ty().to_string());
        return Err(CompareError::Type { name: name.into(), want, got });
    }
    let (a, b) = (in_f64(name, &out)?, in_f64(name, &want)?);
    let (mut error, mut norm, mut max_abs) = (0.0, 0.0, 0.0f64);
    for (&a, &b) in a.as_slice::<f64>().iter().zip(b.as_slice::<f64>()) {
        let (difference, size) = match () {
            _ if a == b && a.is_infinite() || a.is_nan() && b.is_nan() => (0.0, 0.0),
            _ if !a.is_finite() || !b.is_finite() => (f64::INFINITY, 0.0),
            _ => ((a - b).abs(), b),
        };
        error += difference * difference;
        norm += size * size;
        max_abs = max_abs.max(difference);
    }
    let relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    let tolerance = tolerance(output.dtype());
    let within = match tolerance {
        Tolerance::Relative(bound) => relative <= bound,
        // Of an 8-bit float, NaN equals NaN whatever its code, and zeros differ by sign.
        Tolerance::Exact if output.dtype().is_float() => {
            let codes = out.bytes().iter().zip(want.bytes());
            let numbers = a.as_slice::<f64>().iter().zip(b.as_slice::<f64>());
            codes.zip(numbers).all(|((x, y), (a, b))| x == y || a.is_nan() && b.is_nan())
        }
        // Integers beyond 2⁵³ differ in their bytes only; `bool` by truth.
        Tolerance::Exact if output.dtype() == DType::Bool => error == 0.0,
        Tolerance::Exact => out.bytes() == want.bytes(),
    };
    Ok(Difference { name: name.into(), dtype: output.dtype(), relative, max_abs, tolerance, within })
}

/// Complex numbers as pairs in a trailing axis.
fn as_real(tensor: &Tensor) -> Tensor {
    let part = match tensor.dtype() {
        DType::C32 => DType::F16,
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        _ => return tensor.clone(),
    };
    let shape: Vec<usize> = tensor.shape().iter().copied().chain([2]).collect();
    Tensor::from_bytes(part, &shape, tensor.bytes()).unwrap_or_else(|_| tensor.clone())
}

fn in_f64(name: &str, tensor: &Tensor) -> Result<Tensor, CompareError> {
    debug_assert!(tensor.dtype().category() < Category::Complex);
    let cast = Cast { dtype: DType::F64 }.into();
    eval_op(&cast, &[EvalOperand::Tensor(tensor)], &Bindings::new())
        .map(|mut all| all.swap_remove(0))
        .map_err(|e| CompareError::Eval { name: name.into(), source: Box::new(e) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Tensor {
        Tensor::from_slice(DType::F32, &[values.len()], values).expect("small")
    }

    fn difference(a: &[f32], b: &[f32]) -> Difference {
        compare("output.0", &f32s(a), &f32s(b)).expect("one type")
    }

    #[test]
    fn nan_equals_nan_and_infinities_their_like() {
        let both = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        assert!(difference(&both, &both).within);
        assert!(!difference(&[f32::INFINITY, 1.0], &[f32::NEG_INFINITY, 1.0]).within);
        assert!(!difference(&[f32::NAN, 1.0], &[0.0, 1.0]).within);
        assert!(!difference(&[0.0, 1.0], &[f32::NAN, 1.0]).within);
    }

    #[test]
    fn tolerance_is_relative_to_the_whole_tensor() {
        let close = difference(&[100.0, 0.0005], &[100.0, 0.0]);
        assert!(close.within && (close.relative - 5e-6).abs() < 1e-9, "{close:?}");
        assert!(!difference(&[100.0, 0.005], &[100.0, 0.0]).within);
        assert!(!difference(&[1e-30], &[0.0]).within);
        assert!(difference(&[], &[]).within);
    }

    #[test]
    fn integers_must_be_exact() {
        let big = |x: i64| Tensor::from_slice(DType::I64, &[1], &[x]).expect("small");
        assert!(!compare("x", &big(i64::MAX), &big(i64::MAX - 1)).expect("one type").within);
        assert!(compare("x", &big(7), &big(7)).expect("one type").within);
    }

    #[test]
    fn complex_references_have_a_trailing_axis() {
        let output = Tensor::from_slice(DType::C64, &[1], &[[1f32, 2.0]]).expect("small");
        let reference = Tensor::from_slice(DType::F32, &[1, 2], &[1f32, 2.0]).expect("small");
        assert!(compare("x", &output, &reference).expect("one type").within);
    }

    #[test]
    fn misfits_are_named() {
        let error = |names: &[&str]| {
            let references = names.iter().map(|&name| (name.to_string(), f32s(&[1.0]))).collect();
            compare_all(&[f32s(&[1.0])], &references).expect_err("misfit").to_string()
        };
        assert!(error(&["input.0"]).contains("`output.0` is missing"));
        assert!(error(&["output.0", "output.1"]).contains("`output.1` belongs to no output"));
        let wrong = compare("output.0", &f32s(&[1.0]), &f32s(&[1.0, 2.0])).expect_err("shapes differ").to_string();
        assert!(wrong.contains("`output.0` is f32[1], its reference is f32[2]"), "{wrong}");
    }
}

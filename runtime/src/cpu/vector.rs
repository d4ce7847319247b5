//! Loops over registers: one elementwise op on a whole block, compiled for the widest vectors the host has.

use super::simd;
use eglu_ir::ops::{Pointwise, pointwise::Real};

/// `eˣ` in f32, rounded correctly but for one in thousands, without branches, so that it vectorises: a Taylor polynomial in f64 after
/// range reduction, and one rounding at the end, subnormal results and those just below overflow included.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2⁵² rounds to an integer, which is then the low bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = f64::from(if clamped > 89.0 { 89.0 } else { clamped });
    let shifted = clamped * std::f64::consts::LOG2_E + MAGIC;
    let r = clamped - (shifted - MAGIC) * std::f64::consts::LN_2;
    let mut p = 1.0 / 362_880.0;
    for factorial in [40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        p = p * r + 1.0 / factorial;
    }
    // The bits above the low twelve shift out; the exponent's bias is added to what stays.
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    (p * power) as f32
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // ½(1 + tanh u) is sigmoid(2u).
    let u = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-2.0 * u))
}

/// Arithmetic that has a faster form in f32.
pub trait Vector: Real + Default + Send + Sync + 'static {
    /// `eˣ`.
    fn fast_exp(self) -> Self;
    /// GELU by its tanh approximation.
    fn fast_gelu_tanh(self) -> Self;
}

impl Vector for f32 {
    #[inline(always)]
    fn fast_exp(self) -> f32 {
        exp(self)
    }

    #[inline(always)]
    fn fast_gelu_tanh(self) -> f32 {
        gelu_tanh(self)
    }
}

impl Vector for f64 {
    #[inline(always)]
    fn fast_exp(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn fast_gelu_tanh(self) -> f64 {
        Pointwise::GeluTanh.eval_real(&[self])
    }
}

#[inline(always)]
fn map1<T: Copy, U>(dst: &mut [U], a: &[T], f: impl Fn(T) -> U) {
    dst.iter_mut().zip(a).for_each(|(d, &x)| *d = f(x));
}

#[inline(always)]
fn map2<T: Copy, U>(dst: &mut [U], a: &[T], b: &[T], f: impl Fn(T, T) -> U) {
    dst.iter_mut().zip(a).zip(b).for_each(|((d, &x), &y)| *d = f(x, y));
}

/// `dst = op(args)` in real arithmetic. The common ops have loops of their own; the rest go through the table one element at a time.
pub fn real<T: Vector>(op: Pointwise, dst: &mut [T], args: &[&[T]]) {
    use Pointwise as P;
    let one = T::one();
    match (op, args) {
        (P::Add, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x + y)),
        (P::Sub, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x - y)),
        (P::Mul, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x * y)),
        (P::Div, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x / y)),
        (P::Maximum, &[a, b]) => simd(|| map2(dst, a, b, |x, y| if x.is_nan() || x > y { x } else { y })),
        (P::Minimum, &[a, b]) => simd(|| map2(dst, a, b, |x, y| if x.is_nan() || x < y { x } else { y })),
        (P::Neg, &[a]) => simd(|| map1(dst, a, |x| -x)),
        (P::Abs, &[a]) => simd(|| map1(dst, a, |x| x.abs())),
        (P::Relu, &[a]) => simd(|| map1(dst, a, |x| if x < T::zero() { T::zero() } else { x })),
        (P::Sqrt, &[a]) => simd(|| map1(dst, a, |x| x.sqrt())),
        (P::Rsqrt, &[a]) => simd(|| map1(dst, a, |x| one / x.sqrt())),
        (P::Reciprocal, &[a]) => simd(|| map1(dst, a, |x| one / x)),
        (P::Exp, &[a]) => simd(|| map1(dst, a, |x| x.fast_exp())),
        (P::Sigmoid, &[a]) => simd(|| map1(dst, a, |x| one / (one + (-x).fast_exp()))),
        (P::Silu, &[a]) => simd(|| map1(dst, a, |x| x / (one + (-x).fast_exp()))),
        (P::GeluTanh, &[a]) => simd(|| map1(dst, a, |x| x.fast_gelu_tanh())),
        _ => each(dst.len(), args, |i, operands| dst[i] = op.eval_real(operands)),
    }
}

/// `dst = op(args)` as truth values, 1 or 0.
pub fn compare<T: Vector>(op: Pointwise, dst: &mut [i64], args: &[&[T]]) {
    use Pointwise as P;
    match (op, args) {
        (P::Lt, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x < y))),
        (P::Le, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x <= y))),
        (P::Gt, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x > y))),
        (P::Ge, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x >= y))),
        (P::Eq, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x == y))),
        (P::Ne, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x != y))),
        _ => each(dst.len(), args, |i, operands| dst[i] = i64::from(op.eval_real(operands) != T::zero())),
    }
}

/// `dst = op(args)` in wrapping 64-bit arithmetic; false where an element has no value (division by zero).
pub fn int(op: Pointwise, dst: &mut [i64], args: &[&[i64]]) -> bool {
    use Pointwise as P;
    match (op, args) {
        (P::Add, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x.wrapping_add(y))),
        (P::Sub, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x.wrapping_sub(y))),
        (P::Mul, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x.wrapping_mul(y))),
        (P::Lt, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x < y))),
        (P::Le, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x <= y))),
        (P::Gt, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x > y))),
        (P::Ge, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x >= y))),
        (P::Eq, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x == y))),
        (P::Ne, &[a, b]) => simd(|| map2(dst, a, b, |x, y| i64::from(x != y))),
        (P::BitAnd, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x & y)),
        (P::BitOr, &[a, b]) => simd(|| map2(dst, a, b, |x, y| x | y)),
        _ => {
            let mut defined = true;
            each(dst.len(), args, |i, operands| match op.eval_int(operands) {
                Some(value) => dst[i] = value,
                None => defined = false,
            });
            return defined;
        }
    }
    true
}

/// `dst = mask ? a : b`.
pub fn select<T: Copy>(dst: &mut [T], mask: &[i64], a: &[T], b: &[T]) {
    simd(|| dst.iter_mut().zip(mask).zip(a.iter().zip(b)).for_each(|((d, &m), (&x, &y))| *d = if m != 0 { x } else { y }));
}

#[inline(always)]
fn each<T: Copy + Default>(len: usize, args: &[&[T]], mut f: impl FnMut(usize, &[T])) {
    let mut operands = [T::default(); 3];
    for i in 0..len {
        for (operand, arg) in operands.iter_mut().zip(args) {
            *operand = arg[i];
        }
        f(i, &operands[..args.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_rounded_correctly() {
        let inputs = (-1_100_000..900_000).map(|i| i as f32 * 1e-4);
        let wrong = inputs.filter(|&x| exp(x) != f64::from(x).exp() as f32).inspect(|&x| {
            let exact = f64::from(x).exp() as f32;
            assert!(exp(x).to_bits().abs_diff(exact.to_bits()) == 1, "exp({x}) = {}, not {exact}", exp(x));
        });
        assert!(wrong.count() < 2_000, "one in a thousand");
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn loops_agree_with_the_table() {
        let values = [-3.5f32, -1.0, -0.0, 0.0, 0.25, 1.0, 2.0, 7.5, 20.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let (a, b): (Vec<f32>, Vec<f32>) = values.iter().flat_map(|&x| values.iter().map(move |&y| (x, y))).unzip();
        for &op in Pointwise::ALL.iter().filter(|op| op.arity() < 3) {
            let args = &[&a[..], &b[..]][..op.arity()];
            let mut got = vec![0f32; a.len()];
            real(op, &mut got, args);
            let mut truth = vec![0i64; a.len()];
            compare(op, &mut truth, args);
            for i in 0..a.len() {
                let want = op.eval_real(&[a[i], b[i]][..op.arity()]);
                // The table's form of GELU cancels for negative x, ours does not.
                let scale = if op == Pointwise::GeluTanh { a[i].abs() } else { want.abs() };
                let near = (got[i] - want).abs() <= 1e-6 * scale.max(1e-6);
                assert!(near || got[i] == want || got[i].is_nan() && want.is_nan(), "{op:?} {} {}", a[i], b[i]);
                assert!(truth[i] == i64::from(want != 0.0), "{op:?} {} {}", a[i], b[i]);
            }
        }
    }
}

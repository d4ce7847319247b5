//! Loops over registers: one elementwise op on a whole block, compiled for the widest vectors the host has.

use super::simd;
use eglu_ir::ops::{Pointwise, pointwise::Real};

/// `eˣ` in f32, within 2 ulp: range reduction and polynomial of Cephes' `expf` (Moshier), without branches, so that it vectorises.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 · 2²³ rounds to an integer, which is then the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = if clamped > 89.0 { 89.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    // 2ⁿ in two factors, so that subnormal results and those just below overflow come out right.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    value * power(half) * power(n.wrapping_sub(half))
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
    fn exp_is_within_two_ulp() {
        for i in -1_100_000..900_000 {
            let x = i as f32 * 1e-4;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            let ulp = (exact * f64::from(f32::EPSILON)).max(f64::from(f32::from_bits(1)));
            let want = if exact > f64::from(f32::MAX) { f64::INFINITY } else { exact };
            assert!(ours == want || (ours - exact).abs() <= 2.0 * ulp, "exp({x}) = {ours}, not {exact}");
        }
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

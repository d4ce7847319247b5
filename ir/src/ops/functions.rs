//! Special functions that neither Rust nor `libm` has, by the methods of aten/src/ATen/native/Math.h.

use super::pointwise::Real;

/// `Σ coefficients[i] · xⁱ`, from the highest power down.
fn polynomial<T: Real>(x: T, coefficients: &[f64]) -> T {
    coefficients.iter().rev().fold(T::zero(), |sum, &coefficient| sum * x + T::lit(coefficient))
}

/// The inverse of the error function: a rational approximation, then two steps of Newton's method.
pub fn erfinv<T: Real>(y: T) -> T {
    let size = y.abs();
    if size > T::one() {
        return T::nan();
    }
    if size == T::one() {
        return T::infinity().copysign(y);
    }
    let mut x = if size <= T::lit(0.7) {
        let z = y * y;
        let top = polynomial(z, &[0.886226899, -1.645349621, 0.914624893, -0.140543331]);
        y * top / polynomial(z, &[1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801])
    } else {
        let z = (-((T::one() - size) / T::lit(2.0)).ln()).sqrt();
        let top = polynomial(z, &[-1.970840454, -1.624906493, 3.429567803, 1.641345311]);
        (top / polynomial(z, &[1.0, 3.543889200, 1.637067800])).copysign(y)
    };
    for _ in 0..2 {
        x = x - (x.erf() - y) / (T::lit(std::f64::consts::FRAC_2_SQRT_PI) * (-x * x).exp());
    }
    x
}

/// The logarithmic derivative of the gamma function: reflection below zero, recurrence up to ten, then the asymptotic series.
pub fn digamma<T: Real>(x: T) -> T {
    const SERIES: [f64; 7] = [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];
    if x == T::zero() {
        return T::infinity().copysign(-x);
    }
    if x < T::zero() {
        if x == x.trunc() {
            return T::nan();
        }
        // The tangent is taken in double, as in PyTorch: it is steep near whole numbers.
        let part = x.to_f64().unwrap_or(f64::NAN).fract();
        let turn = std::f64::consts::PI / (std::f64::consts::PI * part).tan();
        return digamma(T::one() - x) - T::lit(turn);
    }
    let (mut x, mut sum) = (x, T::zero());
    while x < T::lit(10.0) {
        sum = sum - T::one() / x;
        x = x + T::one();
    }
    let z = T::one() / (x * x);
    let tail = if x < T::lit(1e17) { z * polynomial(z, &SERIES) } else { T::zero() };
    sum + x.ln() - T::lit(0.5) / x - tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_pytorch_gives() {
        // torch.erfinv and torch.digamma in float64.
        let near = |x: f64, y: f64| assert!((x - y).abs() <= 1e-13 * y.abs().max(1.0), "{x}, not {y}");
        near(erfinv(0.5), 0.476_936_276_204_469_9);
        near(erfinv(-0.99), -1.821_386_367_718_449_6);
        near(erfinv(1e-8), 8.862_269_254_527_58e-9);
        assert_eq!(erfinv(1.0f32), f32::INFINITY);
        assert!(erfinv(1.5f64).is_nan());
        near(digamma(1.0), -0.577_215_664_901_532_9);
        near(digamma(-0.5), 0.036_489_973_978_576_39);
        near(digamma(25.5), 3.218_942_472_883_92);
        assert!(digamma(-3.0f64).is_nan());
        assert_eq!(digamma(0.0f32), f32::NEG_INFINITY);
    }
}

//! The table of elementwise ops: one line each, with arithmetic for the evaluator and a CUDA expression for codegen.

use super::{
    InferError, OpDef, OperandType, Types,
    functions::{digamma, erfinv},
};
use num_traits::Float;
use serde::{Deserialize, Serialize};

/// How the result dtype follows from the operands' promoted dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeRule {
    /// The promoted dtype.
    Promote,
    /// The promoted dtype, integers and bool becoming f32.
    Float,
    /// bool; operands are compared in their promoted dtype.
    Compare,
    /// bool; each operand is first taken as "not zero".
    Logical,
    /// The promoted dtype, which must be an integer or bool.
    Bits,
    /// The first operand is a bool mask, the others promote.
    Select,
}

/// Real arithmetic of the evaluator: f32 or f64, as PyTorch's opmath.
pub trait Real: Float {
    /// The error function.
    fn erf(self) -> Self;
    /// The complementary error function.
    fn erfc(self) -> Self;
    /// The logarithm of the gamma function's magnitude.
    fn lgamma(self) -> Self;
    /// Inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// Inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// Inverse hyperbolic tangent.
    fn atanh(self) -> Self;
    /// A constant.
    fn lit(value: f64) -> Self;
}

impl Real for f32 {
    fn erf(self) -> f32 {
        libm::erff(self)
    }

    fn erfc(self) -> f32 {
        libm::erfcf(self)
    }

    fn lgamma(self) -> f32 {
        libm::lgammaf(self)
    }

    fn asinh(self) -> f32 {
        libm::asinhf(self)
    }

    fn acosh(self) -> f32 {
        libm::acoshf(self)
    }

    fn atanh(self) -> f32 {
        libm::atanhf(self)
    }

    fn lit(value: f64) -> f32 {
        value as f32
    }
}

impl Real for f64 {
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn erfc(self) -> f64 {
        libm::erfc(self)
    }

    fn lgamma(self) -> f64 {
        libm::lgamma(self)
    }

    fn asinh(self) -> f64 {
        libm::asinh(self)
    }

    fn acosh(self) -> f64 {
        libm::acosh(self)
    }

    fn atanh(self) -> f64 {
        libm::atanh(self)
    }

    fn lit(value: f64) -> f64 {
        value
    }
}

macro_rules! pointwise {
    ($($name:ident $text:literal ($($arg:ident),+) $rule:ident
        real $real:expr; int $int:expr; cuda $cuda:literal; doc $doc:literal)+) => {
        /// An elementwise op.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Pointwise { $(#[doc = $doc] $name,)+ }

        impl Pointwise {
            /// All rows.
            pub const ALL: &'static [Pointwise] = &[$(Pointwise::$name,)+];

            /// The row's name in the textual form.
            pub fn name(self) -> &'static str {
                match self { $(Pointwise::$name => $text,)+ }
            }

            /// One line on what it computes.
            pub fn doc(self) -> &'static str {
                match self { $(Pointwise::$name => $doc,)+ }
            }

            /// Names of the operands.
            pub fn operands(self) -> &'static [&'static str] {
                match self { $(Pointwise::$name => &[$(stringify!($arg)),+],)+ }
            }

            /// How many operands.
            pub fn arity(self) -> usize {
                self.operands().len()
            }

            /// How the result dtype follows from the operands.
            pub fn rule(self) -> TypeRule {
                match self { $(Pointwise::$name => TypeRule::$rule,)+ }
            }

            /// The value in real arithmetic; truth is 1 and falsehood 0. Panics unless there are `arity` operands.
            pub fn eval_real<T: Real>(self, args: &[T]) -> T {
                match self {
                    $(Pointwise::$name => {
                        let &[$($arg),+] = args else { panic!("{} takes {} operands", $text, self.arity()) };
                        $(let _ = $arg;)+
                        real_result($real)
                    })+
                }
            }

            /// The value in wrapping 64-bit arithmetic, `None` where the op has no integer form or divides by zero.
            pub fn eval_int(self, args: &[i64]) -> Option<i64> {
                match self {
                    $(Pointwise::$name => {
                        let &[$($arg),+] = args else { panic!("{} takes {} operands", $text, self.arity()) };
                        $(let _ = $arg;)+
                        int_result($int)
                    })+
                }
            }

            /// [`eval_real`](Self::eval_real) of each row of `args`, for columns of one length.
            pub fn map_real<T: Real>(self, args: &[&[T]], out: &mut [T]) {
                match self {
                    $(Pointwise::$name => each(self, args, out, |row| {
                        let [$($arg),+] = row;
                        $(let _ = $arg;)+
                        Some(real_result($real))
                    }),)+
                };
            }

            /// [`eval_int`](Self::eval_int) of each row of `args`; false if it gave `None` somewhere.
            pub fn map_int(self, args: &[&[i64]], out: &mut [i64]) -> bool {
                match self {
                    $(Pointwise::$name => each(self, args, out, |row| {
                        let [$($arg),+] = row;
                        $(let _ = $arg;)+
                        int_result($int)
                    }),)+
                }
            }

            /// The CUDA expression; `{0}`, `{1}`, `{2}` stand for the operands, already converted to the compute type.
            pub fn cuda(self) -> &'static str {
                match self { $(Pointwise::$name => $cuda,)+ }
            }
        }
    };
}

/// Applies `f` to each row until it gives nothing.
fn each<T: Copy, const N: usize>(op: Pointwise, args: &[&[T]], out: &mut [T], f: impl Fn([T; N]) -> Option<T>) -> bool {
    let &args: &[&[T]; N] = args.try_into().unwrap_or_else(|_| panic!("{} takes {N} operands", op.name()));
    for (i, slot) in out.iter_mut().enumerate() {
        match f(args.map(|column| column[i])) {
            Some(value) => *slot = value,
            None => return false,
        }
    }
    true
}

trait IntoReal<T> {
    fn real(self) -> T;
}

impl<T: Real> IntoReal<T> for T {
    fn real(self) -> T {
        self
    }
}

struct Truth(bool);

impl<T: Real> IntoReal<T> for Truth {
    fn real(self) -> T {
        if self.0 { T::one() } else { T::zero() }
    }
}

fn real_result<T: Real>(value: impl IntoReal<T>) -> T {
    value.real()
}

trait IntoInt {
    fn int(self) -> Option<i64>;
}

impl IntoInt for i64 {
    fn int(self) -> Option<i64> {
        Some(self)
    }
}

impl IntoInt for Option<i64> {
    fn int(self) -> Option<i64> {
        self
    }
}

impl IntoInt for bool {
    fn int(self) -> Option<i64> {
        Some(i64::from(self))
    }
}

/// Marks ops that have no integer form.
struct NoInt;

impl IntoInt for NoInt {
    fn int(self) -> Option<i64> {
        None
    }
}

fn int_result(value: impl IntoInt) -> Option<i64> {
    value.int()
}

/// A negative power of an integer is 0 unless the base is 1 or -1 (`powi`, aten/src/ATen/native/Pow.h).
fn int_power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut base, mut left) = (1i64, x, y);
    while left > 0 {
        if left % 2 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left /= 2;
    }
    result
}

/// Shifts outside of the width leave nothing, as in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.
fn shift_left(x: i64, by: i64) -> i64 {
    if (0..64).contains(&by) { x << by } else { 0 }
}

/// Shifts outside of the width leave the sign.
fn shift_right(x: i64, by: i64) -> i64 {
    x >> if (0..64).contains(&by) { by } else { 63 }
}

fn floor_div_int(x: i64, y: i64) -> Option<i64> {
    let quotient = x.checked_div(y)?;
    Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
}

fn floor_div_real<T: Real>(x: T, y: T) -> T {
    if y == T::zero() {
        return x / y;
    }
    // As c10::div_floor_floating: the remainder decides, so that results just below an integer do not round up.
    let rem = x % y;
    let mut quotient = (x - rem) / y;
    if rem != T::zero() && (y < T::zero()) != (rem < T::zero()) {
        quotient = quotient - T::one();
    }
    if quotient == T::zero() {
        return T::zero().copysign(x / y);
    }
    let floor = quotient.floor();
    if quotient - floor > T::lit(0.5) { floor + T::one() } else { floor }
}

fn remainder_real<T: Real>(x: T, y: T) -> T {
    let rem = x % y;
    if rem != T::zero() && (y < T::zero()) != (rem < T::zero()) { rem + y } else { rem }
}

/// NaN wins, as in `torch.maximum`.
fn max_real<T: Real>(x: T, y: T) -> T {
    if x.is_nan() || x > y { x } else { y }
}

fn min_real<T: Real>(x: T, y: T) -> T {
    if x.is_nan() || x < y { x } else { y }
}

fn round_even<T: Real>(x: T) -> T {
    let r = x.round();
    if (x - x.trunc()).abs() == T::lit(0.5) { T::lit(2.0) * (x / T::lit(2.0)).round() } else { r }
}

fn sigmoid<T: Real>(x: T) -> T {
    T::one() / (T::one() + (-x).exp())
}

fn gelu_tanh<T: Real>(x: T) -> T {
    let inner = T::lit(0.797_884_560_802_865_4) * (x + T::lit(0.044715) * x * x * x);
    T::lit(0.5) * x * (T::one() + inner.tanh())
}

pointwise! {
    Neg "neg" (x) Promote real -x; int x.wrapping_neg(); cuda "(-{0})"; doc "`-x`."
    Abs "abs" (x) Promote real x.abs(); int x.wrapping_abs(); cuda "abs_({0})"; doc "`|x|`."
    Sign "sign" (x) Promote real if x > T::zero() { T::one() } else if x < T::zero() { -T::one() } else { T::zero() }; int x.signum(); cuda "sign_({0})"; doc "-1, 0 or 1; 0 for NaN."
    Exp "exp" (x) Float real x.exp(); int NoInt; cuda "exp_({0})"; doc "`eˣ`."
    Expm1 "expm1" (x) Float real x.exp_m1(); int NoInt; cuda "expm1_({0})"; doc "`eˣ - 1`."
    Log "log" (x) Float real x.ln(); int NoInt; cuda "log_({0})"; doc "Natural logarithm."
    Log2 "log2" (x) Float real x.log2(); int NoInt; cuda "log2_({0})"; doc "Logarithm to base 2."
    Log1p "log1p" (x) Float real x.ln_1p(); int NoInt; cuda "log1p_({0})"; doc "`log(1 + x)`."
    Sqrt "sqrt" (x) Float real x.sqrt(); int NoInt; cuda "sqrt_({0})"; doc "Square root."
    Rsqrt "rsqrt" (x) Float real T::one() / x.sqrt(); int NoInt; cuda "(1 / sqrt_({0}))"; doc "`1 / √x`."
    Reciprocal "reciprocal" (x) Float real T::one() / x; int NoInt; cuda "(1 / {0})"; doc "`1 / x`."
    Sin "sin" (x) Float real x.sin(); int NoInt; cuda "sin_({0})"; doc "Sine."
    Cos "cos" (x) Float real x.cos(); int NoInt; cuda "cos_({0})"; doc "Cosine."
    Tanh "tanh" (x) Float real x.tanh(); int NoInt; cuda "tanh_({0})"; doc "Hyperbolic tangent."
    Erf "erf" (x) Float real x.erf(); int NoInt; cuda "erf_({0})"; doc "Error function."
    Tan "tan" (x) Float real x.tan(); int NoInt; cuda "tan_({0})"; doc "Tangent."
    Asin "asin" (x) Float real x.asin(); int NoInt; cuda "asin_({0})"; doc "Inverse sine."
    Acos "acos" (x) Float real x.acos(); int NoInt; cuda "acos_({0})"; doc "Inverse cosine."
    Atan "atan" (x) Float real x.atan(); int NoInt; cuda "atan_({0})"; doc "Inverse tangent."
    Sinh "sinh" (x) Float real x.sinh(); int NoInt; cuda "sinh_({0})"; doc "Hyperbolic sine."
    Cosh "cosh" (x) Float real x.cosh(); int NoInt; cuda "cosh_({0})"; doc "Hyperbolic cosine."
    Asinh "asinh" (x) Float real Real::asinh(x); int NoInt; cuda "asinh_({0})"; doc "Inverse hyperbolic sine."
    Acosh "acosh" (x) Float real Real::acosh(x); int NoInt; cuda "acosh_({0})"; doc "Inverse hyperbolic cosine."
    Atanh "atanh" (x) Float real Real::atanh(x); int NoInt; cuda "atanh_({0})"; doc "Inverse hyperbolic tangent."
    Exp2 "exp2" (x) Float real x.exp2(); int NoInt; cuda "exp2_({0})"; doc "`2ˣ`."
    Log10 "log10" (x) Float real x.log10(); int NoInt; cuda "log10_({0})"; doc "Logarithm to base 10."
    Erfc "erfc" (x) Float real x.erfc(); int NoInt; cuda "erfc_({0})"; doc "`1 - erf(x)`, also where that cancels."
    Erfinv "erfinv" (x) Float real erfinv(x); int NoInt; cuda "erfinv_({0})"; doc "The number whose error function is x."
    Digamma "digamma" (x) Float real digamma(x); int NoInt; cuda "digamma_({0})"; doc "The derivative of `log Γ(x)`."
    Lgamma "lgamma" (x) Float real x.lgamma(); int NoInt; cuda "lgamma_({0})"; doc "`log |Γ(x)|`."
    Conj "conj" (x) Promote real x; int x; cuda "conj_({0})"; doc "Complex conjugate; real numbers are their own."
    SignBit "signbit" (x) Compare real Truth(x.is_sign_negative()); int x < 0; cuda "signbit_({0})"; doc "True for negative numbers, minus zero among them."
    Sigmoid "sigmoid" (x) Float real sigmoid(x); int NoInt; cuda "sigmoid_({0})"; doc "`1 / (1 + e⁻ˣ)`."
    Silu "silu" (x) Float real x / (T::one() + (-x).exp()); int NoInt; cuda "silu_({0})"; doc "`x · sigmoid(x)`."
    Relu "relu" (x) Promote real if x < T::zero() { T::zero() } else { x }; int x.max(0); cuda "relu_({0})"; doc "`max(x, 0)`."
    GeluErf "gelu_erf" (x) Float real T::lit(0.5) * x * (T::one() + (x * T::lit(std::f64::consts::FRAC_1_SQRT_2)).erf()); int NoInt; cuda "gelu_erf_({0})"; doc "`x · Φ(x)`."
    GeluTanh "gelu_tanh" (x) Float real gelu_tanh(x); int NoInt; cuda "gelu_tanh_({0})"; doc "GELU by its tanh approximation."
    Floor "floor" (x) Promote real x.floor(); int x; cuda "floor_({0})"; doc "Rounds down."
    Ceil "ceil" (x) Promote real x.ceil(); int x; cuda "ceil_({0})"; doc "Rounds up."
    Trunc "trunc" (x) Promote real x.trunc(); int x; cuda "trunc_({0})"; doc "Rounds toward zero."
    Round "round" (x) Promote real round_even(x); int x; cuda "round_({0})"; doc "Rounds to nearest, ties to even."
    IsNan "isnan" (x) Compare real Truth(x.is_nan()); int false; cuda "({0} != {0})"; doc "True for NaN."
    LogicalNot "logical_not" (x) Logical real Truth(x == T::zero()); int x == 0; cuda "({0} == 0)"; doc "True for zero."
    BitNot "bitwise_not" (x) Bits real x; int !x; cuda "bit_not_({0})"; doc "Complement; of bool, negation."
    Add "add" (x, y) Promote real x + y; int x.wrapping_add(y); cuda "({0} + {1})"; doc "`x + y`; of bools, or."
    Sub "sub" (x, y) Promote real x - y; int x.wrapping_sub(y); cuda "({0} - {1})"; doc "`x - y`."
    Mul "mul" (x, y) Promote real x * y; int x.wrapping_mul(y); cuda "({0} * {1})"; doc "`x · y`; of bools, and."
    Div "div" (x, y) Float real x / y; int NoInt; cuda "({0} / {1})"; doc "True division."
    FloorDiv "floor_divide" (x, y) Promote real floor_div_real(x, y); int floor_div_int(x, y); cuda "floor_div_({0}, {1})"; doc "Division rounding down."
    TruncDiv "trunc_divide" (x, y) Promote real (x / y).trunc(); int x.checked_div(y); cuda "trunc_div_({0}, {1})"; doc "Division rounding toward zero."
    Remainder "remainder" (x, y) Promote real remainder_real(x, y); int floor_div_int(x, y).map(|q| x.wrapping_sub(q.wrapping_mul(y))); cuda "remainder_({0}, {1})"; doc "Remainder with the divisor's sign."
    Fmod "fmod" (x, y) Promote real x % y; int x.checked_rem(y); cuda "fmod_({0}, {1})"; doc "Remainder with the dividend's sign."
    Pow "pow" (x, y) Promote real x.powf(y); int int_power(x, y); cuda "pow_({0}, {1})"; doc "`xʸ`."
    Maximum "maximum" (x, y) Promote real max_real(x, y); int x.max(y); cuda "max_({0}, {1})"; doc "The larger; NaN wins."
    Minimum "minimum" (x, y) Promote real min_real(x, y); int x.min(y); cuda "min_({0}, {1})"; doc "The smaller; NaN wins."
    Eq "eq" (x, y) Compare real Truth(x == y); int x == y; cuda "({0} == {1})"; doc "`x = y`."
    Ne "ne" (x, y) Compare real Truth(x != y); int x != y; cuda "({0} != {1})"; doc "`x ≠ y`."
    Lt "lt" (x, y) Compare real Truth(x < y); int x < y; cuda "({0} < {1})"; doc "`x < y`."
    Le "le" (x, y) Compare real Truth(x <= y); int x <= y; cuda "({0} <= {1})"; doc "`x ≤ y`."
    Gt "gt" (x, y) Compare real Truth(x > y); int x > y; cuda "({0} > {1})"; doc "`x > y`."
    Ge "ge" (x, y) Compare real Truth(x >= y); int x >= y; cuda "({0} >= {1})"; doc "`x ≥ y`."
    BitAnd "bitwise_and" (x, y) Bits real x; int x & y; cuda "({0} & {1})"; doc "Bitwise and."
    BitOr "bitwise_or" (x, y) Bits real x; int x | y; cuda "({0} | {1})"; doc "Bitwise or."
    BitXor "bitwise_xor" (x, y) Bits real x; int x ^ y; cuda "({0} ^ {1})"; doc "Bitwise exclusive or."
    Atan2 "atan2" (x, y) Float real x.atan2(y); int NoInt; cuda "atan2_({0}, {1})"; doc "Angle of the point (y, x)."
    Hypot "hypot" (x, y) Float real x.hypot(y); int NoInt; cuda "hypot_({0}, {1})"; doc "`√(x² + y²)` without overflow."
    CopySign "copysign" (x, y) Float real x.copysign(y); int NoInt; cuda "copysign_({0}, {1})"; doc "`|x|` with the sign of y."
    ShiftLeft "bitwise_left_shift" (x, y) Bits real x; int shift_left(x, y); cuda "shift_left_({0}, {1})"; doc "`x · 2ʸ`, wrapping; 0 where y exceeds the width."
    ShiftRight "bitwise_right_shift" (x, y) Bits real x; int shift_right(x, y); cuda "shift_right_({0}, {1})"; doc "`⌊x / 2ʸ⌋`."
    LogicalAnd "logical_and" (x, y) Logical real Truth(x != T::zero() && y != T::zero()); int x != 0 && y != 0; cuda "({0} != 0 && {1} != 0)"; doc "Both not zero."
    LogicalOr "logical_or" (x, y) Logical real Truth(x != T::zero() || y != T::zero()); int x != 0 || y != 0; cuda "({0} != 0 || {1} != 0)"; doc "Either not zero."
    Where "where" (c, x, y) Select real if c != T::zero() { x } else { y }; int if c != 0 { x } else { y }; cuda "({0} ? {1} : {2})"; doc "`x` where the mask holds, else `y`."
}

impl OpDef for Pointwise {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        super::infer::pointwise(*self, operands)
    }
}

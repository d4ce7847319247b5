// The functions that the pointwise table names, for f32, f64, integers and bool. Accurate versions: no fast-math, but for the gates of
// kernels whose results have 16 bits (SHORT_RESULTS): a few units in f32's last place are lost there.

#define MATH_UNARY(name, f32_name, f64_name)                             \
    DEVICE float name(float x) { return f32_name(x); }                   \
    DEVICE double name(double x) { return f64_name(x); }
MATH_UNARY(exp_, expf, exp)
MATH_UNARY(expm1_, expm1f, expm1)
MATH_UNARY(log_, logf, log)
MATH_UNARY(log2_, log2f, log2)
MATH_UNARY(log1p_, log1pf, log1p)
MATH_UNARY(sqrt_, sqrtf, sqrt)
MATH_UNARY(sin_, sinf, sin)
MATH_UNARY(cos_, cosf, cos)
MATH_UNARY(tan_, tanf, tan)
MATH_UNARY(asin_, asinf, asin)
MATH_UNARY(acos_, acosf, acos)
MATH_UNARY(atan_, atanf, atan)
MATH_UNARY(sinh_, sinhf, sinh)
MATH_UNARY(cosh_, coshf, cosh)
MATH_UNARY(asinh_, asinhf, asinh)
MATH_UNARY(acosh_, acoshf, acosh)
MATH_UNARY(atanh_, atanhf, atanh)
MATH_UNARY(exp2_, exp2f, exp2)
MATH_UNARY(log10_, log10f, log10)
MATH_UNARY(erfc_, erfcf, erfc)
MATH_UNARY(lgamma_, lgammaf, lgamma)
MATH_UNARY(erfinv_, erfinvf, erfinv)
MATH_UNARY(tanh_, tanhf, tanh)
MATH_UNARY(erf_, erff, erf)
MATH_UNARY(floor_, floorf, floor)
MATH_UNARY(ceil_, ceilf, ceil)
MATH_UNARY(trunc_, truncf, trunc)
MATH_UNARY(round_, rintf, rint)
MATH_UNARY(abs_, fabsf, fabs)
#undef MATH_UNARY

template <class T> DEVICE T conj_(T x) { return x; }
template <class T> DEVICE T floor_(T x) { return x; }
template <class T> DEVICE T ceil_(T x) { return x; }
template <class T> DEVICE T trunc_(T x) { return x; }
template <class T> DEVICE T round_(T x) { return x; }
template <class T> DEVICE T abs_(T x) { return x < (T)0 ? (T)(0 - (u64)x) : x; }

template <class T> DEVICE T sign_(T x) { return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x; }
DEVICE bool signbit_(float x) { return __float_as_int(x) < 0; }
DEVICE bool signbit_(double x) { return __double_as_longlong(x) < 0; }
template <class T> DEVICE bool signbit_(T x) { return x < (T)0; }

// Shifts outside of the width leave nothing, or the sign.
template <class T> DEVICE T shift_left_(T x, T y) { return y < (T)0 || y >= (T)(8 * sizeof(T)) ? (T)0 : (T)((u64)x << y); }
template <class T> DEVICE T shift_right_(T x, T y) {
    if (y < (T)0 || y >= (T)(8 * sizeof(T))) return x < (T)0 ? (T)-1 : (T)0;
    return (T)(x >> y);
}
template <class T> DEVICE T bit_not_(T x) { return (T)~x; }
DEVICE bool bit_not_(bool x) { return !x; }

// NaN wins in either operand.
template <class T> DEVICE T max_(T x, T y) { return x != x || x > y ? x : y; }
template <class T> DEVICE T min_(T x, T y) { return x != x || x < y ? x : y; }
template <class T> DEVICE T relu_(T x) { return x != x || x > (T)0 ? x : (T)0; }

// For results of 16 bits, whose rounding is a thousand times coarser than the error of these instructions. An epilogue of a matrix
// product takes several times as long with IEEE divisions.
DEVICE float sigmoid_16(float x) {
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
    return y;
}
DEVICE float silu_16(float x) { return x * sigmoid_16(x); }
#ifdef SHORT_RESULTS
DEVICE float sigmoid_(float x) { return sigmoid_16(x); }
DEVICE float silu_(float x) { return silu_16(x); }
#else
DEVICE float sigmoid_(float x) { return 1.0f / (1.0f + expf(-x)); }
DEVICE float silu_(float x) { return x / (1.0f + expf(-x)); }
#endif
DEVICE double sigmoid_(double x) { return 1.0 / (1.0 + exp(-x)); }
DEVICE double silu_(double x) { return x / (1.0 + exp(-x)); }
DEVICE float gelu_erf_(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }
DEVICE double gelu_erf_(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440)); }
DEVICE float gelu_tanh_(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
}
DEVICE double gelu_tanh_(double x) {
    return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

DEVICE float fmod_(float x, float y) { return fmodf(x, y); }
DEVICE double fmod_(double x, double y) { return fmod(x, y); }
DEVICE float pow_(float x, float y) { return powf(x, y); }
DEVICE double pow_(double x, double y) { return pow(x, y); }
DEVICE float atan2_(float x, float y) { return atan2f(x, y); }
DEVICE double atan2_(double x, double y) { return atan2(x, y); }
DEVICE float hypot_(float x, float y) { return hypotf(x, y); }
DEVICE double hypot_(double x, double y) { return hypot(x, y); }
DEVICE float copysign_(float x, float y) { return copysignf(x, y); }
DEVICE double copysign_(double x, double y) { return copysign(x, y); }

// c10::div_floor_floating: the remainder decides, so that results just below an integer do not round up.
template <class T>
DEVICE T floor_div_real(T x, T y) {
    if (y == (T)0) return x / y;
    T rem = fmod_(x, y);
    T quotient = (x - rem) / y;
    if (rem != (T)0 && (y < (T)0) != (rem < (T)0)) quotient -= (T)1;
    if (quotient == (T)0) return copysign_((T)0, x / y);
    T floor = floor_(quotient);
    return quotient - floor > (T)0.5 ? floor + (T)1 : floor;
}
template <class T>
DEVICE T remainder_real(T x, T y) {
    T rem = fmod_(x, y);
    return rem != (T)0 && (y < (T)0) != (rem < (T)0) ? rem + y : rem;
}
DEVICE float floor_div_(float x, float y) { return floor_div_real(x, y); }
DEVICE double floor_div_(double x, double y) { return floor_div_real(x, y); }
DEVICE float remainder_(float x, float y) { return remainder_real(x, y); }
DEVICE double remainder_(double x, double y) { return remainder_real(x, y); }
DEVICE float trunc_div_(float x, float y) { return truncf(x / y); }
DEVICE double trunc_div_(double x, double y) { return trunc(x / y); }

// Integer division: by zero gives 0 (PyTorch leaves it undefined on a GPU), by -1 negates and wraps.
template <class T>
DEVICE T trunc_div_(T x, T y) {
    if (y == (T)0) return (T)0;
    if ((T)-1 < (T)0 && y == (T)-1) return (T)(0 - (u64)x);
    return (T)(x / y);
}
template <class T>
DEVICE T fmod_(T x, T y) {
    if (y == (T)0 || ((T)-1 < (T)0 && y == (T)-1)) return (T)0;
    return (T)(x % y);
}
template <class T>
DEVICE T floor_div_(T x, T y) {
    T quotient = trunc_div_(x, y);
    T rem = fmod_(x, y);
    return rem != (T)0 && (rem < (T)0) != (y < (T)0) ? (T)(quotient - 1) : quotient;
}
template <class T>
DEVICE T remainder_(T x, T y) {
    T rem = fmod_(x, y);
    return rem != (T)0 && (rem < (T)0) != (y < (T)0) ? (T)(rem + y) : rem;
}
template <class T>
DEVICE T pow_(T x, T y) {
    // A negative power of an integer is 0 unless the base is 1 or -1.
    if (y < (T)0) return x == (T)1 ? (T)1 : x == (T)-1 ? ((y & 1) ? (T)-1 : (T)1) : (T)0;
    u64 result = 1, base = (u64)x;
    for (u64 n = (u64)y; n != 0; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return (T)result;
}

// Reflection below zero, recurrence up to ten, then the asymptotic series.
template <class T>
DEVICE T digamma_(T x) {
    T result = (T)0;
    if (x == (T)0) return signbit_(x) ? (T)F64_INF : (T)-F64_INF;
    if (x < (T)0) {
        if (x == trunc_(x)) return (T)F64_NAN;
        const double pi = 3.14159265358979323846;
        result = (T)(-pi / tan(pi * ((double)x - trunc((double)x))));
        x = (T)1 - x;
    }
    while (x < (T)10) {
        result -= (T)1 / x;
        x += (T)1;
    }
    T z = (T)1 / (x * x);
    T tail = (T)(1.0 / 12.0);
    tail = tail * z + (T)(-691.0 / 32760.0);
    tail = tail * z + (T)(1.0 / 132.0);
    tail = tail * z + (T)(-1.0 / 240.0);
    tail = tail * z + (T)(1.0 / 252.0);
    tail = tail * z + (T)(-1.0 / 120.0);
    tail = tail * z + (T)(1.0 / 12.0);
    return result + log_(x) - (T)0.5 / x - (x < (T)1e17 ? tail * z : (T)0);
}

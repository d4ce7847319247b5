// Complex numbers: storage and opmath in one.

struct c128;
// A conversion to a real number keeps the real part, as c10's.
struct alignas(8) c64 {
    float re, im;
    c64() = default;
    DEVICE c64(float re, float im) : re(re), im(im) {}
    template <class R> DEVICE c64(R x) : re((float)x), im(0.0f) {}
    DEVICE c64(const c128& x);
    template <class R> DEVICE explicit operator R() const { return (R)re; }
};
struct alignas(16) c128 {
    double re, im;
    c128() = default;
    DEVICE c128(double re, double im) : re(re), im(im) {}
    template <class R> DEVICE c128(R x) : re((double)x), im(0.0) {}
    DEVICE c128(const c64& x) : re(x.re), im(x.im) {}
    template <class R> DEVICE explicit operator R() const { return (R)re; }
};
DEVICE c64::c64(const c128& x) : re((float)x.re), im((float)x.im) {}

DEVICE c64 up(c64 x) { return x; }
DEVICE c128 up(c128 x) { return x; }
#define COMPLEX(C)                                                                                              \
    DEVICE C operator-(C x) { return C(-x.re, -x.im); }                                                         \
    DEVICE C operator+(C x, C y) { return C(x.re + y.re, x.im + y.im); }                                        \
    DEVICE C operator-(C x, C y) { return C(x.re - y.re, x.im - y.im); }                                        \
    DEVICE C operator*(C x, C y) { return C(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re); }            \
    DEVICE C& operator+=(C& x, C y) { return x = x + y; }                                                       \
    DEVICE C& operator*=(C& x, C y) { return x = x * y; }                                                       \
    DEVICE bool operator==(C x, C y) { return x.re == y.re && x.im == y.im; }                                   \
    DEVICE bool operator!=(C x, C y) { return x.re != y.re || x.im != y.im; }                                   \
    DEVICE C conj_(C x) { return C(x.re, -x.im); }
COMPLEX(c64)
COMPLEX(c128)
#undef COMPLEX
DEVICE c128 operator/(c128 x, c128 y) {
    double scale = y.re * y.re + y.im * y.im;
    return c128((x.re * y.re + x.im * y.im) / scale, (x.im * y.re - x.re * y.im) / scale);
}
DEVICE c64 operator/(c64 x, c64 y) { return c64(c128(x) / c128(y)); }
// C11, G.6.3.1: what an infinite real part makes of an imaginary part that has no direction.
DEVICE c128 exp_(c128 x) {
    bool vanishes = x.re == -F64_INF && !isfinite(x.im);
    bool stays = x.re == F64_INF && !isfinite(x.im);
    if (vanishes) return c128(0.0, 0.0);
    if (stays) return c128(F64_INF, F64_NAN);
    double size = exp(x.re);
    // A real number stays one.
    return x.im == 0.0 ? c128(size, x.im) : c128(size * cos(x.im), size * sin(x.im));
}
DEVICE c128 log_(c128 x) { return c128(log(hypot(x.re, x.im)), atan2(x.im, x.re)); }
DEVICE c64 exp_(c64 x) { return c64(exp_(c128(x))); }
DEVICE c64 log_(c64 x) { return c64(log_(c128(x))); }

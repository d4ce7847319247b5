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

// Storage types, their opmath ("up") and conversions. NVRTC has no headers: everything is spelled out here.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct f8e4m3fn { u8 bits; };
struct f8e4m3fnuz { u8 bits; };
struct f8e5m2 { u8 bits; };
struct f8e5m2fnuz { u8 bits; };
struct f8e8m0 { u8 bits; };

#define DEVICE __device__ __forceinline__
#define F32_INF __int_as_float(0x7f800000)
#define F32_NAN __int_as_float(0x7fc00000)
#define F64_INF __longlong_as_double(0x7ff0000000000000LL)
#define F64_NAN __longlong_as_double(0x7ff8000000000000LL)

// `count` elements that move as one access of up to 16 bytes.
template <class T, int count>
struct alignas(sizeof(T) * count) Pack { T at[count]; };

// ---- storage to opmath ----------------------------------------------------------------------------------------------

DEVICE float up(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float up(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float up(f8e5m2 x) { return up(f16{(u16)(x.bits << 8)}); }
// The finite values of an fp8 kind with `mant` mantissa bits and this exponent bias.
template <int mant, int bias>
DEVICE float up_f8(u8 bits) {
    int exponent = (bits & 0x7f) >> mant;
    int fraction = bits & ((1 << mant) - 1);
    // 2^(1 - bias - mant) scales a subnormal; it is a normal f32.
    float value = exponent == 0 ? (float)fraction * __uint_as_float((u32)(127 + 1 - bias - mant) << 23)
                                : __uint_as_float(((u32)(exponent - bias + 127) << 23) | ((u32)fraction << (23 - mant)));
    return bits & 0x80 ? -value : value;
}
// The sign of its NaN survives, as in c10.
DEVICE float up(f8e4m3fn x) {
    return (x.bits & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u | (u32)(x.bits & 0x80) << 24) : up_f8<3, 7>(x.bits);
}
DEVICE float up(f8e4m3fnuz x) { return x.bits == 0x80 ? F32_NAN : up_f8<3, 8>(x.bits); }
DEVICE float up(f8e5m2fnuz x) { return x.bits == 0x80 ? F32_NAN : up_f8<2, 16>(x.bits); }
DEVICE float up(f8e8m0 x) {
    return x.bits == 0xff ? F32_NAN : __uint_as_float(x.bits == 0 ? 0x00400000u : (u32)x.bits << 23);
}
DEVICE float up(float x) { return x; }
DEVICE double up(double x) { return x; }
DEVICE bool up(bool x) { return x; }
DEVICE u8 up(u8 x) { return x; }
DEVICE i8 up(i8 x) { return x; }
DEVICE u16 up(u16 x) { return x; }
DEVICE i16 up(i16 x) { return x; }
DEVICE u32 up(u32 x) { return x; }
DEVICE i32 up(i32 x) { return x; }
DEVICE u64 up(u64 x) { return x; }
DEVICE i64 up(i64 x) { return x; }

// ---- opmath to storage ----------------------------------------------------------------------------------------------

DEVICE bf16 round_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
DEVICE f16 round_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
// Rounds to nearest even below `limit` bits (an f32 magnitude); follows c10's fp8*_from_fp32_value.
template <int mant, int bias>
DEVICE u8 round_f8(u32 magnitude) {
    const u32 smallest_normal = (u32)(127 - bias + 1) << 23;
    if (magnitude < smallest_normal) {
        // Adding this power of two leaves the rounded subnormal in the low bits.
        const u32 shift = (u32)(127 - bias + 1 + 23 - mant) << 23;
        return (u8)(__float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(shift))) - shift);
    }
    u32 odd = (magnitude >> (23 - mant)) & 1;
    magnitude += ((u32)(bias - 127) << 23) + ((1u << (22 - mant)) - 1) + odd;
    return (u8)(magnitude >> (23 - mant));
}
DEVICE f8e4m3fn round_f8e4m3fn(float x) {
    u32 bits = __float_as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
    // From 480 on (the first value that rounds past 448): NaN, as c10 has it.
    u8 y = magnitude >= (1087u << 20) ? 0x7f : round_f8<3, 7>(magnitude);
    return f8e4m3fn{(u8)(y | (sign >> 24))};
}
DEVICE f8e5m2 round_f8e5m2(float x) {
    u32 bits = __float_as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
    u8 y = magnitude >= (143u << 23) ? (magnitude > 0x7f800000u ? 0x7f : 0x7c) : round_f8<2, 15>(magnitude);
    return f8e5m2{(u8)(y | (sign >> 24))};
}
DEVICE f8e4m3fnuz round_f8e4m3fnuz(float x) {
    u32 bits = __float_as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
    u8 y = magnitude >= (135u << 23) ? 0x80 : round_f8<3, 8>(magnitude);
    return f8e4m3fnuz{(u8)(y == 0 ? 0 : y | (sign >> 24))};
}
DEVICE f8e5m2fnuz round_f8e5m2fnuz(float x) {
    u32 bits = __float_as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
    u8 y = magnitude >= (143u << 23) ? 0x80 : round_f8<2, 16>(magnitude);
    return f8e5m2fnuz{(u8)(y == 0 ? 0 : y | (sign >> 24))};
}
DEVICE f8e8m0 round_f8e8m0(float x) {
    u32 bits = __float_as_uint(x), exponent = (bits >> 23) & 0xff;
    if (exponent != 0xff) {
        bool half = bits & 0x400000, more = bits & 0x3fffff;
        exponent += half && (more || exponent > 0);
    }
    return f8e8m0{(u8)exponent};
}

// `cast<To>(x)`: an opmath value stored as `To`, with PyTorch's rules (halves and fp8 go through f32, integers truncate).
template <class To>
struct Cast {
    template <class From>
    static DEVICE To of(From x) { return (To)x; }
};
template <>
struct Cast<bool> {
    template <class From>
    static DEVICE bool of(From x) { return x != (From)0; }
};
// Narrow integers take the low bits of the i64 that the float truncates to.
#define CAST_NARROW(T)                                                   \
    template <>                                                          \
    struct Cast<T> {                                                     \
        static DEVICE T of(float x) { return (T)(i64)x; }                       \
        static DEVICE T of(double x) { return (T)(i64)x; }                      \
        template <class From>                                            \
        static DEVICE T of(From x) { return (T)x; }                             \
    };
CAST_NARROW(u8)
CAST_NARROW(i8)
CAST_NARROW(u16)
CAST_NARROW(i16)
#undef CAST_NARROW
#define CAST_ROUND(T)                                                    \
    template <>                                                          \
    struct Cast<T> {                                                     \
        template <class From>                                            \
        static DEVICE T of(From x) { return round_##T((float)x); }              \
    };
CAST_ROUND(bf16)
CAST_ROUND(f16)
CAST_ROUND(f8e4m3fn)
CAST_ROUND(f8e4m3fnuz)
CAST_ROUND(f8e5m2)
CAST_ROUND(f8e5m2fnuz)
CAST_ROUND(f8e8m0)
#undef CAST_ROUND

template <class To, class From>
DEVICE To cast(From x) { return Cast<To>::of(x); }

// An index that wraps once when negative and stops the kernel when it is out of range: PyTorch's device-side assertion.
DEVICE i64 wrap_index(i64 index, i64 extent) {
    i64 at = index < 0 ? index + extent : index;
    if (at < 0 || at >= extent) __trap();
    return at;
}

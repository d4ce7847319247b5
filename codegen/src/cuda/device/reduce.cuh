// States of reductions: `add` takes a value and its position, `merge` another state. Positions decide ties. Each thread adds in ascending
// order of positions; states of threads merge in any order.

// The larger (smaller) of both, NaN if either is: one instruction for f32 since sm_80 (PTX ISA, "max").
template <class T> DEVICE T most(T x, T y) { return max_(x, y); }
template <class T> DEVICE T least(T x, T y) { return min_(x, y); }
DEVICE float most(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
DEVICE float least(float x, float y) {
    float z;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// What every value is at least, and at most.
template <class T> struct Bounds {
    static DEVICE T low() { return (T)-1 < (T)0 ? (T)((u64)1 << (8 * sizeof(T) - 1)) : (T)0; }
    static DEVICE T high() { return (T)~low(); }
};
template <> struct Bounds<bool> {
    static DEVICE bool low() { return false; }
    static DEVICE bool high() { return true; }
};
template <> struct Bounds<float> {
    static DEVICE float low() { return -F32_INF; }
    static DEVICE float high() { return F32_INF; }
};
template <> struct Bounds<double> {
    static DEVICE double low() { return -F64_INF; }
    static DEVICE double high() { return F64_INF; }
};

template <class T>
struct SumState {
    T value = (T)0;
    DEVICE void add(T x, i64) { value += x; }
    DEVICE void merge(const SumState& other) { value += other.value; }
    DEVICE T result(i64) const { return value; }
};
// Mean of no elements is NaN: 0 / 0.
template <class T>
struct MeanState {
    T value = (T)0;
    DEVICE void add(T x, i64) { value += x; }
    DEVICE void merge(const MeanState& other) { value += other.value; }
    DEVICE T result(i64 count) const { return value / (T)count; }
};
template <class T>
struct ProdState {
    T value = (T)1;
    DEVICE void add(T x, i64) { value *= x; }
    DEVICE void merge(const ProdState& other) { value *= other.value; }
    DEVICE T result(i64) const { return value; }
};
// Each factor rounds the product to the dtype, as on PyTorch's CPU; the factors are of the dtype.
template <class S>
struct RoundedProdState {
    float value = 1.0f;
    DEVICE void add(float x, i64) { value = up(cast<S>(value * x)); }
    DEVICE void merge(const RoundedProdState& other) { value = up(cast<S>(value * other.value)); }
    DEVICE float result(i64) const { return value; }
};
template <class T>
struct AmaxState {
    T value = Bounds<T>::low();
    DEVICE void add(T x, i64) { value = most(value, x); }
    DEVICE void merge(const AmaxState& other) { value = most(value, other.value); }
    DEVICE T result(i64) const { return value; }
};
template <class T>
struct AminState {
    T value = Bounds<T>::high();
    DEVICE void add(T x, i64) { value = least(value, x); }
    DEVICE void merge(const AminState& other) { value = least(value, other.value); }
    DEVICE T result(i64) const { return value; }
};
template <class T>
struct AnyState {
    u32 value = 0;
    DEVICE void add(T x, i64) { value |= (u32)(x != (T)0); }
    DEVICE void merge(const AnyState& other) { value |= other.value; }
    DEVICE bool result(i64) const { return value != 0; }
};
template <class T>
struct AllState {
    u32 value = 1;
    DEVICE void add(T x, i64) { value &= (u32)(x != (T)0); }
    DEVICE void merge(const AllState& other) { value &= other.value; }
    DEVICE bool result(i64) const { return value != 0; }
};
// The first NaN, else the lowest position of the extreme value. Positions are of type `I`; `none` is the position of no value.
template <class T, bool largest, class I>
struct ArgState {
    static constexpr I none = (I)(~(u64)0 >> (65 - 8 * sizeof(I)));
    T value = largest ? Bounds<T>::low() : Bounds<T>::high();
    I index = none;
    // True if `x`, which comes later, takes the place of `value`.
    DEVICE bool beats(T x) const {
        bool better = largest ? !(x <= value) : !(x >= value);
        return better && value == value;
    }
    DEVICE void add(T x, i64 at) {
        bool first = index == none || beats(x);
        value = first ? x : value;
        index = first ? (I)at : index;
    }
    // No value is the worst of all, and its position the last.
    DEVICE void merge(const ArgState& other) {
        bool tie = other.value == value || (other.value != other.value && value != value);
        bool takes = beats(other.value) || (tie && other.index < index);
        value = takes ? other.value : value;
        index = takes ? other.index : index;
    }
    DEVICE i64 result(i64) const { return index == none ? 0 : (i64)index; }
};
template <class T, class I>
struct ArgmaxState : ArgState<T, true, I> {};
template <class T, class I>
struct ArgminState : ArgState<T, false, I> {};

// eˣ to about 2⁻²¹, nothing below the normal numbers (PTX ISA, "ex2").
DEVICE float quick_exp_(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896340736f));
    return y;
}
DEVICE double quick_exp_(double x) { return exp_(x); }

// ---- several values at once ---------------------------------------------------------------------------------------------

// Values at `at`, `at + step`, …
template <class State, class T, int width>
DEVICE void add_values(State& state, const T (&values)[width], i64 at, int step) {
#pragma unroll
    for (int e = 0; e < width; e++) state.add(values[e], at + e * step);
}
// Sums by halves: as many additions, and no long chain of them.
template <class T, int width>
DEVICE T halves(const T (&values)[width]) {
    static_assert((width & (width - 1)) == 0, "a power of two");
    if constexpr (width == 1) {
        return values[0];
    } else {
        T sums[width / 2];
#pragma unroll
        for (int e = 0; e < width / 2; e++) sums[e] = values[e] + values[e + width / 2];
        return halves(sums);
    }
}
template <class T, int width>
DEVICE void add_values(SumState<T>& state, const T (&values)[width], i64, int) { state.value += halves(values); }
template <class T, int width>
DEVICE void add_values(MeanState<T>& state, const T (&values)[width], i64, int) { state.value += halves(values); }

// Integers that leave room for a place beside them in 32 bits.
template <class T> constexpr bool is_narrow = false;
template <> constexpr bool is_narrow<i8> = true;
template <> constexpr bool is_narrow<u8> = true;
template <> constexpr bool is_narrow<i16> = true;
template <> constexpr bool is_narrow<u16> = true;
// One comparison with what is held, after the extreme of the group and its place in it.
template <class T, bool largest, class I, int width>
DEVICE void add_group(ArgState<T, largest, I>& state, const T (&values)[width], i64 at, int step) {
    T best = values[0];
    int place = 0;
    if constexpr (is_narrow<T>) {
        i32 key = (i32)values[0] * width + (largest ? width - 1 : 0);
#pragma unroll
        for (int e = 1; e < width; e++) {
            i32 other = (i32)values[e] * width + (largest ? width - 1 - e : e);
            key = largest ? max(key, other) : min(key, other);
        }
        place = largest ? width - 1 - (key & (width - 1)) : key & (width - 1);
        best = (T)((key - (key & (width - 1))) / width);
    } else {
#pragma unroll
        for (int e = 1; e < width; e++) {
            T x = values[e];
            bool takes = (largest ? !(x <= best) : !(x >= best)) && best == best;
            best = takes ? x : best;
            place = takes ? e : place;
        }
    }
    state.add(best, at + place * step);
}
template <class T, class I, int width>
DEVICE void add_values(ArgmaxState<T, I>& state, const T (&values)[width], i64 at, int step) { add_group<T, true>(state, values, at, step); }
template <class T, class I, int width>
DEVICE void add_values(ArgminState<T, I>& state, const T (&values)[width], i64 at, int step) { add_group<T, false>(state, values, at, step); }

// ---- the extreme of a group of neighbours as they are stored --------------------------------------------------------------

// A group in opmath.
template <class T, class S, int width>
DEVICE void lift(T (&values)[width], const Pack<S, width>& pack) {
#pragma unroll
    for (int e = 0; e < width; e++) values[e] = up(pack.at[e]);
}
// fp8 goes through halves, which hold it, two at a time: e5m2 is the upper byte of one, e4m3 has an instruction since sm_89 (PTX ISA, "cvt").
DEVICE u32 halves_of(u32 pair, f8e5m2) { return (pair & 0xff) << 8 | (pair & 0xff00) << 16; }
#if __CUDA_ARCH__ >= 890
DEVICE u32 halves_of(u32 pair, f8e4m3fn) {
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((u16)pair));
    return y;
}
#endif
template <class S, int width>
DEVICE void lift_pairs(float (&values)[width], const Pack<S, width>& pack) {
#pragma unroll
    for (int e = 0; e < width; e += 2) {
        const u32 pair = halves_of(((const u32*)&pack)[e / 4] >> (e % 4 * 8), S());
        values[e] = up(f16{(u16)pair});
        values[e + 1] = up(f16{(u16)(pair >> 16)});
    }
}
DEVICE void lift(float (&values)[16], const Pack<f8e5m2, 16>& pack) { lift_pairs(values, pack); }
#if __CUDA_ARCH__ >= 890
DEVICE void lift(float (&values)[16], const Pack<f8e4m3fn, 16>& pack) { lift_pairs(values, pack); }
#endif

template <bool largest, class T> DEVICE T extreme(T x, T y) { return largest ? most(x, y) : least(x, y); }
template <bool largest, class S, int width>
DEVICE auto extreme_of(const Pack<S, width>& pack) {
    decltype(up(pack.at[0])) values[width];
    lift(values, pack);
    auto best = values[0];
#pragma unroll
    for (int e = 1; e < width; e++) best = extreme<largest>(best, values[e]);
    return best;
}
// Two at a time (PTX ISA, "max"): halves since sm_80.
#define EXTREME_PAIRS(S, ptx)                                                                                   \
    template <bool largest>                                                                                     \
    DEVICE u32 extreme_pair(u32 x, u32 y, S) {                                                                  \
        u32 z;                                                                                                  \
        if (largest) asm("max.NaN." ptx " %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));                             \
        else asm("min.NaN." ptx " %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));                                     \
        return z;                                                                                               \
    }                                                                                                           \
    template <bool largest>                                                                                     \
    DEVICE float extreme_of(const Pack<S, 8>& pack) {                                                           \
        const u32* words = (const u32*)&pack;                                                                   \
        u32 a = extreme_pair<largest>(words[0], words[1], S()), b = extreme_pair<largest>(words[2], words[3], S()); \
        a = extreme_pair<largest>(a, b, S());                                                                   \
        return extreme<largest>(up(S{(u16)a}), up(S{(u16)(a >> 16)}));                                          \
    }
EXTREME_PAIRS(bf16, "bf16x2")
EXTREME_PAIRS(f16, "f16x2")
#undef EXTREME_PAIRS
// Bytes as the upper halves of 16 bits, two at a time: the byte below each decides among equals only.
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, i8) { return largest ? __vmaxs2(x, y) : __vmins2(x, y); }
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, u8) { return largest ? __vmaxu2(x, y) : __vminu2(x, y); }
template <bool largest, class S>
DEVICE S extreme_bytes(const Pack<S, 16>& pack) {
    const u32* words = (const u32*)&pack;
    u32 odd = words[0], even = words[0] << 8;
#pragma unroll
    for (int i = 1; i < 4; i++) {
        odd = extreme_shorts<largest>(odd, words[i], S());
        even = extreme_shorts<largest>(even, words[i] << 8, S());
    }
    odd = extreme_shorts<largest>(odd, even, S());
    return extreme<largest>((S)(u8)(odd >> 8), (S)(u8)(odd >> 24));
}
template <bool largest> DEVICE i8 extreme_of(const Pack<i8, 16>& pack) { return extreme_bytes<largest>(pack); }
template <bool largest> DEVICE u8 extreme_of(const Pack<u8, 16>& pack) { return extreme_bytes<largest>(pack); }
// Truth values are bytes of 0 and 1.
template <bool largest>
DEVICE bool extreme_of(const Pack<bool, 16>& pack) {
    const u32* words = (const u32*)&pack;
    return largest ? (words[0] | words[1] | words[2] | words[3]) != 0 : (words[0] & words[1] & words[2] & words[3]) == 0x01010101u;
}

// ---- neighbours as they are stored: what no program changes ---------------------------------------------------------------

template <class State, class S, int width>
DEVICE void add_pack(State& state, const Pack<S, width>& pack, i64 at) {
    decltype(up(pack.at[0])) values[width];
    lift(values, pack);
    add_values(state, values, at, 1);
}
template <class T, class S, int width>
DEVICE void add_pack(AmaxState<T>& state, const Pack<S, width>& pack, i64) { state.value = most(state.value, (T)extreme_of<true>(pack)); }
template <class T, class S, int width>
DEVICE void add_pack(AminState<T>& state, const Pack<S, width>& pack, i64) { state.value = least(state.value, (T)extreme_of<false>(pack)); }
DEVICE void add_pack(AnyState<bool>& state, const Pack<bool, 16>& pack, i64) { state.value |= (u32)extreme_of<true>(pack); }
DEVICE void add_pack(AllState<bool>& state, const Pack<bool, 16>& pack, i64) { state.value &= (u32)extreme_of<false>(pack); }
// Bytes sum four at a time (PTX ISA, "dp4a").
DEVICE i32 sum_bytes(u32 word, i32 sum, i8) { return __dp4a((i32)word, 0x01010101, sum); }
DEVICE i32 sum_bytes(u32 word, i32 sum, u8) { return (i32)__dp4a(word, 0x01010101u, (u32)sum); }
DEVICE i32 sum_bytes(u32 word, i32 sum, bool) { return (i32)__dp4a(word, 0x01010101u, (u32)sum); }
template <class S>
DEVICE void add_bytes(SumState<i64>& state, const Pack<S, 16>& pack) {
    const u32* words = (const u32*)&pack;
    i32 sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = sum_bytes(words[i], sum, S());
    state.value += sum;
}
DEVICE void add_pack(SumState<i64>& state, const Pack<i8, 16>& pack, i64) { add_bytes(state, pack); }
DEVICE void add_pack(SumState<i64>& state, const Pack<u8, 16>& pack, i64) { add_bytes(state, pack); }
DEVICE void add_pack(SumState<i64>& state, const Pack<bool, 16>& pack, i64) { add_bytes(state, pack); }
// The sum of up to 16 narrow integers fits i32.
template <class S, int width>
DEVICE void add_narrow(SumState<i64>& state, const Pack<S, width>& pack) {
    i32 values[width];
#pragma unroll
    for (int e = 0; e < width; e++) values[e] = (i32)pack.at[e];
    state.value += halves(values);
}
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<i8, width>& pack, i64) { add_narrow(state, pack); }
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<u8, width>& pack, i64) { add_narrow(state, pack); }
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<bool, width>& pack, i64) { add_narrow(state, pack); }
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<i16, width>& pack, i64) { add_narrow(state, pack); }
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<u16, width>& pack, i64) { add_narrow(state, pack); }
// Other integers widen one by one.
template <class S, int width>
DEVICE void add_widened(SumState<i64>& state, const Pack<S, width>& pack) {
#pragma unroll
    for (int e = 0; e < width; e++) state.value += (i64)pack.at[e];
}
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<i32, width>& pack, i64) { add_widened(state, pack); }
template <int width> DEVICE void add_pack(SumState<i64>& state, const Pack<u32, width>& pack, i64) { add_widened(state, pack); }

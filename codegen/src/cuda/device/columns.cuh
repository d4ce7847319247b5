// Neighbouring lines as they are stored: what a thread holds of `width` of them. `add` takes elements `at`, `at + step`, … of each line, the
// elements of one call behind those of the last; after `settle`, `give` merges what is held of line `e` into its state.

template <class S, int width>
DEVICE u32 word_of(const Pack<S, width>& pack, int i) { return ((const u32*)&pack)[i]; }
// Bytes of `x` (0 to 3) and `y` (4 to 7); 8 more is the sign of one, all over (PTX ISA, "prmt").
template <u32 selector>
DEVICE u32 bytes_of(u32 x, u32 y) {
    u32 z;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "n"(selector));
    return z;
}

// Sums of integers of 16 bits and fewer, some of which fit 32 bits. Of bytes, four elements of four lines are turned round, so that each
// line's lie in one word.
template <class S, int width>
struct SumAcross {
    i64 sums[width] = {};
    template <int deep>
    DEVICE void add(const Pack<S, width> (&rows)[deep], i64, int) {
        if constexpr (sizeof(S) == 1) add_bytes(rows);
        else {
#pragma unroll
            for (int e = 0; e < width; e++) {
                i32 part = 0;
#pragma unroll
                for (int k = 0; k < deep; k++) part += (i32)rows[k].at[e];
                sums[e] += part;
            }
        }
    }
    template <int deep>
    DEVICE void add_bytes(const Pack<S, width> (&rows)[deep]) {
#pragma unroll
        for (int w = 0; w < width / 4; w++) {
            i32 parts[4] = {};
#pragma unroll
            for (int k = 0; k + 4 <= deep; k += 4) {
                u32 a = word_of(rows[k], w), b = word_of(rows[k + 1], w), c = word_of(rows[k + 2], w), d = word_of(rows[k + 3], w);
                u32 low = bytes_of<0x5140>(a, b), low2 = bytes_of<0x5140>(c, d);
                u32 high = bytes_of<0x7362>(a, b), high2 = bytes_of<0x7362>(c, d);
                parts[0] = sum_bytes(bytes_of<0x5410>(low, low2), parts[0], S());
                parts[1] = sum_bytes(bytes_of<0x7632>(low, low2), parts[1], S());
                parts[2] = sum_bytes(bytes_of<0x5410>(high, high2), parts[2], S());
                parts[3] = sum_bytes(bytes_of<0x7632>(high, high2), parts[3], S());
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
#pragma unroll
                for (int k = deep / 4 * 4; k < deep; k++) parts[e] += (i32)rows[k].at[4 * w + e];
                sums[4 * w + e] += parts[e];
            }
        }
    }
    DEVICE void settle(int) {}
    DEVICE void give(int e, SumState<i64>& state) const { state.value += sums[e]; }
};

// Two values in a word: halves, shorts, and bytes that are the upper halves of shorts, where the lower ones decide among equals only.
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, i16) { return extreme_shorts<largest>(x, y, i8()); }
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, u16) { return extreme_shorts<largest>(x, y, u8()); }
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, bool) { return extreme_shorts<largest>(x, y, u8()); }
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, bf16) { return extreme_pair<largest>(x, y, bf16()); }
template <bool largest> DEVICE u32 extreme_shorts(u32 x, u32 y, f16) { return extreme_pair<largest>(x, y, f16()); }
// What every other is more extreme than.
template <class S> constexpr bool has_sign = true;
template <> constexpr bool has_sign<bool> = false;
template <> constexpr bool has_sign<u8> = false;
template <> constexpr bool has_sign<u16> = false;
template <bool largest, class S>
DEVICE u32 worst_shorts(S) {
    return has_sign<S> ? (largest ? 0x80008000u : 0x7fff7fffu) : largest ? 0u : ~0u;
}
template <bool largest> DEVICE u32 worst_shorts(bf16) { return largest ? 0xff80ff80u : 0x7f807f80u; }
template <bool largest> DEVICE u32 worst_shorts(f16) { return largest ? 0xfc00fc00u : 0x7c007c00u; }

template <class S> DEVICE S of_bits(u32 bits, S) { return S{(u16)bits}; }
DEVICE i16 of_bits(u32 bits, i16) { return (i16)bits; }
DEVICE u16 of_bits(u32 bits, u16) { return (u16)bits; }
DEVICE i8 of_bits(u32 bits, i8) { return (i8)bits; }
DEVICE u8 of_bits(u32 bits, u8) { return (u8)bits; }
DEVICE bool of_bits(u32 bits, bool) { return (bits & 0xff) != 0; }

template <bool largest, class S, int width>
struct ExtremeAcross {
    static constexpr bool bytes = sizeof(S) == 1;
    // Of bytes, for four lines: the even ones, then the odd ones.
    u32 words[width / 2];
    DEVICE ExtremeAcross() {
#pragma unroll
        for (int i = 0; i < width / 2; i++) words[i] = worst_shorts<largest>(S());
    }
    template <int deep>
    DEVICE void add(const Pack<S, width> (&rows)[deep], i64, int) {
#pragma unroll
        for (int k = 0; k < deep; k++) {
#pragma unroll
            for (int i = 0; i < width / 2; i++) {
                u32 word = word_of(rows[k], bytes ? i / 2 : i);
                words[i] = extreme_shorts<largest>(words[i], bytes && i % 2 == 0 ? word << 8 : word, S());
            }
        }
    }
    DEVICE void settle(int) {}
    template <class State>
    DEVICE void give(int e, State& state) const {
        u32 bits = bytes ? words[e / 4 * 2 + e % 2] >> (e % 4 / 2 * 16 + 8) : words[e / 2] >> (e % 2 * 16);
        state.value = extreme<largest>(state.value, up(of_bits(bits, S())));
    }
};

// Positions of extremes. The place of an element among those added since the last `settle` stands below its value in a key, so that the
// first of equals is the more extreme.
template <class S> constexpr bool is_half = false;
template <> constexpr bool is_half<bf16> = true;
template <> constexpr bool is_half<f16> = true;
// x · factor + 0: the one zero, and the one NaN (PTX ISA, "fma").
template <bool largest> DEVICE u32 canonical(u32 pair, bf16) {
    u32 y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(largest ? 0x3f803f80u : 0xbf80bf80u), "r"(0u));
    return y;
}
template <bool largest> DEVICE u32 canonical(u32 pair, f16) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(largest ? 0x3c003c00u : 0xbc00bc00u), "r"(0u));
    return y;
}
// Floats in the order of their bits as signed numbers, and back.
DEVICE u32 in_order(u32 pair) { return pair ^ (bytes_of<0xbb99>(pair, pair) & 0x7fff7fffu); }

template <class T, bool largest, class I, class S, int width>
struct ArgAcross {
    static constexpr bool bytes = sizeof(S) == 1, half = is_half<S>;
    // The least of halves is the largest of their negatives.
    static constexpr bool most = half || largest;
    static constexpr int places = bytes ? 256 : 65536;
    // One for each line, of bytes for two lines: for four, the even ones, then the odd ones.
    u32 keys[bytes ? width / 2 : width];
    ArgState<T, largest, I> states[width];
    int count = 0;
    I first = 0;
    DEVICE ArgAcross() { clear(); }
    DEVICE void clear() {
        constexpr u32 short_worst = has_sign<S> ? (most ? 0x8000u : 0x7fffu) : (most ? 0u : 0xffffu), rest = most ? 0 : 0xffffu;
#pragma unroll
        for (int i = 0; i < (bytes ? width / 2 : width); i++) keys[i] = bytes ? short_worst << 16 | short_worst : short_worst << 16 | rest;
    }
    DEVICE static u32 better(u32 x, u32 y) {
        if constexpr (bytes) return extreme_shorts<most>(x, y, S());
        else if constexpr (has_sign<S>) return (u32)(most ? max((i32)x, (i32)y) : min((i32)x, (i32)y));
        else return most ? max(x, y) : min(x, y);
    }
    template <int deep>
    DEVICE void add(const Pack<S, width> (&rows)[deep], i64 at, int step) {
        if (count + deep > places) settle(step);
        if (count == 0) first = (I)at;
#pragma unroll
        for (int k = 0; k < deep; k++) {
            const u32 place = most ? places - 1 - count - k : count + k;
#pragma unroll
            for (int w = 0; w < width * (int)sizeof(S) / 4; w++) {
                u32 word = word_of(rows[k], w);
                if constexpr (half) word = in_order(canonical<largest>(word, S()));
                keys[2 * w] = better(keys[2 * w], bytes ? bytes_of<0x2404>(word, place) : bytes_of<0x1054>(word, place));
                keys[2 * w + 1] = better(keys[2 * w + 1], bytes ? bytes_of<0x3414>(word, place) : bytes_of<0x3254>(word, place));
            }
        }
        count += deep;
    }
    DEVICE void settle(int step) {
        if (count == 0) return;
#pragma unroll
        for (int e = 0; e < width; e++) {
            u32 key = bytes ? keys[e / 4 * 2 + e % 2] >> (e % 4 / 2 * 16) : keys[e];
            int place = key & (places - 1);
            if (most) place = places - 1 - place;
            u32 bits = key >> (bytes ? 8 : 16);
            T value;
            if constexpr (half) {
                value = up(of_bits(in_order(bits), S()));
                if (!largest) value = -value;
            } else {
                value = up(of_bits(bits, S()));
            }
            states[e].add(value, (i64)first + (i64)place * step);
        }
        count = 0;
        clear();
    }
    template <class State>
    DEVICE void give(int e, State& state) const { state.merge(states[e]); }
};

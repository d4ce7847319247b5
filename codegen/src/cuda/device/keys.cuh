// Values of 16 bits and fewer as they are stored, several to a word, and keys of theirs: a value above its place, which tells the first of
// equals, so that the more extreme of two keys is that of the extreme that comes first.

template <class S, int width>
DEVICE u32 word_of(const Pack<S, width>& pack, int i) { return ((const u32*)&pack)[i]; }
// Bytes of `x` (0 to 3) and `y` (4 to 7); 8 more is the sign of one, all over (PTX ISA, "prmt").
template <u32 selector>
DEVICE u32 bytes_of(u32 x, u32 y) {
    u32 z;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "n"(selector));
    return z;
}

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

template <class S> constexpr bool is_half = false;
template <> constexpr bool is_half<bf16> = true;
template <> constexpr bool is_half<f16> = true;
// x or -x, with one zero and one NaN (PTX ISA, "fma"): 1 or -1 times x, plus 0.
template <bool positive> DEVICE u32 canonical(u32 pair, bf16) {
    u32 y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(positive ? 0x3f803f80u : 0xbf80bf80u), "r"(0u));
    return y;
}
template <bool positive> DEVICE u32 canonical(u32 pair, f16) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(positive ? 0x3c003c00u : 0xbc00bc00u), "r"(0u));
    return y;
}
// Floats in the order of their bits as signed numbers, and back.
DEVICE u32 in_order(u32 pair) { return pair ^ (bytes_of<0xbb99>(pair, pair) & 0x7fff7fffu); }

// Keys of 32 bits: the value on top, the place in the lower half. The least of halves is the largest of their negatives, so that NaN is the
// most extreme either way.
template <bool largest, class S>
struct Keys {
    static constexpr bool half = is_half<S>, most = half || largest;
    static constexpr int shift = 32 - 8 * sizeof(S);
    // The key of no value.
    static DEVICE u32 worst() { return has_sign<S> ? (most ? 0x80000000u : 0x7fffffffu) : most ? 0u : ~0u; }
    static DEVICE u32 better(u32 x, u32 y) {
        if constexpr (has_sign<S>) return (u32)(most ? max((i32)x, (i32)y) : min((i32)x, (i32)y));
        else return most ? max(x, y) : min(x, y);
    }
    // A word of values in their order.
    static DEVICE u32 ordered(u32 word) {
        if constexpr (half) return in_order(canonical<largest>(word, S()));
        else return word;
    }
    // The value that was ordered so, in opmath.
    static DEVICE auto value(u32 bits) {
        if constexpr (half) {
            const float x = up(of_bits(in_order(bits), S()));
            return largest ? x : -x;
        } else {
            return up(of_bits(bits, S()));
        }
    }
    static DEVICE u32 place(int at) { return most ? 65535 - at : at; }
    // The best key of a group that begins at `at`.
    template <int width>
    static DEVICE u32 group(const Pack<S, width>& pack, int at) {
        u32 best = worst();
#pragma unroll
        for (int w = 0; w < width * (int)sizeof(S) / 4; w++) {
            const u32 word = ordered(word_of(pack, w));
            if constexpr (sizeof(S) == 2) {
                best = better(best, bytes_of<0x1054>(word, most ? width - 1 - 2 * w : 2 * w));
                best = better(best, bytes_of<0x3254>(word, most ? width - 2 - 2 * w : 2 * w + 1));
            } else {
                best = better(best, bytes_of<0x0654>(word, most ? width - 1 - 4 * w : 4 * w));
                best = better(best, bytes_of<0x1654>(word, most ? width - 2 - 4 * w : 4 * w + 1));
                best = better(best, bytes_of<0x2654>(word, most ? width - 3 - 4 * w : 4 * w + 2));
                best = better(best, bytes_of<0x3654>(word, most ? width - 4 - 4 * w : 4 * w + 3));
            }
        }
        return best + (most ? 65536 - width - at : at);
    }
};

// Of lines of fewer than 65536 elements.
template <class T, bool largest, class S>
struct ArgKeyState {
    typedef Keys<largest, S> Of;
    u32 key = Of::worst();
    DEVICE void add(T x, i64 at) {
        const S stored = cast<S>(x);
        u32 bits;
        if constexpr (Of::half) bits = Of::ordered(stored.bits);
        else bits = (u32)stored;
        key = Of::better(key, bits << Of::shift | Of::place((int)at));
    }
    DEVICE void merge(const ArgKeyState& other) { key = Of::better(key, other.key); }
    DEVICE i64 result(i64) const { return key == Of::worst() ? 0 : (i64)Of::place(key & 0xffff); }
};
template <class T, bool largest, class S, int width>
DEVICE void add_pack(ArgKeyState<T, largest, S>& state, const Pack<S, width>& pack, i64 at) {
    if constexpr (width * sizeof(S) % 4 == 0) {
        state.key = Keys<largest, S>::better(state.key, Keys<largest, S>::group(pack, (int)at));
    } else {
#pragma unroll
        for (int e = 0; e < width; e++) state.add(up(pack.at[e]), at + e);
    }
}

// What a thread holds of longer lines, of which it adds groups that lie `step` elements apart: keys of places among those that it added.
template <class T, bool largest, class I, class S, int width, int step>
struct ArgAlong {
    typedef Keys<largest, S> Of;
    u32 key = Of::worst();
    ArgState<T, largest, I> state;
    int count = 0;
    I first = 0;
    DEVICE void add(const Pack<S, width>& pack, i64 at) {
        if (count + width > 65536) settle();
        if (count == 0) first = (I)at;
        key = Of::better(key, Of::group(pack, count));
        count += width;
    }
    DEVICE void settle() {
        if (count == 0) return;
        const int place = Of::place(key & 0xffff);
        state.add((T)Of::value(key >> Of::shift), (i64)first + (i64)(place / width) * step + place % width);
        key = Of::worst();
        count = 0;
    }
    template <class State>
    DEVICE void give(State& to) {
        settle();
        to.merge(state);
    }
};

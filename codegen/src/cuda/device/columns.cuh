// Neighbouring lines as they are stored: what a thread holds of `width` of them. `add` takes elements `at`, `at + step`, … of each line, the
// elements of one call behind those of the last; after `settle`, `give` merges what is held of line `e` into its state.

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

// Positions of extremes. The place of an element among those added since the last `settle` stands below its value in a key; bytes have keys of
// 16 bits, two to a word.
template <class T, bool largest, class I, class S, int width>
struct ArgAcross {
    typedef Keys<largest, S> Of;
    static constexpr bool bytes = sizeof(S) == 1;
    static constexpr int places = bytes ? 256 : 65536;
    // One for each line, of bytes for two lines: for four, the even ones, then the odd ones.
    u32 keys[bytes ? width / 2 : width];
    ArgState<T, largest, I> states[width];
    int count = 0;
    I first = 0;
    DEVICE ArgAcross() { clear(); }
    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < (bytes ? width / 2 : width); i++) keys[i] = bytes ? worst_shorts<Of::most>(S()) : Of::worst();
    }
    DEVICE static u32 better(u32 x, u32 y) {
        if constexpr (bytes) return extreme_shorts<Of::most>(x, y, S());
        else return Of::better(x, y);
    }
    template <int deep>
    DEVICE void add(const Pack<S, width> (&rows)[deep], i64 at, int step) {
        if (count + deep > places) settle(step);
        if (count == 0) first = (I)at;
#pragma unroll
        for (int k = 0; k < deep; k++) {
            const u32 place = Of::most ? places - 1 - count - k : count + k;
#pragma unroll
            for (int w = 0; w < width * (int)sizeof(S) / 4; w++) {
                const u32 word = Of::ordered(word_of(rows[k], w));
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
            const u32 key = bytes ? keys[e / 4 * 2 + e % 2] >> (e % 4 / 2 * 16) : keys[e];
            int place = key & (places - 1);
            if (Of::most) place = places - 1 - place;
            states[e].add((T)Of::value(key >> (bytes ? 8 : 16)), (i64)first + (i64)place * step);
        }
        count = 0;
        clear();
    }
    template <class State>
    DEVICE void give(int e, State& state) const { state.merge(states[e]); }
};

// Order-preserving keys, and a stable sort of (key, position) entries: chunks by a bitonic network, then every entry finds its rank.

DEVICE u32 order_key(float x) {
    u32 bits = __float_as_uint(x);
    if (x != x) return 0xffffffffu;  // NaN is the largest
    if (x == 0.0f) bits = 0;         // both zeros are equal
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE u64 order_key(double x) {
    u64 bits = (u64)__double_as_longlong(x);
    if (x != x) return ~0ull;
    if (x == 0.0) bits = 0;
    return bits >> 63 ? ~bits : bits | (1ull << 63);
}
DEVICE u32 order_key(bool x) { return x; }
DEVICE u32 order_key(u8 x) { return x; }
DEVICE u32 order_key(u16 x) { return x; }
DEVICE u32 order_key(u32 x) { return x; }
DEVICE u64 order_key(u64 x) { return x; }
DEVICE u32 order_key(i8 x) { return (u32)(i32)x ^ 0x80000000u; }
DEVICE u32 order_key(i16 x) { return (u32)(i32)x ^ 0x80000000u; }
DEVICE u32 order_key(i32 x) { return (u32)x ^ 0x80000000u; }
DEVICE u64 order_key(i64 x) { return (u64)x ^ (1ull << 63); }

// A key of up to 32 bits above a position below 2^32: one comparison orders both.
struct Narrow {
    u64 bits;
    static DEVICE Narrow make(u64 key, i64 at) { return {(u32)key * (1ull << 32) | (u32)at}; }
    static DEVICE Narrow last() { return {~0ull}; }
    DEVICE u64 key() const { return bits >> 32; }
    DEVICE i64 position() const { return (i64)(bits & 0xffffffffu); }
    DEVICE bool operator<(const Narrow& other) const { return bits < other.bits; }
};
struct Wide {
    u64 high, low;
    static DEVICE Wide make(u64 key, i64 at) { return {key, (u64)at}; }
    static DEVICE Wide last() { return {~0ull, ~0ull}; }
    DEVICE u64 key() const { return high; }
    DEVICE i64 position() const { return (i64)low; }
    DEVICE bool operator<(const Wide& other) const { return high < other.high || (high == other.high && low < other.low); }
};

// Sorts `chunk` (a power of two) entries of shared memory with chunk / 2 threads.
template <int chunk, class Entry>
DEVICE void sort_shared(Entry* entries) {
    const int t = threadIdx.x;
    for (int size = 2; size <= chunk; size *= 2) {
        for (int reach = size / 2; reach > 0; reach /= 2) {
            __syncthreads();
            int i = 2 * t - (t & (reach - 1)), j = i + reach;
            bool ascending = (i & size) == 0;
            if ((entries[j] < entries[i]) == ascending) {
                Entry held = entries[i];
                entries[i] = entries[j];
                entries[j] = held;
            }
        }
    }
    __syncthreads();
}

// The rank, among the `runs` sorted runs of `run` entries that hold `at`, of the entry there, plus where those runs start. `length` entries
// are distinct; the last run may be short.
template <class Entry>
DEVICE i64 rank_in_runs(const Entry* entries, i64 length, i64 at, i64 run, i64 runs) {
    const Entry mine = entries[at];
    const i64 own = at / run, first = own / runs * runs;
    i64 rank = first * run + at - own * run;
    for (i64 r = first; r < first + runs && r * run < length; r++) {
        if (r == own) continue;
        const Entry* others = entries + r * run;
        i64 low = 0, high = length - r * run < run ? length - r * run : run;
        while (low < high) {
            const i64 middle = (low + high) / 2;
            if (others[middle] < mine) low = middle + 1;
            else high = middle;
        }
        rank += low;
    }
    return rank;
}

// Products by expert of a few tokens: a race for memory. Weights stream from global memory straight into the operands of mma.sync, with K in
// whatever order makes a lane's 16 bytes one operand after the other; the warps of a block split K. Tokens, at most eight, are columns.

// Streams past the first-level cache.
DEVICE Pack<u32, 4> load_streaming_16(const void* pointer) {
    Pack<u32, 4> x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3]) : "l"(pointer));
    return x;
}

// The `nth` of the experts that `count` ids name, or -1 if they name no more than that. Every thread of the block calls it.
template <int experts, class Ids>
DEVICE int named_expert(const Ids& id_at, int count, int nth) {
    constexpr int words = (experts + 31) / 32;
    __shared__ u32 named[words];
    for (int i = threadIdx.x; i < words; i += blockDim.x) named[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 id = (i64)id_at(i);
        if (id >= 0 && id < experts) atomicOr(&named[id / 32], 1u << (id % 32));
    }
    __syncthreads();
    for (int i = 0; i < words; i++) {
        u32 word = named[i];
        if (nth >= __popc(word)) {
            nth -= __popc(word);
            continue;
        }
        while (nth-- > 0) word &= word - 1;
        return i * 32 + __ffs(word) - 1;
    }
    return -1;
}

// Sixteen rows of weights with contiguous K: lane / 4 is one of the first eight, and of the others. A chunk is 64 of K.
template <class T_, int ahead>
struct DecodeRows {
    using T = T_;
    static constexpr int values = 4;  // sums of a lane: of its row of the first eight, then of the others, for tokens 2 (lane % 4) and the next
    Pack<u32, 4> low[ahead][2], high[ahead][2];
    float sums[values] = {};

    // Starts `ahead` chunks on their way; `first` and `second` are the lane's rows.
    DEVICE void load(const T* first, const T* second, i64, int chunk, int depth) {
#pragma unroll
        for (int u = 0; u < ahead; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = (chunk + u) * 64 + half * 32 + threadIdx.x % 4 * 8;
                low[u][half] = k < depth ? load_streaming_16(first + k) : Pack<u32, 4>{};
                high[u][half] = k < depth ? load_streaming_16(second + k) : Pack<u32, 4>{};
            }
    }
    // Multiplies them by token lane / 4, which `x` points to if the expert has it.
    DEVICE void multiply(const T* x, int chunk, int depth) {
#pragma unroll
        for (int u = 0; u < ahead; u++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = (chunk + u) * 64 + half * 32 + threadIdx.x % 4 * 8;
                const Pack<u32, 4> b = x != nullptr && k < depth ? *(const Pack<u32, 4>*)(x + k) : Pack<u32, 4>{};
                const auto &l = low[u][half], &h = high[u][half];
                Mma<T>::add(sums, {l.at[0], h.at[0], l.at[1], h.at[1]}, b.at[0], b.at[1]);
                Mma<T>::add(sums, {l.at[2], h.at[2], l.at[3], h.at[3]}, b.at[2], b.at[3]);
            }
    }
    static constexpr int chunk_depth = 64;
};

// Sixty-four rows of weights that are contiguous, not K: a lane has eight neighbours, from 8 · (lane / 4), of four k. A chunk is 16 of K.
template <class T_, int ahead>
struct DecodeAcross {
    using T = T_;
    static constexpr int values = 16;  // sums of a lane, for token lane / 4: of rows 16 (lane % 4) + i and 16 (lane % 4) + 8 + i by 2 i
    Pack<u32, 4> rows[ahead][4];
    float sums[values] = {};

    // `first` is the lane's first row at k = 0.
    DEVICE void load(const T* first, const T*, i64 stride, int chunk, int depth) {
#pragma unroll
        for (int u = 0; u < ahead; u++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int k = (chunk + u) * 16 + threadIdx.x % 4 * 4 + j;
                rows[u][j] = first != nullptr && k < depth ? load_streaming_16(first + k * stride) : Pack<u32, 4>{};
            }
    }
    DEVICE void multiply(const T* x, int chunk, int depth) {
#pragma unroll
        for (int u = 0; u < ahead; u++) {
            const int k = (chunk + u) * 16 + threadIdx.x % 4 * 4;
            const Pack<u32, 2> a = x != nullptr && k < depth ? *(const Pack<u32, 2>*)(x + k) : Pack<u32, 2>{};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const u32 order = i % 2 == 0 ? 0x5410 : 0x7632;
                const u32 b0 = __byte_perm(rows[u][0].at[i / 2], rows[u][1].at[i / 2], order);
                const u32 b1 = __byte_perm(rows[u][2].at[i / 2], rows[u][3].at[i / 2], order);
                float sum[4] = {sums[2 * i], sums[2 * i + 1], 0.0f, 0.0f};
                Mma<T>::add(sum, {a.at[0], 0u, a.at[1], 0u}, b0, b1);
                sums[2 * i] = sum[0];
                sums[2 * i + 1] = sum[1];
            }
        }
    }
    static constexpr int chunk_depth = 16;
};

// Streams the weights and leaves the sums of all warps in the first: true there. `before_tokens` is called once, when the first weights are
// on their way, and returns where the lane's token is.
template <class Stream, int warps, int ahead, class Before>
DEVICE bool stream_weights(Stream& stream, const typename Stream::T* first, const typename Stream::T* second, i64 stride, int depth,
                           const Before& before_tokens) {
    __shared__ float parts[warps][Stream::values][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Each warp has a run of K of its own: what it reads of a row at a time lies together.
    constexpr int step = Stream::chunk_depth;
    const int chunks = (depth + step - 1) / step, share = (chunks + warps - 1) / warps, start = warp * share;
    const int end = start + share < chunks ? start + share : chunks, stop = end * step < depth ? end * step : depth;
    stream.load(first, second, stride, start, stop);
    const auto* x = before_tokens();
    for (int chunk = start; chunk < end; chunk += ahead) {
        if (chunk != start) stream.load(first, second, stride, chunk, stop);
        stream.multiply(x, chunk, stop);
    }
#pragma unroll
    for (int i = 0; i < Stream::values; i++) parts[warp][i][lane] = stream.sums[i];
    __syncthreads();
    if (warp > 0) return false;
#pragma unroll
    for (int w = 1; w < warps; w++)
#pragma unroll
        for (int i = 0; i < Stream::values; i++) stream.sums[i] += parts[w][i][lane];
    return true;
}

// Lines of a reduction: loads of whole groups, merges within a few threads, a block, a cluster, and over the blocks that share a line.

// A group that starts on its own size, or on 16 bytes where it is larger.
template <class T, int width>
DEVICE Pack<T, width> load_pack(const T* from) {
    Pack<T, width> pack;
    if constexpr (sizeof(pack) <= 16) {
        pack = *(const Pack<T, width>*)from;
    } else {
        constexpr int piece = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < width; i += piece) *(Pack<T, piece>*)&pack.at[i] = *(const Pack<T, piece>*)(from + i);
    }
    return pack;
}
template <class T, int width>
DEVICE void store_pack(T* to, const Pack<T, width>& pack) {
    if constexpr (sizeof(pack) <= 16) {
        *(Pack<T, width>*)to = pack;
    } else {
        constexpr int piece = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < width; i += piece) *(Pack<T, piece>*)(to + i) = *(const Pack<T, piece>*)&pack.at[i];
    }
}

// Every lane of an aligned group of `lanes` (a power of two, the same in the whole warp) ends with the merge of the group.
template <class S>
DEVICE void lanes_merge(S& state, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
        S other = shuffle_xor(state, mask);
        if ((threadIdx.x & mask) == 0) {
            state.merge(other);
        } else {
            other.merge(state);
            state = other;
        }
    }
}

// Every thread of a block ends with the merge of all.
template <int threads, class S>
DEVICE void merge_block(S& state) {
    __shared__ alignas(16) char raw[threads / 32 * sizeof(S)];
    block_merge<threads>(state, (S*)raw);
}

// True in the block that comes last of the `blocks` which call this with the same counter; what the others wrote before is visible to it.
// The counter is zero before and after.
DEVICE bool comes_last(u32* counter, u32 blocks) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        before = atomicAdd(counter, 1u);
        if (before == blocks - 1) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return before == blocks - 1;
}

// What another block wrote before `comes_last`: past this multiprocessor's own cache.
template <class S>
DEVICE S fresh(const S* from) {
    union Words { S value; u32 words[sizeof(S) / 4]; __device__ Words() {} } out;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); i++)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(out.words[i]) : "l"((const u32*)from + i) : "memory");
    return out.value;
}

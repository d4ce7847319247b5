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

// Keeps the compiler from carrying what it made of these from one pass to the next: the stored form takes fewer registers.
template <class P>
DEVICE void reread(P& pack) {
    if constexpr (sizeof(P) % 4 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(P) / 4; i++) asm volatile("" : "+r"(((u32*)&pack)[i]));
    }
}

// Begins to copy a group to where this thread keeps it; it is there after `kept_all`.
template <class T, int width>
DEVICE void keep_pack(Pack<T, width>& slot, const T* from) {
    constexpr int size = sizeof(slot), piece = size % 16 == 0 ? 16 : size % 8 == 0 ? 8 : size % 4 == 0 ? 4 : size;
    if constexpr (piece >= 4) {
        u32 to = (u32)__cvta_generic_to_shared(&slot);
#pragma unroll
        for (int i = 0; i < size; i += piece)
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to + i), "l"((const char*)from + i), "n"(piece) : "memory");
    } else {
        slot = load_pack<T, width>(from);
    }
}
DEVICE void kept_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Every lane of an aligned group of `lanes` (a power of two) ends with the merge of the group.
template <int lanes, class S>
DEVICE void merge_lanes(S& state) {
#pragma unroll
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
    constexpr int warps = threads / 32;
    __shared__ alignas(16) char raw[warps * sizeof(S)];
    S* const shared = (S*)raw;
    merge_lanes<32>(state);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = state;
    __syncthreads();
    state = shared[threadIdx.x % warps];
    merge_lanes<warps>(state);
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

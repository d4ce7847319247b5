// Shuffles of any type, warp and block reductions of states that know how to `merge`.

template <class S>
DEVICE S shuffle_xor(const S& value, int mask) {
    union Words { S value; u32 words[(sizeof(S) + 3) / 4]; __device__ Words() {} } in, out;
    in.value = value;
#pragma unroll
    for (int i = 0; i < (int)((sizeof(S) + 3) / 4); i++) out.words[i] = __shfl_xor_sync(0xffffffffu, in.words[i], mask);
    return out.value;
}

// Every lane ends with the merge of all 32; the order of merging is fixed.
template <class S>
DEVICE void warp_merge(S& state) {
    const bool low[5] = {(threadIdx.x & 16) == 0, (threadIdx.x & 8) == 0, (threadIdx.x & 4) == 0, (threadIdx.x & 2) == 0,
                         (threadIdx.x & 1) == 0};
#pragma unroll
    for (int step = 0; step < 5; step++) {
        S other = shuffle_xor(state, 16 >> step);
        // Lower lanes merge from the left on both sides, so that partners agree bit for bit.
        if (low[step]) {
            state.merge(other);
        } else {
            other.merge(state);
            state = other;
        }
    }
}

// Every one of eight neighbouring lanes, of which all are there, ends with the merge of the eight.
template <class S>
DEVICE void merge_eight(S& state) {
    const u32 lanes = 0xffu << (threadIdx.x & 24);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
        static_assert(sizeof(S) % 4 == 0, "whole words");
        union Words { S value; u32 words[sizeof(S) / 4]; __device__ Words() {} } in, out;
        in.value = state;
#pragma unroll
        for (int i = 0; i < (int)(sizeof(S) / 4); i++) out.words[i] = __shfl_xor_sync(lanes, in.words[i], step);
        // The lower lane's comes first on both sides, so that partners agree bit for bit.
        S low = (threadIdx.x & step) == 0 ? state : out.value;
        low.merge((threadIdx.x & step) == 0 ? out.value : state);
        state = low;
    }
}

// Every thread of a 1-d block of `threads` ends with the merge of all; `shared` holds threads / 32 states.
template <int threads, class S>
DEVICE void block_merge(S& state, S* shared) {
    warp_merge(state);
    if (threads == 32) return;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = state;
    __syncthreads();
    state = shared[0];
#pragma unroll 1
    for (int i = 1; i < threads / 32; i++) state.merge(shared[i]);
}

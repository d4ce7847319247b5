// Merges over the blocks of a cluster, through each other's shared memory (PTX ISA, "mapa", "barrier.cluster").

DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Every thread of every block ends with the merge of all, in the order of ranks. Calls of one `S` take turns, 0 and 1: a block may write what
// the next turn reads while others still read this one's. A cluster barrier must follow the last before a block ends.
template <int threads, int blocks, class S>
DEVICE void merge_cluster(S& state, int turn) {
    constexpr int words = sizeof(S) / 4;
    union Words { S value; u32 words[sizeof(S) / 4]; __device__ Words() {} } own, other;
    __shared__ alignas(16) u32 slots[2][blocks][words];
    merge_block<threads>(state, turn);
    own.value = state;
    u32 rank, remote;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x < blocks) {
        u32 address = (u32)__cvta_generic_to_shared(slots[turn][rank]);
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(threadIdx.x));
#pragma unroll
        for (int i = 0; i < words; i++)
            asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote + 4 * i), "r"(own.words[i]) : "memory");
    }
    cluster_barrier();
#pragma unroll
    for (int from = 0; from < blocks; from++) {
#pragma unroll
        for (int i = 0; i < words; i++) other.words[i] = slots[turn][from][i];
        if (from == 0) state = other.value;
        else state.merge(other.value);
    }
}

// Merges over the blocks of a cluster, through each other's shared memory (PTX ISA, "mapa", "barrier.cluster").

DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Every thread of every block ends with the merge of all, in the order of ranks. `stage` tells the slots of a kernel's merges apart; the
// last of them must be followed by a barrier before a block ends.
template <int threads, int blocks, int stage, class S>
DEVICE void merge_cluster(S& state) {
    constexpr int words = (sizeof(S) + 3) / 4;
    __shared__ alignas(16) u32 slot[words];
    merge_block<threads>(state);
    union Words { S value; u32 words[(sizeof(S) + 3) / 4]; __device__ Words() {} } own, other;
    own.value = state;
    if (threadIdx.x < words) {
#pragma unroll
        for (int i = 0; i < words; i++)
            if (threadIdx.x == i) slot[i] = own.words[i];
    }
    cluster_barrier();
    u32 address = (u32)__cvta_generic_to_shared(slot);
#pragma unroll
    for (int rank = 0; rank < blocks; rank++) {
        u32 remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#pragma unroll
        for (int i = 0; i < words; i++)
            asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(other.words[i]) : "r"(remote + 4 * i));
        if (rank == 0) state = other.value;
        else state.merge(other.value);
    }
}

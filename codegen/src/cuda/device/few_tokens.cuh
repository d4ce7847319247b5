// Rows in expert order within a block, for a few tokens.

static const int few_ids = 256;  // most ids

// Where a token's ids name an expert twice, the first stands for all.
struct FewTokens {
    u32 named[32];       // a bit for each expert
    i16 ids[few_ids];                // -1 for none
    alignas(16) i16 first[few_ids];  // those that stand for an expert of their token, else -1
    i16 standing[few_ids];           // the id that stands for this one
    i16 expert[few_ids], start[few_ids], count[few_ids];  // of each slot: experts ascend, so do their places
    i16 at[few_ids];     // the id at each place
    i32 slots;
    DEVICE RowTile slot(int s) const { return {expert[s], start[s], count[s]}; }
    DEVICE int id_of(int place) const { return at[place]; }

    // Every thread of the block calls it.
    template <int experts, class Ids>
    DEVICE void fill(const Ids& id_at, int total, int choices) {
        static_assert(experts <= 1024, "a bit for each");
        for (int i = threadIdx.x; i < 32; i += blockDim.x) named[i] = 0;
        for (int i = threadIdx.x; i < (total + 7) / 8 * 8; i += blockDim.x) {
            const i64 id = i < total ? (i64)id_at(i) : -1;
            ids[i] = id >= 0 && id < experts ? (i16)id : (i16)-1;
            first[i] = -1;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < total; i += blockDim.x) {
            const int id = ids[i];
            int stands = i - i % choices;
            while (ids[stands] != id) stands++;
            standing[i] = (i16)stands;
            if (stands == i) first[i] = (i16)id;
            if (id >= 0) atomicOr(&named[id / 32], 1u << (id % 32));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            slots = 0;
#pragma unroll 1
            for (int w = 0; w < (experts + 31) / 32; w++) slots += __popc(named[w]);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < total; i += blockDim.x) {
            const int id = first[i];
            if (id < 0) continue;
            int before = 0, rank = 0, all = 0;
#pragma unroll 1
            for (int from = 0; from < total; from += 8) {
                const Pack<u32, 4> eight = *(const Pack<u32, 4>*)(first + from);
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const int other = (i16)(eight.at[e / 2] >> e % 2 * 16);
                    before += other >= 0 && other < id;
                    rank += other == id && from + e < i;
                    all += other == id;
                }
            }
            at[before + rank] = (i16)i;
            if (rank > 0) continue;
            int s = __popc(named[id / 32] & ((1u << (id % 32)) - 1));
#pragma unroll 1
            for (int w = 0; w < id / 32; w++) s += __popc(named[w]);
            expert[s] = (i16)id;
            start[s] = (i16)before;
            count[s] = (i16)all;
        }
        __syncthreads();
    }
};

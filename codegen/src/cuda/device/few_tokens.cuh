// Rows in expert order within a block, for a few tokens.

static const int few_ids = 256;  // most ids

// Where a token's ids name an expert twice, the first stands for all.
struct FewTokens {
    u32 named[32];       // a bit for each expert
    i16 ids[few_ids];    // -1 for none
    i16 first[few_ids];  // those that stand for an expert of their token, else -1
    i16 expert[few_ids], start[few_ids], count[few_ids];  // of each slot: experts ascend, so do their places
    i16 at[few_ids];     // the id at each place
    i32 slots;
    DEVICE RowTile slot(int s) const { return {expert[s], start[s], count[s]}; }
    DEVICE int id_of(int place) const { return at[place]; }

    // The id that stands for this one.
    DEVICE int standing_for(int i, int choices) const {
        int first = i - i % choices;
        while (ids[first] != ids[i]) first++;
        return first;
    }

    // Every thread of the block calls it.
    template <int experts, class Ids>
    DEVICE void fill(const Ids& id_at, int total, int choices) {
        static_assert(experts <= 1024, "a bit for each");
        for (int i = threadIdx.x; i < 32; i += blockDim.x) named[i] = 0;
        for (int i = threadIdx.x; i < total; i += blockDim.x) {
            const i64 id = (i64)id_at(i);
            ids[i] = id >= 0 && id < experts ? (i16)id : (i16)-1;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < total; i += blockDim.x) {
            const int id = ids[i];
            first[i] = standing_for(i, choices) == i ? id : -1;
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
            for (int j = 0; j < total; j++) {
                const int other = first[j];
                before += other >= 0 && other < id;
                rank += other == id && j < i;
                all += other == id;
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

// A router in one launch: after the product that gives logits, the choice of experts (text of the kernel), and the rows in expert order.
//
// Clusters claim tiles of tokens, of which each block finishes a run of neighbours. When all runs are counted, blocks share the work of putting
// rows in order. Nobody waits before all tiles are claimed, by blocks that run: it does not matter how many there is room for.

// Which tokens of a run chose each expert: a bit for each.
template <int experts, int tokens>
struct RouterRun {
    static constexpr int words = (tokens + 31) / 32;
    u32 chosen[experts][words];
    // Every thread of the block calls it.
    DEVICE void clear() {
        for (int i = threadIdx.x; i < experts * words; i += blockDim.x) (&chosen[0][0])[i] = 0;
    }
    DEVICE void add(int token, int expert) { atomicOr(&chosen[expert][token / 32], 1u << token % 32); }
    DEVICE int count(int expert) const {
        int sum = 0;
#pragma unroll
        for (int w = 0; w < words; w++) sum += __popc(chosen[expert][w]);
        return sum;
    }
    // How many tokens before this one chose the expert.
    DEVICE int before(int token, int expert) const {
        int sum = 0;
#pragma unroll
        for (int w = 0; w < words; w++)
            sum += __popc(chosen[expert][w] & (w < token / 32 ? 0xffffffffu : w == token / 32 ? (1u << token % 32) - 1 : 0u));
        return sum;
    }
};

// What the blocks tell each other; all are zero again when the last has left.
struct RouterCounters {
    u32 *claimed, *counted, *left;
    DEVICE explicit RouterCounters(u32* counters) : claimed(counters), counted(counters + 1), left(counters + 2) {}
};

// The next tile, the same in all blocks of the cluster. Every thread calls it, after a barrier of the cluster.
template <int blocks>
DEVICE u32 router_claim(const RouterCounters& counters, u32 rank) {
    __shared__ i32 tile;
    if (rank == 0 && threadIdx.x == 0) {
        const i32 next = (i32)atomicAdd(counters.claimed, 1u);
        if (blocks == 1) tile = next;
        else
            for (int b = 0; b < blocks; b++) store_of_block(&tile, b, next);
    }
    if (blocks == 1) __syncthreads();
    else cluster_sync();
    return (u32)tile;
}

// Leaves the run's counts where all blocks find them. Every thread calls it, after a barrier.
template <class Run, int experts>
DEVICE void router_count(const RouterCounters& counters, const Run& run, u16* counts) {
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = (u16)run.count(e);
    __syncthreads();
    if (threadIdx.x == 0) add_release(counters.counted);
}

// Where a list of row tiles goes; a tile has at most `height` rows, and with a `step` a group's tiles are made equal, in multiples of it.
struct RouterList {
    i32 height, step;
    i32* count;
    RowTile* tiles;
    DEVICE i32 height_of(i32 rows) const {
        const i32 n = (rows + height - 1) / height;
        return step == 0 || n == 0 ? height : ((rows + n - 1) / n + step - 1) / step * step;
    }
};

// order[place] = position of the id, by expert and then by position; `group_starts[e]`: where expert e's rows start. Every thread of the grid
// calls it. `counts` has a line of all experts for each of `runs` runs of `tokens` tokens, `rows` tokens in all.
template <int experts, int choices, int tokens, int threads>
DEVICE void router_order(const RouterCounters& counters, RouterRun<experts, tokens>& run, const u16* counts, i64 rows, const i64* ids,
                         i32* order, i32* group_starts, const RouterList& list) {
    constexpr int warps = threads / 32, held = (experts + 31) / 32, each = (tokens * choices + threads - 1) / threads;
    __shared__ i32 totals[experts], places[experts], starts[experts], tile_ends[experts];
    const i64 runs = (rows + tokens - 1) / tokens, first = runs * blockIdx.x / gridDim.x, end = runs * (blockIdx.x + 1) / gridDim.x;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (first == end && blockIdx.x > 0) return;
    for (int e = threadIdx.x; e < experts; e += threads) totals[e] = places[e] = 0;
    if (threadIdx.x == 0)
        while (load_acquire(counters.counted) < (u32)runs) {}
    __syncthreads();
    i32 all[held] = {}, before[held] = {};
#pragma unroll 4
    for (i64 r = warp; r < runs; r += warps)
#pragma unroll
        for (int i = 0; i < held; i++) {
            const i32 n = i * 32 + lane < experts ? (i32)load_from_others(counts + r * experts + i * 32 + lane) : 0;
            all[i] += n;
            before[i] += r < first ? n : 0;
        }
#pragma unroll
    for (int i = 0; i < held; i++)
        if (i * 32 + lane < experts) {
            atomicAdd(&totals[i * 32 + lane], all[i]);
            atomicAdd(&places[i * 32 + lane], before[i]);
        }
    __syncthreads();
    if (warp == 0) {
        i32 at = 0, tile_at = 0;
        for (int i = 0; i < held; i++) {
            const int e = i * 32 + lane;
            const i32 n = e < experts ? totals[e] : 0;
            i32 sum = n, tile_sum = (n + list.height - 1) / list.height;
#pragma unroll
            for (int reach = 1; reach < 32; reach *= 2) {
                const i32 other = __shfl_up_sync(0xffffffffu, sum, reach), tiles = __shfl_up_sync(0xffffffffu, tile_sum, reach);
                if (lane >= reach) sum += other, tile_sum += tiles;
            }
            if (e < experts) {
                starts[e] = at + sum - n;
                places[e] += at + sum - n;
                tile_ends[e] = tile_at + tile_sum;
                if (blockIdx.x == 0) group_starts[e] = at + sum - n;
            }
            at += __shfl_sync(0xffffffffu, sum, 31);
            tile_at += __shfl_sync(0xffffffffu, tile_sum, 31);
        }
        if (blockIdx.x == 0 && lane == 0) {
            group_starts[experts] = at;
            *list.count = tile_at;
        }
    }
    __syncthreads();
    for (int t = threadIdx.x; blockIdx.x == 0 && t < tile_ends[experts - 1]; t += threads) {
        int low = 0, high = experts - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (tile_ends[middle] > t) high = middle;
            else low = middle + 1;
        }
        const i32 height = list.height_of(totals[low]), done = (t - (low == 0 ? 0 : tile_ends[low - 1])) * height;
        const i32 left = totals[low] - done;
        list.tiles[t] = {low, starts[low] + done, left < height ? left : height};
    }
    for (i64 r = first; r < end; r++) {
        const i64 from = r * tokens * choices, left = (rows - r * tokens) * choices;
        const int count = left < tokens * choices ? (int)left : tokens * choices;
        int mine[each];
        run.clear();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int at = i * threads + threadIdx.x;
            mine[i] = at < count ? (int)load_from_others(ids + from + at) : -1;
            if (mine[i] >= 0) run.add(at / choices, mine[i]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int at = i * threads + threadIdx.x;
            if (mine[i] >= 0) order[places[mine[i]] + run.before(at / choices, mine[i])] = (i32)(from + at);
        }
        __syncthreads();
        for (int e = threadIdx.x; e < experts; e += threads) places[e] += run.count(e);
        __syncthreads();
    }
}

// A block calls it when it is done with the counters.
DEVICE void router_leave(const RouterCounters& counters) {
    if (threadIdx.x > 0) return;
    __threadfence();
    if (atomicAdd(counters.left, 1u) == gridDim.x - 1) *counters.claimed = *counters.counted = *counters.left = 0;
}

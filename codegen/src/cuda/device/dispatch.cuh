// Rows in expert order, made on the device: counts, offsets, a stable permutation and the list of row tiles.
//
// A block takes `dispatch_ids` ids, a warp an eighth of them. Group `experts` collects the ids outside 0..experts.

static const int dispatch_threads = 256, dispatch_ids = 4096;

template <int experts, class Id>
DEVICE int group_of(Id id) { return id >= (Id)0 && (u64)id < (u64)experts ? (int)id : experts; }

// Adds, for each id of this warp's share, one to its group in `counts`, and calls `visit(position, rank)` with the ids seen before it in
// that group, plus what `counts` held.
template <int experts, class Ids, class Visit>
DEVICE void walk_ids(i32* counts, const Ids& id_at, i64 total, const Visit& visit) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int share = dispatch_ids / (dispatch_threads / 32);
    const i64 first = (i64)blockIdx.x * dispatch_ids + warp * share;
    for (int i = 0; i < share; i += 32) {
        const i64 at = first + i + lane;
        // Lanes past the end form a group of their own, which is not counted.
        const int group = at < total ? group_of<experts>(id_at(at)) : -1;
        const u32 peers = __match_any_sync(0xffffffffu, group);
        const int before = __popc(peers & ((1u << lane) - 1));
        const int base = group >= 0 ? counts[group] : 0;
        __syncwarp();
        if (group >= 0) {
            if (before == 0) counts[group] = base + __popc(peers);
            visit(at, base + before);
        }
        __syncwarp();
    }
}

// block_counts[block][group]
template <int experts, class Ids>
DEVICE void count_ids(const Ids& id_at, i64 total, i32* block_counts) {
    __shared__ i32 counts[dispatch_threads / 32][experts + 1];
    for (int i = threadIdx.x; i < dispatch_threads / 32 * (experts + 1); i += dispatch_threads) (&counts[0][0])[i] = 0;
    __syncthreads();
    walk_ids<experts>(counts[threadIdx.x / 32], id_at, total, [](i64, int) {});
    __syncthreads();
    for (int g = threadIdx.x; g <= experts; g += dispatch_threads) {
        i32 sum = 0;
        for (int w = 0; w < dispatch_threads / 32; w++) sum += counts[w][g];
        block_counts[(i64)blockIdx.x * (experts + 1) + g] = sum;
    }
}

// A tile has at most `tile` rows. With a `step` a group's tiles are made equal, in multiples of it; else only its last is lower.
template <int tile, int step>
DEVICE i32 height_of_tiles(i32 count) {
    if (step == 0) return tile;
    const i32 tiles = (count + tile - 1) / tile, even = tiles == 0 ? tile : (count + tiles - 1) / tiles;
    return (even + step - 1) / (step == 0 ? 1 : step) * step;
}

// block_starts[block][group]: the place of each block's first row of each group. Lists the row tiles, too; one block of 1024 threads.
template <int experts, int tile, int step, bool list_dropped>
DEVICE void plan_tiles(const i32* block_counts, i64 blocks, i32* block_starts, i32* tile_count, RowTile* tiles) {
    static_assert(experts < 1024, "a thread for each group");
    __shared__ i32 warp_sums[32], starts[1024], counts[1024], tile_ends[1024];
    const int g = threadIdx.x;
    i32 count = 0;
    if (g <= experts)
        for (i64 b = 0; b < blocks; b++) count += block_counts[b * (experts + 1) + g];
    const i32 start = block_scan<1024>(count, warp_sums) - count;
    if (g <= experts) {
        i32 at = start;
        for (i64 b = 0; b < blocks; b++) {
            block_starts[b * (experts + 1) + g] = at;
            at += block_counts[b * (experts + 1) + g];
        }
    }
    const bool listed = g < experts || (list_dropped && g == experts);
    const i32 end = block_scan<1024>(listed ? (count + tile - 1) / tile : 0, warp_sums);
    starts[g] = start;
    counts[g] = count;
    tile_ends[g] = end;
    __syncthreads();
    const i32 total = tile_ends[1023];
    if (g == 0) *tile_count = total;
    for (int t = g; t < total; t += 1024) {
        int low = 0, high = experts;
        while (low < high) {
            int middle = (low + high) / 2;
            if (tile_ends[middle] > t) high = middle;
            else low = middle + 1;
        }
        const i32 height = height_of_tiles<tile, step>(counts[low]);
        const i32 done = (t - (low == 0 ? 0 : tile_ends[low - 1])) * height;
        const i32 left = counts[low] - done;
        tiles[t] = {low < experts ? low : -1, starts[low] + done, left < height ? left : height};
    }
}

// order[place] = position of the id, by expert and then by position.
template <int experts, class Ids>
DEVICE void place_ids(const Ids& id_at, i64 total, const i32* block_starts, i32* order) {
    __shared__ i32 places[dispatch_threads / 32][experts + 1];
    for (int i = threadIdx.x; i < dispatch_threads / 32 * (experts + 1); i += dispatch_threads) (&places[0][0])[i] = 0;
    __syncthreads();
    const int warp = threadIdx.x / 32;
    walk_ids<experts>(places[warp], id_at, total, [](i64, int) {});
    __syncthreads();
    for (int g = threadIdx.x; g <= experts; g += dispatch_threads) {
        i32 at = block_starts[(i64)blockIdx.x * (experts + 1) + g];
        for (int w = 0; w < dispatch_threads / 32; w++) {
            const i32 n = places[w][g];
            places[w][g] = at;
            at += n;
        }
    }
    __syncthreads();
    walk_ids<experts>(places[warp], id_at, total, [&](i64 position, int place) { order[place] = (i32)position; });
}

// The row tiles of groups whose last rows are at end_of(g) - 1; rows past the last group get expert -1. At most `most` tiles, which ends that
// ascend never exceed. One block of 1024 threads.
template <int tile, int step, class Ends>
DEVICE void tiles_of_offsets(const Ends& end_of, int groups, i64 rows, i64 most, i32* tile_count, RowTile* tiles) {
    __shared__ i32 warp_sums[32];
    i32 base = 0;
    for (int first = 0; first <= groups; first += 1024) {
        const int g = first + threadIdx.x;
        i64 start = 0, end = 0;
        if (g <= groups) {
            start = g == 0 ? 0 : end_of(g - 1);
            end = g == groups ? rows : end_of(g);
            start = start < 0 ? 0 : start > rows ? rows : start;
            end = end > rows ? rows : end;
        }
        const i32 count = end > start ? (i32)((end - start + tile - 1) / tile) : 0;
        const i32 stop = block_scan<1024>(count, warp_sums);
        const i32 height = height_of_tiles<tile, step>(end > start ? (i32)(end - start) : 0);
        for (i32 i = 0; i < count && base + stop - count + i < most; i++) {
            const i64 left = end - start - (i64)i * height;
            tiles[base + stop - count + i] = {g < groups ? g : -1, (i32)(start + (i64)i * height), (i32)(left < height ? left : height)};
        }
        __shared__ i32 all;
        if (threadIdx.x == 1023) all = stop;
        __syncthreads();
        base += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) *tile_count = base < most ? base : (i32)most;
}

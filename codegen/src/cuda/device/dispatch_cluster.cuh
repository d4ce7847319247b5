// Rows in expert order by one cluster of blocks of 1024 threads, which see each other's counts: what count_ids, plan_tiles and place_ids do
// in three launches. The order among the rows of an expert is any: each row's result is the same wherever it stands.

template <int experts, int blocks, int tile, int step, bool list_dropped, class Ids>
DEVICE void dispatch_in_cluster(const Ids& id_at, i64 total, i32* order, i32* tile_count, RowTile* tiles) {
    constexpr int threads = 1024, groups = experts + 1;
    static_assert(groups <= threads, "a thread for each group");
    __shared__ i32 counts[groups], places[groups], starts[groups], sizes[groups], tile_ends[groups], warp_sums[threads / 32];
    const int g = threadIdx.x, rank = (int)cluster_rank();
    if (g < groups) counts[g] = 0;
    __syncthreads();
#pragma unroll 4
    for (i64 at = rank * threads + g; at < total; at += blocks * threads) atomicAdd(&counts[group_of<experts>(id_at(at))], 1);
    cluster_sync();
    i32 of_block[blocks], before = 0, count = 0;
#pragma unroll
    for (int b = 0; b < blocks; b++) of_block[b] = load_of_block(&counts[g < groups ? g : 0], b);
    cluster_arrive();
#pragma unroll
    for (int b = 0; b < blocks; b++) {
        if (b < rank) before += of_block[b];
        count += of_block[b];
    }
    if (g >= groups) count = 0;
    const i32 start = block_scan<threads>(count, warp_sums) - count;
    const bool listed = g < experts || (list_dropped && g == experts);
    const i32 tile_end = block_scan<threads>(listed ? (count + tile - 1) / tile : 0, warp_sums);
    if (g < groups) {
        places[g] = start + before;
        starts[g] = start;
        sizes[g] = count;
        tile_ends[g] = tile_end;
    }
    __syncthreads();
    const i32 all = tile_ends[experts];
    if (rank == 0 && g == 0) *tile_count = all;
    for (int t = rank * threads + g; t < all; t += blocks * threads) {
        int low = 0, high = experts;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (tile_ends[middle] > t) high = middle;
            else low = middle + 1;
        }
        const i32 height = height_of_tiles<tile, step>(sizes[low]);
        const i32 done = (t - (low == 0 ? 0 : tile_ends[low - 1])) * height, left = sizes[low] - done;
        tiles[t] = {low < experts ? low : -1, starts[low] + done, left < height ? left : height};
    }
#pragma unroll 4
    for (i64 at = rank * threads + g; at < total; at += blocks * threads)
        order[atomicAdd(&places[group_of<experts>(id_at(at))], 1)] = (i32)at;
    // Others may still read this block's counts.
    cluster_wait();
}

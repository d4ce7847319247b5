// Rows in expert order by one cluster of blocks of 1024 threads, which see each other's counts: what count_ids, plan_tiles and place_ids do
// in three launches. A warp takes `share` neighbouring ids, a multiple of 32.

// The lanes whose group is this lane's. Votes on each bit, which are many times faster than __match_any_sync where all warps ask at once.
template <int groups>
DEVICE u32 lanes_of_group(int group) {
    u32 lanes = 0xffffffffu;
#pragma unroll
    for (int bit = 1; bit <= groups; bit *= 2) {
        const u32 set = __ballot_sync(0xffffffffu, (group & bit) != 0);
        lanes &= (group & bit) != 0 ? set : ~set;
    }
    return lanes;
}

// Calls `visit(group, position)` for each id from `first` to `end`, 32 at a time; what lies past the end has group `experts` + 1.
template <int experts, class Ids, class Visit>
DEVICE void walk_share(const Ids& id_at, i64 first, i64 end, const Visit& visit) {
    const int lane = threadIdx.x % 32;
    for (i64 from = first; from < end; from += 128) {
        int groups[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const i64 at = from + i * 32 + lane;
            groups[i] = at < end ? group_of<experts>(id_at(at)) : experts + 1;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (from + i * 32 < end) visit(groups[i], from + i * 32 + lane);
    }
}

// `group_starts[g]`: where group g starts in the expert order, which keeps the order of the ids within a group.
template <int experts, int blocks, int tile, int step, bool list_dropped, class Ids>
DEVICE void dispatch_in_cluster(const Ids& id_at, i64 total, i32* order, i32* group_starts, i32* tile_count, RowTile* tiles) {
    constexpr int threads = 1024, warps = threads / 32, groups = experts + 1;
    static_assert(groups <= threads, "a thread for each group");
    __shared__ i32 counts[warps][groups], of_block[groups], starts[groups], sizes[groups], tile_ends[groups], warp_sums[warps];
    const int warp = threadIdx.x / 32, g = threadIdx.x, rank = (int)cluster_rank();
    const i64 share = (total + (i64)blocks * threads - 1) / ((i64)blocks * threads) * 32;
    const i64 first = min_((i64)(rank * warps + warp) * share, total), end = min_(first + share, total);
    for (int i = g; i < warps * groups; i += threads) (&counts[0][0])[i] = 0;
    __syncthreads();
    walk_share<experts>(id_at, first, end, [&](int group, i64) {
        if (group < groups) atomicAdd(&counts[warp][group], 1);
    });
    __syncthreads();
    if (g < groups) {
        i32 sum = 0;
#pragma unroll 8
        for (int w = 0; w < warps; w++) {
            const i32 n = counts[w][g];
            counts[w][g] = sum;
            sum += n;
        }
        of_block[g] = sum;
    }
    cluster_sync();
    i32 from_block[blocks], before = 0, count = 0;
#pragma unroll
    for (int b = 0; b < blocks; b++) from_block[b] = load_of_block(&of_block[g < groups ? g : 0], b);
    cluster_arrive();
#pragma unroll
    for (int b = 0; b < blocks; b++) {
        if (b < rank) before += from_block[b];
        count += from_block[b];
    }
    if (g >= groups) count = 0;
    const i32 start = block_scan<threads>(count, warp_sums) - count;
    const bool listed = g < experts || (list_dropped && g == experts);
    const i32 tile_end = block_scan<threads>(listed ? (count + tile - 1) / tile : 0, warp_sums);
    if (g < groups) {
        starts[g] = start;
        sizes[g] = count;
        tile_ends[g] = tile_end;
        if (rank == 0) group_starts[g] = start;
#pragma unroll 8
        for (int w = 0; w < warps; w++) counts[w][g] += start + before;
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
    walk_share<experts>(id_at, first, end, [&](int group, i64 position) {
        const u32 peers = lanes_of_group<experts + 1>(group);
        const int rank_in_warp = __popc(peers & ((1u << (threadIdx.x % 32)) - 1)), place = group < groups ? counts[warp][group] : 0;
        __syncwarp();
        if (group < groups) {
            if (rank_in_warp == 0) counts[warp][group] = place + __popc(peers);
            order[place + rank_in_warp] = (i32)position;
        }
        __syncwarp();
    });
    // Others may still read this block's counts.
    cluster_wait();
}

// Rows in expert order by one cluster of blocks, which see each other's counts: what count_ids, plan_tiles and place_ids do in three
// launches. Blocks have warps × 32 threads; a warp takes `share` neighbouring ids, a multiple of 32.

// Calls `visit(position, rank)` for each id of the warp: `counts` of its group, to which one is added for each.
template <int experts, class Ids, class Visit>
DEVICE void walk_share(i32* counts, const Ids& id_at, i64 first, i64 end, const Visit& visit) {
    const int lane = threadIdx.x % 32;
    for (i64 from = first; from < end; from += 128) {
        int groups[4];
        // Lanes past the end form a group of their own, which is not counted.
#pragma unroll
        for (int i = 0; i < 4; i++) groups[i] = from + i * 32 + lane < end ? group_of<experts>(id_at(from + i * 32 + lane)) : -1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (from + i * 32 >= end) break;
            const u32 peers = __match_any_sync(0xffffffffu, groups[i]);
            const int before = __popc(peers & ((1u << lane) - 1)), base = groups[i] >= 0 ? counts[groups[i]] : 0;
            __syncwarp();
            if (groups[i] >= 0) {
                if (before == 0) counts[groups[i]] = base + __popc(peers);
                visit(from + i * 32 + lane, base + before);
            }
            __syncwarp();
        }
    }
}

template <int experts, int warps, int blocks, int tile, int step, bool list_dropped, class Ids>
DEVICE void dispatch_in_cluster(const Ids& id_at, i64 total, i32* order, i32* tile_count, RowTile* tiles) {
    constexpr int threads = warps * 32, groups = experts + 1;
    static_assert(groups <= threads, "a thread for each group");
    __shared__ i32 counts[warps][groups], of_block[groups], starts[groups], sizes[groups], tile_ends[groups], warp_sums[warps];
    const int warp = threadIdx.x / 32, g = threadIdx.x, rank = (int)cluster_rank();
    const i64 share = (total + (i64)blocks * warps * 32 - 1) / ((i64)blocks * warps * 32) * 32;
    const i64 first = min_((i64)(rank * warps + warp) * share, total), end = min_(first + share, total);
    for (int i = threadIdx.x; i < warps * groups; i += threads) (&counts[0][0])[i] = 0;
    __syncthreads();
    walk_share<experts>(counts[warp], id_at, first, end, [](i64, int) {});
    __syncthreads();
    if (g < groups) {
        i32 sum = 0;
        for (int w = 0; w < warps; w++) {
            const i32 n = counts[w][g];
            counts[w][g] = sum;
            sum += n;
        }
        of_block[g] = sum;
    }
    cluster_sync();
    i32 before = 0, count = 0;
    if (g < groups)
        for (int b = 0; b < blocks; b++) {
            const i32 n = load_of_block(&of_block[g], b);
            if (b < rank) before += n;
            count += n;
        }
    const i32 start = block_scan<threads>(count, warp_sums) - count;
    const bool listed = g < experts || (list_dropped && g == experts);
    const i32 tile_end = block_scan<threads>(listed ? (count + tile - 1) / tile : 0, warp_sums);
    if (g < groups) {
        starts[g] = start;
        sizes[g] = count;
        tile_ends[g] = tile_end;
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
    walk_share<experts>(counts[warp], id_at, first, end, [&](i64 position, int place) { order[place] = (i32)position; });
    // Others may still read this block's counts.
    cluster_sync();
}

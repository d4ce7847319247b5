// Weight gradients by expert on Hopper: aᵀ · b for each expert, over that expert's rows. Both operands are multiplied with their rows as K,
// which wgmma takes from shared memory transposed. The copy engine brings rows that lie in the expert order; others a producer warpgroup
// copies piece by piece, and all where an expert's rows end within a stage. The consumers are those of dense products (gemm_dense.cuh);
// blocks stay for all tiles of all matrices.

template <class T_, class Instruction_, int columns_, int stages_, int buffers_>
struct OuterShape {
    using T = T_;
    using Instruction = Instruction_;
    static constexpr int columns = columns_, lanes = 1, stages = stages_;
    static constexpr Major a_major = along_rows, b_major = along_rows;
    static constexpr int BM = 128, BN = columns, BK = 64;  // of a block; K are rows of the operands
    static constexpr int bytes_a = BM * BK * 2, bytes_b = columns * BK * 2, stage_bytes = bytes_a + bytes_b;
    static constexpr int consumer_warps = 8, blocks = 1, copiers = 128;
    static constexpr bool clears = false;  // the sums would be spilled; who stores them looks at the depth
    static constexpr int staging_bytes = 16 * 128, buffers = buffers_;
};

// An operand: row `place` of the expert order is row order[place] / repeat of `base`, or row `place` itself where repeat is 0.
template <class T, int repeat>
struct OuterRows {
    const T* base;
    i64 stride;
    int width;             // a multiple of 8
    const TensorMap* map;  // of rows in the expert order, in boxes of 64 rows by 64 columns
};

// A tile of one expert's matrix, and the places of that expert's rows.
struct OuterWork {
    u32 expert;
    int m0, n0, start, depth;
};

// Work `t`; without rows at all, `starts` was not written.
template <class S>
DEVICE OuterWork outer_work(u32 t, u32 tiles_m, u32 tiles_n, const i32* starts, bool rows) {
    const DenseIndex index = dense_tile(t, tiles_m, tiles_n);
    const int start = rows ? starts[index.batch] : 0, end = rows ? starts[index.batch + 1] : 0;
    return {index.batch, (int)index.m * S::BM, (int)index.n * S::BN, start, end - start};
}

// What one thread copies of an operand's tile of `lines` · 64 columns: a chunk of 16 bytes in each line of 128.
template <class T, int repeat, int lines>
struct OuterColumns {
    const T* from;
    i64 stride;
    bool inside[lines];

    DEVICE OuterColumns(const OuterRows<T, repeat>& rows, int first) : from(rows.base + first), stride(rows.stride) {
#pragma unroll
        for (int j = 0; j < lines; j++) inside[j] = first + j * 64 < rows.width;
    }
    // The chunks of the row at `place` of the order, which is `picked`; zeros if there is none.
    DEVICE void copy(u32 to, int place, int picked) const {
        const int at = repeat == 0 ? place : picked / (repeat == 0 ? 1 : repeat);
        const T* const row = from + (picked < 0 ? 0 : at) * stride;
#pragma unroll
        for (int j = 0; j < lines; j++) cp_async_16(to + j * 8192, row + j * 64, picked >= 0 && inside[j] ? 16 : 0);
    }
};

// Asks the copy engine for 64 rows of `columns` columns.
template <int columns>
DEVICE void outer_load(u32 to, u32 full, const TensorMap& map, int column, int row) {
#pragma unroll
    for (int j = 0; j < columns / 64; j++) load_tile(to + j * 8192, map, full, column + j * 64, row, 0);
}

// Fills stages for all work; the producer warpgroup calls it. Which rows come next is read a stage, and which work a tile ahead.
template <class S, class T, int repeat_a, int repeat_b, class WorkAt>
DEVICE void outer_produce(const DenseRing<S>& ring, const OuterRows<T, repeat_a>& a, const OuterRows<T, repeat_b>& b, const i32* order,
                          u32 total, const WorkAt& work_at) {
    constexpr int chunks = 8, apart = S::copiers / chunks, count = S::BK / apart;
    const int chunk = threadIdx.x % chunks, first = threadIdx.x / chunks;
    const u32 place = first * 128 + ((chunk ^ (first & 7)) << 4);
    DensePlace<S> at;
    int next[count];
    const auto look = [&](const OuterWork& work, int k) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            const int r = k + first + i * apart;
            // In the order itself there is nothing to look up.
            next[i] = r >= work.depth ? -1 : repeat_a + repeat_b > 0 ? order[work.start + r] : 0;
        }
    };
    if (blockIdx.x >= total) return;
    OuterWork work = work_at(blockIdx.x);
    look(work, 0);
    for (u32 t = blockIdx.x; t < total; t += gridDim.x) {
        const OuterColumns<T, repeat_a, S::BM / 64> from_a(a, work.m0 + chunk * 8);
        const OuterColumns<T, repeat_b, S::BN / 64> from_b(b, work.n0 + chunk * 8);
        const OuterWork after = t + gridDim.x < total ? work_at(t + gridDim.x) : OuterWork{};
        for (int k = 0; k < work.depth; k += S::BK) {
            int rows[count];
#pragma unroll
            for (int i = 0; i < count; i++) rows[i] = next[i];
            if (k + S::BK < work.depth) look(work, k + S::BK);
            else look(after, 0);
            barrier_wait(ring.empty(at.stage), at.phase ^ 1);
            const bool whole = k + S::BK <= work.depth;
            if (threadIdx.x == 0) {
                barrier_expect(ring.full(at.stage), whole ? (repeat_a == 0 ? S::bytes_a : 0) + (repeat_b == 0 ? S::bytes_b : 0) : 0);
                if (repeat_a == 0 && whole) outer_load<S::BM>(ring.a(at.stage), ring.full(at.stage), *a.map, work.m0, work.start + k);
                if (repeat_b == 0 && whole) outer_load<S::BN>(ring.b(at.stage), ring.full(at.stage), *b.map, work.n0, work.start + k);
            }
            const u32 to_a = ring.a(at.stage) + place, to_b = ring.b(at.stage) + place;
#pragma unroll
            for (int i = 0; i < count; i++) {
                const int place = work.start + k + first + i * apart;
                if (repeat_a > 0 || !whole) from_a.copy(to_a + i * (apart * 128), place, rows[i]);
                if (repeat_b > 0 || !whole) from_b.copy(to_b + i * (apart * 128), place, rows[i]);
            }
            barrier_arrive_copies(ring.full(at.stage));
            at.advance();
        }
        if (work.depth <= 0) look(after, 0);
        work = after;
    }
    cp_async_wait<0>();
}

// Calls `body(work)` for all work; where it lies is read a tile ahead.
template <class S, class WorkAt, class Body>
DEVICE void outer_consume(u32 total, const WorkAt& work_at, const Body& body) {
    if (blockIdx.x >= total) return;
    OuterWork next = work_at(blockIdx.x);
    for (u32 t = blockIdx.x; t < total; t += gridDim.x) {
        const OuterWork work = next;
        if (t + gridDim.x < total) next = work_at(t + gridDim.x);
        body(work);
    }
}

// Dense products on Hopper: a producer warpgroup fills a ring of stages by bulk copies, two consumer warpgroups multiply from it, and blocks
// stay for all tiles.
//
// Two blocks form a cluster and take neighbouring row tiles against the same columns: each loads half of B and multicasts it to both.
// B's tile stacks the lanes: columns / lanes of each, so that all lanes of an element are in the registers of one thread.

// Which dim of an operand (rows × K) is contiguous, and so how wgmma finds it in shared memory.
enum Major { along_k, along_rows };

template <class T_, class Instruction_, int columns_, int lanes_, int stages_, Major a_major_, Major b_major_>
struct DenseShape {
    using T = T_;
    using Instruction = Instruction_;
    static constexpr int columns = columns_, lanes = lanes_, stages = stages_;
    static constexpr Major a_major = a_major_, b_major = b_major_;
    static constexpr int BM = 128, BN = columns / lanes, BK = 64;  // of a block
    static constexpr int bytes_a = BM * BK * 2, bytes_b = columns * BK * 2, stage_bytes = bytes_a + bytes_b;
    static constexpr int consumer_warps = 8, blocks = 2;
    static constexpr int copiers = 0;     // threads that copy what the copy engine does not bring
    static constexpr bool clears = true;  // without any K sums are 0
    static constexpr int staging_bytes = 16 * 128;  // a warp's 16 rows of 64 results of 16 bits
    static constexpr int buffers = 2;               // that each warp stages results in
};

// Shared memory: stages from a multiple of 1024, the staging buffers of each consumer warp, two barriers for each stage.
template <class S>
struct DenseRing {
    u32 base;

    // Every thread of the cluster calls this.
    DEVICE explicit DenseRing(char* shared) : base((shared_address(shared) + 1023) & ~1023u) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++) {
                barrier_init(full(s), S::copiers + 1);
                barrier_init(empty(s), S::consumer_warps * S::blocks);
            }
            barrier_init_fence();
        }
        cluster_sync();
    }
    DEVICE u32 a(int stage) const { return base + stage * S::stage_bytes; }
    DEVICE u32 b(int stage) const { return a(stage) + S::bytes_a; }
    DEVICE u32 staging(int buffer) const { return a(S::stages) + buffer * S::staging_bytes; }
    DEVICE u32 full(int stage) const { return staging(S::buffers * S::consumer_warps) + stage * 8; }
    DEVICE u32 empty(int stage) const { return full(S::stages) + stage * 8; }
};

// A stage, and the parity of the rounds through the ring.
template <class S>
struct DensePlace {
    int stage = 0;
    u32 phase = 0;
    DEVICE void advance() {
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

struct DenseIndex {
    u32 batch, m, n;
};

// Tile `t` of batches × tiles_m × tiles_n, in bands of tiles along M, so that blocks running together share operands in L2.
DEVICE DenseIndex dense_tile(u32 t, u32 tiles_m, u32 tiles_n) {
    constexpr u32 band_tiles = 8;
    const u32 batch = t / (tiles_m * tiles_n), of_batch = t % (tiles_m * tiles_n);
    const u32 band = of_batch / (band_tiles * tiles_n), within = of_batch % (band_tiles * tiles_n);
    const u32 height = min(tiles_m - band * band_tiles, band_tiles);
    return {batch, band * band_tiles + within % height, within / height};
}

// Fills stages for one tile; one thread calls it. `load` is given the stage's places of A and B, the barrier and k.
template <class S, class Load>
DEVICE void dense_produce(const DenseRing<S>& ring, DensePlace<S>& at, int depth, const Load& load) {
    for (int k = 0; k < depth; k += S::BK) {
        barrier_wait(ring.empty(at.stage), at.phase ^ 1);
        barrier_expect(ring.full(at.stage), S::stage_bytes);
        load(ring.a(at.stage), ring.b(at.stage), ring.full(at.stage), k);
        at.advance();
    }
}

// The products of one consumer warpgroup: 64 rows.
template <class S>
struct DenseTile {
    const DenseRing<S>& ring;
    DensePlace<S> at;
    int group, first;  // which consumer this is, and its first row of the block's tile
    u32 passes = 0;
    float d[S::columns / 2];

    DEVICE explicit DenseTile(const DenseRing<S>& ring)
        : ring(ring), group(((int)threadIdx.x - 128) / 128), first(group * 64) {}

    // Takes `depth` columns of K from the ring; multiplies them if any of this warpgroup's rows is among the `rows` first.
    DEVICE void multiply(int depth, int rows) {
        const int steps = (depth + S::BK - 1) / S::BK;
        if (rows <= first) {
            for (int step = 0; step < steps; step++) {
                barrier_wait(ring.full(at.stage), at.phase);
                release(at.stage);
                at.advance();
            }
            return;
        }
        const auto multiply = [&](int stage, int step) {
            // Either way a warpgroup's 64 rows of A are the next 8 KB.
            const u32 from_a = ring.a(stage) + group * 8192, from_b = ring.b(stage);
            const u64 a = S::a_major == along_k ? matrix_descriptor(from_a) : matrix_descriptor_of_rows(from_a, 8192);
            const u64 b = S::b_major == along_k ? matrix_descriptor(from_b) : matrix_descriptor_of_rows(from_b, 8192);
            constexpr int step_a = S::a_major == along_k ? 2 : 128, step_b = S::b_major == along_k ? 2 : 128;
#pragma unroll
            for (int slice = 0; slice < S::BK / 16; slice++) S::Instruction::add(d, a + slice * step_a, b + slice * step_b, step > 0 || slice > 0);
        };
        const int last = multiply_stages<(S::copiers > 0)>(ring, at, steps, multiply, [&](int stage) { release(stage); });
        wgmma_wait<0>();
        if (steps > 0) {
            release(last);
        } else if (S::clears) {
#pragma unroll
            for (int i = 0; i < S::columns / 2; i++) d[i] = 0.0f;
        }
    }

    // Calls `visit(m, n, values)` for each pair of neighbouring columns among columns 64 · pass to 64 · pass + 63 of the tile, with the pair
    // of every lane.
    template <class Visit>
    DEVICE void each(int pass, const Visit& visit) const {
        constexpr int registers = S::columns / 2 / S::lanes;
        const int lane = threadIdx.x % 32, m0 = first + threadIdx.x / 32 % 4 * 16 + lane / 4, n0 = lane % 4 * 2;
#pragma unroll
        for (int j = pass * 8; j < pass * 8 + 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float values[S::lanes][2];
#pragma unroll
                for (int l = 0; l < S::lanes; l++) {
                    values[l][0] = d[l * registers + j * 4 + half * 2];
                    values[l][1] = d[l * registers + j * 4 + half * 2 + 1];
                }
                visit(m0 + half * 8, n0 + j * 8, values);
            }
    }

    // Results of 16 bits leave through shared memory, each warp's by itself. Before a pass of 64 columns: waits until a buffer is free.
    DEVICE void open_staging() const {
        if (threadIdx.x % 32 == 0) stores_wait_read<S::buffers - 1>();
        __syncwarp();
    }
    // One pair of results.
    template <class Pair>
    DEVICE void stage(int m, int n, const Pair& pair) const {
        static_assert(sizeof(Pair) == 4, "staged results have 16 bits");
        const int row = m % 16;
        const u32 to = staging() + row * 128 + (((n / 8 % 8) ^ (row & 7)) << 4) + n % 8 * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(*(const u32*)&pair) : "memory");
    }
    // After the pass: the copy engine stores the 16 × 64 results, of the tile at (column, row) of matrix `batch`, as far as the map goes.
    DEVICE void close_staging(const TensorMap& map, int column, int row, int batch) {
        fence_shared_for_tensor_cores();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            store_tile(map, staging(), column, row + warp() * 16, batch);
            stores_commit();
        }
        passes++;
    }
    // Shared memory must stay until it is read.
    DEVICE void finish_staging() const {
        if (threadIdx.x % 32 == 0) stores_wait_read<0>();
    }

private:
    static DEVICE int warp() { return threadIdx.x / 32 - 4; }
    DEVICE u32 staging() const { return ring.staging(warp() * S::buffers + passes % S::buffers); }

    // Each warp tells both blocks: they fill each other's stages.
    DEVICE void release(int stage) const {
        const u32 lane = threadIdx.x % 32;
        if (lane < S::blocks) barrier_arrive_at(ring.empty(stage), lane);
    }
};

// Dense products with few rows on Hopper: each block streams a tile of the matrices b, which is what takes the time.
//
// Operands are swapped: columns of the product (rows of the bs) are wgmma's M, in pieces of 64, and the rows of a are its N. Each of `groups`
// warpgroups has `parts` pieces; a piece belongs to a lane, so that all lanes of an element are in the registers of one thread. K is split
// over the blocks of a cluster, which add their sums up through each other's shared memory, in the order of the blocks.

template <class T_, class Instruction_, int rows_, int groups_, int parts_, int lanes_, int splits_, int stages_, bool b_along_k_>
struct StreamShape {
    using T = T_;
    using Instruction = Instruction_;
    static constexpr int rows = rows_, groups = groups_, parts = parts_, lanes = lanes_, splits = splits_, stages = stages_, BK = 64;
    static constexpr bool b_along_k = b_along_k_;
    static constexpr int group_columns = 64 * parts / lanes;  // of each lane
    static constexpr int bytes_b = groups * parts * 8192, bytes_a = rows * BK * 2, stage_bytes = bytes_a + bytes_b;
    static constexpr int eights = rows / 8;                            // runs of eight rows
    static constexpr int own_eights = (eights + splits - 1) / splits;  // of them, those that a block finishes
    static_assert(rows % 8 == 0 && parts % lanes == 0 && lanes <= 2, "");
    static_assert(splits == 1 || splits * own_eights * parts * groups * 2048 <= stages * stage_bytes, "sums fit where the stages were");
};

template <class S>
struct StreamRing {
    u32 base;
    int stage = 0;
    u32 phase = 0;

    DEVICE explicit StreamRing(char* shared) : base((shared_address(shared) + 1023) & ~1023u) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++) {
                barrier_init(full(s), 1);
                barrier_init(empty(s), 4 * S::groups);
            }
            barrier_init_fence();
        }
        __syncthreads();
    }
    DEVICE u32 b(int stage) const { return base + stage * S::stage_bytes; }
    DEVICE u32 a(int stage) const { return b(stage) + S::bytes_b; }
    DEVICE u32 full(int stage) const { return b(S::stages) + stage * 8; }
    DEVICE u32 empty(int stage) const { return full(S::stages) + stage * 8; }
    DEVICE void advance() {
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Fills stages for steps first to end - 1 of K; one thread calls it. `load` is given the stage's places of a and b, the barrier and k.
template <class S, class Load>
DEVICE void stream_produce(StreamRing<S>& ring, int first, int end, const Load& load) {
    for (int step = first; step < end; step++) {
        barrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        barrier_expect(ring.full(ring.stage), S::stage_bytes);
        load(ring.a(ring.stage), ring.b(ring.stage), ring.full(ring.stage), step * S::BK);
        ring.advance();
    }
}

// The products of one consumer warpgroup; they come first in the block.
template <class S>
struct StreamTile {
    float d[S::parts][S::rows / 2];

    DEVICE void multiply(StreamRing<S>& ring, int steps) {
        const auto multiply = [&](int stage, int step) {
            const u32 from_b = ring.b(stage) + threadIdx.x / 128 * S::parts * 8192;
            const u64 b = S::b_along_k ? matrix_descriptor(from_b) : matrix_descriptor_of_rows(from_b, 8192);
            const u64 a = matrix_descriptor(ring.a(stage));
#pragma unroll
            for (int slice = 0; slice < S::BK / 16; slice++)
#pragma unroll
                for (int part = 0; part < S::parts; part++)
                    S::Instruction::add(d[part], b + part * 512 + slice * (S::b_along_k ? 2 : 128), a + slice * 2, step > 0 || slice > 0);
        };
        multiply_stages<false>(ring, ring, steps, multiply, [&](int stage) {
            if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty(stage));
        });
        wgmma_wait<0>();
        if (steps == 0)
#pragma unroll
            for (int part = 0; part < S::parts; part++)
#pragma unroll
                for (int i = 0; i < S::rows / 2; i++) d[part][i] = 0.0f;
    }

    // Sends each run of eight rows to the block that finishes it, neighbours to the same; the ring's stages must be idle in the whole cluster.
    DEVICE void send(const StreamRing<S>& ring, u32 rank) const {
#pragma unroll
        for (int j = 0; j < S::eights; j++)
#pragma unroll
            for (int part = 0; part < S::parts; part++) {
                const float(&x)[S::rows / 2] = d[part];
                const u32 to = place(ring, rank, j % S::own_eights, part);
                // What stays here need not take the way through the cluster, which is slow.
                if (j / S::own_eights == rank)
                    store_shared_16(to, x[j * 4], x[j * 4 + 1], x[j * 4 + 2], x[j * 4 + 3]);
                else
                    store_shared_of(j / S::own_eights, to, x[j * 4], x[j * 4 + 1], x[j * 4 + 2], x[j * 4 + 3]);
            }
    }

    // Calls `visit(m, n, values)` for each element, with the value of every lane; of the runs of rows that are this block's.
    template <class Visit>
    DEVICE void each(const StreamRing<S>& ring, u32 rank, const Visit& visit) const {
        const int lane = threadIdx.x % 32, m0 = lane % 4 * 2;
        const int n0 = threadIdx.x / 128 * S::group_columns + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int own = 0; own < S::own_eights; own++) {
            const int j = own + (S::splits == 1 ? 0 : rank * S::own_eights);
            if (S::own_eights * S::splits != S::eights && j >= S::eights) break;
            float sums[S::parts][4];
#pragma unroll
            for (int part = 0; part < S::parts; part++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[part][i] = S::splits == 1 ? d[part][own * 4 + i] : 0.0f;
#pragma unroll
                for (int from = 0; from < S::splits && S::splits > 1; from++) {
                    float x[4];
                    load_shared_16(x, place(ring, from, own, part));
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[part][i] += x[i];
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int of_lane = 0; of_lane < S::parts / S::lanes; of_lane++) {
                    float values[S::lanes][1];
#pragma unroll
                    for (int l = 0; l < S::lanes; l++) values[l][0] = sums[l * (S::parts / S::lanes) + of_lane][i];
                    visit(j * 8 + m0 + i % 2, of_lane * 64 + n0 + i / 2 * 8, values);
                }
        }
    }

private:
    static DEVICE u32 place(const StreamRing<S>& ring, int from, int own, int part) {
        return ring.base + (((from * S::own_eights + own) * S::parts + part) * S::groups * 128 + threadIdx.x) * 16;
    }
};

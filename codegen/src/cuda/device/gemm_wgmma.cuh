// Warp-specialised main loop of Hopper: a producer warpgroup fills a ring of stages, two consumer warpgroups multiply from it. Each takes 64
// rows of a tile; or they take turns, tile by tile of 64 rows: while one stores, with all that its epilogue reads and writes, the other
// multiplies, at the price of more traffic for the columns.
//
// Two blocks form a cluster and take neighbouring row tiles against the same columns: each loads half of B and multicasts it to both.
// B's tile stacks the lanes: 256 / lanes columns of each, so that all lanes of an element are in the registers of one thread. Two lanes
// whose matrices take turns column by column are one matrix of pairs.

template <class T_, class Instruction_, int lanes_, int stages_, bool paired_, bool across_, bool turns_>
struct WgmmaShape {
    using T = T_;
    using Instruction = Instruction_;
    static constexpr int lanes = lanes_, stages = stages_;
    static constexpr bool paired = paired_;
    static constexpr bool across = across_;  // B's columns are contiguous, not K
    static constexpr bool turns = turns_;    // the warpgroups take turns
    static constexpr int BM = turns ? 64 : 128, BN = 256 / lanes, BK = 64;  // of a block; BK elements are one swizzled row of 128 bytes
    static constexpr int bytes_a = BM * BK * 2, bytes_b = 256 * BK * 2, stage_bytes = bytes_a + bytes_b;
    static constexpr int producers = 128, consumer_warps = turns ? 4 : 8, blocks = 2;
};

// A stage and how often the ring came round to it.
template <class S>
struct RingPosition {
    int stage = 0;
    u32 phase = 0;
    DEVICE void advance() {
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

template <class S>
struct WgmmaRing {
    u32 base;

    // `arrivals` at a stage beside the copy engine's announcement make it full. Every thread of the cluster calls this.
    DEVICE WgmmaRing(char* shared, int arrivals) : base((shared_address(shared) + 1023) & ~1023u) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++) {
                barrier_init(full(s), 1 + arrivals);
                barrier_init(empty(s), S::consumer_warps * S::blocks);
            }
            barrier_init_fence();
        }
        cluster_sync();
    }
    DEVICE u32 a(int stage) const { return base + stage * S::stage_bytes; }
    DEVICE u32 b(int stage) const { return a(stage) + S::bytes_a; }
    DEVICE u32 full(int stage) const { return base + S::stages * S::stage_bytes + stage * 8; }
    DEVICE u32 empty(int stage) const { return full(S::stages) + stage * 8; }
    // What follows the barriers, from a multiple of 128 on.
    DEVICE u32 end() const { return (empty(S::stages) + 127) & ~127u; }
};

// Fills stages with tiles that the copy engine brings; one thread calls it. `load_a` and `load_b` are given an address, a barrier and k;
// without `rows` nothing of A is loaded.
template <class S, class LoadA, class LoadB>
DEVICE void produce(const WgmmaRing<S>& ring, RingPosition<S>& at, i64 depth, bool rows, const LoadA& load_a, const LoadB& load_b) {
    for (int k = 0; k < depth; k += S::BK) {
        barrier_wait(ring.empty(at.stage), at.phase ^ 1);
        const u32 full = ring.full(at.stage);
        barrier_expect(full, S::bytes_b + (rows ? S::bytes_a : 0));
        load_b(ring.b(at.stage), full, k);
        if (rows) load_a(ring.a(at.stage), full, k);
        at.advance();
    }
}

// The same with rows of A that each thread copies; the producer warpgroup calls it. Rows that are not valid keep what was there: their
// products are stored nowhere.
template <class S, class Rows, class LoadB>
DEVICE void produce_gathered(const WgmmaRing<S>& ring, RingPosition<S>& at, i64 depth, const Rows& rows, const LoadB& load_b) {
    constexpr int chunks = S::BK / 8, apart = S::producers / chunks, count = S::BM / apart;
    const int chunk = threadIdx.x % chunks, first = threadIdx.x / chunks;
    const typename Rows::template Cursor<count, apart> cursor(rows, first);
    const u32 place = first * 128 + ((chunk ^ (first & 7)) << 4);
    for (int k0 = 0; k0 < depth; k0 += S::BK) {
        barrier_wait(ring.empty(at.stage), at.phase ^ 1);
        const u32 full = ring.full(at.stage), to = ring.a(at.stage) + place;
        if (threadIdx.x == 0) {
            barrier_expect(full, S::bytes_b);
            load_b(ring.b(at.stage), full, k0);
        }
        const int k = k0 + chunk * 8, bytes = k < depth ? 16 : 0;
#pragma unroll
        for (int i = 0; i < count; i++)
            if (cursor.valid(i)) cp_async_16(to + i * apart * 128, cursor.row(i) + k, bytes);
        barrier_arrive_copies(full);
        at.advance();
    }
}

// The products of one consumer warpgroup: 64 rows.
template <class S, bool gathered>
struct WgmmaTile {
    const WgmmaRing<S>& ring;
    RingPosition<S> at;
    int group;
    u32 turns;  // the next tile is this warpgroup's where they are even
    float d[128];

    DEVICE WgmmaTile(const WgmmaRing<S>& ring) : ring(ring), group((threadIdx.x - S::producers) / 128), turns(group) {
        if (group == 1) pass_on();
    }

    // Its first row of the block's tile.
    DEVICE int first() const { return S::turns ? 0 : group * 64; }

    // True if the next tile, of `depth` columns of K, is the other warpgroup's; its stages are passed over then.
    DEVICE bool is_others(int depth) {
        if (!S::turns || (turns++ & 1) == 0) return false;
        const u32 stage = at.stage + (u32)((depth + S::BK - 1) / S::BK);
        at.stage = stage % S::stages;
        at.phase ^= stage / S::stages & 1;
        return true;
    }

    // Takes `depth` columns of K from the ring; multiplies them if any of this warpgroup's rows is among the `rows` first.
    DEVICE void multiply(int depth, int rows) {
        const int steps = (depth + S::BK - 1) / S::BK;
        // Barriers tell rounds of the ring by their parity: nobody may look at one whose round before is not over.
        if (S::turns) group_sync(1 + group, 256);
        if (rows <= first()) {
            for (int step = 0; step < steps; step++) {
                barrier_wait(ring.full(at.stage), at.phase);
                release(at.stage);
                at.advance();
            }
            pass_on();
            return;
        }
#pragma unroll
        for (int i = 0; i < 128; i++) d[i] = 0.0f;
        const auto multiply = [&](int stage, int) {
            const u64 a = matrix_descriptor(ring.a(stage) + first() * 128);
            const u64 b = S::across ? matrix_descriptor_of_rows(ring.b(stage), 8192) : matrix_descriptor(ring.b(stage));
#pragma unroll
            for (int slice = 0; slice < S::BK / 16; slice++) S::Instruction::add(d, a + slice * 2, b + slice * (S::across ? 128 : 2), 1);
        };
        const int last = multiply_stages<gathered>(ring, at, steps, multiply, [&](int stage) { release(stage); });
        pass_on();
        wgmma_wait<0>();
        // The compiler may otherwise read sums ahead of the wait, and then serialises the products (ptxas' C7514).
#pragma unroll
        for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])::"memory");
        if (steps > 0) release(last);
    }

    // Calls `visit(m, n, values, held)` for each pair of neighbouring columns of the tile, with the pair of every lane. What `fetch(m, n)` reads
    // for `ahead` of them is under way together.
    template <class Fetch, class Visit>
    DEVICE void each(const Fetch& fetch, const Visit& visit) const {
        constexpr int ahead = 8, visits = S::BN / 8;
        const int lane = threadIdx.x % 32, m0 = first() + threadIdx.x / 32 % 4 * 16 + lane / 4, quad = lane % 4;
        // Paired lanes hold one pair of columns of either eight; neighbours exchange, and then hold two of one.
        const bool odd = quad & 1;
        const int n0 = !S::paired ? quad * 2 : odd ? 3 + quad : quad;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int from = 0; from < visits; from += ahead) {
                decltype(fetch(0, 0)) held[ahead];
#pragma unroll
                for (int j = 0; j < ahead; j++) held[j] = fetch(m0 + half * 8, n0 + (from + j) * 8);
#pragma unroll
                for (int j = 0; j < ahead; j++) {
                    float values[S::lanes][2];
#pragma unroll
                    for (int l = 0; l < S::lanes; l++) {
                        if constexpr (S::paired) {
                            const int low = (from + j) * 8 + half * 2 + l, high = low + 4;
                            const float a = d[low], b = d[high], other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
                            values[l][0] = odd ? other : a;
                            values[l][1] = odd ? b : other;
                        } else {
                            values[l][0] = d[l * (128 / S::lanes) + (from + j) * 4 + half * 2];
                            values[l][1] = d[l * (128 / S::lanes) + (from + j) * 4 + half * 2 + 1];
                        }
                    }
                    visit(m0 + half * 8, n0 + (from + j) * 8, values, held[j]);
                }
            }
    }

private:
    // The other warpgroup may multiply.
    DEVICE void pass_on() const {
        if (S::turns) group_arrive(1 + (group ^ 1), 256);
    }
    // Each warp tells both blocks: they fill each other's stages.
    DEVICE void release(int stage) const {
        const u32 lane = threadIdx.x % 32;
        if (lane < S::blocks) barrier_arrive_at(ring.empty(stage), lane);
    }
};

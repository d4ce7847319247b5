// Both projections of a mixture-of-experts block in one launch, where an expert has few rows: a race for memory. A block's ring of stages is
// always full of weights on their way, across units of work and from the first projection to the second.
//
// A slot is some rows of one expert. Units are claimed in order: first columns of the gated projection of each slot, then columns, and runs of
// K, of the down projection, slots in the same order. A block works at its units in the order in which it claimed them and waits only for
// lower ones: the lowest that is not done always goes on, however many blocks there is room for.

template <class T_, int rows_, int stages_, int groups_>
struct FewShape {
    using T = T_;
    static constexpr int rows = rows_;      // most rows of a slot: N of a product
    static constexpr int stages = stages_;  // of the ring
    static constexpr int groups = groups_;  // of four warps, which take turns at units: while one finishes, another multiplies
    // A stage has 64 rows of weights by 256 of K, in boxes of 64 of K: memory is read fastest where each row gives 512 bytes at a time.
    static constexpr int boxes = 4, depth = 64 * boxes;
    static constexpr int bytes_b = boxes * 8192, box_a = rows * 128, stage_bytes = bytes_b + boxes * box_a;
    static constexpr int consumers = 128 * groups;  // then a warp that loads weights, and one that copies rows
    static constexpr int queue = 4;                 // units between those who claim them and those who work at them
};

// How the units lie: `ups` of each slot's first projection, then `splits` runs of `split_depth` of K by `downs` of its second.
struct FewPlan {
    int slots, ups, downs, splits, split_depth, up_depth, down_depth;
    DEVICE int total() const { return slots * (ups + splits * downs); }
};
struct FewUnit {
    bool down;
    int slot, tile, split, from, to;  // of K
};
DEVICE FewUnit few_unit(const FewPlan& plan, int unit) {
    const int first = plan.slots * plan.ups;
    if (unit < first) return {false, unit / plan.ups, unit % plan.ups, 0, 0, plan.up_depth};
    const int rest = unit - first, each = plan.splits * plan.downs, within = rest % each, split = within / plan.downs;
    const int from = split * plan.split_depth, to = from + plan.split_depth;
    return {true, rest / each, within % plan.downs, split, from, to < plan.down_depth ? to : plan.down_depth};
}

// Slots that a dispatch listed.
struct ListedSlots {
    const RowTile* tiles;
    const i32* order;
    DEVICE RowTile slot(int s) const { return tiles[s]; }
    // The position of the id of a place in the expert order.
    DEVICE int id_of(int place) const { return order[place]; }
};

template <class S>
struct FewRing {
    u32 base;
    int stage = 0;
    u32 phase = 0;
    DEVICE explicit FewRing(char* shared) : base((shared_address(shared) + 1023) & ~1023u) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++) {
                barrier_init(full(s), 1 + 32);
                barrier_init(empty(s), 4);
            }
            for (int q = 0; q < S::queue; q++) {
                barrier_init(queue_full(q), 1);
                barrier_init(queue_empty(q), 4 + 1);
            }
            for (int g = 0; g < S::groups; g++) barrier_init(turn(g), 4);
            barrier_init_fence();
        }
        __syncthreads();
    }
    DEVICE u32 b(int stage) const { return base + stage * S::stage_bytes; }
    DEVICE u32 a(int stage) const { return b(stage) + S::bytes_b; }
    DEVICE u32 full(int stage) const { return b(S::stages) + stage * 8; }
    DEVICE u32 empty(int stage) const { return full(S::stages) + stage * 8; }
    DEVICE u32 queue_full(int q) const { return empty(S::stages) + q * 8; }
    DEVICE u32 queue_empty(int q) const { return queue_full(S::queue) + q * 8; }
    // A unit, and how many stages come before it.
    DEVICE u32 queued(int q) const { return queue_empty(S::queue) + q * 8; }
    // Full once for each unit that the group before has multiplied.
    DEVICE u32 turn(int group) const { return queued(S::queue) + group * 8; }
    DEVICE void advance() {
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    DEVICE void skip_to(int step) {
        stage = step % S::stages;
        phase = step / S::stages & 1;
    }
    DEVICE void put_unit(int q, int unit, int step) const {
        barrier_wait(queue_empty(q % S::queue), (q / S::queue & 1) ^ 1);
        store_shared_4(queued(q % S::queue), unit);
        store_shared_4(queued(q % S::queue) + 4, step);
        barrier_arrive(queue_full(q % S::queue));
    }
    // The unit at place `q` of the queue, which starts at the ring's next stage; a whole warp calls it.
    DEVICE int next_unit(int q) {
        barrier_wait(queue_full(q % S::queue), q / S::queue & 1);
        int unit = 0, step = 0;
        if (threadIdx.x % 32 == 0) {
            unit = load_shared_4(queued(q % S::queue));
            step = load_shared_4(queued(q % S::queue) + 4);
            barrier_arrive(queue_empty(q % S::queue));
        }
        skip_to(__shfl_sync(0xffffffffu, step, 0));
        return __shfl_sync(0xffffffffu, unit, 0);
    }
};

// What the blocks tell each other; all are zero again when the last has left.
struct FewCounters {
    u32 *claimed, *left, *activated, *done, *ready;
    // Units claimed, blocks that left; units that are done: of the first projection, of the columns of the second, of the slots in the first.
    DEVICE FewCounters(u32* counters, int downs)
        : claimed(counters), left(counters + 1), activated(counters + 2), done(counters + 3), ready(counters + 3 + downs) {}
};

// The thread that loads weights claims its first unit.
template <class S>
DEVICE int few_claim(const FewCounters& counters) { return threadIdx.x == S::consumers ? (int)atomicAdd(counters.claimed, 1u) : 0; }

// Has the weights of `unit`, and of those that are claimed then, loaded; one thread calls it. `load` is given the unit, its expert, a stage's place, its barrier and k.
template <class S, class Slots, class Load>
DEVICE void few_weights(FewRing<S>& ring, const FewPlan& plan, const Slots& slots, u32* claimed, int unit, const Load& load) {
    int step = 0, q = 0;
    for (; unit < plan.total(); q++) {
        ring.put_unit(q, unit, step);
        // Claimed ahead: the answer is here when this unit's weights are on their way.
        const int next = (int)atomicAdd(claimed, 1u);
        const FewUnit work = few_unit(plan, unit);
        const int expert = slots.slot(work.slot).expert;
        // Code that the first stages run through comes from memory, too: there is to be little of it.
#pragma unroll 1
        for (int k = work.from; k < work.to; k += S::depth) {
            barrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
            barrier_expect(ring.full(ring.stage), S::bytes_b);
            load(work, expert, ring.b(ring.stage), ring.full(ring.stage), k);
            ring.advance();
            step++;
        }
        unit = next;
    }
    // Each group hears that there is no more.
    for (int i = 0; i < S::groups; i++) ring.put_unit(q + i, unit, step);
}

// Copies the units' rows, of the tokens or of the activations; a warp calls it. The row of id i is `tokens + i / choices * stride`, that of
// place p `activations + p * down_depth`. Rows that a slot does not have keep what was there: their products go nowhere.
template <class S, class Slots>
DEVICE void few_rows(FewRing<S>& ring, const FewPlan& plan, const Slots& slots, const FewCounters& counters, const typename S::T* tokens,
                     i64 stride, int choices, const typename S::T* activations) {
    const int lane = threadIdx.x % 32;
    bool all_ready = false;
    const u32 box = S::bytes_b + lane / 8 * S::box_a;
    for (int q = 0;; q++) {
        const int unit = ring.next_unit(q);
        if (unit >= plan.total()) break;
        const FewUnit work = few_unit(plan, unit);
        const RowTile slot = slots.slot(work.slot);
        i64 offsets[(S::rows + 31) / 32];
#pragma unroll
        for (int i = 0; i < (S::rows + 31) / 32; i++) {
            const int r = i * 32 + lane;
            offsets[i] = r >= slot.rows ? 0 : work.down ? (i64)(slot.start + r) * plan.down_depth : slots.id_of(slot.start + r) / choices * stride;
        }
        if (work.down && !all_ready) {
            // Lane 0 waits for the slot; another looks whether there is anything left to wait for.
            const u32* const watched = lane == 0 ? counters.ready + work.slot : counters.activated;
            u32 seen;
            do seen = load_acquire(watched);
            while (__shfl_sync(0xffffffffu, seen, 0) < (u32)plan.ups);
            all_ready = __shfl_sync(0xffffffffu, seen, 1) == (u32)(plan.slots * plan.ups);
            __syncwarp();
        }
        const typename S::T* const rows = work.down ? activations : tokens;
        const int depth = work.down ? plan.down_depth : plan.up_depth;
#pragma unroll 1
        for (int k0 = work.from; k0 < work.to; k0 += S::depth) {
            barrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
            const int k = k0 + lane * 8, bytes = k < depth ? 16 : 0;
            const u32 to = ring.b(ring.stage) + box;
#pragma unroll
            for (int i = 0; i < (S::rows + 31) / 32; i++)
#pragma unroll 4
                for (int r = i * 32; r < slot.rows && r < i * 32 + 32; r++) {
                    const typename S::T* row = rows + __shfl_sync(0xffffffffu, offsets[i], r % 32);
                    cp_async_16(to + r * 128 + ((lane % 8 ^ (r & 7)) << 4), bytes > 0 ? row + k : row, bytes);
                }
            barrier_arrive_copies(ring.full(ring.stage));
            ring.advance();
        }
    }
    cp_async_wait<0>();
}

DEVICE Pack<float, 1> load_from_others(const Pack<float, 1>* pointer) { return {{load_from_others(pointer->at)}}; }
DEVICE Pack<float, 4> load_from_others(const Pack<float, 4>* pointer) {
    Pack<float, 4> x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3]) : "l"(pointer) : "memory");
    return x;
}

// The sums of a unit: of each of its 64 rows of weights, for each row.
template <class S>
using FewSums = float[64][S::rows + 1];

// Waits for the threads of this group of consumers.
DEVICE void few_sync() { named_barrier_sync(1 + threadIdx.x / 128, 128); }

// Multiplies the unit at place `q` of the queue; a group calls it. Groups take their turns: a barrier of the ring tells its rounds by their
// parity, and who came to a round before that of the group before is full would take it for one long gone.
template <class S, class Instruction, bool across>
DEVICE void few_multiply(FewRing<S>& ring, const FewUnit& work, int q, FewSums<S>& sums) {
    float d[S::boxes][S::rows / 2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = q % S::groups;
    if (q > 0) barrier_wait(ring.turn(group), (q / S::groups - (group == 0)) & 1);
#pragma unroll 1
    for (int k = work.from; k < work.to; k += S::depth) {
        barrier_wait(ring.full(ring.stage), ring.phase);
        fence_shared_for_tensor_cores();
        const u64 w = matrix_descriptor(ring.b(ring.stage)), x = matrix_descriptor(ring.a(ring.stage));
        wgmma_fence();
        // Each box has sums of its own: the products of one need not wait for those of another.
#pragma unroll
        for (int slice = 0; slice < 4; slice++)
#pragma unroll
            for (int box = 0; box < S::boxes; box++)
                Instruction::add(d[box], w + box * (8192 / 16) + slice * (across ? 128 : 2), x + box * (S::box_a / 16) + slice * 2,
                                 k > work.from || slice > 0);
        wgmma_commit();
        if (k + S::depth >= work.to && lane == 0) barrier_arrive(ring.turn((q + 1) % S::groups));
        // Products take less time than weights: a stage is given back at once, for what is on its way is what counts.
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(ring.empty(ring.stage));
        ring.advance();
    }
    // Whoever reads the sums of the unit before is done.
    few_sync();
#pragma unroll
    for (int i = 0; i < S::rows / 2; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int box = 0; box < S::boxes; box++) sum += d[box][i];
        sums[warp * 16 + lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = sum;
    }
    few_sync();
}

// Says that a slot's first projection has one more unit done; a group calls it.
DEVICE void few_activated(const FewCounters& counters, int slot) {
    few_sync();
    if (threadIdx.x % 128 > 0) return;
    // One fence for both: under the load of the ring it takes microseconds.
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    atomicAdd(counters.ready + slot, 1u);
    atomicAdd(counters.activated, 1u);
}

// What was there before; other blocks see what this one wrote, and this one what they did.
DEVICE u32 add_acquire_release(u32* pointer) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(pointer) : "memory");
    return before;
}

// Counts a unit of some columns as done: true in every thread of a group if it is the last of `all`, which sees what the others wrote.
template <class S>
DEVICE bool few_finished(u32* done, int all) {
    __shared__ bool last[S::groups];
    few_sync();
    if (threadIdx.x % 128 == 0) last[threadIdx.x / 128] = add_acquire_release(done) == (u32)all - 1;
    few_sync();
    return last[threadIdx.x / 128];
}

// Says that a unit of the second projection is done; a group calls it.
DEVICE void few_projected(u32* done) {
    few_sync();
    if (threadIdx.x % 128 == 0) add_release(done);
}

// Waits until `all` units are done; every thread of a block calls it, when the block has no more units.
DEVICE void few_wait(const u32* done, int all) {
    __syncwarp();
    if (threadIdx.x == 0)
        while (load_acquire(done) < (u32)all) {}
    __syncthreads();
}

// Every thread of a block calls it when the block is done with the counters.
DEVICE void few_leave(const FewCounters& counters, const FewPlan& plan) {
    // Of the warp that loads weights one thread alone works, and comes later than the others.
    __syncwarp();
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (add_acquire_release(counters.left) != gridDim.x - 1) return;
    for (int i = 0; i < plan.slots; i++) counters.ready[i] = 0;
    for (int i = 0; i < plan.downs; i++) counters.done[i] = 0;
    *counters.claimed = *counters.left = *counters.activated = 0;
}

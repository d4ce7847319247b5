// Hopper's main loop with its operands swapped: wgmma's M is the weights, 256 of their rows a block, and its N the rows of one expert, as
// many as there are in steps of 16. Few rows are then no tile half empty.
//
// A producer warpgroup fills a ring of stages, each of two consumer warpgroups multiplies 128 rows of the weights. Two blocks may form a
// cluster: they take different rows of an expert against the same weights, of which each loads half and sends it to both.

enum class Features {
    plain,    // a block has 256 columns of one product
    stacked,  // 128 columns of two products: 64 rows of one matrix, then 64 of the other
    paired,   // 128 columns of two products whose matrices take turns row by row
};

template <class T_, Features features_, bool across_, int rows_, int stages_, int blocks_, int pass_>
struct SwappedShape {
    using T = T_;
    static constexpr Features features = features_;
    static constexpr bool across = across_;  // the weights' rows are contiguous, not K
    static constexpr int rows = rows_, stages = stages_, blocks = blocks_;
    static constexpr int pass = pass_;  // rows that are put together for storing at a time
    static constexpr int BK = 64;       // of 16 bits are one swizzled row of 128 bytes
    static constexpr int bytes_a = rows * BK * 2, bytes_b = 256 * BK * 2, stage_bytes = bytes_a + bytes_b;
    static constexpr int producers = 128, consumer_warps = 8;
    static constexpr int columns = features == Features::plain ? 256 : 128;  // of the result, a block
};

// What a block works on: rows of one expert's matrix, from column n0. Expert -1: rows that no expert takes.
struct SwappedWork {
    i32 expert, start, rows, n0;
};

// One block's share of a cluster's rows, in steps of 16.
template <int blocks>
DEVICE SwappedWork share_of_rows(RowTile tile, int n0, int rank) {
    if (blocks == 1) return {tile.expert, tile.start, tile.rows, n0};
    const int half = ((tile.rows + 1) / 2 + 15) & ~15, first = rank * half;
    const int left = tile.rows - first;
    return {tile.expert, tile.start + first, left < 0 ? 0 : left < half ? left : half, n0};
}

// Where a kernel that stays for all tiles takes them from: `at(t)` for t = first, first + apart, … below total.
template <class At>
struct WorkList {
    i64 first, apart, total;
    At at;
};
template <class At>
DEVICE WorkList<At> work_list(i64 first, i64 apart, i64 total, const At& at) { return {first, apart, total, at}; }

// Work `t` of tiles of rows × `tiles_n` tiles of columns. Rows stay while columns go by: blocks that run together then want few rows, which
// are gathered piece by piece, and each weight about once.
template <class S>
DEVICE SwappedWork work_of_tile(const RowTile* tiles, i64 t, u32 tiles_n, int rank) {
    const u32 m = (u32)t / tiles_n, n = (u32)t - m * tiles_n;
    return share_of_rows<S::blocks>(tiles[m], (int)n * S::columns, rank);
}

// Fills the ring; one thread calls it. `load_rows` and `load_weights` are given an address, a barrier, k and the work; rows come in tiles
// of 16. `feed_more` fills what stages the work needs behind those.
template <class S, class List, class LoadRows, class LoadWeights, class FeedMore>
DEVICE void feed(const WgmmaRing<S>& ring, const List& list, i64 depth, const LoadRows& load_rows, const LoadWeights& load_weights,
                 const FeedMore& feed_more) {
    RingPosition<S> at;
    for (i64 t = list.first; t < list.total; t += list.apart) {
        const SwappedWork work = list.at(t);
        const int groups = (work.rows + 15) / 16;
        for (int k = 0; work.expert >= 0 && k < depth; k += S::BK) {
            barrier_wait(ring.empty(at.stage), at.phase ^ 1);
            const u32 full = ring.full(at.stage), to = ring.a(at.stage);
            barrier_expect(full, S::bytes_b + groups * (16 * S::BK * 2));
            load_weights(ring.b(at.stage), full, k, work);
            for (int i = 0; i < groups; i++) load_rows(to + i * (16 * S::BK * 2), full, k, work.start + i * 16);
            at.advance();
        }
        feed_more(at, work);
    }
}

// The same with rows that each thread copies; the producer warpgroup calls it. `rows_of` gives the rows of some work. Which they are is
// read a tile ahead. Rows that are not valid keep what was there: their products are stored nowhere.
template <class S, class List, class RowsOf, class LoadWeights, class FeedMore>
DEVICE void feed_gathered(const WgmmaRing<S>& ring, const List& list, i64 depth, const RowsOf& rows_of, const LoadWeights& load_weights,
                          const FeedMore& feed_more) {
    constexpr int chunks = S::BK / 8, apart = S::producers / chunks, count = S::rows / apart;
    const int chunk = threadIdx.x % chunks, first = threadIdx.x / chunks;
    const u32 place = first * 128 + ((chunk ^ (first & 7)) << 4);
    using Cursor = typename decltype(rows_of(SwappedWork()))::template Cursor<count, apart>;
    RingPosition<S> at;
    if (list.first >= list.total) return;
    SwappedWork next = list.at(list.first);
    Cursor next_rows(rows_of(next), first);
    for (i64 t = list.first; t < list.total; t += list.apart) {
        const SwappedWork work = next;
        const Cursor rows = next_rows;
        if (t + list.apart < list.total) {
            next = list.at(t + list.apart);
            next_rows = Cursor(rows_of(next), first);
        }
        for (int k0 = 0; work.expert >= 0 && k0 < depth; k0 += S::BK) {
            barrier_wait(ring.empty(at.stage), at.phase ^ 1);
            const u32 full = ring.full(at.stage), to = ring.a(at.stage) + place;
            if (threadIdx.x == 0) {
                barrier_expect(full, S::bytes_b);
                load_weights(ring.b(at.stage), full, k0, work);
            }
            const int k = k0 + chunk * 8, bytes = k < depth ? 16 : 0;
#pragma unroll
            for (int i = 0; i < count; i++)
                if (rows.valid(i)) cp_async_16(to + i * apart * 128, rows.row(i) + k, bytes);
            barrier_arrive_copies(full);
            at.advance();
        }
        feed_more(at, work);
    }
    cp_async_wait<0>();
}

// Calls `body(work)` for all work; where it lies is read a tile ahead.
template <class List, class Body>
DEVICE void for_each_work(const List& list, const Body& body) {
    if (list.first >= list.total) return;
    SwappedWork next = list.at(list.first);
    for (i64 t = list.first; t < list.total; t += list.apart) {
        const SwappedWork work = next;
        if (t + list.apart < list.total) next = list.at(t + list.apart);
        body(work);
    }
}

// d += w · xᵀ for 64 rows of weights and n rows of x, 16 deep; d anew where not `more`. A lane's d[4 j + 2 h + e] is row
// 16 · warp + lane / 4 + 8 h of the weights, row 8 j + 2 (lane % 4) + e of x. Specialised for the n that a kernel multiplies.
template <int n>
struct SwappedProduct;

// The products of one consumer warpgroup: 128 rows of weights, which are d0's and d1's 64.
template <class S, bool gathered>
struct SwappedTile {
    const WgmmaRing<S>& ring;
    RingPosition<S> at;
    const int group, warp, lane;

    // Of one tile: they are no members, so that nothing is kept from tile to tile.
    struct Sums {
        float d0[S::rows / 2], d1[S::rows / 2];
    };

    DEVICE SwappedTile(const WgmmaRing<S>& ring)
        : ring(ring), group((threadIdx.x - S::producers) / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}

    // Takes `depth` columns of K from the ring, and multiplies by `rows` rows.
    DEVICE void multiply(Sums& sums, i64 depth, int rows) {
        const int steps = (int)((depth + S::BK - 1) / S::BK);
        if (steps == 0) {
#pragma unroll
            for (int i = 0; i < S::rows / 2; i++) sums.d0[i] = sums.d1[i] = 0.0f;
            return;
        }
        switch ((rows + 15) / 16) {
#define SWAPPED_CASE(n)                                            \
    case n:                                                        \
        if constexpr (S::rows >= 16 * n) return steps_of<16 * n>(sums, steps); \
        break;
            SWAPPED_CASE(1)
            SWAPPED_CASE(2)
            SWAPPED_CASE(3)
            SWAPPED_CASE(4)
            SWAPPED_CASE(5)
            SWAPPED_CASE(6)
            SWAPPED_CASE(7)
            SWAPPED_CASE(8)
            SWAPPED_CASE(9)
            SWAPPED_CASE(10)
            SWAPPED_CASE(11)
#undef SWAPPED_CASE
        }
        for (int step = 0; step < steps; step++) {
            barrier_wait(ring.full(at.stage), at.phase);
            release(at.stage);
            at.advance();
        }
    }

    // What the epilogue wants of this thread's columns, by `held_for(column)`, and where its share of the rows goes, by `place_of(row)`: read
    // before the products, so that nobody waits for it after them.
    template <class Held>
    struct Kept {
        Held held[S::features == Features::plain ? 4 : 2];
        int places[(S::rows + 127) / 128];
    };
    template <class HeldFor, class PlaceOf>
    DEVICE auto keep(int rows, const HeldFor& held_for, const PlaceOf& place_of) const {
        constexpr int width = S::columns / 2;  // columns of this warpgroup
        Kept<decltype(held_for(0))> kept;
        if constexpr (S::features == Features::paired) {
            const int column = group * width + warp * 8 + (lane & 4) + lane / 8;
            kept.held[0] = held_for(column);
            kept.held[1] = held_for(column + 32);
        } else {
            const int column = group * width + warp * 16 + lane / 4;
            kept.held[0] = held_for(column);
            kept.held[1] = held_for(column + 8);
            if constexpr (S::features == Features::plain) {
                kept.held[2] = held_for(column + 64);
                kept.held[3] = held_for(column + 72);
            }
        }
#pragma unroll
        for (int i = 0; i < (S::rows + 127) / 128; i++) {
            const int m = i * 128 + threadIdx.x % 128;
            kept.places[i] = m < rows ? place_of(m) : 0;
        }
        return kept;
    }

    // Gives each finished value to memory. `finish(held, a, …)` makes a 16-bit result of the accumulators of each product;
    // `put(place, column, results)` stores eight neighbouring columns.
    template <class Kept, class Finish, class Put>
    DEVICE void store(const Sums& sums, int rows, const Kept& kept, const Finish& finish, const Put& put) const {
        if constexpr (S::features == Features::stacked) {
            const auto pair = [&](int i, int half) {
                const auto& held = kept.held[half];
                return pack(finish(held, sums.d0[i], sums.d1[i]), finish(held, sums.d0[i + 1], sums.d1[i + 1]));
            };
            store_columns(rows, kept.places, 0, 2 * warp, 2 * warp + 1, [&](int q, u32(&x)[4]) {
#pragma unroll
                for (int z = 0; z < 4; z++) x[z] = pair(q * 8 + 2 * z, z & 1);
            }, put);
        } else if constexpr (S::features == Features::plain) {
            const auto half_of = [&](const float(&d)[S::rows / 2], int first) {
                const auto pair = [&](int i, int half) {
                    const auto& held = kept.held[first / 32 + half];
                    return pack(finish(held, d[i]), finish(held, d[i + 1]));
                };
                store_columns(rows, kept.places, first, 2 * warp, 2 * warp + 1, [&](int q, u32(&x)[4]) {
#pragma unroll
                    for (int z = 0; z < 4; z++) x[z] = pair(q * 8 + 2 * z, z & 1);
                }, put);
            };
            half_of(sums.d0, 0);
            half_of(sums.d1, 64);
        } else {
            // Rows 2 c and 2 c + 1 of the weights are column c, and lie in lanes 4 apart: an even one takes columns 0 to 3 of its warp's
            // eight, an odd one 4 to 7; then columns go to the lanes that a transposing store wants them in.
            const bool odd = lane & 4;
            const int from = (lane / 4 < 4 ? 2 * (lane / 4) : 2 * (lane / 4) - 7) * 4 + lane % 4;
            const auto pair = [&](const float(&d)[S::rows / 2], int i, const auto& held) {
                float a[2], b[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float low = d[i + e], high = d[i + 2 + e];
                    const float other = __shfl_xor_sync(0xffffffffu, odd ? low : high, 4);
                    a[e] = odd ? other : low;
                    b[e] = odd ? high : other;
                }
                return __shfl_sync(0xffffffffu, pack(finish(held, a[0], b[0]), finish(held, a[1], b[1])), from);
            };
            store_columns(rows, kept.places, 0, warp, 4 + warp, [&](int q, u32(&x)[4]) {
#pragma unroll
                for (int z = 0; z < 4; z++) x[z] = (z & 1) == 0 ? pair(sums.d0, q * 8 + z * 2, kept.held[0]) : pair(sums.d1, q * 8 + (z - 1) * 2, kept.held[1]);
            }, put);
        }
    }

    // The warp is done with a stage.
    DEVICE void release(int stage) const {
        if (S::blocks == 1) {
            if (lane == 0) barrier_arrive(ring.empty(stage));
        } else if (lane < S::blocks) {
            barrier_arrive_at(ring.empty(stage), lane);
        }
    }

private:
    template <int n>
    DEVICE void steps_of(Sums& sums, int steps) {
        // Bytes of 16 columns of K, in the descriptor's 16-byte units.
        constexpr int step_of_weights = S::across ? 16 * 128 / 16 : 2;
        const auto multiply = [&](int stage, int step) {
            const u64 weights = matrix_descriptor(ring.b(stage) + group * (128 * S::BK * 2)), rows = matrix_descriptor(ring.a(stage));
#pragma unroll
            for (int slice = 0; slice < S::BK / 16; slice++) {
                const u64 w = weights + slice * step_of_weights, x = rows + slice * 2;
                SwappedProduct<n>::add(sums.d0, w, x, step | slice);
                SwappedProduct<n>::add(sums.d1, w + 64 * S::BK * 2 / 16, x, step | slice);
            }
        };
        const int last = multiply_stages<gathered>(ring, at, steps, multiply, [&](int stage) { release(stage); });
        wgmma_wait<0>();
        release(last);
    }

    template <class Value>
    static DEVICE u32 pack(Value a, Value b) { return (u32)a.bits | (u32)b.bits << 16; }

    // Stores 64 columns from `first` on, by way of shared memory. `make(q, x)` gives the four 8×8 matrices of rows 16 q to 16 q + 15: of
    // columns 8 low, 8 high, the same of the other eight rows.
    template <class Make, class Put>
    DEVICE void store_columns(int rows, const int (&places)[(S::rows + 127) / 128], int first, int low, int high, const Make& make,
                              const Put& put) const {
        const u32 out = ring.end() + group * (S::pass * 128), places_at = ring.end() + 2 * S::pass * 128 + group * (S::rows * 4);
        const int row = (lane >> 4) * 8 + lane % 8, chunk = lane & 8 ? high : low;
#pragma unroll
        for (int from = 0; from < S::rows; from += S::pass) {
            if (from >= rows) break;
            // The threads are done with what was put together before.
            named_barrier_sync(1 + group, 128);
            if (from == 0 && first == 0) {
#pragma unroll
                for (int i = 0; i < (S::rows + 127) / 128; i++) {
                    const int m = i * 128 + threadIdx.x % 128;
                    if (m < S::rows) store_shared_4(places_at + m * 4, places[i]);
                }
            }
#pragma unroll
            for (int q = from / 16; q < (from + S::pass) / 16 && q < S::rows / 16; q++) {
                if (q * 16 >= rows) break;
                u32 x[4];
                make(q, x);
                const int r = q * 16 - from + row;
                store_matrices_transposed(out + r * 128 + ((chunk ^ (r & 7)) << 4), x);
            }
            named_barrier_sync(1 + group, 128);
            // All loads, then all stores: none waits for another.
            constexpr int count = S::pass / 16;
            const int c = threadIdx.x % 8, r0 = threadIdx.x % 128 / 8, column = group * (S::columns / 2) + first + c * 8;
            Pack<u32, 4> x[count];
            int place[count];
#pragma unroll
            for (int i = 0; i < count; i++) {
                const int r = r0 + i * 16, m = from + r < S::rows ? from + r : 0;
                x[i] = load_shared_16(out + r * 128 + ((c ^ (r & 7)) << 4));
                place[i] = load_shared_4(places_at + m * 4);
            }
#pragma unroll
            for (int i = 0; i < count; i++)
                if (from + r0 + i * 16 < rows) put(place[i], column, x[i]);
        }
    }
};

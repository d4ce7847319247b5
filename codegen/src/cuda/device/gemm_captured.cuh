// Epilogues of the swapped main loop that read tensors beside the products. What they read in rows of the expert order comes through the ring, in
// stages behind those of a tile's products, each with some of its rows. The products join them through shared memory in 16 bits, and a thread then
// finishes eight neighbouring columns of a row at a time.

// Fills the stages behind the products of some work. `load` is given an address, a barrier and the first row; it asks for `bytes`.
template <class S, bool gathered, int bytes, class Load>
DEVICE void feed_captures(const WgmmaRing<S>& ring, RingPosition<S>& at, const SwappedWork& work, const Load& load) {
    static_assert(S::features == Features::plain && S::rows % S::pass == 0 && bytes <= S::stage_bytes, "one product, in whole passes");
    for (int from = 0; from < S::rows; from += S::pass) {
        barrier_wait(ring.empty(at.stage), at.phase ^ 1);
        const u32 full = ring.full(at.stage);
        if (!gathered || threadIdx.x == 0) {
            barrier_expect(full, from < work.rows ? bytes : 0);
            if (from < work.rows) load(ring.a(at.stage), full, work.start + from, work);
        }
        if (gathered) barrier_arrive_copies(full);
        at.advance();
    }
}

// A thread's eight columns of one row in a stage of captures: boxes of `pass` rows by 64 columns, under the 128-byte swizzle.
template <int pass>
struct CapturedPiece {
    u32 boxes;
    int box, row, chunk;

    // Of the tensor whose boxes are the four from `first` on.
    template <class T>
    DEVICE Pack<T, 8> run(int first) const { return as<Pack<T, 8>>(at(first + box, chunk)); }
    // The same columns of two that take turns, in eight boxes.
    template <class T>
    DEVICE Pack<T, 16> turns(int first) const {
        const int pair = first + 2 * box + chunk / 4, even = chunk % 4 * 2;
        struct { Pack<u32, 4> half[2]; } both{{at(pair, even), at(pair, even + 1)}};
        return as<Pack<T, 16>>(both);
    }

private:
    DEVICE Pack<u32, 4> at(int box, int chunk) const { return load_shared_16(boxes + (box * pass + row) * 128 + ((chunk ^ (row & 7)) << 4)); }
    template <class To, class From>
    static DEVICE To as(const From& from) {
        static_assert(sizeof(To) == sizeof(From), "the same bytes");
        union Bytes { From from; To to; __device__ Bytes() {} } bytes;
        bytes.from = from;
        return bytes.to;
    }
};

// What a consumer warpgroup finishes. `Held` is what its rows need by themselves.
template <class S, class Held>
struct CapturedRows {
    using T = typename S::T;
    static constexpr int count = S::pass / 16, own = (S::rows + 127) / 128;
    Held kept[own];

    // Reads what is needed of this thread's share of the rows, before the products.
    template <class Fetch>
    DEVICE explicit CapturedRows(const Fetch& fetch) {
#pragma unroll
        for (int i = 0; i < own; i++) kept[i] = fetch(i * 128 + (int)threadIdx.x % 128);
    }

    // Calls `visit(m, n, values, held, piece)` for each row of the tile and eight columns.
    template <class Tile, class Sums, class Visit>
    DEVICE void each(Tile& tile, const Sums& sums, int rows, const Visit& visit) const {
        const auto& ring = tile.ring;
        Held* const held = (Held*)((char*)__cvta_shared_to_generic(ring.end() + 2 * (S::pass * 128))) + tile.group * S::rows;
#pragma unroll
        for (int from = 0; from < S::rows; from += S::pass) {
            barrier_wait(ring.full(tile.at.stage), tile.at.phase);
            if (from < rows) {
                half_of(tile, sums.d0, 0, from, rows, held, visit);
                half_of(tile, sums.d1, 1, from, rows, held, visit);
                __syncwarp();
            }
            tile.release(tile.at.stage);
            tile.at.advance();
        }
    }

private:
    template <class Tile, class Visit>
    DEVICE void half_of(const Tile& tile, const float (&d)[S::rows / 2], int half, int from, int rows, Held* held, const Visit& visit) const {
        const u32 out = tile.ring.end() + tile.group * (S::pass * 128);
        const int lane = tile.lane, row = (lane >> 4) * 8 + lane % 8, to = 2 * tile.warp + (lane >> 3 & 1);
        const int chunk = threadIdx.x % 8, first = threadIdx.x % 128 / 8;
        // The threads are done with what was put together before.
        named_barrier_sync(1 + tile.group, 128);
        if (from == 0 && half == 0) {
#pragma unroll
            for (int i = 0; i < own; i++) {
                const int m = i * 128 + (int)threadIdx.x % 128;
                if (m < S::rows) held[m] = kept[i];
            }
        }
#pragma unroll
        for (int q = from / 16; q < (from + S::pass) / 16; q++) {
            if (q * 16 >= rows) break;
            u32 x[4];
#pragma unroll
            for (int z = 0; z < 4; z++) x[z] = (u32)cast<T>(d[q * 8 + z * 2]).bits | (u32)cast<T>(d[q * 8 + z * 2 + 1]).bits << 16;
            const int r = q * 16 - from + row;
            store_matrices_transposed(out + r * 128 + ((to ^ (r & 7)) << 4), x);
        }
        named_barrier_sync(1 + tile.group, 128);
#pragma unroll
        for (int i = 0; i < count; i++) {
            const int r = first + i * 16;
            const Pack<u32, 4> x = load_shared_16(out + r * 128 + ((chunk ^ (r & 7)) << 4));
            float values[1][8];
#pragma unroll
            for (int e = 0; e < 8; e++) values[0][e] = up(T{(u16)(x.at[e / 2] >> e % 2 * 16)});
            const CapturedPiece<S::pass> piece{tile.ring.a(tile.at.stage), tile.group * 2 + half, r, chunk};
            visit(from + r, tile.group * 128 + half * 64 + chunk * 8, values, held[from + r], piece);
        }
    }
};

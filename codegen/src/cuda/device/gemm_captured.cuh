// Epilogues of the swapped main loop that read tensors beside the products: rows go through shared memory in 16 bits, and then a thread finishes
// eight neighbouring columns of a row at a time, so that whatever it reads and stores moves in 16 bytes.

template <class S>
struct CapturedRows {
    using T = typename S::T;
    static constexpr int count = S::pass / 16;  // visits of a thread in one pass
    const u32 out;
    const int group, warp, lane, chunk, first;  // the thread's eight columns among 64, and its first row of a pass

    template <class Tile>
    DEVICE explicit CapturedRows(const Tile& tile)
        : out(tile.ring.end() + tile.group * (S::pass * 128)), group(tile.group), warp(tile.warp), lane(tile.lane), chunk(threadIdx.x % 8),
          first(threadIdx.x % 128 / 8) {
        static_assert(S::features == Features::plain && S::rows % S::pass == 0, "one product, in whole passes");
    }

    // What `fetch(m, n)` reads for the visits of the first pass.
    template <class Held, class Fetch>
    DEVICE void look_ahead(Held (&held)[count], const Fetch& fetch) const {
#pragma unroll
        for (int i = 0; i < count; i++) held[i] = fetch(first + i * 16, column(0));
    }

    // Calls `visit(m, n, values, held)` for each row of the tile and eight columns. What the next pass needs is fetched as soon as a visit is over.
    template <class Sums, class Held, class Fetch, class Visit>
    DEVICE void each(const Sums& sums, int rows, Held (&held)[count], const Fetch& fetch, const Visit& visit) const {
        each_of(sums.d0, 0, rows, held, fetch, visit);
        each_of(sums.d1, 64, rows, held, fetch, visit);
    }

private:
    DEVICE int column(int half) const { return group * 128 + half + chunk * 8; }

    template <class Held, class Fetch, class Visit>
    DEVICE void each_of(const float (&d)[S::rows / 2], int half, int rows, Held (&held)[count], const Fetch& fetch, const Visit& visit) const {
        const int row = (lane >> 4) * 8 + lane % 8, to = 2 * warp + (lane >> 3 & 1);
#pragma unroll
        for (int from = 0; from < S::rows; from += S::pass) {
            if (from >= rows) break;
            // The threads are done with what was put together before.
            named_barrier_sync(1 + group, 128);
#pragma unroll
            for (int q = from / 16; q < (from + S::pass) / 16; q++) {
                if (q * 16 >= rows) break;
                u32 x[4];
#pragma unroll
                for (int z = 0; z < 4; z++) x[z] = (u32)cast<T>(d[q * 8 + z * 2]).bits | (u32)cast<T>(d[q * 8 + z * 2 + 1]).bits << 16;
                const int r = q * 16 - from + row;
                store_matrices_transposed(out + r * 128 + ((to ^ (r & 7)) << 4), x);
            }
            named_barrier_sync(1 + group, 128);
            const int next = from + S::pass < rows ? from + S::pass : 0, next_column = column(next == 0 ? half + 64 : half);
#pragma unroll
            for (int i = 0; i < count; i++) {
                const int r = first + i * 16;
                const Pack<u32, 4> x = load_shared_16(out + r * 128 + ((chunk ^ (r & 7)) << 4));
                float values[1][8];
#pragma unroll
                for (int e = 0; e < 8; e++) values[0][e] = up(T{(u16)(x.at[e / 2] >> e % 2 * 16)});
                visit(from + r, column(half), values, held[i]);
                if (next > 0 || half == 0) held[i] = fetch(next + r, next_column);
            }
        }
    }
};

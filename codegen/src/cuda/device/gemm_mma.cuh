// Tensor-core main loop for 16-bit operands: a ring of shared-memory stages filled by cp.async, read by ldmatrix.
//
// An operand is a matrix of `rows` (M or N) by K. How its elements lie in global memory decides how a tile travels:
//   k_major    K is contiguous and rows start on 16 bytes: 16-byte copies, tile [rows][BK]
//   row_major  rows are contiguous and each k starts on 16 bytes: 16-byte copies, tile [BK][rows], transposed by ldmatrix
//   strided    anything else: element loads, tile [rows][BK]

enum Walk { k_major, row_major, strided };

// Position in bytes of 16-byte chunk `chunk` of line `line`, in a tile of lines of `chunks` chunks: chunks are permuted within a line so that
// eight neighbouring lines differ in their banks.
template <int chunks>
DEVICE u32 swizzled(int line, int chunk) {
    static_assert(chunks >= 2, "a line holds at least 32 bytes");
    int key = chunks >= 8 ? line & 7 : chunks >= 4 ? (line >> 1) & 3 : (line >> 2) & 1;
    return (u32)(line * chunks + (chunk ^ key)) * 16;
}

// Copies tiles of one operand, `tile` rows by `BK`, with `threads` threads.
template <class T, Walk walk, int tile, int BK, int threads, class Rows, class Depth>
struct TileLoader {
    static constexpr int bytes = tile * BK * 2;
    static constexpr int line_chunks = walk == row_major ? tile / 8 : BK / 8;
    static constexpr int lines = walk == row_major ? BK : tile;
    static constexpr int slots = (lines * line_chunks + threads - 1) / threads;
    static constexpr int lines_per_slot = threads / line_chunks;
    static_assert(threads % line_chunks == 0, "a thread keeps its column of chunks");

    typename Rows::template Cursor<slots, lines_per_slot> cursor;
    const T* base;  // of row_major tiles
    Depth depth;
    int k_extent, rows;

    DEVICE TileLoader(const Rows& source, Depth depth, i64 k_extent)
        : cursor(source, line(0)), base(source.base), depth(depth), k_extent((int)k_extent),
          rows(source.rows < tile ? (int)source.rows : tile) {}
    static DEVICE int line(int slot) { return (int)threadIdx.x / line_chunks + slot * lines_per_slot; }
    static DEVICE int chunk() { return (int)threadIdx.x % line_chunks; }
    // How many of a chunk's eight elements lie before the end.
    static DEVICE int valid(int left) { return left >= 8 ? 8 : left > 0 ? left : 0; }

    // Fills `stage` with columns k0 to k0 + BK, or every `parts`th access of that; what lies outside the matrix becomes 0.
    DEVICE void load(u32 stage, int k0, int part, int parts) const {
        const int k = k0 + chunk() * 8;
#pragma unroll
        for (int s = 0; s < slots; s++) {
            if (s % parts != part) continue;
            if (lines % lines_per_slot != 0 && line(s) >= lines) break;
            const u32 to = stage + swizzled<line_chunks>(line(s), chunk());
            if constexpr (walk == k_major) {
                cp_async_16(to, cursor.row(s) + k, cursor.valid(s) ? valid(k_extent - k) * 2 : 0);
            } else if constexpr (walk == row_major) {
                const int at = k0 + line(s);
                const T* const from = base + (at < k_extent ? depth.at(at) : 0) + chunk() * 8;
                cp_async_16(to, from, at < k_extent ? valid(rows - chunk() * 8) * 2 : 0);
            } else {
                const T* const from = cursor.row(s);
                const int end = cursor.valid(s) ? k_extent : 0;
                u32 packed[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = k + i * 2;
                    const u32 low = at < end ? from[depth.at(at)].bits : 0;
                    const u32 high = at + 1 < end ? from[depth.at(at + 1)].bits : 0;
                    packed[i] = low | (high << 16);
                }
                store_shared_16(to, packed);
            }
        }
    }
};

// The shape of a block's work: BM × BN of each lane's product, shared by warps_m × warps_n warps.
template <class T_, int BM_, int BN_, int BK_, int stages_, int warps_m_, int warps_n_, int lanes_, Walk walk_a_, Walk walk_b_>
struct MmaShape {
    using T = T_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, stages = stages_, lanes = lanes_;
    static constexpr int warps_m = warps_m_, warps_n = warps_n_, threads = warps_m * warps_n * 32;
    static constexpr Walk walk_a = walk_a_, walk_b = walk_b_;
    static constexpr int WM = BM / warps_m, WN = BN / warps_n;
    static constexpr int tiles_m = WM / 16, tiles_n = WN / 8;
    static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp works in units of 16 × 16");
    static_assert(BK % 16 == 0 && BK >= 32, "the pipeline needs two k-slices a stage");
    static constexpr int bytes_a = BM * BK * 2, bytes_b = BN * BK * 2, stage_bytes = bytes_a + lanes * bytes_b;
    static constexpr int shared_bytes = stages * stage_bytes;
};

template <class S>
struct MmaTile {
    float c[S::lanes][S::tiles_m][S::tiles_n][4];

    // Accumulates a · bᵀ over K. `shared` holds S::shared_bytes, aligned to 128.
    template <class LoadA, class LoadB>
    DEVICE void multiply(char* shared, const LoadA& a, const LoadB (&b)[S::lanes], i64 k_extent) {
        const u32 base = shared_address(shared);
        const int steps = (int)((k_extent + S::BK - 1) / S::BK);
#pragma unroll
        for (int l = 0; l < S::lanes; l++)
#pragma unroll
            for (int i = 0; i < S::tiles_m; i++)
#pragma unroll
                for (int j = 0; j < S::tiles_n; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) c[l][i][j][e] = 0.0f;
#pragma unroll
        for (int s = 0; s < S::stages - 1; s++) {
            if (s < steps) fill(base + s * S::stage_bytes, a, b, s * S::BK, 0, 1);
            cp_async_commit();
        }
        cp_async_wait<S::stages - 2>();
        __syncthreads();
        // Fragments are read one k-slice ahead of their use, also across stages: the barrier stands before the last slice's products, when
        // every warp has read all it needs of the stage that is refilled next.
        Fragments now, next;
        now.read(base, 0);
        int read = 0, write = S::stages - 1;
        for (int step = 0; step < steps; step++) {
#pragma unroll
            for (int slice = 0; slice < slices; slice++) {
                if (slice == slices - 1) {
                    cp_async_wait<S::stages - 2>();
                    __syncthreads();
                    read = read + 1 == S::stages ? 0 : read + 1;
                }
                next.read(base + read * S::stage_bytes, (slice + 1) % slices * 16);
                // The copies of a later stage are spread over the slices before the barrier.
                if (slice < slices - 1 && step + S::stages - 1 < steps)
                    fill(base + write * S::stage_bytes, a, b, (step + S::stages - 1) * S::BK, slice, slices - 1);
                if (slice == slices - 2) {
                    cp_async_commit();
                    write = write + 1 == S::stages ? 0 : write + 1;
                }
                accumulate(now);
                now = next;
            }
        }
        cp_async_wait<0>();
        __syncthreads();
    }

    // Calls `visit(m, n, values)` for each pair of neighbouring columns of the tile, with the pair of every lane.
    template <class Visit>
    DEVICE void each(const Visit& visit) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int m0 = warp / S::warps_n * S::WM + lane / 4, n0 = warp % S::warps_n * S::WN + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::tiles_m; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < S::tiles_n; j++) {
                    float values[S::lanes][2];
#pragma unroll
                    for (int l = 0; l < S::lanes; l++) {
                        values[l][0] = c[l][i][j][half * 2];
                        values[l][1] = c[l][i][j][half * 2 + 1];
                    }
                    visit(m0 + i * 16 + half * 8, n0 + j * 8, values);
                }
    }

private:
    template <class LoadA, class LoadB>
    static DEVICE void fill(u32 stage, const LoadA& a, const LoadB (&b)[S::lanes], int k0, int part, int parts) {
        a.load(stage, k0, part, parts);
#pragma unroll
        for (int l = 0; l < S::lanes; l++) b[l].load(stage + S::bytes_a + l * S::bytes_b, k0, part, parts);
    }

    static constexpr int slices = S::BK / 16;

    // What a warp multiplies in one k-slice of 16.
    struct Fragments {
        u32 a[S::tiles_m][4];
        u32 b[S::lanes][S::tiles_n / 2][4];

        DEVICE void read(u32 stage, int k) {
            const int warp = threadIdx.x / 32;
            const int m0 = warp / S::warps_n * S::WM, n0 = warp % S::warps_n * S::WN;
#pragma unroll
            for (int i = 0; i < S::tiles_m; i++) load<S::walk_a, S::BM>(a[i], stage, m0 + i * 16, k, true);
#pragma unroll
            for (int l = 0; l < S::lanes; l++)
#pragma unroll
                for (int j = 0; j < S::tiles_n / 2; j++)
                    load<S::walk_b, S::BN>(b[l][j], stage + S::bytes_a + l * S::bytes_b, n0 + j * 16, k, false);
        }

        // Lane l gives row l % 8 of matrix l / 8. In A's fragment matrices 1 and 3 are eight rows further, in B's 2 and 3; the others of
        // the four are eight further along K.
        template <Walk walk, int tile>
        static DEVICE void load(u32 (&x)[4], u32 from, int row, int k, bool rows_first) {
            const int lane = threadIdx.x % 32;
            const int odd = (lane >> 3) & 1, upper = lane >> 4;
            const int row_step = rows_first ? odd : upper, k_step = rows_first ? upper : odd;
            if constexpr (walk == row_major) {
                ldmatrix_transposed(x, from + swizzled<tile / 8>(k + k_step * 8 + lane % 8, row / 8 + row_step));
            } else {
                ldmatrix(x, from + swizzled<S::BK / 8>(row + row_step * 8 + lane % 8, k / 8 + k_step));
            }
        }
    };

    DEVICE void accumulate(const Fragments& x) {
#pragma unroll
        for (int l = 0; l < S::lanes; l++)
#pragma unroll
            for (int j = 0; j < S::tiles_n; j++)
#pragma unroll
                for (int i = 0; i < S::tiles_m; i++)
                    Mma<typename S::T>::add(c[l][i][j], x.a[i], x.b[l][j / 2][j % 2 * 2], x.b[l][j / 2][j % 2 * 2 + 1]);
    }
};

template <class S, class Rows, class Depth = PlainDepth>
using LoaderA = TileLoader<typename S::T, S::walk_a, S::BM, S::BK, S::threads, Rows, Depth>;
template <class S, class Rows, class Depth = PlainDepth>
using LoaderB = TileLoader<typename S::T, S::walk_b, S::BN, S::BK, S::threads, Rows, Depth>;
template <class S>
using Tile = MmaTile<S>;

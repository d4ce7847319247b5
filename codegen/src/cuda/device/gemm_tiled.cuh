// Matrix products without tensor cores, for any dtype: register tiles over shared memory, accumulating in `Acc`.

template <class T_, class Acc_, int BM_, int BN_, int BK_, int TM_, int TN_, int lanes_, bool a_k_fast_, bool b_k_fast_>
struct TiledShape {
    using T = T_;
    using Acc = Acc_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, lanes = lanes_;
    static constexpr bool a_k_fast = a_k_fast_, b_k_fast = b_k_fast_;
    static constexpr int threads = (BM / TM) * (BN / TN);
    static_assert(TM % 4 == 0 && TN % 4 == 0, "rows and columns come in runs of four");
};

// Tiles of one operand: neighbouring threads read along K where that is contiguous, else along the rows.
template <class S, int tile, bool k_fast, class Rows, class Depth>
struct ElementLoader {
    static constexpr int count = tile * S::BK / S::threads;
    static constexpr int apart = k_fast ? S::threads / S::BK : S::threads / tile;
    static_assert(tile * S::BK % S::threads == 0, "every thread loads the same number");
    static_assert(S::threads % (k_fast ? S::BK : tile) == 0, "a thread keeps its k or its row");
    // Along K a thread has one column of K and rows `apart` from each other, else one row and ks `apart` from each other.
    typename Rows::template Cursor<k_fast ? count : 1, k_fast ? apart : 1> cursor;
    Depth depth;
    int k_extent;
    typename S::Acc held[count];

    DEVICE ElementLoader(const Rows& rows, Depth depth, i64 k_extent)
        : cursor(rows, row(0)), depth(depth), k_extent((int)k_extent) {}
    static DEVICE int row(int i) { return k_fast ? (int)threadIdx.x / S::BK + i * apart : (int)threadIdx.x % tile; }
    static DEVICE int k(int i) { return k_fast ? (int)threadIdx.x % S::BK : (int)threadIdx.x / tile + i * apart; }
    DEVICE void load(int k0) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            const int line = k_fast ? i : 0, at = k0 + k(i);
            held[i] = cursor.valid(line) && at < k_extent ? (typename S::Acc)up(cursor.row(line)[depth.at(at)]) : (typename S::Acc)0;
        }
    }
    DEVICE void store(typename S::Acc (*to)[tile + 4]) const {
#pragma unroll
        for (int i = 0; i < count; i++) to[k(i)][row(i)] = held[i];
    }
};

template <class S>
struct TiledTile {
    using Acc = typename S::Acc;
    struct alignas(16) Stage {
        Acc a[S::BK][S::BM + 4];
        Acc b[S::lanes][S::BK][S::BN + 4];
    };
    // Two stages where static shared memory has room: one is filled while the other is read.
    static constexpr int stages = 2 * sizeof(Stage) <= (48 << 10) ? 2 : 1;
    using Shared = Stage[stages];
    Acc c[S::lanes][S::TM][S::TN];

    template <class LoadA, class LoadB>
    DEVICE void multiply(Shared& shared, LoadA& a, LoadB (&b)[S::lanes], i64 k_extent) {
#pragma unroll
        for (int l = 0; l < S::lanes; l++)
#pragma unroll
            for (int i = 0; i < S::TM; i++)
#pragma unroll
                for (int j = 0; j < S::TN; j++) c[l][i][j] = (Acc)0;
        if (k_extent <= 0) return;
        load(a, b, 0);
        // A product before this one may still read.
        __syncthreads();
        store(shared[0], a, b);
        __syncthreads();
        int current = 0;
        for (int k0 = 0; k0 < (int)k_extent; k0 += S::BK) {
            // The next tile travels while this one is used.
            const bool more = k0 + S::BK < (int)k_extent;
            if (more) load(a, b, k0 + S::BK);
            accumulate(shared[current]);
            if (!more) break;
            if (stages == 1) __syncthreads();
            current = (current + 1) % stages;
            store(shared[current], a, b);
            __syncthreads();
        }
    }

    template <class Visit>
    DEVICE void each(const Visit& visit) const {
#pragma unroll
        for (int i = 0; i < S::TM; i++)
#pragma unroll
            for (int j = 0; j < S::TN; j += 2) {
                Acc values[S::lanes][2];
#pragma unroll
                for (int l = 0; l < S::lanes; l++) {
                    values[l][0] = c[l][i][j];
                    values[l][1] = c[l][i][j + 1];
                }
                visit(row(i), column(j), values);
            }
    }

private:
    // A thread's rows and columns come in runs of four, so that a warp reads 16 bytes a thread without bank conflicts.
    static DEVICE int row(int i) { return i / 4 * (S::BM / S::TM * 4) + (int)threadIdx.x / (S::BN / S::TN) * 4 + i % 4; }
    static DEVICE int column(int j) { return j / 4 * (S::BN / S::TN * 4) + (int)threadIdx.x % (S::BN / S::TN) * 4 + j % 4; }

    DEVICE void accumulate(const Stage& stage) {
#pragma unroll
        for (int k = 0; k < S::BK; k++) {
            Acc x[S::TM];
#pragma unroll
            for (int i = 0; i < S::TM; i++) x[i] = stage.a[k][row(i)];
#pragma unroll
            for (int l = 0; l < S::lanes; l++) {
                Acc y[S::TN];
#pragma unroll
                for (int j = 0; j < S::TN; j++) y[j] = stage.b[l][k][column(j)];
#pragma unroll
                for (int i = 0; i < S::TM; i++)
#pragma unroll
                    for (int j = 0; j < S::TN; j++) c[l][i][j] += x[i] * y[j];
            }
        }
    }

    template <class LoadA, class LoadB>
    static DEVICE void store(Stage& stage, const LoadA& a, const LoadB (&b)[S::lanes]) {
        a.store(stage.a);
#pragma unroll
        for (int l = 0; l < S::lanes; l++) b[l].store(stage.b[l]);
    }

    template <class LoadA, class LoadB>
    static DEVICE void load(LoadA& a, LoadB (&b)[S::lanes], int k0) {
        a.load(k0);
#pragma unroll
        for (int l = 0; l < S::lanes; l++) b[l].load(k0);
    }
};

template <class S, class Rows, class Depth = PlainDepth>
using LoaderA = ElementLoader<S, S::BM, S::a_k_fast, Rows, Depth>;
template <class S, class Rows, class Depth = PlainDepth>
using LoaderB = ElementLoader<S, S::BN, S::b_k_fast, Rows, Depth>;
template <class S>
using Tile = TiledTile<S>;

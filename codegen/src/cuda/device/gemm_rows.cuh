// What every matrix product shares: which rows an operand has, and which tile a block takes.

// Rows of an operand by their order: row r starts at `base + r * row_stride`. A `Cursor` is one thread's view of rows `first`,
// `first + apart`, …; `row` of one that is not `valid` must not be read.
template <class T>
struct PlainRows {
    const T* base;
    i64 row_stride;
    i64 rows;  // valid ones, from 0
    template <int count, int apart>
    struct Cursor {
        const T* start;
        i64 step;
        int left;
        DEVICE Cursor(const PlainRows& rows, int first)
            : start(rows.base + first * rows.row_stride), step(apart * rows.row_stride), left(clamped(rows.rows - first)) {}
        DEVICE bool valid(int i) const { return i * apart < left; }
        DEVICE const T* row(int i) const { return start + i * step; }
    };
    static DEVICE int clamped(i64 n) { return n > 0x7fffffff ? 0x7fffffff : (int)n; }
};

// Rows picked by a list: row r starts at `base + list[r] / divisor * row_stride`.
template <class T>
struct GatheredRows {
    const T* base;
    i64 row_stride;
    i64 rows;
    const i32* list;
    int divisor;
    template <int count, int apart>
    struct Cursor {
        const T* base;
        i64 row_stride;
        int picked[count];
        DEVICE Cursor(const GatheredRows& rows, int first) : base(rows.base), row_stride(rows.row_stride) {
#pragma unroll
            for (int i = 0; i < count; i++) {
                const int r = first + i * apart;
                picked[i] = r < rows.rows ? rows.list[r] / rows.divisor : -1;
            }
        }
        DEVICE bool valid(int i) const { return picked[i] >= 0; }
        DEVICE const T* row(int i) const { return base + picked[i] * row_stride; }
    };
};

// Where element k of a row lies, from the row's start: plainly, or at the k-th entry of a list, divided.
struct PlainDepth {
    i64 stride;
    DEVICE PlainDepth(i64 stride) : stride(stride) {}
    DEVICE i64 at(int k) const { return k * stride; }
};
struct GatheredDepth {
    i64 stride;
    const i32* list;  // none: plainly
    int divisor;
    DEVICE i64 at(int k) const { return (list == nullptr ? k : list[k] / divisor) * stride; }
};

struct TileIndex {
    int m, n;
};

// Tile `t` of tiles_m × tiles_n, in bands of 16 tiles along M, so that blocks running together share operands in L2.
DEVICE TileIndex banded_tile(u32 t, u32 tiles_m, u32 tiles_n) {
    const u32 band = t / (16 * tiles_n), within = t % (16 * tiles_n);
    const u32 height = tiles_m - band * 16 < 16 ? tiles_m - band * 16 : 16;
    return {(int)(band * 16 + within % height), (int)(within / height)};
}

// A run of rows in expert order that one block works on; expert -1 marks rows that no expert takes.
struct RowTile {
    i32 expert, start, rows;
};

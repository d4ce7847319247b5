//! Which main loop a product runs, with its tile.

use super::{
    super::{ctype, emitter::Target, error::Emit, kernel::Header},
    operand::Walk,
};
use eglu_ir::{DType, Dim};

/// Up to so many rows a matrix, the narrow tile runs where the number of rows is a symbol.
const FEW_ROWS: i64 = 16;
/// Up to so many rows a matrix, one block of Hopper's main loop takes them all.
const BLOCK_ROWS: i64 = 160;

/// Up to so many rows a matrix, two tiles of a cluster take them all; more are best taken by higher ones.
const TILE_ROWS: i64 = 576;

/// A main loop and the tile that one block computes: BM rows by BN columns of each lane. A main loop for a newer architecture is a variant
/// here and a device file with the same `LoaderA`, `LoaderB` and `Tile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum MainLoop {
    /// mma.sync with operands through a cp.async ring (sm_80 and later), 16-bit dtypes.
    Mma { bm: u32, bn: u32, bk: u32, stages: u32, warps_m: u32, warps_n: u32 },
    /// Register tiles in plain arithmetic, any dtype.
    Tiled { bm: u32, bn: u32, bk: u32, tm: u32, tn: u32 },
}

/// A number of rows to choose a main loop for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowCount {
    /// About how many rows one matrix sees; `None` stands for many.
    pub rows: Option<i64>,
    /// 1 where this is the case to run and else 0, to multiply a grid with.
    pub when: Dim,
}

impl RowCount {
    /// The cases of `rows` rows spread over `matrices` matrices: where `rows` is a symbol, few rows (whose products only stream the
    /// matrices) are told from many.
    pub fn cases(dtype: DType, rows: &Dim, matrices: i64) -> Vec<RowCount> {
        RowCount::apart(&[FEW_ROWS], dtype, rows, matrices)
    }

    /// [`RowCount::cases`] for rows by expert: on Hopper those that one block takes at once are told from more.
    pub fn by_expert(target: Target, dtype: DType, rows: &Dim, experts: i64) -> Vec<RowCount> {
        RowCount::apart(if target.arch >= 90 { &[FEW_ROWS, BLOCK_ROWS, TILE_ROWS] } else { &[FEW_ROWS] }, dtype, rows, experts)
    }

    fn apart(limits: &[i64], dtype: DType, rows: &Dim, matrices: i64) -> Vec<RowCount> {
        let matrices = matrices.max(1);
        if let Some(rows) = rows.as_const() {
            return vec![RowCount { rows: Some(rows.div_euclid(matrices)), when: Dim::from(1) }];
        }
        if !matches!(dtype, DType::Bf16 | DType::F16) {
            return vec![RowCount { rows: None, when: Dim::from(1) }];
        }
        let above = |limit: i64| Dim::min(&rows.floor_div(&Dim::from(limit * matrices + 1)), &Dim::from(1));
        let mut cases = vec![];
        let mut left = Dim::from(1);
        for &limit in limits {
            let more = above(limit);
            cases.push(RowCount { rows: Some(limit), when: left - more.clone() });
            left = more;
        }
        cases.push(RowCount { rows: None, when: left });
        cases
    }

    /// What `choose` makes of each case, with when it holds; neighbours that are alike become one.
    pub fn chosen<T: PartialEq>(cases: Vec<RowCount>, choose: impl Fn(Option<i64>) -> T) -> Vec<(T, Dim)> {
        let mut chosen: Vec<(T, Dim)> = vec![];
        for RowCount { rows, when } in cases {
            let choice = choose(rows);
            match chosen.last_mut() {
                Some((last, known)) if *last == choice => *known = known.clone() + when,
                _ => chosen.push((choice, when)),
            }
        }
        chosen
    }
}

impl MainLoop {
    /// The main loop for `lanes` products of about `rows` rows by `columns` columns, where these are known.
    pub fn choose(target: Target, dtype: DType, lanes: usize, rows: Option<i64>, columns: Option<i64>) -> MainLoop {
        let few_rows = |limit: i64| rows.is_some_and(|n| n <= limit);
        let few_columns = |limit: i64| columns.is_some_and(|n| n <= limit);
        if !matches!(dtype, DType::Bf16 | DType::F16) {
            let small = ctype::accumulator(dtype).size() == 8 || lanes > 2 || few_rows(64) || few_columns(64);
            return if small {
                MainLoop::Tiled { bm: 64, bn: 64, bk: 16, tm: 4, tn: 4 }
            } else {
                MainLoop::Tiled { bm: 128, bn: 128 / lanes as u32, bk: 16, tm: 8, tn: 8 / lanes as u32 }
            };
        }
        // A warp works at 64 × 64 over all lanes, the most that its registers hold. Measured on an H200: one lane is fastest in two blocks
        // of four warps a multiprocessor, two lanes in one block of eight. Few rows or columns take narrow tiles, so that many blocks
        // stream the other operand, with more copies in flight.
        let (bm, bn, bk, warps_m, warps_n, blocks, most) = match lanes {
            _ if few_rows(16) => (16, 64, 64, 1, 4, 2, 6),
            _ if few_columns(64) => (32, 64, 64, 1, 4, 2, 6),
            1 if few_rows(64) => (64, 128, 64, 2, 4, 2, 4),
            1 => (128, 128, 32, 2, 2, 2, 5),
            2 if few_rows(64) => (64, 64, 64, 2, 4, 2, 4),
            2 => (128, 128, 64, 2, 4, 1, 4),
            _ => (64, 64, 64, 2, 4, 1, 4),
        };
        let room = target.shared_bytes();
        // Where shared memory is small, depth goes before width of a stage.
        let bk = if room < 128 << 10 { 32 } else { bk };
        let stage = (bm + lanes as u32 * bn) * bk * 2;
        // A block also takes 1 KB for itself.
        let stages = ((room / blocks - 1024) / stage).clamp(2, most);
        MainLoop::Mma { bm, bn, bk, stages, warps_m, warps_n }
    }

    /// The main loops of two products over one list of row tiles: the smaller register tile where they differ in rows.
    pub fn over_same_rows(self, other: MainLoop) -> (MainLoop, MainLoop) {
        if self.tile().0 == other.tile().0 {
            return (self, other);
        }
        let smaller = if self.tile().0 < other.tile().0 { self } else { other };
        (smaller, smaller)
    }

    /// Rows and columns of the tile.
    pub fn tile(self) -> (i64, i64) {
        match self {
            MainLoop::Mma { bm, bn, .. } | MainLoop::Tiled { bm, bn, .. } => (i64::from(bm), i64::from(bn)),
        }
    }

    /// Threads of a block.
    pub fn threads(self) -> u32 {
        match self {
            MainLoop::Mma { warps_m, warps_n, .. } => warps_m * warps_n * 32,
            MainLoop::Tiled { bm, bn, tm, tn, .. } => (bm / tm) * (bn / tn),
        }
    }

    /// Blocks that share a multiprocessor: accumulators of at most 64 a thread leave registers for two of 256 threads.
    pub fn residents(self, lanes: usize) -> u32 {
        match self {
            // With no number, ptxas spills for the sake of a third block that shared memory has no room for.
            MainLoop::Mma { .. } => 1,
            MainLoop::Tiled { tm, tn, .. } => {
                if tm * tn * lanes as u32 <= 64 {
                    2
                } else {
                    1
                }
            }
        }
    }

    /// Dynamic shared memory, bytes.
    pub fn shared_bytes(self, lanes: usize) -> u32 {
        match self {
            MainLoop::Mma { bm, bn, bk, stages, .. } => (bm + lanes as u32 * bn) * bk * 2 * stages,
            MainLoop::Tiled { .. } => 0,
        }
    }

    /// What the kernel includes.
    pub fn headers(self) -> Vec<Header> {
        match self {
            MainLoop::Mma { .. } => vec![Header::Math, Header::Rows, Header::Mma, Header::GemmMma],
            MainLoop::Tiled { .. } => vec![Header::Math, Header::Rows, Header::GemmTiled],
        }
    }

    /// For names: the tile, e.g. `bf16_128x256`.
    pub fn label(self, dtype: DType) -> String {
        let (bm, bn) = self.tile();
        format!("{dtype}_{bm}x{bn}")
    }

    /// Statements that multiply `rows_a` and `rows_b0`, … over `depth`, leaving `tile`. `k_strides` are those of a, then of each b.
    pub fn multiply(self, dtype: DType, walks: [Walk; 2], rows_a: &str, k_strides: &[String]) -> Emit<String> {
        self.multiply_along(dtype, walks, rows_a, "PlainDepth", k_strides)
    }

    /// As [`Self::multiply`]; `depths` tell for a, then for each b, how the device library's type `depth_type` finds the elements along K.
    pub fn multiply_along(
        self,
        dtype: DType,
        walks: [Walk; 2],
        rows_a: &str,
        depth_type: &str,
        depths: &[String],
    ) -> Emit<String> {
        let ty = ctype::storage(dtype)?;
        let lanes = depths.len() - 1;
        let (shape, shared) = match self {
            MainLoop::Mma { bm, bn, bk, stages, warps_m, warps_n } => (
                format!(
                    "MmaShape<{ty}, {bm}, {bn}, {bk}, {stages}, {warps_m}, {warps_n}, {lanes}, {}, {}>",
                    walks[0].name(),
                    walks[1].name()
                ),
                "extern __shared__ __align__(128) char shared[];\n",
            ),
            MainLoop::Tiled { bm, bn, bk, tm, tn } => (
                format!(
                    "TiledShape<{ty}, {}, {bm}, {bn}, {bk}, {tm}, {tn}, {lanes}, {}, {}>",
                    ctype::opmath(ctype::accumulator(dtype))?,
                    walks[0] == Walk::KMajor,
                    walks[1] == Walk::KMajor
                ),
                "__shared__ typename Tile<Shape>::Shared shared;\n",
            ),
        };
        let loads: Vec<String> =
            depths[1..].iter().enumerate().map(|(l, along)| format!("{{rows_b{l}, {along}, depth}}")).collect();
        Ok(format!(
            "using Shape = {shape};\n{shared}LoaderA<Shape, {rows_a}<{ty}>, {depth_type}> load_a(rows_a, {}, depth);\n\
             LoaderB<Shape, PlainRows<{ty}>, {depth_type}> load_b[{lanes}] = {{{}}};\nTile<Shape> tile;\n\
             tile.multiply(shared, load_a, load_b, depth);\n",
            depths[0],
            loads.join(", ")
        ))
    }

    /// For dtypes other than the 16-bit ones only the contiguous dim matters.
    pub fn walk(self, row_stride: &Dim, k_stride: &Dim, bases: &[&Dim]) -> Walk {
        match self {
            MainLoop::Mma { .. } => Walk::of(row_stride, k_stride, bases),
            MainLoop::Tiled { .. } if k_stride.is(1) => Walk::KMajor,
            MainLoop::Tiled { .. } => Walk::RowMajor,
        }
    }
}

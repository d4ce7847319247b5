//! Dense products with few rows on Hopper (`gemm_stream.cuh`): their tiles, and the kernel.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Header, Kernel},
        program::{self, Results},
    },
    bulk::{self, Box},
    instruction,
    operand::Walk,
    product::{Product, Walked},
};
use crate::Step;
use eglu_ir::{DType, Dim, types::numel};

/// Four warps multiply, one fills the ring.
const THREADS: u32 = 160;
/// Most rows of a tile: the accumulators of two parts then take 128 registers.
const MOST_ROWS: i64 = 128;
/// Most blocks of a cluster that every device takes.
const MOST_SPLITS: i64 = 8;
/// Blocks that fit on the multiprocessors at once, two on each.
const RESIDENT: i64 = 264;

/// The kernel's tile: `rows` rows by `parts` pieces of 64 columns over all lanes, and the blocks that share K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    lanes: usize,
    rows: i64,
    parts: i64,
    splits: i64,
    walk: Walk,
}

impl Stream {
    /// The kernel for up to `rows` rows, if the operands let it: a's rows have K contiguous.
    pub fn choose(walks: [Walk; 2], lanes: usize, rows: i64, columns: i64, depth: i64, batches: i64) -> Option<Stream> {
        if walks[0] != Walk::KMajor || lanes > 2 {
            return None;
        }
        let tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
        let height = (rows + tiles - 1) / tiles;
        let rows = (height + 7) / 8 * 8;
        let count = |parts: i64| {
            let width = 64 * parts / lanes as i64;
            tiles * batches * ((columns + width - 1) / width)
        };
        // Narrow tiles where wide ones, split as far as can be, would leave multiprocessors idle.
        let parts = if lanes == 1 && count(2) * MOST_SPLITS < RESIDENT / 2 { 1 } else { 2 };
        let (mut splits, steps) = (1, (depth + i64::from(bulk::DEPTH) - 1) / i64::from(bulk::DEPTH));
        while splits < MOST_SPLITS && count(parts) * splits * 2 <= RESIDENT && steps >= splits * 2 * 4 {
            splits *= 2;
        }
        Some(Stream { lanes, rows, parts, splits, walk: walks[1] })
    }

    /// Columns of a tile, of each lane.
    fn width(self) -> i64 {
        64 * self.parts / self.lanes as i64
    }

    fn stage_bytes(self) -> u32 {
        (self.parts * 8192 + self.rows * 128) as u32
    }

    /// Two blocks share a multiprocessor.
    fn stages(self) -> u32 {
        ((112 << 10) / self.stage_bytes()).clamp(3, 8)
    }

    fn label(self, dtype: DType) -> String {
        let split = if self.splits == 1 { String::new() } else { format!("_by_{}", self.splits) };
        format!("{dtype}_stream_{}x{}{split}", self.rows, self.width())
    }

    /// Emits the kernel; it runs where `when` is 1.
    pub fn emit(self, emitter: &mut Emitter, step: &Step, product: &Product<'_>, walked: &Walked, when: Dim) -> Emit<()> {
        let (dtype, Stream { rows, splits, parts, lanes, walk }) = (product.a.dtype, self);
        let mut kernel = Kernel::new(format!("{}_{}", product.name, self.label(dtype)));
        let width = self.width();
        let (a, bs) = bulk::operands(&mut kernel, product, walked, [Walk::KMajor, walk], [rows, width]);
        let (batch_a, batch_b) = bulk::batches(walked);
        let of_a = Box { call: "load_tile", to: "a", at: 0, origin: "m0", first: 0, height: rows };
        let mut load = of_a.text(Walk::KMajor, &a, batch_a);
        for (lane, map) in bs.iter().enumerate() {
            let of_b = Box { call: "load_tile", to: "b", at: lane as i64 * width, origin: "n0", first: 0, height: width };
            load += &of_b.text(walk, map, batch_b[lane]);
        }
        let [m, n, k] = [&walked.rows, &walked.columns, product.depth()].map(|dim| kernel.dim(dim));
        let (split, names) = kernel.split("batch", "i", &walked.batches.shape);
        let visit = product.epilogue(&mut kernel, step, walked, &names, 1, None)?;
        let (rank, sync, send) = match splits {
            1 => ("0", "", ""),
            _ => ("cluster_rank()", "cluster_sync();\n", "cluster_sync();\ntile.send(ring, rank);\ncluster_sync();\n"),
        };
        let body = format!(
            "using Shape = StreamShape<{}, Product, {rows}, {parts}, {lanes}, {splits}, {}, {}>;\n\
             extern __shared__ char shared[];\nStreamRing<Shape> ring(shared);\nconst u32 rank = {rank};\n\
             const u32 tiles_m = ({m} + {}) / {rows}, tiles_n = ({n} + {}) / {width}, tile_index = blockIdx.x / {splits};\n\
             const int m0 = tile_index % tiles_m * {rows}, n0 = tile_index / tiles_m % tiles_n * {width};\n\
             [[maybe_unused]] const u32 batch = tile_index / (tiles_m * tiles_n);\n[[maybe_unused]] const int rows = (int){m} - m0;\n{split}\
             const int steps = (int)(({k} + 63) / 64), first = steps * rank / {splits}, end = steps * (rank + 1) / {splits};\n\
             if (threadIdx.x >= 128) {{\nif (threadIdx.x == 128) {{\n\
             stream_produce(ring, first, end, [&](u32 a, u32 b, u32 full, int k) {{\n{load}}});\n}}\n{sync}{sync}}} else {{\n\
             StreamTile<Shape> tile;\ntile.multiply(ring, end - first);\n{send}tile.each(ring, rank, {visit});\n}}\n",
            ctype::storage(dtype)?,
            self.stages(),
            walk == Walk::KMajor,
            rows - 1,
            width - 1,
        );
        let items = instruction::product("Product", dtype, rows as usize, [walk == Walk::RowMajor, false])?
            + &program::function("epilogue", product.program, Results::Stored)?;
        let code = Code {
            headers: vec![Header::Math, Header::Mma, Header::Hopper, Header::GemmStream],
            items,
            body,
            threads: [THREADS, 1],
            shared_bytes: 1024 + self.stages() * (self.stage_bytes() + 16),
            residents: 2,
            cluster: if splits == 1 { 0 } else { splits as u32 },
            ..Code::default()
        };
        let tiles = walked.rows.ceil_div(rows) * walked.columns.ceil_div(width) * numel(&walked.batches.shape);
        emitter.launch(kernel, code, flat(tiles * Dim::from(splits) * when));
        Ok(())
    }
}

//! Dense products with few rows on Hopper (`gemm_stream.cuh`): their tiles, and the kernel.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Header, Kernel},
        program::{self, Results},
    },
    bulk::{self, Box, MULTIPROCESSORS, ceil_div},
    instruction,
    operand::Walk,
    product::{Product, Walked},
};
use crate::Step;
use eglu_ir::{DType, Dim, types::numel};

/// Elements of K in a step.
const DEPTH: i64 = bulk::DEPTH as i64;
/// Most rows of a tile: the accumulators of two parts then take 128 registers.
const MOST_ROWS: i64 = 128;
/// Most blocks of a cluster that every device takes.
const MOST_SPLITS: i64 = 8;

/// The kernel's tile: `rows` rows by `groups · parts` pieces of 64 columns over all lanes, and the blocks that share K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    lanes: usize,
    rows: i64,
    groups: i64,
    parts: i64,
    splits: i64,
    /// Blocks that share a multiprocessor.
    residents: i64,
    walk: Walk,
}

impl Stream {
    /// The fastest tile for up to `rows` rows, if the operands let there be one: a's rows have K contiguous.
    pub fn choose(walks: [Walk; 2], lanes: usize, [rows, columns, depth]: [i64; 3], batches: i64) -> Option<Stream> {
        if walks[0] != Walk::KMajor || lanes > 2 {
            return None;
        }
        let height = ceil_div(ceil_div(rows, ceil_div(rows, MOST_ROWS)), 8) * 8;
        let sizes = [rows, columns, depth];
        let all = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 2, 1)].into_iter().flat_map(|(groups, parts, residents)| {
            let splits = [1, 2, 4, MOST_SPLITS].into_iter();
            splits.map(move |splits| Stream { lanes, rows: height, groups, parts, splits, residents, walk: walks[1] })
        });
        let fits = |stream: &Stream| stream.parts % lanes as i64 == 0 && stream.steps(depth) >= 4.min(ceil_div(depth, DEPTH));
        all.filter(fits).min_by_key(|stream| stream.clocks(sizes, batches))
    }

    /// Steps of K that each block takes.
    fn steps(self, depth: i64) -> i64 {
        ceil_div(ceil_div(depth, DEPTH), self.splits)
    }

    /// About how many clocks a product takes, fitted to times on an H200: the slower of multiplying, of reading operands from the cache
    /// and of reading b from memory, and what starting and adding up take. The cache brings a multiprocessor 36 bytes a clock with enough
    /// stages under way, and memory 2,400 bytes a clock to all; sums travel through a cluster at 4 bytes a clock.
    pub fn clocks(self, [rows, columns, depth]: [i64; 3], batches: i64) -> i64 {
        // All blocks, and those on the busiest multiprocessor.
        let blocks = ceil_div(rows, self.rows) * ceil_div(columns, self.width()) * batches * self.splits;
        let most = ceil_div(blocks, MULTIPROCESSORS);
        let under_way = i64::from(self.stages() - 1) * i64::from(self.stage_bytes()) * most.min(self.residents);
        let step = (i64::from(self.stage_bytes()) / 36).max(i64::from(self.stage_bytes()) * 2000 / under_way);
        let multiply = self.groups * self.parts * 64 * self.rows * DEPTH / 2048;
        let reads = most * self.steps(depth) * step.max(multiply);
        let memory = self.lanes as i64 * columns * depth * batches * 2 / 2400;
        let sums = self.rows * self.groups * self.parts * 64 * 4 * (self.splits - 1) / self.splits;
        let adding = if self.splits > 1 { 1000 + most * (sums / 4 + 1000) } else { 0 };
        reads.max(memory) + ceil_div(most, self.residents) * 1500 + adding
    }

    /// Columns of a tile, of each lane.
    fn width(self) -> i64 {
        64 * self.groups * self.parts / self.lanes as i64
    }

    fn stage_bytes(self) -> u32 {
        (self.groups * self.parts * 8192 + self.rows * 128) as u32
    }

    /// Warps that multiply, and one that fills the ring.
    fn threads(self) -> u32 {
        self.groups as u32 * 128 + 32
    }

    /// As many stages as shared memory has room for, up to eight; each block also takes 1 KB itself, one to align and one for barriers.
    fn stages(self) -> u32 {
        (((228 << 10) / self.residents as u32 - 3072) / self.stage_bytes()).clamp(3, 8)
    }

    fn label(self, dtype: DType) -> String {
        let split = if self.splits == 1 { String::new() } else { format!("_by_{}", self.splits) };
        format!("{dtype}_stream_{}x{}{split}", self.rows, self.width())
    }

    /// Emits the kernel; it runs where `when` is 1.
    pub fn emit(self, emitter: &mut Emitter, step: &Step, product: &Product<'_>, walked: &Walked, when: Dim) -> Emit<()> {
        let (dtype, Stream { rows, splits, groups, parts, lanes, walk, .. }) = (product.a.dtype, self);
        let mut kernel = Kernel::new(format!("{}_{}", product.name, self.label(dtype)));
        let width = self.width();
        let of_group = width / groups;
        // A lane's columns lie together unless another lane's come between those of the warpgroups.
        let (boxes, height) = if lanes == 1 { (1, width) } else { (groups, of_group) };
        let (a, bs) = bulk::operands(&mut kernel, product, walked, [Walk::KMajor, walk], [rows, height]);
        let (batch_a, batch_b) = bulk::batches(walked);
        let of_a = Box { call: "load_tile", to: "a", at: 0, origin: "m0", first: 0, height: rows };
        let mut load = of_a.text(Walk::KMajor, &a, batch_a);
        for (lane, map) in bs.iter().enumerate() {
            for group in 0..boxes {
                let at = (group * lanes as i64 + lane as i64) * of_group;
                let of_b = Box { call: "load_tile", to: "b", at, origin: "n0", first: group * of_group, height };
                load += &of_b.text(walk, map, batch_b[lane]);
            }
        }
        let [m, n, k] = [&walked.rows, &walked.columns, product.depth()].map(|dim| kernel.dim(dim));
        let (split, names) = kernel.split("batch", "i", &walked.batches.shape);
        let visit = product.epilogue(&mut kernel, step, walked, &names, 1, None)?;
        let consumers = groups * 128;
        let prefetch = bulk::prefetch(consumers, [&a].into_iter().chain(&bs));
        let (rank, sync, send) = match splits {
            1 => ("0", "", ""),
            _ => ("cluster_rank()", "cluster_sync();\n", "cluster_sync();\ntile.send(ring, rank);\ncluster_sync();\n"),
        };
        let body = format!(
            "using Shape = StreamShape<{}, Product, {rows}, {groups}, {parts}, {lanes}, {splits}, {}, {}>;\n\
             extern __shared__ char shared[];\n{prefetch}StreamRing<Shape> ring(shared);\nconst u32 rank = {rank};\n\
             const u32 tiles_m = ({m} + {}) / {rows}, tiles_n = ({n} + {}) / {width}, tile_index = blockIdx.x / {splits};\n\
             const int m0 = tile_index % tiles_m * {rows}, n0 = tile_index / tiles_m % tiles_n * {width};\n\
             [[maybe_unused]] const u32 batch = tile_index / (tiles_m * tiles_n);\n[[maybe_unused]] const int rows = (int){m} - m0;\n{split}\
             const int steps = (int)(({k} + 63) / 64), first = steps * rank / {splits}, end = steps * (rank + 1) / {splits};\n\
             if (threadIdx.x >= {consumers}) {{\nif (threadIdx.x == {consumers}) {{\n\
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
            threads: [self.threads(), 1],
            shared_bytes: 1024 + self.stages() * (self.stage_bytes() + 16),
            residents: self.residents as u32,
            cluster: if splits == 1 { 0 } else { splits as u32 },
            ..Code::default()
        };
        let tiles = walked.rows.ceil_div(rows) * walked.columns.ceil_div(width) * numel(&walked.batches.shape);
        emitter.launch(kernel, code, flat(tiles * Dim::from(splits) * when));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(lanes: usize, sizes: [i64; 3]) -> Stream {
        Stream::choose([Walk::KMajor; 2], lanes, sizes, 1).expect("K is contiguous")
    }

    #[test]
    fn tiles_fit_their_rows_and_shared_memory() {
        for lanes in [1, 2] {
            for rows in [1, 8, 9, 33, 64, 100, 128, 129, 300, 1000] {
                for (columns, depth) in [(65, 8), (96, 2880), (4096, 4096), (28672, 4096), (4096, 14336)] {
                    let stream = choose(lanes, [rows, columns, depth]);
                    assert!(stream.rows % 8 == 0 && stream.rows <= MOST_ROWS, "{stream:?}");
                    assert!(rows > MOST_ROWS || (rows..rows + 8).contains(&stream.rows), "{rows}: {stream:?}");
                    // Sums of all blocks lie where the stages were.
                    let own = ceil_div(stream.rows / 8, stream.splits);
                    let sums = stream.splits * own * stream.parts * stream.groups * 2048;
                    assert!(sums <= i64::from(stream.stages() * stream.stage_bytes()), "{stream:?}");
                    let bytes = (1024 + stream.stages() * (stream.stage_bytes() + 16) + 1024) * stream.residents as u32;
                    assert!(bytes <= 228 << 10, "{stream:?} takes {bytes}");
                }
            }
        }
    }

    #[test]
    fn a_narrow_product_is_split_over_the_device() {
        let blocks = |s: Stream| ceil_div(4096, s.width()) * s.splits;
        assert!(blocks(choose(1, [1, 4096, 4096])) > 100);
        assert!(choose(1, [1, 4096, 64]).splits == 1);
    }

    #[test]
    fn rows_must_have_k_contiguous() {
        assert_eq!(Stream::choose([Walk::RowMajor, Walk::KMajor], 1, [1, 4096, 4096], 1), None);
        assert_eq!(Stream::choose([Walk::KMajor; 2], 4, [1, 4096, 4096], 1), None);
    }
}

//! Dense products in Hopper's main loop (`gemm_dense.cuh`): when it can be used, and its kernel.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Header, Kernel},
        program::{self, Results},
    },
    bulk::{self, Box, ceil_div},
    instruction,
    operand::Walk,
    product::{Product, Walked},
    wgmma::resident_grid,
};
use crate::Step;
use eglu_ir::{DType, Dim, types::numel};

/// Rows of one block; a cluster of two has twice as many.
const ROWS: i64 = 128;
/// A producer warpgroup and two consumers.
const THREADS: u32 = 384;

/// The main loop with the tile of a cluster: 256 rows by `columns` of all lanes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dense {
    lanes: usize,
    columns: i64,
    stages: u32,
    walks: [Walk; 2],
}

impl Dense {
    /// The main loop with tiles of this many columns, 256 or 128, if the lanes divide them into whole lines.
    pub fn new(walks: [Walk; 2], lanes: usize, columns: i64) -> Option<Dense> {
        let stages = if columns == 256 { 4 } else { 6 };
        (columns % (64 * lanes as i64) == 0).then_some(Dense { lanes, columns, stages, walks })
    }

    /// About how many clocks a product takes: waves of clusters of two, each as long as its steps and its epilogue. Narrow tiles are slowed
    /// by what a multiprocessor can read.
    pub fn clocks(self, [rows, columns, depth]: [i64; 3], batches: i64) -> i64 {
        let tiles = ceil_div(rows, 2 * ROWS) * ceil_div(columns, self.width()) * batches;
        let step = if self.columns == 256 { 1024 } else { 700 };
        ceil_div(tiles, bulk::MULTIPROCESSORS / 2) * (ceil_div(depth, i64::from(bulk::DEPTH)) * step + 3000)
    }

    /// Columns of a tile, of each lane.
    fn width(self) -> i64 {
        self.columns / self.lanes as i64
    }

    fn label(self, dtype: DType) -> String {
        format!("{dtype}_wgmma_{}x{}", 2 * ROWS, self.width())
    }

    fn shared_bytes(self) -> u32 {
        let stage = (ROWS + self.columns) as u32 * bulk::DEPTH * 2;
        // Stages from a multiple of 1024, two staging buffers of 2 KB for each of eight warps, then two barriers for each stage.
        1024 + self.stages * (stage + 16) + 8 * 2 * 2048
    }

    /// The lambda `load`: this block's rows of A, and the half of B's tile that it sends to both.
    fn load(self, a: &str, bs: &[String], (batch_a, batch_b): (&str, Vec<&str>)) -> String {
        let rows = Box { call: "load_tile", to: "a", at: 0, origin: "m0", first: 0, height: ROWS };
        let (half, width) = (self.columns / 2, self.width());
        let halves = [0, half].map(|from| {
            let boxes = (from..from + half).step_by(width.min(half) as usize).map(|at| {
                // `at` is where this box stands in the stack of lanes.
                let (lane, first) = ((at / width) as usize, at % width);
                let columns = Box { call: "load_tile_for_both", to: "b", at, origin: "n0", first, height: width.min(half) };
                columns.text(self.walks[1], &bs[lane], batch_b[lane])
            });
            boxes.collect::<String>()
        });
        format!(
            "const auto load = [&](u32 a, u32 b, u32 full, int k) {{\n{}if (rank == 0) {{\n{}}} else {{\n{}}}\n}};\n",
            rows.text(self.walks[0], a, batch_a),
            halves[0],
            halves[1]
        )
    }

    /// Emits the kernel; it runs where `when` is 1.
    pub fn emit(self, emitter: &mut Emitter, step: &Step, product: &Product<'_>, walked: &Walked, when: Dim) -> Emit<()> {
        let dtype = product.a.dtype;
        let mut kernel = Kernel::new(format!("{}_{}", product.name, self.label(dtype)));
        let (a, bs) = bulk::operands(&mut kernel, product, walked, self.walks, [ROWS, self.width().min(self.columns / 2)]);
        let load = self.load(&a, &bs, bulk::batches(walked));
        let [m, n, k] = [&walked.rows, &walked.columns, product.depth()].map(|dim| kernel.dim(dim));
        let batches = kernel.dim(&numel(&walked.batches.shape));
        let (split, names) = kernel.split("index.batch", "i", &walked.batches.shape);
        let locate = format!(
            "const DenseIndex index = dense_tile(t, tiles_m, tiles_n);\nconst int m0 = index.m * {} + rank * {ROWS}, n0 = index.n * {};\n\
             [[maybe_unused]] const int rows = (int){m} - m0;\n{split}",
            2 * ROWS,
            self.width()
        );
        let staged = bulk::staged(step, walked);
        let map = staged.map(|i| kernel.tensor_map(bulk::map_of_results(&step.outputs[i], walked)));
        let visit = product.epilogue(&mut kernel, step, walked, &names, 2, staged)?;
        let (open, close, finish) = match &map {
            Some(map) => {
                let close = format!("tile.close_staging({map}, n0 + pass * 64, m0, index.batch);\n");
                ("tile.open_staging();\n", close, "tile.finish_staging();\n")
            }
            None => ("", String::new(), ""),
        };
        let prefetch = bulk::prefetch(0, [&a].into_iter().chain(&bs).chain(&map));
        let every = "for (u32 t = blockIdx.x / 2; t < total; t += gridDim.x / 2)";
        let body = format!(
            "using Shape = DenseShape<{}, Product, {}, {}, {}, {}, {}>;\nextern __shared__ char shared[];\n\
             const u32 rank = cluster_rank();\n{prefetch}const DenseRing<Shape> ring(shared);\n\
             const u32 tiles_m = ({m} + {}) / {}, tiles_n = ({n} + {}) / {}, total = {batches} * tiles_m * tiles_n;\n\
             if (threadIdx.x < 128) {{\ngive_registers<40>();\nDensePlace<Shape> place;\n\
             if (threadIdx.x == 0) {every} {{\n{locate}{load}dense_produce(ring, place, {k}, load);\n}}\n}} else {{\n\
             take_registers<232>();\nDenseTile<Shape> tile(ring);\n{every} {{\n{locate}tile.multiply({k}, rows);\n\
             if (rows <= tile.first) continue;\n#pragma unroll\nfor (int pass = 0; pass < Shape::BN / 64; pass++) {{\n\
             if (n0 + pass * 64 >= {n}) break;\n{open}tile.each(pass, {visit});\n{close}}}\n}}\n\
             {finish}}}\n\
             // A block's shared memory must outlive what the other sends there.\ncluster_sync();\n",
            ctype::storage(dtype)?,
            self.columns,
            self.lanes,
            self.stages,
            bulk::major(self.walks[0]),
            bulk::major(self.walks[1]),
            2 * ROWS - 1,
            2 * ROWS,
            self.width() - 1,
            self.width(),
        );
        let transposed = self.walks.map(|walk| walk == Walk::RowMajor);
        let items = instruction::product("Product", dtype, self.columns as usize, transposed)?
            + &program::function("epilogue", product.program, Results::Stored)?;
        let code = Code {
            headers: vec![Header::Math, Header::Mma, Header::Hopper, Header::GemmDense],
            items,
            body,
            threads: [THREADS, 1],
            shared_bytes: self.shared_bytes(),
            cluster: 2,
            ..Code::default()
        };
        emitter.launch(kernel, code, flat(resident_grid(emitter.target) * when));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_loads_every_column_of_every_lane_once() {
        let names = |count: usize| (0..count).map(|lane| format!("lane{lane}")).collect::<Vec<_>>();
        for (lanes, columns, walk, boxes) in [
            (1, 256, Walk::KMajor, 2),
            (2, 256, Walk::KMajor, 2),
            (4, 256, Walk::RowMajor, 4),
            (1, 256, Walk::RowMajor, 4),
            (2, 128, Walk::RowMajor, 2),
        ] {
            let main = Dense::new([Walk::KMajor, walk], lanes, columns).expect("lanes divide the columns");
            let text = main.load("a", &names(lanes), ("0", vec!["0"; lanes]));
            let mut shared: Vec<&str> = text.lines().filter(|line| line.starts_with("load_tile_for_both(")).collect();
            assert_eq!(shared.len(), boxes, "{text}");
            shared.sort_unstable();
            shared.dedup();
            assert_eq!(shared.len(), boxes, "{text}");
            for lane in names(lanes) {
                assert!(shared.iter().any(|line| line.contains(&lane)), "{lane}: {text}");
            }
        }
        assert_eq!(Dense::new([Walk::KMajor; 2], 4, 128), None);
        assert_eq!(Dense::new([Walk::KMajor; 2], 3, 256), None);
    }
}

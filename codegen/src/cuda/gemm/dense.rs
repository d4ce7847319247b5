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

/// Rows of one block.
const ROWS: i64 = 128;
/// A producer warpgroup and two consumers.
const THREADS: u32 = 384;

/// The main loop with the tile of a block: 128 rows by `columns` of all lanes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dense {
    lanes: usize,
    columns: i64,
    stages: u32,
    walks: [Walk; 2],
    /// The cluster's two blocks have the same rows and share those of A; else they have the same columns and share those of B.
    wide: bool,
}

impl Dense {
    /// The main loop with tiles of this many columns, 256 or 128, if the lanes divide them into whole lines.
    pub fn new(walks: [Walk; 2], lanes: usize, columns: i64) -> Option<Dense> {
        let stages = if columns == 256 { 4 } else { 6 };
        (columns % (64 * lanes as i64) == 0).then_some(Dense { lanes, columns, stages, walks, wide: false })
    }

    /// The same in clusters of one block's rows, for products that have no more.
    pub fn widened(self) -> Dense {
        Dense { wide: true, ..self }
    }

    /// Rows and columns, of each lane, of a cluster.
    fn cluster(self) -> (i64, i64) {
        if self.wide { (ROWS, 2 * self.width()) } else { (2 * ROWS, self.width()) }
    }

    /// About how many clocks a product takes: waves of clusters of two, each as long as its steps and its epilogue. Narrow tiles are slowed
    /// by what a multiprocessor can read.
    pub fn clocks(self, [rows, columns, depth]: [i64; 3], batches: i64) -> i64 {
        let (height, width) = self.cluster();
        let tiles = ceil_div(rows, height) * ceil_div(columns, width) * batches;
        let step = match (self.columns, self.wide) {
            (256, false) => 1024,
            (256, true) => 1200,
            (_, false) => 700,
            (_, true) => 800,
        };
        ceil_div(tiles, bulk::MULTIPROCESSORS / 2) * (ceil_div(depth, i64::from(bulk::DEPTH)) * step + 3000)
    }

    /// Columns of a tile, of each lane.
    fn width(self) -> i64 {
        self.columns / self.lanes as i64
    }

    fn label(self, dtype: DType) -> String {
        let (rows, columns) = self.cluster();
        format!("{dtype}_wgmma_{rows}x{columns}")
    }

    fn shared_bytes(self) -> u32 {
        let stage = (ROWS + self.columns) as u32 * bulk::DEPTH * 2;
        // Stages from a multiple of 1024, two staging buffers of 2 KB for each of eight warps, then two barriers for each stage.
        1024 + self.stages * (stage + 16) + 8 * 2 * 2048
    }

    /// The lambda `load`: of the operand that the cluster's blocks share each loads half and sends it to both.
    fn load(self, a: &str, bs: &[String], (batch_a, batch_b): (&str, Vec<&str>)) -> String {
        let (shared, own) = ("load_tile_for_both", "load_tile");
        let rows = |call: &'static str, at: i64, height: i64| {
            Box { call, to: "a", at, origin: "m0", first: at, height }.text(self.walks[0], a, batch_a)
        };
        let (half, width) = (self.columns / 2, self.width());
        let height = width.min(half);
        // `at` is where a box stands in the stack of lanes.
        let columns = |call: &'static str, from: i64, to: i64| -> String {
            let boxes = (from..to).step_by(height as usize).map(|at| {
                let (lane, first) = ((at / width) as usize, at % width);
                Box { call, to: "b", at, origin: "n0", first, height }.text(self.walks[1], &bs[lane], batch_b[lane])
            });
            boxes.collect()
        };
        let halves = match self.wide {
            true => [0, ROWS / 2].map(|at| rows(shared, at, ROWS / 2)),
            false => [0, half].map(|at| columns(shared, at, at + half)),
        };
        let whole = if self.wide { columns(own, 0, self.columns) } else { rows(own, 0, ROWS) };
        format!(
            "const auto load = [&](u32 a, u32 b, u32 full, int k) {{\n{whole}if (rank == 0) {{\n{}}} else {{\n{}}}\n}};\n",
            halves[0], halves[1]
        )
    }

    /// Emits the kernel; it runs where `when` is 1.
    pub fn emit(self, emitter: &mut Emitter, step: &Step, product: &Product<'_>, walked: &Walked, when: Dim) -> Emit<()> {
        let dtype = product.a.dtype;
        let mut kernel = Kernel::new(format!("{}_{}", product.name, self.label(dtype)));
        let heights = [if self.wide { ROWS / 2 } else { ROWS }, self.width().min(self.columns / 2)];
        let (a, bs) = bulk::operands(&mut kernel, product, walked, self.walks, heights);
        let load = self.load(&a, &bs, bulk::batches(walked));
        let [m, n, k] = [&walked.rows, &walked.columns, product.depth()].map(|dim| kernel.dim(dim));
        let batches = kernel.dim(&numel(&walked.batches.shape));
        let (split, names) = kernel.split("index.batch", "i", &walked.batches.shape);
        let (height, width) = self.cluster();
        let [down, across] = if self.wide { [0, self.width()] } else { [ROWS, 0] };
        let locate = format!(
            "const DenseIndex index = dense_tile(t, tiles_m, tiles_n);\n\
             const int m0 = index.m * {height} + rank * {down}, n0 = index.n * {width} + rank * {across};\n\
             [[maybe_unused]] const int rows = (int){m} - m0;\n{split}"
        );
        let staged = bulk::staged(step, product, walked);
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
             const u32 tiles_m = ({m} + {}) / {height}, tiles_n = ({n} + {}) / {width}, total = {batches} * tiles_m * tiles_n;\n\
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
            height - 1,
            width - 1,
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
            let wide = main.widened().load("a", &names(lanes), ("0", vec!["0"; lanes]));
            assert_eq!(wide.matches("load_tile_for_both(a").count(), 2, "{wide}");
            assert_eq!(wide.matches("load_tile(b").count(), boxes, "{wide}");
            for lane in names(lanes) {
                assert!(shared.iter().any(|line| line.contains(&lane)), "{lane}: {text}");
            }
        }
        assert_eq!(Dense::new([Walk::KMajor; 2], 4, 128), None);
        assert_eq!(Dense::new([Walk::KMajor; 2], 3, 256), None);
    }
}

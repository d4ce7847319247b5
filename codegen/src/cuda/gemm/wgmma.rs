//! The main loop of Hopper: when it can be used, its tensor maps and the text of a kernel around it.

use super::super::{
    Memory, TensorMap, ctype,
    emitter::Target,
    error::Emit,
    kernel::{Code, Header, byte_offset, divisible},
};
use super::{
    instruction,
    swapped::{Features, features},
};
use crate::TensorRef;
use eglu_ir::{DType, Dim};
use std::fmt::Write;

/// Rows and columns (of all lanes together) that a cluster of two blocks computes at a time; a block has half of the rows.
const ROWS: i64 = 256;
const COLUMNS: i64 = 256;
/// Elements of K in a stage: a row of 128 bytes, the widest swizzle.
const DEPTH: u32 = 64;
const STAGES: u32 = 4;
/// A producer warpgroup and two consumers.
const THREADS: u32 = 384;

/// Strides of an operand of a product, in elements.
pub(super) struct Strides<'a> {
    pub row: &'a Dim,
    pub k: &'a Dim,
    /// Strides of outer dims, and the offset of the first element.
    pub bases: Vec<&'a Dim>,
}

impl Strides<'_> {
    /// Of rows `[S, K]`.
    pub fn of_rows(x: &TensorRef) -> Strides<'_> {
        Strides { row: &x.layout.strides[0], k: &x.layout.strides[1], bases: vec![&x.layout.offset] }
    }
}

/// The main loop for products of `lanes` matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Wgmma {
    lanes: usize,
    /// Two matrices whose rows take turns in one.
    paired: bool,
    /// The matrices' rows are contiguous, not K.
    across: bool,
    /// The warpgroups take turns, so that one stores while the other multiplies: tiles have half of the rows.
    turns: bool,
}

impl Wgmma {
    /// The main loop for products of about `rows` rows, which lie like `x`, with these matrices `[E, N, K]`, or why another one must do.
    pub fn choose(
        target: Target,
        dtype: DType,
        rows: Option<i64>,
        x: &Strides<'_>,
        weights: &[&TensorRef],
    ) -> Result<Wgmma, &'static str> {
        let few = |count: Option<i64>| count.is_some_and(|n| n <= 64);
        let aligned = |dim: &Dim| divisible(dim, 8);
        let lanes = weights.len();
        if target.arch < 90 {
            Err("the target has no warpgroup products")
        } else if !matches!(dtype, DType::Bf16 | DType::F16) {
            Err("operands are not 16 bits wide")
        } else if !matches!(lanes, 1 | 2 | 4) {
            Err("lanes do not divide a tile evenly")
        } else if few(rows) || few(weights[0].layout.shape[1].as_const()) {
            Err("few rows or columns would leave most of a tile empty")
        } else if !x.k.is(1) || !aligned(x.row) || !x.bases.iter().all(|base| aligned(base)) {
            Err("rows do not lie in multiples of 16 bytes")
        } else {
            let (lying, across) = features(&weights[..lanes.min(2)])?;
            if !weights.windows(2).skip(1).all(|pair| features(pair) == Ok((Features::Stacked, across))) {
                return Err("matrices do not lie alike");
            }
            Ok(Wgmma { lanes, paired: lying == Features::Paired, across, turns: false })
        }
    }

    /// The same for an epilogue that reads more for each result than products of few columns take.
    pub fn taking_turns(self, turns: bool) -> Wgmma {
        Wgmma { turns, ..self }
    }

    /// Rows and columns of a cluster's tile.
    pub fn tile(self) -> (i64, i64) {
        (if self.turns { ROWS / 2 } else { ROWS }, COLUMNS / self.lanes as i64)
    }

    fn stages(self) -> u32 {
        if self.turns { STAGES + 1 } else { STAGES }
    }

    /// For names: the tile, e.g. `bf16_wgmma_256x128`.
    pub fn label(self, dtype: DType) -> String {
        let (rows, columns) = self.tile();
        format!("{dtype}_wgmma_{rows}x{columns}")
    }

    /// Rows of a matrix in one box of the copy engine.
    fn box_rows(self) -> i64 {
        if self.across { i64::from(DEPTH) } else { self.tile().1.min(COLUMNS / 2) }
    }

    /// Maps of the matrices `[E, N, K]`, for boxes that a block loads.
    pub fn maps_of_lanes(self, weights: &[TensorRef]) -> Vec<TensorMap> {
        let one = |weight: &TensorRef| {
            let [experts, rows, depth] = [0, 1, 2].map(|i| weight.layout.shape[i].clone());
            let [expert, row, k] = [0, 1, 2].map(|i| &weight.layout.strides[i]);
            let from = (Memory::Buffer(weight.buffer), byte_offset(weight));
            match (self.paired, self.across) {
                (true, _) => map(from, weight.dtype, [rows * Dim::from(2), depth, experts], [k, expert], DEPTH),
                (false, true) => map(from, weight.dtype, [rows, depth, experts], [k, expert], DEPTH),
                (false, false) => map(from, weight.dtype, [depth, rows, experts], [row, expert], self.box_rows() as u32),
            }
        };
        weights.iter().take(if self.paired { 1 } else { self.lanes }).map(one).collect()
    }

    /// A map of rows `[outer, M, K]`, for the tiles that a block loads.
    pub fn map_of_rows(
        self,
        (memory, offset): (Memory, Dim),
        dtype: DType,
        [outer, row]: [&Dim; 2],
        shape: [Dim; 3],
    ) -> TensorMap {
        let [batches, rows, depth] = shape;
        map((memory, offset), dtype, [depth, rows, batches], [row, outer], self.tile().0 as u32 / 2)
    }

    /// The lambda `load_b`: the lanes' tiles at column `n0` of matrix `outer`. A cluster that is not `narrow` shares them: each block loads
    /// half and sends it to both.
    pub fn load_b(self, maps: &[String], outer: &str) -> String {
        let columns = self.tile().1;
        let boxes = |from: i64, to: i64, load: &str| {
            let mut text = String::new();
            for at in (from..to).step_by(self.box_rows() as usize) {
                // `at` is where this box stands in the stack of lanes.
                let (map, row) = match self.paired {
                    true => (&maps[0], format!("(int)n0 * 2 + {at}")),
                    false => (&maps[(at / columns) as usize], format!("(int)n0 + {}", at % columns)),
                };
                let place = if self.across { format!("{row}, k") } else { format!("k, {row}") };
                let _ = writeln!(text, "{load}(to + {}, {map}, full, {place}, (int){outer});", at * 128);
            }
            text
        };
        format!(
            "const auto load_b = [&](u32 to, u32 full, int k) {{\nif (narrow) {{\n{}}} else if (rank == 0) {{\n{}}} else {{\n{}}}\n}};\n",
            boxes(0, COLUMNS, "load_tile"),
            boxes(0, COLUMNS / 2, "load_tile_for_both"),
            boxes(COLUMNS / 2, COLUMNS, "load_tile_for_both")
        )
    }
}

fn map((memory, offset): (Memory, Dim), dtype: DType, dims: [Dim; 3], strides: [&Dim; 2], rows: u32) -> TensorMap {
    let bytes = Dim::from(dtype.size() as i64);
    TensorMap {
        memory,
        offset,
        dtype,
        dims: dims.to_vec(),
        strides: strides.iter().map(|&stride| stride.clone() * bytes.clone()).collect(),
        tile: vec![DEPTH, rows, 1],
        follows: true,
    }
}

/// What a kernel does with its tiles. Texts see `rank` (which of the cluster's blocks this is) and what earlier ones declare.
pub(super) struct Persistent {
    /// Statements that declare `total`, the number of tiles.
    pub setup: String,
    /// Statements that find tile `t`: they declare `rows`, `n0`, `depth`, and `narrow`: blocks have columns of their own.
    pub locate: String,
    /// A statement that fills the ring for the tile, given `load_b`; every thread of the producers runs it if `gathered`, else one.
    pub produce: String,
    /// The lambda `load_b`.
    pub load_b: String,
    pub gathered: bool,
    /// Statements that store `tile`.
    pub store: String,
    /// All results have 16 bits.
    pub short: bool,
}

impl Persistent {
    /// The kernel's code; `items` are functions that the texts call.
    pub fn code(self, main: Wgmma, dtype: DType, items: &str) -> Emit<Code> {
        let ty = ctype::storage(dtype)?;
        let Persistent { setup, locate, produce, load_b, gathered, store, short } = self;
        let mut headers = vec![Header::Math, Header::Rows, Header::Mma, Header::Hopper, Header::GemmWgmma];
        headers.extend(short.then_some(Header::ShortResults));
        let every = "for (u32 t = blockIdx.x / 2; t < total; t += gridDim.x / 2)";
        // Registers move from the producers to the consumers; copying rows takes some more than asking the copy engine for them.
        let (given, taken, arrivals) = if gathered { (56, 224, 128) } else { (40, 232, 0) };
        let (guard, drain) = if gathered { ("", "cp_async_wait<0>();\n") } else { ("if (threadIdx.x == 0) ", "") };
        let body = format!(
            "using Shape = WgmmaShape<{ty}, Product, {}, {}, {}, {}, {}>;\nextern __shared__ char shared[];\nconst u32 rank = cluster_rank();\n\
             const WgmmaRing<Shape> ring(shared, {arrivals});\n{setup}\
             if (threadIdx.x < Shape::producers) {{\ngive_registers<{given}>();\nRingPosition<Shape> place;\n\
             {guard}{every} {{\n{locate}{load_b}{produce}}}\n{drain}}} else {{\ntake_registers<{taken}>();\n\
             WgmmaTile<Shape, {gathered}> tile(ring);\n{every} {{\n{locate}if (tile.is_others(depth)) continue;\ntile.multiply(depth, rows);\n{store}}}\n}}\n\
             // A block's shared memory must outlive what the other sends there.\ncluster_sync();\n",
            main.lanes,
            main.stages(),
            main.paired,
            main.across,
            main.turns
        );
        let stage = (main.tile().0 as u32 / 2 + COLUMNS as u32) * DEPTH * 2;
        Ok(Code {
            headers,
            items: instruction::product("Product", dtype, COLUMNS as usize, [false, main.across])? + items,
            body,
            threads: [THREADS, 1],
            // Stages from a multiple of 1024, then two barriers for each.
            shared_bytes: 1024 + main.stages() * (stage + 16),
            cluster: 2,
            overlaps: true,
            ..Code::default()
        })
    }
}

/// The grid of a kernel that stays for all tiles: every multiprocessor has a block.
pub(super) fn resident_grid(target: Target) -> Dim {
    Dim::from(i64::from(target.multiprocessors()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    /// A matrix `[8, 4096, 96]` with these strides.
    fn matrix(strides: [i64; 3], offset: i64) -> TensorRef {
        let dims = |values: [i64; 3]| values.into_iter().map(Dim::from).collect();
        let layout = Layout { shape: dims([8, 4096, 96]), strides: dims(strides), offset: Dim::from(offset) };
        TensorRef { buffer: 0, dtype: DType::Bf16, layout }
    }

    fn choose(arch: u32, dtype: DType, rows: Option<i64>, row: i64, weights: &[&TensorRef]) -> Result<Wgmma, &'static str> {
        let (row, k, offset) = (Dim::from(row), Dim::from(1), Dim::from(0));
        Wgmma::choose(Target { arch }, dtype, rows, &Strides { row: &row, k: &k, bases: vec![&offset] }, weights)
    }

    #[test]
    fn the_choice_names_its_reason() {
        let (by_k, across) = (matrix([393216, 96, 1], 0), matrix([393216, 1, 4096], 0));
        let (even, odd) = (matrix([786432, 2, 8192], 0), matrix([786432, 2, 8192], 1));
        let found = |weights: &[&TensorRef]| choose(90, DType::Bf16, None, 96, weights);
        assert_eq!(found(&[&by_k, &by_k]).map(Wgmma::tile), Ok((256, 128)));
        assert_eq!(choose(90, DType::F16, Some(65), 96, &[&by_k]).map(Wgmma::tile), Ok((256, 256)));
        assert_eq!(found(&[&across]), Ok(Wgmma { lanes: 1, paired: false, across: true, turns: false }));
        assert_eq!(found(&[&even, &odd]), Ok(Wgmma { lanes: 2, paired: true, across: true, turns: false }));
        let refused =
            |found: Result<Wgmma, &'static str>, word: &str| assert!(found.is_err_and(|why| why.contains(word)), "{word}");
        refused(choose(80, DType::Bf16, None, 96, &[&by_k]), "target");
        refused(choose(90, DType::F32, None, 96, &[&by_k]), "16 bits");
        refused(found(&[&by_k; 3]), "lanes");
        refused(choose(90, DType::Bf16, Some(64), 96, &[&by_k]), "few rows");
        refused(found(&[&by_k, &across]), "16 bytes");
        refused(found(&[&by_k, &by_k, &across, &across]), "alike");
        refused(choose(90, DType::Bf16, None, 33, &[&by_k]), "16 bytes");
    }

    #[test]
    fn a_cluster_loads_every_column_of_every_lane_once() {
        for (lanes, paired, across, boxes) in
            [(1, false, false, 2), (2, false, false, 2), (4, false, false, 4), (1, false, true, 4), (2, true, true, 4)]
        {
            let maps: Vec<String> = (0..lanes).map(|lane| format!("lane{lane}")).collect();
            let text = Wgmma { lanes, paired, across, turns: false }.load_b(&maps, "expert");
            let shared: Vec<&str> = text.lines().filter(|line| line.starts_with("load_tile_for_both(")).collect();
            let own: Vec<&str> = text.lines().filter(|line| line.starts_with("load_tile(")).collect();
            assert_eq!((shared.len(), own.len()), (boxes, boxes), "{text}");
            let places =
                |lines: &[&str]| lines.iter().map(|line| line[line.find('(').unwrap()..].to_string()).collect::<Vec<_>>();
            assert_eq!(places(&shared), places(&own), "{text}");
        }
    }
}

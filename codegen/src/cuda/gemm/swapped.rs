//! Hopper's main loop with its operands swapped: when it can be used, its tensor maps and the text of a kernel around it.

use super::{
    super::{
        Memory, TensorMap, ctype,
        emitter::Target,
        error::Emit,
        kernel::{Code, Header, byte_offset, divisible},
    },
    wgmma::Strides,
};
use crate::TensorRef;
use eglu_ir::{DType, Dim};
use std::fmt::Write;

/// Rows of weights that a block multiplies.
const WEIGHT_ROWS: u32 = 256;
/// Elements of K in a stage: a row of 128 bytes, the widest swizzle.
const DEPTH: u32 = 64;
/// Rows of weights in one box of the copy engine: what one warpgroup product takes.
const BOX: u32 = 64;
/// Most bytes of what an epilogue with captures needs of each row by itself: which it is, and scores.
pub(super) const HELD: u32 = 8;
/// A producer warpgroup and two consumers.
const THREADS: u32 = 384;
/// Up to so many rows, the 168 registers that each of the threads has are enough: without captures, and with them.
const MOVELESS: u32 = 96;
const CAPTURED_MOVELESS: u32 = 64;

/// How the columns of the products lie in a block's rows of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Features {
    /// One product.
    Plain,
    /// Two, each with a matrix of its own.
    Stacked,
    /// Two, whose matrices take turns row by row in one.
    Paired,
}

/// A variant: how many rows a block takes, and whether two blocks share the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Most rows of a block.
    pub rows: u32,
    pub stages: u32,
    /// Blocks of a cluster.
    pub blocks: u32,
    /// Rows that are put together for storing at a time.
    pub pass: u32,
}

/// Few rows an expert, so that one block takes them all; more, for two blocks that share the weights; and many, in tiles as high as shared
/// memory holds beside four stages: with three, products are a fifth slower. Measured on an H200.
const ALONE: Variant = Variant { rows: 160, stages: 4, blocks: 1, pass: 64 };
const SHARING: Variant = Variant { rows: 144, stages: 4, blocks: 2, pass: 80 };
const HIGH: Variant = Variant { rows: 176, stages: 4, blocks: 2, pass: 32 };
/// For epilogues that read what is beside the products: registers are left for that.
const CAPTURED_ALONE: Variant = Variant { blocks: 1, ..CAPTURED };
const CAPTURED: Variant = Variant { rows: 144, stages: 4, blocks: 2, pass: 48 };

/// The main loop for products of rows with one or two matrices for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swapped {
    features: Features,
    /// The matrices' rows are contiguous, not K.
    across: bool,
    pub variant: Variant,
}

impl Variant {
    /// For about `rows` rows an expert (`None` stands for many), of `all` there are.
    pub fn of(rows: Option<i64>, all: &Dim) -> Variant {
        let alone = rows.is_some_and(|rows| rows <= i64::from(ALONE.rows));
        ALONE.no_higher_than(all).unwrap_or(if alone {
            ALONE
        } else if rows.is_some() {
            SHARING
        } else {
            HIGH
        })
    }

    /// The same where the epilogue has captures.
    pub fn captured(rows: Option<i64>, all: &Dim) -> Variant {
        let alone = rows.is_some_and(|rows| rows <= i64::from(ALONE.rows));
        // Their passes are whole ones.
        let whole = |low: Variant| {
            let pass = (16..=low.pass).step_by(16).filter(|&pass| low.rows.is_multiple_of(pass)).last().unwrap_or(16);
            Variant { pass, ..low }
        };
        CAPTURED_ALONE.no_higher_than(all).map(whole).unwrap_or(if alone { CAPTURED_ALONE } else { CAPTURED })
    }

    /// With the height of all rows there are, where it takes them at once: no expert has more, and each height that a block may have is a
    /// loop of its own to compile.
    fn no_higher_than(self, all: &Dim) -> Option<Variant> {
        let all = all.as_const().filter(|&all| all <= i64::from(self.rows))?;
        let rows = (all.max(1) as u32).next_multiple_of(16);
        Some(Variant { rows, pass: self.pass.min(rows), ..self })
    }
}

impl Swapped {
    /// The main loop for products of `rows` with these matrices `[E, N, K]`, or why another one must do.
    pub fn choose(
        target: Target,
        [dtype, stored]: [DType; 2],
        variant: Variant,
        rows: &Strides<'_>,
        depth: &Dim,
        weights: &[&TensorRef],
    ) -> Result<Swapped, &'static str> {
        let aligned = |dim: &Dim| divisible(dim, 8);
        if target.arch < 90 {
            return Err("the target has no warpgroup products");
        } else if !matches!(dtype, DType::Bf16 | DType::F16) || stored.size() != 2 || !stored.is_float() {
            return Err("operands or results are not 16 bits wide");
        } else if !rows.k.is(1) || !aligned(rows.row) || !rows.bases.iter().all(|base| aligned(base)) || !aligned(depth) {
            return Err("rows do not lie in multiples of 16 bytes");
        }
        let (features, across) = features(weights)?;
        Ok(Swapped { features, across, variant })
    }

    /// Most rows of a tile of the dispatch, and the step in which tiles are made equal.
    pub fn tile(self) -> (i64, i64) {
        let Variant { rows, blocks, .. } = self.variant;
        (i64::from(rows * blocks), i64::from(16 * blocks))
    }

    /// Columns of each product that a block computes.
    pub fn columns(self) -> i64 {
        i64::from(if self.features == Features::Plain { WEIGHT_ROWS } else { WEIGHT_ROWS / 2 })
    }

    /// For names, e.g. `bf16_swapped_128x160`.
    pub fn label(self, dtype: DType) -> String {
        let Variant { rows, blocks, .. } = self.variant;
        format!("{dtype}_swapped_{}x{}", self.columns(), rows * blocks)
    }

    /// Maps of the matrices, for boxes of 64 rows by 64 columns of K.
    pub fn maps(self, weights: &[&TensorRef], depth: &Dim) -> Vec<TensorMap> {
        let maps = maps((self.features, self.across), weights, depth, BOX);
        // Across K, the neighbours along a row are boxes of the same stage, which are asked for anyway.
        maps.into_iter().map(|map| TensorMap { follows: !self.across, ..map }).collect()
    }

    /// A map of rows `[M, K]`, for tiles of 16.
    pub fn map_of_rows(self, (memory, offset): (Memory, Dim), dtype: DType, row: &Dim, [rows, depth]: [Dim; 2]) -> TensorMap {
        map(memory, offset, dtype, [depth, rows, Dim::from(1)], [row.clone(), row.clone()], 16)
    }

    /// The lambda `load_weights`. Blocks of a cluster take turns and send to both.
    pub fn load_weights(self, maps: &[String]) -> String {
        let mut text = String::from("const auto load_weights = [&](u32 to, u32 full, int k, const SwappedWork& work) {\n");
        for i in 0..WEIGHT_ROWS / BOX {
            let (map, row) = match self.features {
                Features::Plain => (&maps[0], format!("work.n0 + {}", i * BOX)),
                Features::Stacked => (&maps[(i % 2) as usize], format!("work.n0 + {}", i / 2 * BOX)),
                Features::Paired => (&maps[0], format!("work.n0 * 2 + {}", i * BOX)),
            };
            let at = if self.across { format!("{row}, k") } else { format!("k, {row}") };
            let call = |load: &str| format!("{load}(to + {}, {map}, full, {at}, work.expert);\n", i * BOX * DEPTH * 2);
            let _ = match self.variant.blocks {
                1 => write!(text, "{}", call("load_tile")),
                blocks => write!(text, "if (rank == {}) {}", i % blocks, call("load_tile_for_both")),
            };
        }
        text + "};\n"
    }
}

/// Maps of matrices whose columns lie like this, for boxes of so many rows by 64 columns of K.
pub(super) fn maps((features, across): (Features, bool), weights: &[&TensorRef], depth: &Dim, height: u32) -> Vec<TensorMap> {
    let of = |weight: &&TensorRef| {
        let [experts, rows, _] = [0, 1, 2].map(|i| weight.layout.shape[i].clone());
        let [expert, row, k] = [0, 1, 2].map(|i| weight.layout.strides[i].clone());
        let (dims, strides) = match (features, across) {
            (Features::Paired, _) => ([rows * Dim::from(2), depth.clone(), experts], [k, expert]),
            (_, true) => ([rows, depth.clone(), experts], [k, expert]),
            (_, false) => ([depth.clone(), rows, experts], [row, expert]),
        };
        let map = map(Memory::Buffer(weight.buffer), byte_offset(weight), weight.dtype, dims, strides, height);
        TensorMap { follows: false, ..map }
    };
    weights.iter().take(if features == Features::Paired { 1 } else { 2 }).map(of).collect()
}

/// How the products' columns lie in the matrices, and whether rows are contiguous there.
pub(super) fn features(weights: &[&TensorRef]) -> Result<(Features, bool), &'static str> {
    let aligned = |dim: &Dim| divisible(dim, 8);
    // Whether rows are contiguous, if the copy engine can take boxes of the matrix.
    let across = |weight: &TensorRef| {
        let [expert, row, k] = [0, 1, 2].map(|i| &weight.layout.strides[i]);
        let bases = aligned(expert) && aligned(&weight.layout.offset);
        match (bases && k.is(1) && aligned(row), bases && row.is(1) && aligned(k)) {
            (true, _) => Some(false),
            (_, true) => Some(true),
            _ => None,
        }
    };
    match *weights {
        [weight] => across(weight).map(|across| (Features::Plain, across)),
        [gate, up] if take_turns(gate, up) => Some((Features::Paired, true)),
        [gate, up] => across(gate).filter(|_| across(gate) == across(up)).map(|across| (Features::Stacked, across)),
        _ => return Err("more than two products share their rows"),
    }
    .ok_or("matrices do not lie in multiples of 16 bytes")
}

/// True if the rows of two matrices are neighbours, and those pairs contiguous.
fn take_turns(even: &TensorRef, odd: &TensorRef) -> bool {
    let (a, b) = (&even.layout, &odd.layout);
    let aligned = [&a.strides[0], &a.strides[2], &a.offset].into_iter().all(|dim| divisible(dim, 8));
    even.buffer == odd.buffer
        && a.shape == b.shape
        && a.strides == b.strides
        && a.strides[1].is(2)
        && b.offset == a.offset.clone() + Dim::from(1)
        && aligned
}

fn map(memory: Memory, offset: Dim, dtype: DType, dims: [Dim; 3], strides: [Dim; 2], rows: u32) -> TensorMap {
    let bytes = Dim::from(dtype.size() as i64);
    let strides = strides.into_iter().map(|stride| stride * bytes.clone()).collect();
    TensorMap { memory, offset, dtype, dims: dims.to_vec(), strides, tile: vec![DEPTH, rows, 1], follows: true }
}

/// What a kernel does with its tiles. Texts see `rank` (which of the cluster's blocks this is) and what earlier ones declare.
pub(super) struct Persistent {
    /// Statements that declare `list`, where work comes from.
    pub setup: String,
    /// Statements that fill the ring; every thread of the producers runs them if `gathered`, else one.
    pub feed: String,
    pub gathered: bool,
    /// Statements of consumers before they begin.
    pub prepare: String,
    /// Statements that multiply and store some `work` with `tile`.
    pub consume: String,
    /// The epilogue has captures.
    pub captured: bool,
}

impl Persistent {
    /// The kernel's code; `items` are functions that the texts call.
    pub fn code(self, main: Swapped, dtype: DType, items: &str) -> Emit<Code> {
        let ty = ctype::storage(dtype)?;
        let Variant { rows, stages, blocks, pass } = main.variant;
        let Persistent { setup, feed, gathered, prepare, consume, captured } = self;
        // Registers move from the producers to the consumers; copying rows takes some more than asking the copy engine for them.
        let (given, taken, arrivals, guard) = match (gathered, captured) {
            (true, true) => (56, 224, 128, ""),
            (true, false) => (72, 208, 128, ""),
            (false, _) => (40, 232, 0, "if (threadIdx.x == 0) "),
        };
        // Where there are enough for all, as for accumulators of so few rows, nothing may move: the compiler notes that it ignores it.
        let (give, take) = match rows > if captured { CAPTURED_MOVELESS } else { MOVELESS } {
            true => (format!("give_registers<{given}>();\n"), format!("take_registers<{taken}>();\n")),
            false => Default::default(),
        };
        let features = match main.features {
            Features::Plain => "plain",
            Features::Stacked => "stacked",
            Features::Paired => "paired",
        };
        let rank = if blocks == 1 { "0" } else { "(int)cluster_rank()" };
        let body = format!(
            "using Shape = SwappedShape<{ty}, Features::{features}, {}, {rows}, {stages}, {blocks}, {pass}>;\n\
             extern __shared__ char shared[];\n[[maybe_unused]] const int rank = {rank};\n\
             const WgmmaRing<Shape> ring(shared, {arrivals});\nwait_for_kernel_before();\n{setup}\
             if (threadIdx.x < Shape::producers) {{\n{give}{guard}{{\n{feed}}}\n}} else {{\n\
             {take}SwappedTile<Shape, {gathered}> tile(ring);\n{prepare}\
             for_each_work(list, [&](const SwappedWork& work) {{\n{consume}}});\n}}\n\
             // A block's shared memory must outlive what another sends there.\ncluster_sync();\n",
            main.across,
        );
        let stage = (rows + WEIGHT_ROWS) * DEPTH * 2;
        let mut headers = vec![
            Header::ShortResults,
            Header::Math,
            Header::Rows,
            Header::Mma,
            Header::Hopper,
            Header::GemmWgmma,
            Header::GemmSwapped,
        ];
        headers.extend(captured.then_some(Header::GemmCaptured));
        Ok(Code {
            headers,
            items: format!("{}{items}", instructions(dtype, rows, main.across)?),
            body,
            threads: [THREADS, 1],
            // Stages from a multiple of 1024, two barriers for each; then, from a multiple of 128, what is put together and where rows go, or
            // what they need by themselves.
            shared_bytes: 1024 + stages * (stage + 16) + 128 + 2 * (pass * 128 + rows * if captured { HELD } else { 4 }),
            cluster: if blocks == 1 { 0 } else { blocks },
            overlaps: true,
            ..Code::default()
        })
    }
}

/// The specialisations of `SwappedProduct` for 16, 32, … up to `rows` rows: accumulators are operands of one instruction, and so are
/// spelled out.
fn instructions(dtype: DType, rows: u32, across: bool) -> Emit<String> {
    let kind = if dtype == DType::F16 { "f16" } else { "bf16" };
    let mut text = String::new();
    for n in (16..=rows).step_by(16) {
        let list = |item: &dyn Fn(u32) -> String| (0..n / 2).map(item).collect::<Vec<_>>().join(", ");
        let (registers, operands) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+f\"(d[{i}])")));
        let [a, b, more] = [0, 1, 2].map(|i| n / 2 + i);
        let _ = write!(
            text,
            "template <>\nstruct SwappedProduct<{n}> {{\nstatic DEVICE void add(float (&d)[{}], u64 w, u64 x, int more) {{\n\
             asm volatile(\"{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{more}, 0;\\n\"\n\
             \"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, %{a}, %{b}, more, 1, 1, {}, 0;\\n}}\"\n\
             : {operands} : \"l\"(w), \"l\"(x), \"r\"(more));\n}}\n}};\n",
            rows / 2,
            u32::from(across),
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    const HOPPER: Target = Target { arch: 90 };

    /// A matrix `[8, n, k]` with these strides and offset.
    fn matrix([n, k]: [i64; 2], strides: [i64; 3], offset: i64) -> TensorRef {
        let dims = |values: [i64; 3]| values.into_iter().map(Dim::from).collect();
        let layout = Layout { shape: dims([8, n, k]), strides: dims(strides), offset: Dim::from(offset) };
        TensorRef { buffer: 0, dtype: DType::Bf16, layout }
    }

    fn choose(target: Target, dtype: DType, row: i64, weights: &[&TensorRef]) -> Result<Swapped, &'static str> {
        let (row, one, zero) = (Dim::from(row), Dim::from(1), Dim::from(0));
        let rows = Strides { row: &row, k: &one, bases: vec![&zero] };
        Swapped::choose(target, [dtype; 2], HIGH, &rows, &Dim::from(96), weights)
    }

    #[test]
    fn matrices_are_taken_as_they_lie() {
        let by_k = matrix([64, 96], [6144, 96, 1], 0);
        let across = matrix([64, 96], [6144, 1, 64], 0);
        let (even, odd) = (matrix([64, 96], [12288, 2, 128], 0), matrix([64, 96], [12288, 2, 128], 1));
        let halves = [matrix([64, 96], [12288, 96, 1], 0), matrix([64, 96], [12288, 96, 1], 6144)];
        // Rows that take turns with K contiguous are two matrices with rows far apart.
        let turns = [matrix([64, 96], [12288, 192, 1], 0), matrix([64, 96], [12288, 192, 1], 96)];
        let found = |weights: &[&TensorRef]| features(weights);
        assert_eq!(found(&[&by_k]), Ok((Features::Plain, false)));
        assert_eq!(found(&[&across]), Ok((Features::Plain, true)));
        assert_eq!(found(&[&halves[0], &halves[1]]), Ok((Features::Stacked, false)));
        assert_eq!(found(&[&turns[0], &turns[1]]), Ok((Features::Stacked, false)));
        assert_eq!(found(&[&even, &odd]), Ok((Features::Paired, true)));
        assert!(found(&[&odd, &even]).is_err(), "the odd rows come first");
        assert!(found(&[&by_k, &across]).is_err());
        assert!(found(&[&by_k, &by_k, &by_k]).is_err());
    }

    #[test]
    fn the_choice_names_its_reason() {
        let weight = matrix([64, 96], [6144, 96, 1], 0);
        let refused =
            |found: Result<Swapped, &'static str>, word: &str| assert!(found.is_err_and(|why| why.contains(word)), "{word}");
        assert_eq!(choose(HOPPER, DType::F16, 96, &[&weight]).map(|main| (main.tile(), main.columns())), Ok(((352, 32), 256)));
        refused(choose(Target { arch: 80 }, DType::Bf16, 96, &[&weight]), "target");
        refused(choose(HOPPER, DType::F32, 96, &[&weight]), "16 bits");
        refused(choose(HOPPER, DType::Bf16, 99, &[&weight]), "rows");
        refused(choose(HOPPER, DType::Bf16, 96, &[&matrix([64, 33], [2112, 33, 1], 0)]), "matrices");
    }

    #[test]
    fn every_variant_fits_a_block_and_its_registers() {
        let few = |rows: i64| Variant::of(Some(1), &Dim::from(rows));
        assert_eq!(
            [few(0), few(16), few(33), few(160)].map(|variant| (variant.rows, variant.pass)),
            [(16, 16), (16, 16), (48, 48), (160, 64)]
        );
        for Variant { rows, stages, blocks, pass } in [few(1), few(40), ALONE, SHARING, CAPTURED_ALONE, CAPTURED] {
            assert!(rows % 16 == 0 && pass % 16 == 0 && pass <= rows && blocks <= 2);
            let bytes = 1024 + stages * ((rows + WEIGHT_ROWS) * DEPTH * 2 + 16) + 128 + 2 * (pass * 128 + rows * 4);
            assert!(bytes <= HOPPER.shared_bytes(), "{bytes}");
            // A consumer has 208 registers beside a producer that gathers; what is no accumulator takes some forty.
            assert!(rows + 40 <= if rows > MOVELESS { 208 } else { 168 }, "{rows}");
        }
    }
}

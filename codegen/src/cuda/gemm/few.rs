//! A whole mixture-of-experts block in one launch where experts have few rows (`few_rows.cuh`): when it can be, and its kernel.

use super::{
    super::{
        ctype,
        emitter::{Emitter, Target, elements, flat},
        error::Emit,
        kernel::{Code, Header, Kernel, divisible},
        launch::COUNTERS,
        program::{self, Results},
    },
    dispatch::Dispatched,
    instruction,
    swapped::{Features, features, maps},
    weighted_sum::WeightedSum,
    wgmma::{Strides, resident_grid},
};
use crate::TensorRef;
use eglu_ir::{DType, Dim, Program};

/// Most tokens whose rows each thread block orders by itself, and most ids (`few_ids` in the device library).
const TOKENS: i64 = 16;
const FEWEST_TOKENS: i64 = 8;
const IDS: i64 = 256;
/// Rows of weights in a stage, and K.
const WEIGHT_ROWS: i64 = 64;
const DEPTH: i64 = 256;
const BOXES: u32 = 4;
/// Where few tokens leave few units of work, K of the second projection is split into runs of about this length.
const SPLIT_DEPTH: i64 = 2048;
/// Up to so many rows an expert a block is a race for memory.
const MOST_ROWS: i64 = 16;

/// The block's operands and what it makes of them.
pub(super) struct Block<'a> {
    /// `[T, H]`.
    pub x: &'a TensorRef,
    /// `[T, k]`.
    pub ids: &'a TensorRef,
    pub choices: i64,
    /// Matrices `[E, I, H]` of the first projection and their biases.
    pub lanes: &'a [&'a TensorRef],
    pub lane_biases: &'a [&'a TensorRef],
    pub gating: &'a Program,
    /// `[E, H, I]`.
    pub down: &'a TensorRef,
    pub down_bias: Option<&'a TensorRef>,
    pub project: &'a Program,
    pub experts: i64,
    /// Scratch for `[T · k, I]`.
    pub activations: usize,
}

/// What becomes of the rows of the second projection.
pub(super) enum Finish<'a> {
    /// They go to scratch `[T · k, H]`, each where its id stands; the dispatch has listed the tiles.
    Rows(&'a Dispatched, usize),
    /// The same, and when all are there their weighted sums are made.
    Combined(&'a Dispatched, usize, &'a WeightedSum<'a>),
    /// Their sums by these weights `[T, k]` go to `[T, H]`, of this type; there are few tokens.
    Sums(&'a TensorRef, &'a TensorRef, DType),
}

/// The kernel for slots of up to so many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Few {
    up: (Features, bool),
    down: bool,
    rows: u32,
}

impl Few {
    /// The kernel for blocks whose experts have few rows, or why others must do.
    pub fn choose(target: Target, x: &TensorRef, lanes: &[&TensorRef], down: &TensorRef) -> Result<Few, &'static str> {
        let aligned = |dim: &Dim| divisible(dim, 8);
        let rows_of_x = Strides::of_rows(x);
        let (inner, outer, depth) = (&lanes[0].layout.shape[1], &down.layout.shape[1], &x.layout.shape[1]);
        if target.arch < 90 {
            return Err("the target has no warpgroup products");
        } else if !matches!(x.dtype, DType::Bf16 | DType::F16) {
            return Err("operands are not 16 bits wide");
        } else if !rows_of_x.k.is(1) || ![rows_of_x.row, &x.layout.offset, depth, inner].into_iter().all(aligned) {
            return Err("rows do not lie in multiples of 16 bytes");
        }
        let (Some(_), Some(outer), Some(_)) = (inner.as_const(), outer.as_const(), depth.as_const()) else {
            return Err("sizes are not known");
        };
        if outer / WEIGHT_ROWS > COUNTERS as i64 / 2 {
            return Err("the result has more columns than there are counters");
        }
        let (up, (_, down_across)) = (features(lanes)?, features(&[down])?);
        if up == (Features::Stacked, true) {
            return Err("two matrices with contiguous rows");
        }
        // Twice the average holds all rows of nearly every expert, if routing is even.
        Ok(Few { up, down: down_across, rows: 2 * MOST_ROWS as u32 })
    }

    /// Whether it is the fastest, too, for about so many rows an expert and more tokens than it orders by itself.
    pub fn is_best_for(rows: Option<i64>) -> bool {
        rows.is_some_and(|rows| rows <= MOST_ROWS)
    }

    /// The same for a few tokens.
    fn of_tokens(self, tokens: u32) -> Few {
        Few { rows: tokens, ..self }
    }

    /// Most rows of a tile of the dispatch, and the step in which tiles are made equal.
    pub fn tile(self) -> (i64, i64) {
        (i64::from(self.rows), 8)
    }

    fn stages(self) -> u32 {
        match self.rows {
            8 | 16 => 5,
            _ => 4,
        }
    }

    /// Groups of consumers: while one multiplies the others finish their units, which takes a few round trips to L2.
    fn groups(self) -> u32 {
        // With four, sums of sixteen rows go to local memory.
        if self.rows <= 8 { 4 } else { 3 }
    }

    /// With a warp that loads weights and one that copies rows.
    fn threads(self) -> u32 {
        self.groups() * 128 + 64
    }

    /// Columns of the gated product in a unit.
    fn columns(self) -> i64 {
        if self.up.0 == Features::Plain { WEIGHT_ROWS } else { WEIGHT_ROWS / 2 }
    }

    fn shared_bytes(self) -> u32 {
        let stage = BOXES * (64 + self.rows) * 128;
        // Stages from a multiple of 1024 on, two barriers for each; then a queue of four units, and a barrier for each group.
        1024 + self.stages() * (stage + 16) + 4 * 24 + self.groups() * 8
    }
}

/// Where the kernel for few tokens runs: each of its sizes, with 1 where there are so many tokens and else 0.
pub(super) fn few_tokens(few: Few, tokens: &Dim, choices: i64) -> Vec<(Few, Dim)> {
    let most = TOKENS.min(IDS / choices);
    let above = |limit: i64| Dim::min(&tokens.floor_div(&Dim::from(limit + 1)), &Dim::from(1));
    let beyond_8 = above(most.min(FEWEST_TOKENS));
    let cases = [(few.of_tokens(8), Dim::from(1) - beyond_8.clone()), (few.of_tokens(16), beyond_8 - above(most))];
    cases.into_iter().filter(|(_, when)| most > 0 && !when.is(0)).collect()
}

/// Emits the kernel; it runs where `when` is 1.
pub(super) fn emit(emitter: &mut Emitter, block: &Block<'_>, few: Few, finish: &Finish<'_>, when: Dim) -> Emit<()> {
    let dtype = block.x.dtype;
    let ty = ctype::storage(dtype)?;
    let what = match finish {
        Finish::Rows(..) => "rows",
        Finish::Combined(..) => "block",
        Finish::Sums(..) => "tokens",
    };
    let mut kernel = Kernel::new(format!("moe_{dtype}_few_{what}_{}", few.rows));
    let depth = block.x.layout.shape[1].clone();
    let (inner, outer, choices) = (block.lanes[0].layout.shape[1].clone(), block.down.layout.shape[1].clone(), block.choices);
    let splits = match (finish, inner.as_const()) {
        (Finish::Sums(..), Some(inner)) => inner.div_euclid(SPLIT_DEPTH) + i64::from(inner % SPLIT_DEPTH > 0),
        _ => 1,
    };
    let split_depth = inner.ceil_div(splits).ceil_div(DEPTH) * Dim::from(DEPTH);

    let x = kernel.read(block.x)?;
    let stride = kernel.dim(&block.x.layout.strides[0]);
    let activations = kernel.scratch(ty, block.activations);
    let counters = kernel.counters();
    let (prefetch, load) = load_weights(&mut kernel, block, few);
    let [h, i] = [&outer, &inner].map(|dim| kernel.dim(dim));
    let k = kernel.dim(&depth);
    let (columns, rows, groups) = (few.columns(), few.rows, few.groups());
    let mut waits = vec![x.clone()];
    let mut end = String::new();
    let (slots, count, store) = match *finish {
        Finish::Rows(dispatched, to) | Finish::Combined(dispatched, to, _) => {
            let tiles = kernel.scratch("const RowTile", dispatched.tiles);
            let tile_count = kernel.scratch("const i32", dispatched.tile_count);
            let order = kernel.scratch("const i32", dispatched.order.unwrap_or(dispatched.tiles));
            let to = kernel.scratch(ty, to);
            waits.extend([tiles.clone(), tile_count.clone(), order.clone()]);
            let project = project(&mut kernel, block, "sums[c][r]")?;
            let mut store =
                format!("{ty} result;\n{project}{to}[(i64)slots.id_of(slot.start + r) * {h} + column] = result;\n}}\n");
            if let Finish::Combined(_, _, sum) = finish {
                store += "few_projected(counters.done);\n";
                let (text, reads) = sum.text(&mut kernel, &to)?;
                waits.extend(reads);
                let (all, width, threads) = (kernel.dim(&elements(sum.out)), sum.width(), few.threads());
                end = format!(
                    "few_wait(counters.done, plan.slots * plan.downs);\n\
                     for (i64 at = ((i64)blockIdx.x * {threads} + threadIdx.x) * {width}; at < {all}; at += (i64)gridDim.x * {threads} * {width}) {{\n{text}}}\n"
                );
            }
            (format!("const ListedSlots slots{{{tiles}, {order}}};\n"), format!("*{tile_count}"), store)
        }
        Finish::Sums(weights, out, target) => {
            sums(emitter, &mut kernel, (block, few), splits, [weights, out], target, &mut waits)?
        }
    };
    let gating = {
        let values = (0..block.lanes.len()).map(|lane| match few.up.0 {
            Features::Paired => format!("sums[2 * c + {lane}][r]"),
            _ => format!("sums[c + {}][r]", lane as i64 * columns),
        });
        call(&mut kernel, "gating", block.gating, values.collect(), block.lane_biases)?
    };
    let waits: String = waits.iter().map(|pointer| format!("read_from_here({pointer});\n")).collect();
    let body = format!(
        "using Shape = FewShape<{ty}, {rows}, {}, {groups}>;\nextern __shared__ char shared[];\n__shared__ FewSums<Shape> all_sums[{groups}];\n\
         if (threadIdx.x == Shape::consumers) {{\n{prefetch}}}\nFewRing<Shape> ring(shared);\nwait_for_kernel_before();\n{waits}\
         const FewCounters counters({counters}, (int)(({h} + 63) / 64));\nconst int claimed = few_claim<Shape>(counters);\n{slots}\
         const FewPlan plan{{{count}, (int)(({i} + {columns} - 1) / {columns}), (int)(({h} + 63) / 64), {splits}, (int){}, (int){k}, (int){i}}};\n\
         if (threadIdx.x < Shape::consumers) {{\nFewSums<Shape>& sums = all_sums[threadIdx.x / 128];\n\
         for (int q = threadIdx.x / 128;; q += {groups}) {{\nconst int unit = ring.next_unit(q);\n\
         if (unit >= plan.total()) break;\nconst FewUnit work = few_unit(plan, unit);\nconst RowTile slot = slots.slot(work.slot);\n\
         [[maybe_unused]] const i64 expert = slot.expert;\nif (!work.down) {{\n\
         few_multiply<Shape, UpProduct, {}>(ring, work, q, sums);\n\
         for (int at = threadIdx.x % 128; at < slot.rows * {columns}; at += 128) {{\n\
         const int r = at / {columns}, c = at % {columns};\nconst i64 column = (i64)work.tile * {columns} + c;\n\
         if (column >= {i}) continue;\n{ty} result;\n{gating}{activations}[(i64)(slot.start + r) * {i} + column] = result;\n}}\n\
         few_activated(counters, work.slot);\n}} else {{\n\
         few_multiply<Shape, DownProduct, {}>(ring, work, q, sums);\n\
         for (int at = threadIdx.x % 128; at < slot.rows * 64; at += 128) {{\n\
         const int r = at / 64, c = at % 64;\nconst i64 column = (i64)work.tile * 64 + c;\nif (column >= {h}) continue;\n{store}}}\n}}\n\
         }} else if (threadIdx.x < Shape::consumers + 32) {{\n{load}\
         if (threadIdx.x == Shape::consumers) few_weights(ring, plan, slots, counters.claimed, claimed, load);\n\
         // The whole warp goes on together: a block's barrier counts warps.\n__syncwarp();\n}} else {{\n\
         few_rows(ring, plan, slots, counters, {x}, {stride}, {choices}, {activations});\n}}\n{end}few_leave(counters, plan);\n",
        few.stages(),
        kernel.dim(&split_depth),
        few.up.1,
        few.down,
    );
    let product = |name: &str, across: bool| instruction::product(name, dtype, rows as usize, [across, false]);
    let items = product("UpProduct", few.up.1)?
        + &product("DownProduct", few.down)?
        + &program::function("gating", block.gating, Results::Stored)?
        + &program::function("project", block.project, Results::Stored)?;
    let headers =
        vec![Header::ShortResults, Header::Math, Header::Rows, Header::Mma, Header::Hopper, Header::FewTokens, Header::FewRows];
    let shared_bytes = few.shared_bytes();
    let code =
        Code { headers, items, body, threads: [few.threads(), 1], residents: 1, shared_bytes, overlaps: true, ..Code::default() };
    emitter.launch(kernel, code, flat(resident_grid(emitter.target) * when));
    Ok(())
}

/// Slots in shared memory, how many there are, and the statements that keep a unit's sums and, after the last of some columns, add up each
/// token's.
fn sums(
    emitter: &mut Emitter,
    kernel: &mut Kernel,
    (block, few): (&Block<'_>, Few),
    splits: i64,
    [weights, out]: [&TensorRef; 2],
    target: DType,
    waits: &mut Vec<String>,
) -> Emit<(String, String, String)> {
    let (choices, experts, ids) = (block.choices, block.experts, block.ids);
    let ty = ctype::storage(block.x.dtype)?;
    let [tokens, outer] = [&ids.layout.shape[0], &block.down.layout.shape[1]];
    let bytes = Dim::min(&(tokens.clone() * Dim::from(choices)), &Dim::from(IDS)) * outer.clone() * Dim::from(4 * splits);
    let partial = emitter.scratch("moe_partial_sums", bytes);
    let partial = kernel.scratch("float", partial);
    let (from, scale, to) = (kernel.read(ids)?, kernel.read(weights)?, kernel.write(out)?);
    waits.extend([from.clone(), scale.clone()]);
    let (t, h) = (kernel.dim(tokens), kernel.dim(outer));
    let at = |names: [&str; 2]| names.map(String::from);
    let id = kernel.offset(&at(["t", "j"]), &ids.layout.strides);
    let scale_at = kernel.offset(&at(["t", "j"]), &weights.layout.strides);
    let (stored, threads) = (ctype::storage(target)?, few.threads());
    let slots = format!(
        "const auto id_at = [&](int i) {{\nconst int t = i / {choices}, j = i % {choices};\nreturn {from}[{id}];\n}};\n\
         __shared__ FewTokens slots;\nslots.fill<{experts}>(id_at, (int){t} * {choices}, {choices});\n\
         // Nobody is named: there is nothing to add up.\nif (slots.slots == 0)\n\
         for (i64 at = blockIdx.x * {threads} + threadIdx.x; at < {t} * {h}; at += gridDim.x * {threads}) {to}[at] = cast<{stored}>(0.0f);\n"
    );
    let project = project(kernel, block, "sums.at[e]")?;
    // Columns that a thread adds up.
    let width = if divisible(outer, 4) { 4 } else { 1 };
    let parts = 64 / width;
    let store = format!(
        "{partial}[((i64)work.split * {t} * {choices} + slots.id_of(slot.start + r)) * {h} + column] = sums[c][r];\n}}\n\
         if (few_finished<Shape>(counters.done + work.tile, plan.slots * plan.splits))\n\
         for (int at = threadIdx.x % 128; at < (int){t} * {parts}; at += 128) {{\n\
         const int t = at / {parts};\nconst i64 first = (i64)work.tile * 64 + at % {parts} * {width};\nif (first >= {h}) continue;\n\
         float all[{width}] = {{}};\n\
         #pragma unroll\nfor (int j = 0; j < {choices}; j++) {{\nconst int named = slots.ids[t * {choices} + j];\n\
         // What no expert has is read all the same, so that no read waits for another.\n\
         const i64 expert = named < 0 ? 0 : named, row = named < 0 ? 0 : slots.standing[t * {choices} + j];\n\
         Pack<float, {width}> sums{{}};\n\
         #pragma unroll\nfor (int split = 0; split < {splits}; split++) {{\n\
         const auto part = load_from_others((const Pack<float, {width}>*)({partial} + ((i64)split * {t} * {choices} + row) * {h} + first));\n\
         #pragma unroll\nfor (int e = 0; e < {width}; e++) sums.at[e] += part.at[e];\n}}\n\
         const float weight = (float)up({scale}[{scale_at}]);\n\
         #pragma unroll\nfor (int e = 0; e < {width}; e++) {{\n[[maybe_unused]] const i64 column = first + e;\n{ty} result;\n{project}\
         const float term = weight * (float)up(result);\nall[e] += named < 0 ? 0.0f : term;\n}}\n}}\n\
         Pack<{stored}, {width}> out;\n#pragma unroll\nfor (int e = 0; e < {width}; e++) out.at[e] = cast<{stored}>(all[e]);\n\
         *(Pack<{stored}, {width}>*)({to} + (i64)t * {h} + first) = out;\n}}\n"
    );
    Ok((slots, "slots.slots".into(), store))
}

/// Statements that fetch the maps, and the lambda `load`: four boxes of K, of which each has the rows of all lanes.
fn load_weights(kernel: &mut Kernel, block: &Block<'_>, few: Few) -> (String, String) {
    let (feature, across) = few.up;
    let stacked = feature == Features::Stacked;
    let height = if stacked { 32 } else { 64 };
    let mut lines = |which: (Features, bool), weights: &[&TensorRef], depth: &Dim, height: u32, first: &str| {
        let names: Vec<String> = maps(which, weights, depth, height).into_iter().map(|map| kernel.tensor_map(map)).collect();
        let mut text = String::new();
        for b in 0..BOXES {
            for (m, map) in names.iter().enumerate() {
                let (to, k) = (b * 8192 + m as u32 * height * 128, format!("k + {}", b * 64));
                let at = if which.1 { format!("{first}, {k}") } else { format!("{k}, {first}") };
                text += &format!("load_tile(to + {to}, {map}, full, {at}, expert);\n");
            }
        }
        (names, text)
    };
    let (columns, inner) = (few.columns(), &block.lanes[0].layout.shape[1]);
    let first = format!("work.tile * {}", if feature == Features::Paired { 64 } else { columns });
    let (up_maps, up) = lines((feature, across), block.lanes, &block.x.layout.shape[1], height, &first);
    let (down_maps, down) = lines((Features::Plain, few.down), &[block.down], inner, 64, "work.tile * 64");
    let prefetch: String = up_maps.iter().chain(&down_maps).map(|map| format!("prefetch_map({map});\n")).collect();
    let load = format!(
        "const auto load = [&](const FewUnit& work, int expert, u32 to, u32 full, int k) {{\n\
         if (work.down) {{\n{down}}} else {{\n{up}}}\n}};\n"
    );
    (prefetch, load)
}

/// A call of the second projection's program on this sum.
fn project(kernel: &mut Kernel, block: &Block<'_>, sum: &str) -> Emit<String> {
    let biases: Vec<&TensorRef> = block.down_bias.into_iter().collect();
    call(kernel, "project", block.project, vec![sum.into()], &biases)
}

/// A call of a program on these sums and on the elements of these biases at `expert` and `column`; it sets `result`.
fn call(kernel: &mut Kernel, name: &str, program: &Program, sums: Vec<String>, biases: &[&TensorRef]) -> Emit<String> {
    let mut args = vec![];
    for (sum, &dtype) in sums.iter().zip(&program.params) {
        args.push(format!("({}){sum}", ctype::opmath(dtype)?));
    }
    for bias in biases {
        let pointer = kernel.read(bias)?;
        let at = kernel.offset(&["expert".into(), "column".into()], &bias.layout.strides);
        args.push(format!("up({pointer}[{at}])"));
    }
    Ok(format!("{name}({}, result);\n", args.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use eglu_ir::Bindings;

    fn tensor(shape: &[i64]) -> TensorRef {
        let layout = Layout::dense(shape.iter().map(|&n| Dim::from(n)).collect());
        TensorRef { buffer: 0, dtype: DType::Bf16, layout }
    }

    /// The kernel for two matrices `[8, inner, outer]` and one back.
    fn few(outer: i64, inner: i64) -> Result<Few, &'static str> {
        let (x, gate, down) = (tensor(&[64, outer]), tensor(&[8, inner, outer]), tensor(&[8, outer, inner]));
        Few::choose(Target { arch: 90 }, &x, &[&gate, &gate], &down)
    }

    /// Rows of the kernels that run, by themselves ordering rows, at so many tokens.
    fn rows(few: Few, tokens: i64, choices: i64) -> Vec<u32> {
        let bindings = Bindings::from([("t".into(), tokens)]);
        let cases = few_tokens(few, &Dim::symbol("t"), choices).into_iter();
        cases.filter(|(_, when)| when.eval(&bindings) == Ok(1)).map(|(few, _)| few.rows).collect()
    }

    #[test]
    fn experts_with_few_rows_run_in_one_launch() {
        let few = few(4096, 14336).unwrap();
        assert_eq!([1, 8, 9, 16, 17].map(|tokens| rows(few, tokens, 2)), [vec![8], vec![8], vec![16], vec![16], vec![]]);
        assert_eq!([Some(16), Some(17), None].map(Few::is_best_for), [true, false, false]);
        // More ids than a block has room for.
        assert_eq!([8, 9].map(|tokens| rows(few, tokens, 30)), [vec![8], vec![]]);
    }

    #[test]
    fn shared_memory_holds_the_ring_and_what_lies_beside_it() {
        let few = few(4096, 14336).unwrap();
        for rows in [8, 16, 32] {
            let sums = few.of_tokens(rows).groups() * 64 * (rows + 1) * 4;
            let bytes = few.of_tokens(rows).shared_bytes() + sums + 4096;
            assert!(bytes <= 227 << 10, "{rows}: {bytes}");
        }
    }

    #[test]
    fn odd_rows_are_refused() {
        assert!(few(4097, 768).is_err() && few(4096, 769).is_err());
    }
}

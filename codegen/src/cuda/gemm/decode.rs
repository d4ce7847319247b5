//! Products by expert of a few tokens, whose weights stream straight into registers.

use super::{
    super::{
        ctype,
        emitter::{Emitter, Target as Device},
        error::Emit,
        kernel::{Code, Header, Kernel, divisible},
        program::{self, Results},
    },
    expert_product::{ExpertProduct, Rows},
    swapped::{Features, features},
    wgmma::Strides,
};
use crate::TensorRef;
use eglu_ir::{DType, Dim};
use std::fmt::Write;

/// Most tokens: the columns of one mma.sync.
pub(super) const TOKENS: i64 = 8;
/// Warps of a block, and chunks that each has on its way at a time.
const WARPS: u32 = 4;
const AHEAD: u32 = 4;

/// How the weights are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decode {
    features: Features,
    across: bool,
}

impl Decode {
    /// The way to stream these matrices `[E, N, K]`, or why that cannot be.
    pub fn choose(
        target: Device,
        dtype: DType,
        rows: &Strides<'_>,
        depth: &Dim,
        weights: &[&TensorRef],
    ) -> Result<Decode, &'static str> {
        let aligned = |dim: &Dim| divisible(dim, 8);
        if target.arch < 90 {
            return Err("launches do not overlap");
        } else if !matches!(dtype, DType::Bf16 | DType::F16) {
            return Err("operands are not 16 bits wide");
        } else if !rows.k.is(1) || !aligned(rows.row) || !rows.bases.iter().all(|base| aligned(base)) || !aligned(depth) {
            return Err("rows do not lie in multiples of 16 bytes");
        }
        let (features, across) = features(weights)?;
        if across && features == Features::Stacked {
            return Err("two matrices with contiguous rows");
        } else if across && !aligned(&weights[0].layout.shape[1]) {
            return Err("rows are no multiple of eight");
        }
        Ok(Decode { features, across })
    }

    /// Columns of each product that a block computes.
    fn columns(self) -> i64 {
        match (self.across, self.features) {
            (false, Features::Plain) => 16,
            (false, _) => 8,
            (true, Features::Plain) => 64,
            (true, _) => 32,
        }
    }

    /// The sums of a lane: statements that store them, given `store(column, token, values of each lane)`.
    fn visits(self) -> String {
        let mut text = String::new();
        match (self.across, self.features) {
            (false, Features::Plain) => {
                for i in 0..4 {
                    let _ = writeln!(text, "store(lane / 4 + {}, lane % 4 * 2 + {}, stream.sums[{i}]);", i / 2 * 8, i % 2);
                }
            }
            (false, _) => {
                for i in 0..2 {
                    let _ = writeln!(text, "store(lane / 4, lane % 4 * 2 + {i}, stream.sums[{i}], stream.sums[{}]);", i + 2);
                }
            }
            (true, Features::Plain) => {
                for i in 0..16 {
                    let column = i % 2 * 8 + i / 2;
                    let _ = writeln!(text, "store(lane % 4 * 16 + {column}, lane / 4, stream.sums[{i}]);");
                }
            }
            (true, _) => {
                for i in 0..8 {
                    let (half, pair) = (i / 4, i % 4);
                    let [even, odd] = [0, 1].map(|e| (2 * pair + e) * 2 + half);
                    let column = half * 4 + pair;
                    let _ = writeln!(text, "store(lane % 4 * 8 + {column}, lane / 4, stream.sums[{even}], stream.sums[{odd}]);");
                }
            }
        }
        text
    }
}

/// Emits the kernel: a block to each few columns of each expert that an id names. Rows of scratch stand where their ids do.
pub(super) fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>, ids: &TensorRef, experts: i64, main: Decode) -> Emit<()> {
    let dtype = product.dtype;
    let ty = ctype::storage(dtype)?;
    let mut kernel = Kernel::new(format!("{}_{dtype}_decode", product.name));
    let from = kernel.read(ids)?;
    let choices = kernel.dim(&ids.layout.shape[1]);
    let tokens = kernel.dim(&ids.layout.shape[0]);
    let id = kernel.offset(&["t".into(), "j".into()], &ids.layout.strides);
    let weights: Vec<&TensorRef> = product.weights.iter().collect();
    let depth = kernel.dim(&product.depth);
    let n = kernel.dim(product.columns());
    let columns = main.columns();
    let (rows, row) = match product.rows {
        Rows::Gathered(x, _) | Rows::Tensor(x) => (kernel.read(x)?, format!("(i64)token * {}", kernel.dim(&x.layout.strides[0]))),
        Rows::Scratch(s) => (kernel.scratch(&format!("const {ty}"), s), format!("((i64)token * {choices} + choice) * {depth}")),
    };
    let mut pointers = vec![];
    for weight in weights.iter().take(if main.features == Features::Paired { 1 } else { 2 }) {
        let [expert, row, k] = [0, 1, 2].map(|i| kernel.dim(&weight.layout.strides[i]));
        pointers.push((format!("{} + expert * {expert}", kernel.read(weight)?), row, k));
    }
    let last = format!("({n} - 1)");
    let clamped = |column: &str| format!("({column} < {n} ? {column} : {last})");
    // Lanes past the last column read it once more: what they compute is stored nowhere.
    let (first, second, stride) = match (main.across, main.features) {
        (false, Features::Plain) => {
            let (pointer, row, _) = &pointers[0];
            let at = |column| format!("{pointer} + (i64){} * {row}", clamped(column));
            (at("(n0 + lane / 4)"), at("(n0 + 8 + lane / 4)"), "0".to_string())
        }
        (false, _) => {
            let at = |i: usize| format!("{} + (i64){} * {}", pointers[i].0, clamped("(n0 + lane / 4)"), pointers[i].1);
            (at(0), at(1), "0".into())
        }
        (true, _) => {
            let (pointer, _, k) = &pointers[0];
            let column = if main.features == Features::Paired { "(n0 * 2 + lane / 4 * 8)" } else { "(n0 + lane / 4 * 8)" };
            let all = if main.features == Features::Paired { format!("{n} * 2") } else { n.clone() };
            (format!("({column} < {all} ? {pointer} + {column} : nullptr)"), "nullptr".into(), k.clone())
        }
    };
    let lanes = weights.len();
    let (mut params, mut args) = (String::new(), vec![]);
    for (lane, &dtype) in product.program.params.iter().take(lanes).enumerate() {
        params += &format!(", float a{lane}");
        args.push(format!("({})a{lane}", ctype::opmath(dtype)?));
    }
    for bias in &product.biases {
        let pointer = kernel.read(bias)?;
        let at = kernel.offset(&["expert".into(), "column".into()], &bias.layout.strides);
        args.push(format!("up({pointer}[{at}])"));
    }
    args.push("result".into());
    let stored = ctype::storage(product.program.results[0].1)?;
    let target = product.target.only(&mut kernel, stored)?;
    let stream = if main.across { "DecodeAcross" } else { "DecodeRows" };
    // The first of a block's two products reads ids that an earlier kernel wrote, and only lets the second begin when it has: so that one
    // need not wait for them, and starts its weights at once.
    let (wait_first, wait_then) = match product.rows {
        Rows::Scratch(_) => (String::new(), format!("wait_for_kernel_before();\nread_from_here({rows});\n")),
        _ => {
            let waits = "wait_for_kernel();\nlet_next_kernel_begin();\n";
            (format!("{waits}read_from_here({from});\nread_from_here({rows});\n"), String::new())
        }
    };
    let body = format!(
        "{wait_first}const auto id_at = [&](int i) {{\nconst int t = i / (int){choices}, j = i % (int){choices};\nreturn {from}[{id}];\n}};\n\
         const int expert_found = named_expert<{experts}>(id_at, (int)({tokens} * {choices}), blockIdx.y);\n\
         if (expert_found < 0) return;\nconst i64 expert = expert_found;\nconst int lane = threadIdx.x % 32, n0 = blockIdx.x * {columns};\n\
         const int token = lane / 4;\nint choice = -1;\nif (token < {tokens})\n\
         for (int t = token, j = (int){choices} - 1; j >= 0; j--)\nif ((i64){from}[{id}] == expert) choice = j;\n\
         {stream}<{ty}, {AHEAD}> stream;\nconst auto token_of_lane = [&]() -> const {ty}* {{\n{wait_then}\
         return choice < 0 ? nullptr : {rows} + {row};\n}};\n\
         if (!stream_weights<decltype(stream), {WARPS}, {AHEAD}>(stream, {first}, {second}, {stride}, (int){depth}, token_of_lane)) return;\n\
         const auto store = [&](int m, int t{params}) {{\nconst int column = n0 + m;\nif (column >= {n} || t >= {tokens}) return;\n\
         {stored} result;\nepilogue({});\nfor (int j = 0; j < (int){choices}; j++)\n\
         if ((i64){from}[{id}] == expert) {target}[((i64)t * {choices} + j) * {n} + column] = result;\n}};\n{}",
        args.join(", "),
        main.visits(),
    );
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let headers = vec![Header::ShortResults, Header::Math, Header::Mma, Header::Hopper, Header::Decode];
    let grid =
        [product.columns().ceil_div(columns), Dim::min(&product.count, &Dim::from(experts)) * product.when.clone(), Dim::from(1)];
    emitter.launch(kernel, Code { headers, items, body, threads: [WARPS * 32, 1], overlaps: true, ..Code::default() }, grid);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// `a + b` of what `store` is called with, for a lane.
    fn place(text: &str, lane: i64) -> i64 {
        let text = text.trim().replace("lane / 4", &(lane / 4).to_string()).replace("lane % 4", &(lane % 4).to_string());
        text.split(" + ").map(|term| term.split(" * ").map(|factor| factor.parse::<i64>().unwrap()).product::<i64>()).sum()
    }

    #[test]
    fn lanes_store_every_column_of_every_token_once() {
        for (features, across) in
            [(Features::Plain, false), (Features::Stacked, false), (Features::Plain, true), (Features::Paired, true)]
        {
            let main = Decode { features, across };
            let mut seen = BTreeSet::new();
            for line in main.visits().lines() {
                let mut args = line.trim_start_matches("store(").split(", ");
                let (column, token) = (args.next().unwrap(), args.next().unwrap());
                for lane in 0..32 {
                    assert!(seen.insert((place(column, lane), place(token, lane))), "{main:?}: {line} of lane {lane} again");
                }
            }
            let all: BTreeSet<(i64, i64)> = (0..main.columns()).flat_map(|c| (0..TOKENS).map(move |t| (c, t))).collect();
            assert_eq!(seen, all, "{main:?}");
        }
    }
}

//! Products by expert: grouped rows, rows with ids, and whole mixture-of-experts blocks.

use super::{
    super::{
        ctype,
        emitter::{Emitter, elements, flat, optional, tensor},
        error::{Emit, Unsupported},
        kernel::{Code, Kernel},
        program::{self, Results},
    },
    dispatch::{self, Dispatched},
    epilogue::{Epilogue, Place, with_biases},
    main_loop::MainLoop,
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, Program, ops::Moe, program::InstrOp};

/// Rows on the left of an expert product.
enum Rows<'a> {
    /// A tensor `[S, K]`, gathered: row of place p is `order[p] / divisor`.
    Gathered(&'a TensorRef, i64),
    /// A tensor `[S, K]` in the order of the tiles.
    Tensor(&'a TensorRef),
    /// Scratch `[S, K]` in the order of the tiles.
    Scratch(usize),
}

/// Where a row of the result goes.
enum Target<'a> {
    Tensor(&'a TensorRef),
    Scratch(usize),
}

/// `rows · w[e]ᵀ` for each lane, tile by tile of one expert's rows.
struct ExpertProduct<'a> {
    name: &'static str,
    dtype: DType,
    depth: Dim,
    rows: Rows<'a>,
    /// `[E, N, K]`, a lane each.
    weights: Vec<TensorRef>,
    /// `[E, N]`, in the order of the program's captures.
    biases: Vec<&'a TensorRef>,
    program: &'a Program,
    target: Target<'a>,
    /// Results go back to where their ids stood.
    unordered: bool,
    dispatched: &'a Dispatched,
    main: MainLoop,
    zero_dropped: bool,
}

/// Rows in groups times their group's matrix.
pub(in super::super) fn grouped_mm(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, offsets) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?);
    let weight = TensorRef { layout: w.layout.permute(&[0, 2, 1]), ..w.clone() };
    let groups = experts_of(&weight)?;
    let main = main_loop(emitter, x.dtype, 1, &x.layout.shape[0], groups, &weight.layout.shape[1]);
    let dispatched = dispatch::by_offsets(emitter, offsets, groups, &x.layout.shape[0], main.tile().0)?;
    let program = Program::identity(x.dtype, step.outputs[0].dtype);
    emit(
        emitter,
        &ExpertProduct {
            name: "grouped_mm",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            rows: Rows::Tensor(x),
            weights: vec![weight],
            biases: vec![],
            program: &program,
            target: Target::Tensor(&step.outputs[0]),
            unordered: false,
            dispatched: &dispatched,
            main,
            zero_dropped: true,
        },
    )
}

/// Rows times the matrix that their id names.
pub(in super::super) fn expert_matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, bias, ids) = (tensor(step, 0)?, tensor(step, 1)?, optional(step, 2), tensor(step, 3)?);
    let experts = experts_of(w)?;
    let main = main_loop(emitter, x.dtype, 1, &x.layout.shape[0], experts, &w.layout.shape[1]);
    let dispatched = dispatch::by_ids(emitter, ids, experts, main.tile().0, true)?;
    let plain = Program::identity(x.dtype, step.outputs[0].dtype);
    let program = with_biases(&plain, &[bias.map(|b| b.dtype)]);
    emit(
        emitter,
        &ExpertProduct {
            name: "expert_matmul",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            rows: Rows::Gathered(x, 1),
            weights: vec![w.clone()],
            biases: bias.into_iter().collect(),
            program: &program,
            target: Target::Tensor(&step.outputs[0]),
            unordered: true,
            dispatched: &dispatched,
            main,
            zero_dropped: true,
        },
    )
}

/// A whole block: dispatch, gate and up with the gating, down, weighted sum.
pub(in super::super) fn moe(emitter: &mut Emitter, step: &Step, op: &Moe) -> Emit<()> {
    let (x, gate, up, down) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 3)?, tensor(step, 5)?);
    let (ids, weights) = (tensor(step, 7)?, tensor(step, 8)?);
    let experts = experts_of(gate)?;
    let Some(choices) = ids.layout.shape[1].as_const() else {
        return Err(Unsupported::new("the number of experts a token takes must be known"));
    };
    let rows = elements(ids);
    let inner = gate.layout.shape[1].clone();
    let up_main = main_loop(emitter, x.dtype, 2, &rows, experts, &inner);
    let down_main = main_loop(emitter, x.dtype, 1, &rows, experts, &x.layout.shape[1]);
    let (up_main, down_main) = up_main.over_same_rows(down_main);
    let dispatched = dispatch::by_ids(emitter, ids, experts, up_main.tile().0, false)?;

    let bytes = |dtype: DType| Dim::from(dtype.size() as i64);
    let activations = emitter.scratch("moe_activations", rows.clone() * inner.clone() * bytes(x.dtype));
    let outputs = emitter.scratch("moe_rows", rows.clone() * down.layout.shape[1].clone() * bytes(x.dtype));
    let biases = [optional(step, 2), optional(step, 4)];
    let mut gating = with_biases(&op.program, &biases.map(|bias| bias.map(|b| b.dtype)));
    let [(active, stored)] = gating.results[..] else { return Err(Unsupported::new("a gating program has one result")) };
    // The down projection reads rows of x's dtype, whatever the gating stores.
    let active = if stored == x.dtype { active } else { gating.push(InstrOp::Cast, [active], stored) };
    gating.results = [(active, x.dtype)].into_iter().collect();
    emit(
        emitter,
        &ExpertProduct {
            name: "moe_up",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            rows: Rows::Gathered(x, choices),
            weights: vec![gate.clone(), up.clone()],
            biases: biases.into_iter().flatten().collect(),
            program: &gating,
            target: Target::Scratch(activations),
            unordered: false,
            dispatched: &dispatched,
            main: up_main,
            zero_dropped: false,
        },
    )?;
    let bias = optional(step, 6);
    let project = with_biases(&Program::identity(x.dtype, x.dtype), &[bias.map(|b| b.dtype)]);
    emit(
        emitter,
        &ExpertProduct {
            name: "moe_down",
            dtype: x.dtype,
            depth: inner,
            rows: Rows::Scratch(activations),
            weights: vec![down.clone()],
            biases: bias.into_iter().collect(),
            program: &project,
            target: Target::Scratch(outputs),
            unordered: true,
            dispatched: &dispatched,
            main: down_main,
            zero_dropped: false,
        },
    )?;
    combine(emitter, step, op, ids, weights, outputs, experts)
}

fn experts_of(weight: &TensorRef) -> Emit<i64> {
    weight.layout.shape[0].as_const().ok_or_else(|| Unsupported::new("the number of experts must be known"))
}

/// The main loop for an expert's share of the rows.
fn main_loop(emitter: &Emitter, dtype: DType, lanes: usize, rows: &Dim, experts: i64, columns: &Dim) -> MainLoop {
    MainLoop::choose(emitter.target, dtype, lanes, &rows.ceil_div(experts.max(1)), columns)
}

fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>) -> Emit<()> {
    let (main, dtype, lanes) = (product.main, product.dtype, product.weights.len());
    let (_, bn) = main.tile();
    let columns = product.weights[0].layout.shape[1].clone();
    let ty = ctype::storage(dtype)?;
    let mut kernel = Kernel::new(format!("{}_{}", product.name, main.label(dtype)));
    let tile_count = kernel.scratch("const i32", product.dispatched.tile_count);
    let tiles = kernel.scratch("const RowTile", product.dispatched.tiles);
    let order = product.dispatched.order.map(|order| kernel.scratch("const i32", order));
    let (pointer, row_stride, k_stride, offset) = match product.rows {
        Rows::Gathered(x, _) | Rows::Tensor(x) => {
            (kernel.read(x)?, x.layout.strides[0].clone(), x.layout.strides[1].clone(), x.layout.offset.clone())
        }
        Rows::Scratch(s) => (kernel.scratch(&format!("const {ty}"), s), product.depth.clone(), Dim::from(1), Dim::from(0)),
    };
    let n = kernel.dim(&columns);
    let mut text = format!(
        "const i64 tiles_m = *{tile_count}, tiles_n = ({n} + {bn} - 1) / {bn};\nif (blockIdx.x >= tiles_m * tiles_n) return;\n\
         const TileIndex at = banded_tile(blockIdx.x, tiles_m, tiles_n);\nconst RowTile work = {tiles}[at.m];\n\
         const i64 n0 = at.n * {bn}, rows = work.rows, expert = work.expert < 0 ? 0 : work.expert;\n\
         const i64 depth = work.expert < 0 ? 0 : {};\n",
        kernel.dim(&product.depth)
    );
    let stride = kernel.dim(&row_stride);
    let (rows_type, walk_a) = match (&product.rows, &order) {
        (Rows::Gathered(_, divisor), Some(order)) => {
            text += &format!("GatheredRows<{ty}> rows_a{{{pointer}, {stride}, rows, {order} + work.start, {divisor}}};\n");
            let walk = match main.walk(&row_stride, &k_stride, &[&offset]) {
                // Gathered rows are not neighbours.
                super::operand::Walk::RowMajor if matches!(main, MainLoop::Mma { .. }) => super::operand::Walk::Strided,
                walk => walk,
            };
            ("GatheredRows", walk)
        }
        _ => {
            text += &format!("PlainRows<{ty}> rows_a{{{pointer} + (i64)work.start * {stride}, {stride}, rows}};\n");
            let walk = match main.walk(&row_stride, &k_stride, &[&offset]) {
                // A tile may start at any row.
                super::operand::Walk::RowMajor if matches!(main, MainLoop::Mma { .. }) => super::operand::Walk::Strided,
                walk => walk,
            };
            ("PlainRows", walk)
        }
    };
    let mut k_strides = vec![kernel.dim(&k_stride)];
    let mut walk_b = None;
    for (l, w) in product.weights.iter().enumerate() {
        let pointer = kernel.read(w)?;
        let [expert, row, k] = [0, 1, 2].map(|i| w.layout.strides[i].clone());
        let own = main.walk(&row, &k, &[&expert, &w.layout.offset]);
        walk_b = Some(walk_b.map_or(own, |walk: super::operand::Walk| walk.join(own)));
        let (expert, row) = (kernel.dim(&expert), kernel.dim(&row));
        text += &format!("PlainRows<{ty}> rows_b{l}{{{pointer} + expert * {expert} + n0 * {row}, {row}, {n} - n0}};\n");
        k_strides.push(kernel.dim(&k));
    }
    text += &main.multiply(dtype, [walk_a, walk_b.unwrap_or(walk_a)], rows_type, &k_strides)?;

    let mut captures = Vec::new();
    for bias in &product.biases {
        let pointer = kernel.read(bias)?;
        let base = kernel.offset(&["expert".into()], &bias.layout.strides[..1]);
        captures.push(Place { pointer, base, row_stride: Dim::from(0), column_stride: bias.layout.strides[1].clone() });
    }
    let stored = ctype::storage(product.program.results[0].1)?;
    let pointer = match product.target {
        Target::Tensor(y) => kernel.write(y)?,
        Target::Scratch(s) => kernel.scratch(stored, s),
    };
    let output = Place { pointer, base: "0".into(), row_stride: columns.clone(), column_stride: Dim::from(1) };
    let row = match (&order, product.unordered) {
        (Some(order), true) => format!("{order}[work.start + m]"),
        _ => "work.start + m".into(),
    };
    let epilogue = Epilogue {
        program: product.program,
        captures,
        outputs: vec![output],
        columns: columns.clone(),
        row,
        dropped: product.zero_dropped.then_some("work.expert < 0"),
    };
    text += &epilogue.store(&mut kernel, lanes)?;
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let (threads, shared_bytes) = ([main.threads(), 1], main.shared_bytes(lanes));
    let grid = product.dispatched.most_tiles.clone() * columns.ceil_div(bn);
    emitter.launch(
        kernel,
        Code { headers: main.headers(), items, body: text, threads, shared_bytes, residents: main.residents(lanes) },
        flat(grid),
    );
    Ok(())
}

/// The sum over each token's experts in f32; rows whose id names no expert were never written and count for nothing.
fn combine(
    emitter: &mut Emitter,
    step: &Step,
    op: &Moe,
    ids: &TensorRef,
    weights: &TensorRef,
    rows: usize,
    experts: i64,
) -> Emit<()> {
    let (x, out) = (tensor(step, 0)?, &step.outputs[0]);
    let columns = out.layout.shape[1].clone();
    let width: i64 = if super::super::kernel::divisible(&columns, 8) && x.dtype.size() == 2 { 8 } else { 1 };
    let mut kernel = Kernel::new(format!("moe_combine_{}", op.dtype));
    let (stored, target) = (ctype::storage(x.dtype)?, ctype::storage(op.dtype)?);
    let ty = if x.dtype == DType::F64 { "double" } else { "float" };
    let from = kernel.scratch(&format!("const {stored}"), rows);
    let (id, scale, to) = (kernel.read(ids)?, kernel.read(weights)?, kernel.write(out)?);
    let total = elements(out);
    let (n, all) = (kernel.dim(&columns), kernel.dim(&total));
    let choices = kernel.dim(&ids.layout.shape[1]);
    let id_at = kernel.offset(&["t".into(), "j".into()], &ids.layout.strides);
    let scale_at = kernel.offset(&["t".into(), "j".into()], &weights.layout.strides);
    let body = format!(
        "const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * {width};\nif (at >= {all}) return;\nconst i64 t = at / {n}, h = at % {n};\n\
         {ty} sum[{width}] = {{}};\n#pragma unroll\nfor (i64 j = 0; j < {choices}; j++) {{\nconst i64 expert = (i64){id}[{id_at}];\n\
         if (expert < 0 || expert >= {experts}) continue;\nconst {ty} weight = ({ty})up({scale}[{scale_at}]);\n\
         const Pack<{stored}, {width}> row = *(const Pack<{stored}, {width}>*)({from} + (t * {choices} + j) * {n} + h);\n\
         #pragma unroll\nfor (int e = 0; e < {width}; e++) sum[e] += weight * ({ty})up(row.at[e]);\n}}\n\
         Pack<{target}, {width}> result;\n#pragma unroll\nfor (int e = 0; e < {width}; e++) result.at[e] = cast<{target}>(sum[e]);\n\
         *(Pack<{target}, {width}>*)({to} + at) = result;\n"
    );
    let code = Code { body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(total.ceil_div(256 * width)));
    Ok(())
}

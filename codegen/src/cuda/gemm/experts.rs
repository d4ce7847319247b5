//! Products by expert: grouped rows, and rows with ids.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat, optional, tensor},
        error::{Emit, Unsupported},
        kernel::{Code, Kernel},
        program::{self, Results},
    },
    dispatch::{self, Dispatched, most_tiles},
    epilogue::{Epilogue, Place, with_biases},
    main_loop::{MainLoop, RowCount},
    operand::Walk,
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, Program};

/// Rows on the left of an expert product.
pub(super) enum Rows<'a> {
    /// A tensor `[S, K]`, gathered: row of place p is `order[p] / divisor`.
    Gathered(&'a TensorRef, i64),
    /// A tensor `[S, K]` in the order of the tiles.
    Tensor(&'a TensorRef),
    /// Scratch `[S, K]` in the order of the tiles.
    Scratch(usize),
}

/// Where a row of the result goes.
pub(super) enum Target<'a> {
    Tensor(&'a TensorRef),
    Scratch(usize),
}

/// `rows · w[e]ᵀ` for each lane, tile by tile of one expert's rows.
pub(super) struct ExpertProduct<'a> {
    pub name: &'static str,
    pub dtype: DType,
    pub depth: Dim,
    /// Upper bound of the number of rows.
    pub count: Dim,
    pub rows: Rows<'a>,
    /// `[E, N, K]`, a lane each.
    pub weights: Vec<TensorRef>,
    /// `[E, N]`, in the order of the program's captures.
    pub biases: Vec<&'a TensorRef>,
    pub program: &'a Program,
    pub target: Target<'a>,
    /// Results go back to where their ids stood.
    pub unordered: bool,
    pub dispatched: &'a Dispatched,
    pub main: MainLoop,
    /// 1 where this launch is the one to run, else 0.
    pub when: Dim,
    pub zero_dropped: bool,
}

/// Rows in groups times their group's matrix.
pub(in super::super) fn grouped_mm(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, offsets) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?);
    let weight = TensorRef { layout: w.layout.permute(&[0, 2, 1]), ..w.clone() };
    let groups = experts_of(&weight)?;
    let rows = &x.layout.shape[0];
    let cases = single(emitter, x.dtype, rows, groups, &weight.layout.shape[1]);
    let dispatched = dispatch::by_offsets(emitter, offsets, groups, rows, &heights(&cases))?;
    let program = Program::identity(x.dtype, step.outputs[0].dtype);
    for (main, when) in cases {
        let product = ExpertProduct {
            name: "grouped_mm",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: Rows::Tensor(x),
            weights: vec![weight.clone()],
            biases: vec![],
            program: &program,
            target: Target::Tensor(&step.outputs[0]),
            unordered: false,
            dispatched: &dispatched,
            main,
            when,
            zero_dropped: true,
        };
        emit(emitter, &product)?;
    }
    Ok(())
}

/// Rows times the matrix that their id names.
pub(in super::super) fn expert_matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, bias, ids) = (tensor(step, 0)?, tensor(step, 1)?, optional(step, 2), tensor(step, 3)?);
    let experts = experts_of(w)?;
    let rows = &x.layout.shape[0];
    let cases = single(emitter, x.dtype, rows, experts, &w.layout.shape[1]);
    let dispatched = dispatch::by_ids(emitter, ids, experts, &heights(&cases), true)?;
    let plain = Program::identity(x.dtype, step.outputs[0].dtype);
    let program = with_biases(&plain, &[bias.map(|b| b.dtype)]);
    for (main, when) in cases {
        let product = ExpertProduct {
            name: "expert_matmul",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: Rows::Gathered(x, 1),
            weights: vec![w.clone()],
            biases: bias.into_iter().collect(),
            program: &program,
            target: Target::Tensor(&step.outputs[0]),
            unordered: true,
            dispatched: &dispatched,
            main,
            when,
            zero_dropped: true,
        };
        emit(emitter, &product)?;
    }
    Ok(())
}

/// The main loops of a product of one lane, each with when it runs.
fn single(emitter: &Emitter, dtype: DType, rows: &Dim, experts: i64, columns: &Dim) -> Vec<(MainLoop, Dim)> {
    let choose = |case: RowCount| (MainLoop::choose(emitter.target, dtype, 1, case.rows, columns.as_const()), case.when);
    RowCount::cases(dtype, rows, experts).into_iter().map(choose).collect()
}

fn heights(cases: &[(MainLoop, Dim)]) -> Vec<dispatch::Height> {
    cases.iter().map(|(main, when)| (main.tile().0, when.clone())).collect()
}

pub(super) fn experts_of(weight: &TensorRef) -> Emit<i64> {
    weight.layout.shape[0].as_const().ok_or_else(|| Unsupported::new("the number of experts must be known"))
}

/// Launches the product.
pub(super) fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>) -> Emit<()> {
    let (main, dtype, lanes) = (product.main, product.dtype, product.weights.len());
    let (bm, bn) = main.tile();
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
    let rows_type = match (&product.rows, &order) {
        (Rows::Gathered(_, divisor), Some(order)) => {
            text += &format!("GatheredRows<{ty}> rows_a{{{pointer}, {stride}, rows, {order} + work.start, {divisor}}};\n");
            "GatheredRows"
        }
        _ => {
            text += &format!("PlainRows<{ty}> rows_a{{{pointer} + (i64)work.start * {stride}, {stride}, rows}};\n");
            "PlainRows"
        }
    };
    let walk_a = match main.walk(&row_stride, &k_stride, &[&offset]) {
        // A tile starts at any row, and gathered rows are no neighbours: whole chunks of rows cannot be copied.
        Walk::RowMajor if matches!(main, MainLoop::Mma { .. }) => Walk::Strided,
        walk => walk,
    };
    let mut k_strides = vec![kernel.dim(&k_stride)];
    let mut walk_b = None;
    for (l, w) in product.weights.iter().enumerate() {
        let pointer = kernel.read(w)?;
        let [expert, row, k] = [0, 1, 2].map(|i| w.layout.strides[i].clone());
        let own = main.walk(&row, &k, &[&expert, &w.layout.offset]);
        walk_b = Some(walk_b.map_or(own, |walk: Walk| walk.join(own)));
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
    let experts = experts_of(&product.weights[0])?;
    let grid = most_tiles(&product.count, experts, bm) * columns.ceil_div(bn) * product.when.clone();
    emitter.launch(
        kernel,
        Code { headers: main.headers(), items, body: text, threads, shared_bytes, residents: main.residents(lanes) },
        flat(grid),
    );
    Ok(())
}

//! A product by expert with a block to each tile.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Kernel},
        program::{self, Results},
    },
    dispatch::most_tiles,
    expert_product::{ExpertProduct, Rows},
    experts::experts_of,
    main_loop::MainLoop,
    operand::Walk,
};
use eglu_ir::Dim;

/// Emits the kernel.
pub(super) fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>, main: MainLoop, why: &str) -> Emit<()> {
    let (dtype, lanes) = (product.dtype, product.weights.len());
    let (bm, bn) = main.tile();
    let columns = product.columns();
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
    let n = kernel.dim(columns);
    let mut text = format!(
        "// Not by wgmma: {why}.\nconst i64 tiles_m = *{tile_count}, tiles_n = ({n} + {bn} - 1) / {bn};\nif (blockIdx.x >= tiles_m * tiles_n) return;\n\
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

    text += &product.store(emitter, &mut kernel, order.as_deref(), "work.start")?;
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let (threads, shared_bytes) = ([main.threads(), 1], main.shared_bytes(lanes));
    let experts = experts_of(&product.weights[0])?;
    let grid = most_tiles(&product.count, experts, bm) * columns.ceil_div(bn) * product.when.clone();
    emitter.launch(
        kernel,
        Code {
            headers: main.headers().into_iter().chain(product.headers()).collect(),
            items,
            body: text,
            threads,
            shared_bytes,
            residents: main.residents(lanes),
            ..Code::default()
        },
        flat(grid),
    );
    Ok(())
}

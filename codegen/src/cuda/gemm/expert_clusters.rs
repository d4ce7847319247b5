//! A product by expert in Hopper's main loop.

use super::{
    super::{
        Memory, ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Kernel, byte_offset},
        program::{self, Results},
    },
    expert_product::{ExpertProduct, Rows},
    wgmma::{Persistent, Wgmma, resident_grid},
};
use eglu_ir::Dim;

/// Emits the kernel. A cluster takes a tile of the dispatch, each block half of the rows; of a tile that has no more than one block's rows,
/// each block takes all and columns of its own.
pub(super) fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>, main: Wgmma) -> Emit<()> {
    let dtype = product.dtype;
    let ty = ctype::storage(dtype)?;
    let mut kernel = Kernel::new(format!("{}_{}", product.name, main.label(dtype)));
    let tile_count = kernel.scratch("const i32", product.dispatched.tile_count);
    let tiles = kernel.scratch("const RowTile", product.dispatched.tiles);
    let order = product.dispatched.order.map(|order| kernel.scratch("const i32", order));
    let (columns, depth) = (product.columns(), &product.depth);
    let ((tile_rows, bn), n, k) = (main.tile(), kernel.dim(columns), kernel.dim(depth));
    let setup =
        format!("const u32 tiles_m = *{tile_count}, tiles_n = (u32)(({n} + {bn} - 1) / {bn}), total = tiles_m * tiles_n;\n");
    let locate = format!(
        "const TileIndex at = banded_tile(t, tiles_m, tiles_n);\nconst RowTile work = {tiles}[at.m];\n\
         const bool narrow = work.rows <= {half};\nif (narrow && at.n * 2 >= (int)tiles_n) continue;\n\
         const int skipped = narrow ? 0 : (int)rank * {half}, start = work.start + skipped;\n\
         const int n0 = (narrow ? at.n * 2 + (int)rank : at.n) * {bn};\nconst int rows = n0 < {n} ? work.rows - skipped : 0;\n\
         [[maybe_unused]] const int expert = work.expert < 0 ? 0 : work.expert, depth = work.expert < 0 ? 0 : (int){k};\n",
        half = tile_rows / 2,
    );
    let by_copies = match (&product.rows, &order) {
        (Rows::Gathered(x, divisor), Some(order)) => {
            let (pointer, stride) = (kernel.read(x)?, kernel.dim(&x.layout.strides[0]));
            Some(format!(
                "const GatheredRows<{ty}> rows_a{{{pointer}, {stride}, rows, {order} + start, {divisor}}};\n\
                 produce_gathered(ring, place, depth, rows_a, load_b);\n"
            ))
        }
        _ => None,
    };
    let gathered = by_copies.is_some();
    let produce = match by_copies {
        Some(text) => text,
        None => {
            let (from, row) = match product.rows {
                Rows::Gathered(x, _) | Rows::Tensor(x) => {
                    ((Memory::Buffer(x.buffer), byte_offset(x)), x.layout.strides[0].clone())
                }
                Rows::Scratch(s) => ((Memory::Scratch(s), Dim::from(0)), depth.clone()),
            };
            let shape = [Dim::from(1), product.count.clone(), depth.clone()];
            let map = kernel.tensor_map(main.map_of_rows(from, dtype, [&row, &row], shape));
            format!(
                "const auto load_a = [&](u32 to, u32 full, int k) {{ load_tile(to, {map}, full, k, start, 0); }};\n\
                 produce(ring, place, depth, rows > 0, load_a, load_b);\n"
            )
        }
    };
    let lanes: Vec<String> = main.maps_of_lanes(&product.weights).into_iter().map(|map| kernel.tensor_map(map)).collect();
    let load_b = main.load_b(&lanes, "expert");
    let store = product.store(emitter, &mut kernel, order.as_deref(), "start")?;
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let setup = format!("wait_for_kernel_before();\n{}{setup}", kernel.reads_from_here());
    let short = product.program.results.iter().all(|(_, dtype)| dtype.is_float() && dtype.size() == 2);
    let mut code = Persistent { setup, locate, produce, load_b, gathered, store, short }.code(main, dtype, &items)?;
    code.headers.extend(product.headers());
    emitter.launch(kernel, code, flat(resident_grid(emitter.target) * product.when.clone()));
    Ok(())
}

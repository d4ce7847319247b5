//! A product by expert in Hopper's main loop with its operands swapped.

use super::{
    super::{
        Memory, ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Kernel, byte_offset, divisible},
        program::{self, Results},
    },
    expert_captured,
    expert_product::{ExpertProduct, ProductResult, Rows},
    swapped::{Persistent, Swapped},
    wgmma::resident_grid,
};
use crate::TensorRef;
use eglu_ir::Dim;

/// Emits the kernel: a block, or a cluster of two that take half of its rows each, to a tile of the dispatch and some columns.
pub(super) fn emit(emitter: &mut Emitter, product: &ExpertProduct<'_>, main: Swapped) -> Emit<()> {
    let dtype = product.dtype;
    let ty = ctype::storage(dtype)?;
    let mut kernel = Kernel::new(format!("{}_{}", product.name, main.label(dtype)));
    let tile_count = kernel.scratch("const i32", product.dispatched.tile_count);
    let tiles = kernel.scratch("const RowTile", product.dispatched.tiles);
    let order = product.dispatched.order.map(|order| kernel.scratch("const i32", order));
    let (n, k) = (kernel.dim(product.columns()), kernel.dim(&product.depth));
    let (columns, blocks) = (main.columns(), main.variant.blocks);
    let setup = format!(
        "read_from_here({tile_count});\nread_from_here({tiles});\nconst u32 tiles_n = (u32)(({n} + {columns} - 1) / {columns});\n\
         const auto list = work_list(blockIdx.x / {blocks}, gridDim.x / {blocks}, (i64)*{tile_count} * tiles_n, [&](i64 t) {{\n\
         return work_of_tile<Shape>({tiles}, t, tiles_n, rank);\n}});\n"
    );
    let weights: Vec<&TensorRef> = product.weights.iter().collect();
    let maps: Vec<String> = main.maps(&weights, &product.depth).into_iter().map(|map| kernel.tensor_map(map)).collect();
    let mut feed = main.load_weights(&maps);
    let gathered = match (&product.rows, &order) {
        (Rows::Gathered(x, divisor), Some(order)) => {
            let (pointer, stride) = (kernel.read(x)?, kernel.dim(&x.layout.strides[0]));
            feed += &format!(
                "const auto rows_of = [&](const SwappedWork& work) {{\n\
                 return GatheredRows<{ty}>{{{pointer}, {stride}, work.rows, {order} + work.start, {divisor}}};\n}};\n\
                 feed_gathered(ring, list, {k}, rows_of, load_weights, feed_more);\n"
            );
            true
        }
        (rows, _) => {
            let (from, row) = match rows {
                Rows::Gathered(x, _) | Rows::Tensor(x) => {
                    ((Memory::Buffer(x.buffer), byte_offset(x)), x.layout.strides[0].clone())
                }
                Rows::Scratch(s) => ((Memory::Scratch(*s), Dim::from(0)), product.depth.clone()),
            };
            let map = main.map_of_rows(from, dtype, &row, [product.count.clone(), product.depth.clone()]);
            feed += &format!(
                "const auto load_rows = [&](u32 to, u32 full, int k, int row) {{ load_tile(to, {}, full, k, row, 0); }};\n\
                 feed(ring, list, {k}, load_rows, load_weights, feed_more);\n",
                kernel.tensor_map(map)
            );
            false
        }
    };
    let captured = !product.captures.is_empty();
    let Store { prepare, before, after } = match captured {
        true => {
            let (load, bytes, store) = expert_captured::store(emitter, &mut kernel, product, order.as_deref(), main)?;
            let more = format!("feed_captures<Shape, {gathered}, {bytes}>(ring, at, work, load_captures);");
            feed = format!("{load}const auto feed_more = [&](auto& at, const SwappedWork& work) {{ {more} }};\n{feed}");
            store
        }
        false => {
            feed = format!("const auto feed_more = [](auto&, const SwappedWork&) {{}};\n{feed}");
            store(emitter, &mut kernel, product, order.as_deref())?
        }
    };
    let setup = if captured { kernel.reads_from_here() + &setup } else { setup };
    let consume = format!(
        "{before}SwappedTile<Shape, {gathered}>::Sums sums;\ntile.multiply(sums, work.expert < 0 ? 0 : {k}, work.rows);\n{after}"
    );
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let mut code = Persistent { setup, feed, gathered, prepare, consume, captured }.code(main, dtype, &items)?;
    code.headers.extend(product.headers());
    emitter.launch(kernel, code, flat(resident_grid(emitter.target) * product.when.clone()));
    Ok(())
}

/// Statements of the consumers around the products.
pub(super) struct Store {
    /// Before any work.
    pub prepare: String,
    /// Before the products of some work.
    pub before: String,
    /// After them: they store `sums`.
    pub after: String,
}

fn store(emitter: &Emitter, kernel: &mut Kernel, product: &ExpertProduct<'_>, order: Option<&str>) -> Emit<Store> {
    let columns = kernel.dim(product.columns());
    let lanes = product.weights.len();
    // What a lane holds of its columns: one element of each bias.
    let (mut fields, mut reads) = (String::new(), String::new());
    for (i, bias) in product.biases.iter().enumerate() {
        let pointer = kernel.read(bias)?;
        let at = kernel.offset(&["work.expert".into(), "column".into()], &bias.layout.strides);
        fields += &format!("{} bias{i};\n", ctype::opmath(bias.dtype)?);
        reads += &format!("held.bias{i} = up({pointer}[{at}]);\n");
    }
    let results = product.results(emitter, kernel)?;
    let (mut params, mut args) = (String::new(), vec![]);
    for (lane, &dtype) in product.program.params.iter().take(lanes).enumerate() {
        params += &format!(", float a{lane}");
        args.push(format!("({})a{lane}", ctype::opmath(dtype)?));
    }
    args.extend((0..product.biases.len()).map(|i| format!("held.bias{i}")));
    let mut declare = String::new();
    for (i, result) in results.iter().enumerate() {
        declare += &format!("[[maybe_unused]] {} result{i};\n", result.ty);
        args.push(format!("result{i}"));
    }
    let place = match order {
        Some(order) if product.unordered && !results[0].ordered => format!("__ldg({order} + (work.start + m))"),
        _ => "work.start + m".into(),
    };
    let before = format!(
        "const auto held_for = [&](int n) {{\nHeld held{{}};\n[[maybe_unused]] const int column = work.n0 + n;\n\
         if (work.expert >= 0 && column < {columns}) {{\n{reads}}}\nreturn held;\n}};\n\
         const auto kept = tile.keep(work.rows, held_for, [&](int m) {{ return {place}; }});\n"
    );
    // One result after another: the sums are there until the next product.
    let mut after = String::new();
    for (i, ProductResult { ty, pointer, base, width, .. }) in results.iter().enumerate() {
        let zero = if product.zero_dropped { format!("if (work.expert < 0) return {ty}{{0}};\n") } else { String::new() };
        let at = format!("{pointer} + {base} + (i64)place * {width} + column");
        let put = if divisible(product.columns(), 8) {
            format!("if (column < {columns}) *(Pack<u32, 4>*)({at}) = x;\n")
        } else {
            format!(
                "{ty}* const to = {at};\n#pragma unroll\nfor (int e = 0; e < 8; e++)\n\
                 if (column + e < {columns}) to[e] = {ty}{{(u16)(x.at[e / 2] >> e % 2 * 16)}};\n"
            )
        };
        after += &format!(
            "const auto finish{i} = [&](const Held& held{params}) {{\n{zero}{declare}epilogue({});\nreturn result{i};\n}};\n\
             tile.store(sums, work.rows, kept, finish{i}, [&](int place, int n, const Pack<u32, 4>& x) {{\n\
             const int column = work.n0 + n;\n{put}}});\n",
            args.join(", ")
        );
    }
    Ok(Store { prepare: format!("struct Held {{\n{fields}}};\n"), before, after })
}

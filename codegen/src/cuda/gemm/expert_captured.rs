//! Epilogues with captures behind the swapped main loop.

use super::{
    super::{
        Memory, TensorMap, ctype,
        emitter::Emitter,
        error::Emit,
        kernel::{Kernel, byte_offset, divisible},
    },
    epilogue::Load,
    expert_product::ExpertProduct,
    expert_swapped::Store,
    swapped::{HELD, Swapped},
};
use crate::TensorRef;
use eglu_ir::{DType, Dim, Program, Ref, ops::ExpertContract, program::InstrOp};

/// Neighbouring columns of a row that a thread finishes at a time, and that eight lanes finish together.
pub(super) const RUN: usize = 8;
pub(super) const LINE: i64 = 64;
/// Boxes of 64 columns that a stage has room for beside each other: two tensors as wide as a block's columns.
const BOXES: usize = 8;

/// True if an epilogue can take the accumulators of its one lane in 16 bits, and what it captures by pieces of rows in expert order.
pub(super) fn fits(emitter: &Emitter, op: &ExpertContract, dtype: DType, columns: &Dim, captures: &[&TensorRef]) -> bool {
    let (narrow, wide): (Vec<&TensorRef>, Vec<&TensorRef>) =
        captures.iter().partition(|x| x.layout.shape.last().is_some_and(|extent| extent.is(1)));
    let pieces = wide.len() <= 2 && wide.iter().all(|x| emitter.is_ordered(x) && x.dtype.size() == 2 && in_pieces(x));
    let held = narrow.iter().map(|x| x.dtype.size()).sum::<usize>() + size_of::<i32>();
    op.lanes == 1
        && op.tables == 0
        && pieces
        && held <= HELD as usize
        && takes_rounded(&op.program, op.folds.len(), dtype)
        && divisible(columns, RUN as i64)
}

/// True if the copy engine can bring rows of a capture.
fn in_pieces(x: &TensorRef) -> bool {
    let [row, column] = [0, 1].map(|i| &x.layout.strides[i]);
    // Of two that take turns the second starts one element later.
    let offset = x.layout.offset.as_const().map(|offset| if column.is(2) { offset - offset % 2 } else { offset });
    x.layout.shape.len() == 2
        && (column.is(1) || column.is(2))
        && divisible(row, 16)
        && offset.is_some_and(|offset| offset % 16 == 0)
}

/// True if `program` reads its accumulators rounded to `dtype`, and results have 16 bits, but for its last `folds`, which are reduced.
fn takes_rounded(program: &Program, folds: usize, dtype: DType) -> bool {
    let lane = Ref::Param(0);
    let mut readers = program.instrs.iter().filter(|instr| instr.args.contains(&lane));
    let stored = &program.results[..program.results.len() - folds];
    readers.all(|instr| instr.op == InstrOp::Cast && instr.dtype == dtype)
        && stored.iter().all(|(_, dtype)| dtype.size() == 2 && dtype.is_float())
        && program.results.iter().all(|&(result, _)| result != lane)
}

/// Statements of the producers that declare `load_captures`, and the bytes that it asks for; statements of the consumers around the products.
pub(super) fn store(
    emitter: &Emitter,
    kernel: &mut Kernel,
    product: &ExpertProduct<'_>,
    order: Option<&str>,
    main: Swapped,
) -> Emit<(String, u32, Store)> {
    let epilogue = product.epilogue(emitter, kernel, order, "start", RUN)?;
    let loads = epilogue.loads(kernel, 1)?;
    let (mut fields, mut fetches) = (String::from("i32 row;\n"), String::new());
    let (mut asks, mut boxes, mut from_pieces) = (String::new(), 0, Vec::new());
    for Load { capture, ty, name, at, run } in loads {
        if run == 1 {
            fields += &format!("{ty} {name};\n");
            fetches += &format!("held.{name} = *(const {ty}*)&{at};\n");
            from_pieces.push((name.clone(), format!("held.{name}")));
            continue;
        }
        let (lanes, x) = (run / RUN, product.captures[capture]);
        let map = kernel.tensor_map(map(x, product, lanes as i64, main.variant.pass));
        for i in 0..4 * lanes {
            asks += &format!(
                "load_tile(to + {}, {map}, full, work.n0 * {lanes} + {}, row, 0);\n",
                (boxes + i) as u32 * main.variant.pass * 128,
                i * 64
            );
        }
        let how = if lanes == 1 { "run" } else { "turns" };
        from_pieces.push((name, format!("piece.template {how}<{}>({boxes})", ctype::storage(x.dtype)?)));
        boxes += 4 * lanes;
    }
    debug_assert!(boxes <= BOXES, "a stage has no room");
    let load = format!(
        "const auto load_captures = [&](u32 to, u32 full, int row, [[maybe_unused]] const SwappedWork& work) {{\n{asks}}};\n"
    );
    let visit = epilogue.visit_of(kernel, 1, &from_pieces)?;
    let before = format!(
        "const int start = work.start, rows = work.rows, n0 = work.n0;\n[[maybe_unused]] const int expert = work.expert < 0 ? 0 : work.expert;\n\
         const CapturedRows<Shape, Held> captured([&](int m) {{\nHeld held{{}};\nif (m < rows) {{\n[[maybe_unused]] const i64 column = n0;\n{}\
         held.row = (i32)row;\n{fetches}}}\nreturn held;\n}});\n",
        epilogue.rows()
    );
    let store = Store {
        prepare: format!("struct Held {{\n{fields}}};\n"),
        before,
        after: format!("captured.each(tile, sums, rows, {visit});\n"),
    };
    Ok((load, boxes as u32 * main.variant.pass * 128, store))
}

/// The map of a capture's rows, or of it and the one that it takes turns with, in boxes of a pass's rows by 64 columns.
fn map(x: &TensorRef, product: &ExpertProduct<'_>, lanes: i64, pass: u32) -> TensorMap {
    let row = x.layout.strides[0].clone() * Dim::from(x.dtype.size() as i64);
    TensorMap {
        memory: Memory::Buffer(x.buffer),
        offset: byte_offset(x),
        dtype: x.dtype,
        dims: vec![product.columns().clone() * Dim::from(lanes), product.count.clone(), Dim::from(1)],
        strides: vec![row.clone(), row],
        tile: vec![LINE as u32, pass, 1],
        follows: true,
    }
}

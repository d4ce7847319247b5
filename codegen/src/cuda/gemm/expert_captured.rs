//! Epilogues with captures behind the swapped main loop.

use super::{
    super::{emitter::Emitter, error::Emit, kernel::Kernel, kernel::divisible},
    epilogue::Fetched,
    expert_product::ExpertProduct,
    expert_swapped::Store,
};
use eglu_ir::{DType, Dim, Program, Ref, program::InstrOp};

/// Neighbouring columns of a row that a thread finishes at a time.
pub(super) const RUN: usize = 8;

/// Neighbouring columns of a row that eight lanes finish together.
pub(super) const LINE: i64 = 64;

/// True if `program` can take the accumulators of its one lane in 16 bits, and pieces of a row of `columns`: it reads them rounded to `dtype`, and
/// results have 16 bits, but for its last `folds`, which are reduced.
pub(super) fn fits(program: &Program, folds: usize, dtype: DType, columns: &Dim) -> bool {
    let lane = Ref::Param(0);
    let rounded = program
        .instrs
        .iter()
        .filter(|instr| instr.args.contains(&lane))
        .all(|instr| instr.op == InstrOp::Cast && instr.dtype == dtype);
    let stored = &program.results[..program.results.len() - folds];
    let short = stored.iter().all(|(_, dtype)| dtype.size() == 2 && dtype.is_float());
    let rounded = rounded && program.results.iter().all(|&(result, _)| result != lane);
    rounded && short && divisible(columns, RUN as i64)
}

/// Statements of the consumers around the products.
pub(super) fn store(emitter: &Emitter, kernel: &mut Kernel, product: &ExpertProduct<'_>, order: Option<&str>) -> Emit<Store> {
    let Fetched { declare, visit } = product.epilogue(emitter, kernel, order, "start", RUN)?;
    let before = format!(
        "const int start = work.start, rows = work.rows, n0 = work.n0;\n[[maybe_unused]] const int expert = work.expert < 0 ? 0 : work.expert;\n\
         {declare}const CapturedRows<Shape> captured(tile);\nHeld held[CapturedRows<Shape>::count];\ncaptured.look_ahead(held, fetch);\n"
    );
    Ok(Store { prepare: String::new(), before, after: format!("captured.each(sums, rows, held, fetch, {visit});\n") })
}

//! Reductions behind a product: what the epilogue makes is staged in shared memory and reduced there, along rows or down columns. A reduction
//! that spans several tiles ends in the block that comes last of them, which adds the tiles' parts up in their order: the same in every run.

use super::{
    super::{COUNTERS, ctype, emitter::Emitter, error::Emit, kernel::Kernel},
    epilogue::Epilogue,
    main_loop::MainLoop,
    product::Walked,
};
use crate::Step;
use eglu_ir::{
    DType, Dim, Program,
    ops::{Contract, ReduceKind},
    types::numel,
};

/// Counters for lines of tiles, and as many for columns of tiles.
const COUNTER_LINES: usize = COUNTERS / 2;

/// A reduction of one of a product's results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    kind: ReduceKind,
    /// Neighbouring columns that become one value; 0 for all rows.
    group: i64,
    /// The dtype it is stored in.
    stored: DType,
}

/// The reductions of a contraction.
pub(super) fn folds(op: &Contract) -> Vec<Fold> {
    let [.., folded] = op.results();
    let kinds = op.folds.iter().zip(&op.groups).zip(folded);
    kinds.map(|((&kind, &group), &(_, stored))| Fold { kind, group: group as i64, stored }).collect()
}

/// A program with what is reduced, its last `folds` results, left unrounded.
pub(super) fn unrounded(program: &Program, folds: usize) -> Program {
    let mut program = program.clone();
    let first = program.results.len() - folds;
    program.results[first..].iter_mut().for_each(|(_, dtype)| *dtype = dtype.opmath());
    program
}

/// Elements from row to row of what is staged: one more than a tile has columns, so that rows start in different banks.
fn pitch(main: MainLoop) -> i64 {
    main.tile().1 + 1
}

/// Bytes of shared memory that staging takes.
pub(super) fn shared_bytes(main: MainLoop, folds: &[Fold]) -> u32 {
    let size = folds.iter().map(|fold| fold.stored.opmath().size()).max().unwrap_or(0);
    (main.tile().0 * pitch(main)) as u32 * size as u32
}

impl Fold {
    fn state(&self) -> Emit<String> {
        Ok(format!("{:?}State<{}>", self.kind, ctype::opmath(self.stored)?))
    }

    /// How many tiles a row's group spans, as an expression; `None` where a tile holds whole groups.
    fn spans(&self, columns: &Dim, width: i64) -> Option<String> {
        match self.group {
            group if group < width && width % group == 0 => None,
            group if columns.is(group) => Some("tiles_n".into()),
            group => Some((group / width).to_string()),
        }
    }
}

/// Where a product's reductions are written.
pub(super) struct Folding<'a, 'b> {
    pub emitter: &'a mut Emitter,
    pub kernel: &'a mut Kernel,
    pub step: &'b Step,
    pub walked: &'b Walked,
    pub main: MainLoop,
    /// Indices of the batch.
    pub batch: &'b [String],
}

impl Folding<'_, '_> {
    /// Statements that store and reduce a finished `tile`.
    pub fn store(mut self, mut epilogue: Epilogue<'_>, folds: &[Fold], lanes: usize) -> Emit<String> {
        let (all, first) = (epilogue.program.results.len(), epilogue.program.results.len() - folds.len());
        let (columns, last) = (self.kernel.dim(&self.walked.columns), self.walked.batches.strides.len() - 1);
        let start = self.kernel.offset(self.batch, &self.walked.batches.strides[last]);
        let mut text = format!(
            "// Rows are counted over all batches.\nconst i64 line0 = ({start}) / {columns} + m0;\n\
             const int valid_m = rows < {} ? (int)rows : {0}, valid_n = {columns} - n0 < {} ? (int)({columns} - n0) : {1};\n",
            self.main.tile().0,
            self.main.tile().1
        );
        let (mut rows, mut downward) = (String::new(), String::new());
        for (result, fold) in (first..all).zip(folds) {
            let ty = ctype::opmath(fold.stored)?;
            epilogue.folded = Some((result, pitch(self.main)));
            let visit = epilogue.visit(self.kernel, lanes)?;
            let output = &self.step.outputs[self.step.outputs.len() - (all - result)];
            let y = self.kernel.write(output)?;
            text += &format!(
                "__syncthreads();\n{{\nextern __shared__ __align__(128) char memory[];\n{ty}* const staged = ({ty}*)memory;\n\
                 tile.each({visit});\n__syncthreads();\n"
            );
            let (part, finish) = if fold.group > 0 { self.along(fold, &y)? } else { self.down(fold, &y)? };
            text += &format!("{part}}}\n");
            *(if fold.group > 0 { &mut rows } else { &mut downward }) += &finish;
            // Stored once.
            epilogue.outputs.clear();
        }
        let lines = self.kernel.dim(&(numel(&self.walked.batches.shape) * self.walked.rows.ceil_div(self.main.tile().0)));
        let counters = if rows.is_empty() && downward.is_empty() { String::new() } else { self.kernel.counters() };
        if !rows.is_empty() {
            text += &format!(
                "{{\n// Each line of tiles has a counter of its own, if there are enough.\nconst bool own = {lines} <= {COUNTER_LINES};\n\
                 const i64 line = batch * tiles_m + at.m;\n\
                 if (comes_last({counters} + (own ? line : 0), (u32)(own ? tiles_n : tiles_n * {lines}))) {{\n\
                 const i64 from = own ? line0 : 0, to = own ? line0 + valid_m : {};\n{rows}}}\n}}\n",
                self.kernel.dim(&(numel(&self.walked.batches.shape) * self.walked.rows.clone()))
            );
        }
        if !downward.is_empty() {
            text += &format!(
                "{{\nconst bool own = tiles_n <= {COUNTER_LINES};\n\
                 if (comes_last({counters} + {COUNTER_LINES} + (own ? at.n : 0), (u32)(own ? {lines} : tiles_n * {lines}))) {{\n\
                 const i64 from = own ? n0 : 0, to = own ? n0 + valid_n : {columns};\n{downward}}}\n}}\n"
            );
        }
        Ok(text)
    }

    /// Along rows: statements for what is staged, and those of the block that comes last in a line of tiles.
    fn along(&mut self, fold: &Fold, y: &str) -> Emit<(String, String)> {
        let ((_, width), threads, columns) = (self.main.tile(), self.main.threads(), self.kernel.dim(&self.walked.columns));
        let (state, stored, group, pitch) = (fold.state()?, ctype::storage(fold.stored)?, fold.group, pitch(self.main));
        let Some(spans) = fold.spans(&self.walked.columns, width) else {
            let part = format!(
                "for (int i = threadIdx.x; i < valid_m * (valid_n / {group}); i += {threads}) {{\n\
                 const int m = i % valid_m, part = i / valid_m;\n{state} state;\n\
                 for (int n = 0; n < {group}; n++) state.add(staged[m * {pitch} + part * {group} + n], n);\n\
                 {y}[(line0 + m) * ({columns} / {group}) + n0 / {group} + part] = cast<{stored}>(state.result({group}));\n}}\n"
            );
            return Ok((part, String::new()));
        };
        let tiles = self.walked.columns.ceil_div(width);
        let bytes =
            numel(&self.walked.batches.shape) * self.walked.rows.clone() * tiles * Dim::from(fold.stored.opmath().size() as i64);
        let scratch = self.emitter.scratch("row_parts", bytes);
        let parts = self.kernel.scratch(&state, scratch);
        let part = format!(
            "for (int m = threadIdx.x; m < valid_m; m += {threads}) {{\n{state} state;\n\
             for (int n = 0; n < valid_n; n++) state.add(staged[m * {pitch} + n], n);\n\
             {parts}[(line0 + m) * tiles_n + at.n] = state;\n}}\n"
        );
        let finish = format!(
            "for (i64 i = threadIdx.x; i < (to - from) * ({columns} / {group}); i += {threads}) {{\n\
             const i64 m = from + i / ({columns} / {group}), part = i % ({columns} / {group});\n{state} state;\n\
             for (i64 t = 0; t < {spans}; t++) state.merge(fresh({parts} + m * tiles_n + part * {spans} + t));\n\
             {y}[m * ({columns} / {group}) + part] = cast<{stored}>(state.result({group}));\n}}\n"
        );
        Ok((part, finish))
    }

    /// Down columns: statements for what is staged, and those of the block that comes last in a column of tiles.
    fn down(&mut self, fold: &Fold, y: &str) -> Emit<(String, String)> {
        let ((height, _), threads, columns) = (self.main.tile(), self.main.threads(), self.kernel.dim(&self.walked.columns));
        let (state, stored, pitch) = (fold.state()?, ctype::storage(fold.stored)?, pitch(self.main));
        let lines = numel(&self.walked.batches.shape) * self.walked.rows.ceil_div(height);
        let rows = self.kernel.dim(&(numel(&self.walked.batches.shape) * self.walked.rows.clone()));
        let bytes = lines.clone() * self.walked.columns.clone() * Dim::from(fold.stored.opmath().size() as i64);
        let scratch = self.emitter.scratch("column_parts", bytes);
        let (parts, lines) = (self.kernel.scratch(&state, scratch), self.kernel.dim(&lines));
        let part = format!(
            "for (int n = threadIdx.x; n < valid_n; n += {threads}) {{\n{state} state;\n\
             for (int m = 0; m < valid_m; m++) state.add(staged[m * {pitch} + n], m);\n\
             {parts}[(batch * tiles_m + at.m) * {columns} + n0 + n] = state;\n}}\n"
        );
        let finish = format!(
            "for (i64 n = from + threadIdx.x; n < to; n += {threads}) {{\n{state} state;\n\
             for (i64 t = 0; t < {lines}; t++) state.merge(fresh({parts} + t * {columns} + n));\n\
             {y}[n] = cast<{stored}>(state.result({rows}));\n}}\n"
        );
        Ok((part, finish))
    }
}

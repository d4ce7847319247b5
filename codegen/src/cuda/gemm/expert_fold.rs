//! Reductions along the rows of products by expert. A kernel stores a part of each row for so many columns as it has in hand together, and a
//! small one after it merges the parts, in their order: the same in every run.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat},
        error::Emit,
        kernel::{Code, Header, Kernel},
    },
    epilogue::Part,
    expert_captured,
    expert_product::Engine,
};
use crate::Step;
use eglu_ir::{Dim, ops::ExpertContract};

/// Threads of a block of the kernel that merges, and how many of them merge one row's parts.
const THREADS: i64 = 256;
const TOGETHER: i64 = 8;

/// Memory for the parts of `rows` rows of `columns` columns that this engine stores.
pub(super) fn parts(emitter: &mut Emitter, op: &ExpertContract, engine: &Engine, rows: &Dim, columns: i64) -> Emit<Vec<Part>> {
    let [packed, apart, folded] = op.results();
    let run = if matches!(engine, Engine::Swapped(_)) { expert_captured::RUN as i64 } else { 2 };
    let first = packed.len() + apart.len();
    let mut parts = Vec::new();
    for (i, ((&kind, &group), &(_, dtype))) in op.folds.iter().zip(&op.groups).zip(folded).enumerate() {
        let group = group as i64;
        let wide = expert_captured::LINE;
        let width = if run < wide && matches!(engine, Engine::Swapped(_)) && group % wide == 0 {
            wide
        } else if group % run == 0 {
            run
        } else {
            1
        };
        let each = columns / width;
        let scratch = emitter.scratch("row_parts", rows.clone() * Dim::from(each * dtype.opmath().size() as i64));
        let state = format!("{kind:?}State<{}>", ctype::opmath(dtype)?);
        parts.push(Part { result: first + i, state, scratch, width, each });
    }
    Ok(parts)
}

/// Emits the kernel that merges what was stored, for those of `rows` rows.
pub(super) fn merge(emitter: &mut Emitter, step: &Step, op: &ExpertContract, parts: &[Part], rows: &Dim, when: &Dim) -> Emit<()> {
    let first = step.outputs.len() - parts.len();
    for ((part, &group), output) in parts.iter().zip(&op.groups).zip(&step.outputs[first..]) {
        let (group, stored) = (group as i64, ctype::storage(output.dtype)?);
        let mut kernel = Kernel::new("expert_fold");
        let from = kernel.scratch(&format!("const {}", part.state), part.scratch);
        let y = kernel.write(output)?;
        let sums = rows.clone() * Dim::from(part.each * part.width / group);
        let body = format!(
            "const i64 i = ((i64)blockIdx.x * {THREADS} + threadIdx.x) / {TOGETHER};\n\
             if (i >= {}) return;\n{state} state;\nfor (int part = threadIdx.x % {TOGETHER}; part < {spans}; part += {TOGETHER}) \
             state.merge({from}[i * {spans} + part]);\nmerge_eight(state);\nif (threadIdx.x % {TOGETHER} == 0) {y}[i] = cast<{stored}>(state.result({group}));\n",
            kernel.dim(&sums),
            state = part.state,
            spans = group / part.width,
        );
        let code = Code {
            headers: vec![Header::Math, Header::Warp, Header::Reduce],
            body,
            threads: [THREADS as u32, 1],
            ..Code::default()
        };
        emitter.launch(kernel, code, flat(sums.ceil_div(THREADS / TOGETHER) * when.clone()));
    }
    Ok(())
}

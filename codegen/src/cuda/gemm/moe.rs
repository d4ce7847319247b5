//! Whole mixture-of-experts blocks.

use super::{
    super::{
        ctype,
        emitter::{Emitter, elements, flat, optional, tensor},
        error::{Emit, Unsupported},
        kernel::{Code, Header, Kernel, divisible},
    },
    block_way::{Way, Ways},
    dispatch,
    epilogue::with_biases,
    expert_product::{ExpertProduct, Rows, Target},
    experts::experts_of,
    few::{self, Block, Finish},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, Program, ops::Moe, program::InstrOp};

/// A whole block: dispatch, gate and up with the gating, down, weighted sum; for a few tokens all of it in one launch.
pub(in super::super) fn moe(emitter: &mut Emitter, step: &Step, op: &Moe) -> Emit<()> {
    let (x, gate, down) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 5)?);
    let lanes: Vec<&TensorRef> = [Some(gate), optional(step, 3)].into_iter().flatten().collect();
    let (ids, weights) = (tensor(step, 7)?, tensor(step, 8)?);
    let experts = experts_of(gate)?;
    let Some(choices) = ids.layout.shape[1].as_const() else {
        return Err(Unsupported::new("the number of experts a token takes must be known"));
    };
    let rows = elements(ids);
    let inner = gate.layout.shape[1].clone();
    let outer = &down.layout.shape[1];
    if op.program.results.len() != 1 {
        return Err(Unsupported::new("a gating program has one result"));
    }
    let ways = Ways::of(emitter, step)?;
    let (heights, Ways { tokens, any }) = (ways.heights(), ways);

    let bytes = |dtype: DType| Dim::from(dtype.size() as i64);
    let activations = emitter.scratch("moe_activations", rows.clone() * inner.clone() * bytes(x.dtype));
    let biases = &[optional(step, 2), optional(step, 4)][..lanes.len()];
    let mut gating = with_biases(&op.program, &biases.iter().map(|bias| bias.map(|b| b.dtype)).collect::<Vec<_>>());
    if let [(active, stored)] = gating.results[..] {
        // The down projection reads rows of x's dtype, whatever the gating stores.
        let active = if stored == x.dtype { active } else { gating.push(InstrOp::Cast, [active], stored) };
        gating.results = [(active, x.dtype)].into_iter().collect();
    }
    let bias = optional(step, 6);
    let project = with_biases(&Program::identity(x.dtype, x.dtype), &[bias.map(|b| b.dtype)]);
    let lane_biases: Vec<&TensorRef> = biases.iter().copied().flatten().collect();
    let block = Block {
        x,
        ids,
        choices,
        lanes: &lanes,
        lane_biases: &lane_biases,
        gating: &gating,
        down,
        down_bias: bias,
        project: &project,
        experts,
        activations,
    };
    for (few, when) in tokens {
        few::emit(emitter, &block, few, &Finish::Sums(weights, &step.outputs[0], op.dtype), when)?;
    }
    let Some(whenever) = heights.iter().map(|(_, when)| when.clone()).reduce(|any, when| any + when) else {
        return Ok(());
    };
    let outputs = emitter.scratch("moe_rows", rows.clone() * outer.clone() * bytes(x.dtype));
    let dispatched = dispatch::by_ids(emitter, ids, experts, &heights, false)?;
    for (way, when) in any {
        let (up, down_engine) = match way {
            Way::Few(few) => {
                few::emit(emitter, &block, few, &Finish::Rows(&dispatched, outputs), when)?;
                continue;
            }
            Way::Products(engines) => engines,
        };
        let gated = ExpertProduct {
            name: "moe_up",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: Rows::Gathered(x, choices),
            weights: lanes.iter().map(|&lane| lane.clone()).collect(),
            biases: lane_biases.clone(),
            captures: vec![],
            program: &gating,
            parts: vec![],
            target: Target::Scratch(activations),
            unordered: false,
            dispatched: &dispatched,
            engine: up,
            when: when.clone(),
            zero_dropped: false,
        };
        let projected = ExpertProduct {
            name: "moe_down",
            dtype: x.dtype,
            depth: inner.clone(),
            count: rows.clone(),
            rows: Rows::Scratch(activations),
            weights: vec![down.clone()],
            biases: bias.into_iter().collect(),
            captures: vec![],
            program: &project,
            parts: vec![],
            target: Target::Scratch(outputs),
            unordered: true,
            dispatched: &dispatched,
            engine: down_engine,
            when,
            zero_dropped: false,
        };
        gated.emit(emitter)?;
        projected.emit(emitter)?;
    }
    emitter.only(whenever, |emitter| combine(emitter, step, op, ids, weights, outputs, experts))
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
    let width: i64 = if divisible(&columns, 8) && x.dtype.size() == 2 { 8 } else { 1 };
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
    let overlaps = emitter.target.arch >= 90;
    let wait: String = [&from, &id, &scale].map(|pointer| format!("read_from_here({pointer});\n")).concat();
    let (headers, wait) =
        if overlaps { (vec![Header::Hopper], format!("wait_for_kernel_before();\n{wait}")) } else { (vec![], String::new()) };
    let body = format!(
        "{wait}const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * {width};\nif (at >= {all}) return;\nconst i64 t = at / {n}, h = at % {n};\n\
         {ty} sum[{width}] = {{}};\n#pragma unroll\nfor (i64 j = 0; j < {choices}; j++) {{\nconst i64 expert = (i64){id}[{id_at}];\n\
         if (expert < 0 || expert >= {experts}) continue;\nconst {ty} weight = ({ty})up({scale}[{scale_at}]);\n\
         const Pack<{stored}, {width}> row = *(const Pack<{stored}, {width}>*)({from} + (t * {choices} + j) * {n} + h);\n\
         #pragma unroll\nfor (int e = 0; e < {width}; e++) sum[e] += weight * ({ty})up(row.at[e]);\n}}\n\
         Pack<{target}, {width}> result;\n#pragma unroll\nfor (int e = 0; e < {width}; e++) result.at[e] = cast<{target}>(sum[e]);\n\
         *(Pack<{target}, {width}>*)({to} + at) = result;\n"
    );
    let code = Code { headers, body, threads: [256, 1], overlaps, ..Code::default() };
    emitter.launch(kernel, code, flat(total.ceil_div(256 * width)));
    Ok(())
}

//! Whole mixture-of-experts blocks.

use super::{
    super::{
        emitter::{Emitter, elements, optional, tensor},
        error::{Emit, Unsupported},
    },
    block_way::{Way, Ways},
    dispatch,
    epilogue::with_biases,
    expert_product::{ExpertProduct, Rows, Target},
    experts::experts_of,
    few::{self, Block, Finish},
    weighted_sum::WeightedSum,
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
    if any.is_empty() {
        return Ok(());
    }
    let sum = WeightedSum { rows: x.dtype, ids, weights, out: &step.outputs[0], dtype: op.dtype, experts };
    let mut left = Dim::from(0);
    let outputs = emitter.scratch("moe_rows", rows.clone() * outer.clone() * bytes(x.dtype));
    let dispatched = dispatch::by_ids(emitter, ids, experts, &heights, false)?;
    for (way, when) in any {
        let (up, down_engine) = match way {
            Way::Single(few) => {
                few::emit(emitter, &block, few, &Finish::Combined(&dispatched, outputs, &sum), when)?;
                continue;
            }
            Way::Few(few) => {
                left = left + when.clone();
                few::emit(emitter, &block, few, &Finish::Rows(&dispatched, outputs), when)?;
                continue;
            }
            Way::Products(engines) => engines,
        };
        left = left + when.clone();
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
    emitter.only(left, |emitter| sum.emit(emitter, outputs))
}

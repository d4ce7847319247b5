//! Products by expert: grouped rows, rows with ids, and whole mixture-of-experts blocks.

use super::{
    super::{
        emitter::{Emitter, elements, optional, tensor},
        error::{Emit, Unsupported},
    },
    combine::combine,
    dispatch,
    epilogue::with_biases,
    expert_product::{Engine, ExpertProduct, Rows, Target},
    main_loop::MainLoop,
    wgmma::{Strides, Wgmma},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, Program, ops::Moe, program::InstrOp};

/// Rows in groups times their group's matrix.
pub(in super::super) fn grouped_mm(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, offsets) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?);
    let weight = TensorRef { layout: w.layout.permute(&[0, 2, 1]), ..w.clone() };
    let groups = experts_of(&weight)?;
    let engine = engine(emitter, x, &weight, groups);
    let dispatched = dispatch::by_offsets(emitter, offsets, groups, &x.layout.shape[0], engine.rows())?;
    let program = Program::identity(x.dtype, step.outputs[0].dtype);
    ExpertProduct {
        name: "grouped_mm",
        dtype: x.dtype,
        depth: x.layout.shape[1].clone(),
        rows: Rows::Tensor(x),
        weights: vec![weight],
        biases: vec![],
        program: &program,
        target: Target::Tensor(&step.outputs[0]),
        unordered: false,
        dispatched: &dispatched,
        engine,
        zero_dropped: true,
    }
    .emit(emitter)
}

/// Rows times the matrix that their id names.
pub(in super::super) fn expert_matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, bias, ids) = (tensor(step, 0)?, tensor(step, 1)?, optional(step, 2), tensor(step, 3)?);
    let experts = experts_of(w)?;
    let engine = engine(emitter, x, w, experts);
    let dispatched = dispatch::by_ids(emitter, ids, experts, engine.rows(), true)?;
    let plain = Program::identity(x.dtype, step.outputs[0].dtype);
    let program = with_biases(&plain, &[bias.map(|b| b.dtype)]);
    ExpertProduct {
        name: "expert_matmul",
        dtype: x.dtype,
        depth: x.layout.shape[1].clone(),
        rows: Rows::Gathered(x, 1),
        weights: vec![w.clone()],
        biases: bias.into_iter().collect(),
        program: &program,
        target: Target::Tensor(&step.outputs[0]),
        unordered: true,
        dispatched: &dispatched,
        engine,
        zero_dropped: true,
    }
    .emit(emitter)
}

/// A whole block: dispatch, gate and up with the gating, down, weighted sum.
pub(in super::super) fn moe(emitter: &mut Emitter, step: &Step, op: &Moe) -> Emit<()> {
    let (x, gate, up, down) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 3)?, tensor(step, 5)?);
    let (ids, weights) = (tensor(step, 7)?, tensor(step, 8)?);
    let experts = experts_of(gate)?;
    let Some(choices) = ids.layout.shape[1].as_const() else {
        return Err(Unsupported::new("the number of experts a token takes must be known"));
    };
    let rows = elements(ids);
    let inner = gate.layout.shape[1].clone();
    let (up_engine, down_engine) = engines(emitter, x, [gate, up], down, &rows, experts);
    let dispatched = dispatch::by_ids(emitter, ids, experts, up_engine.rows(), false)?;

    let bytes = |dtype: DType| Dim::from(dtype.size() as i64);
    let activations = emitter.scratch("moe_activations", rows.clone() * inner.clone() * bytes(x.dtype));
    let outputs = emitter.scratch("moe_rows", rows.clone() * down.layout.shape[1].clone() * bytes(x.dtype));
    let biases = [optional(step, 2), optional(step, 4)];
    let mut gating = with_biases(&op.program, &biases.map(|bias| bias.map(|b| b.dtype)));
    let [(active, stored)] = gating.results[..] else { return Err(Unsupported::new("a gating program has one result")) };
    // The down projection reads rows of x's dtype, whatever the gating stores.
    let active = if stored == x.dtype { active } else { gating.push(InstrOp::Cast, [active], stored) };
    gating.results = [(active, x.dtype)].into_iter().collect();
    ExpertProduct {
        name: "moe_up",
        dtype: x.dtype,
        depth: x.layout.shape[1].clone(),
        rows: Rows::Gathered(x, choices),
        weights: vec![gate.clone(), up.clone()],
        biases: biases.into_iter().flatten().collect(),
        program: &gating,
        target: Target::Scratch(activations),
        unordered: false,
        dispatched: &dispatched,
        engine: up_engine,
        zero_dropped: false,
    }
    .emit(emitter)?;
    let bias = optional(step, 6);
    let project = with_biases(&Program::identity(x.dtype, x.dtype), &[bias.map(|b| b.dtype)]);
    ExpertProduct {
        name: "moe_down",
        dtype: x.dtype,
        depth: inner,
        rows: Rows::Scratch(activations),
        weights: vec![down.clone()],
        biases: bias.into_iter().collect(),
        program: &project,
        target: Target::Scratch(outputs),
        unordered: true,
        dispatched: &dispatched,
        engine: down_engine,
        zero_dropped: false,
    }
    .emit(emitter)?;
    combine(emitter, step, op, ids, weights, outputs, experts)
}

fn experts_of(weight: &TensorRef) -> Emit<i64> {
    weight.layout.shape[0].as_const().ok_or_else(|| Unsupported::new("the number of experts must be known"))
}

/// The engine for `x [S, K]` times one matrix `[N, K]` for each expert.
fn engine(emitter: &Emitter, x: &TensorRef, weight: &TensorRef, experts: i64) -> Engine {
    let (share, columns) = (x.layout.shape[0].ceil_div(experts.max(1)), &weight.layout.shape[1]);
    let strides = [strides_of_rows(x), strides_of_lane(weight)];
    match Wgmma::choose(emitter.target, x.dtype, 1, [&share, columns], &strides) {
        Ok(main) => Engine::Clusters(main),
        Err(why) => Engine::Blocks(MainLoop::choose(emitter.target, x.dtype, 1, &share, columns), why),
    }
}

/// The engines of a block's products, over one list of row tiles: `lanes` side by side, then `down`.
fn engines(
    emitter: &Emitter,
    x: &TensorRef,
    lanes: [&TensorRef; 2],
    down: &TensorRef,
    rows: &Dim,
    experts: i64,
) -> (Engine, Engine) {
    let (share, inner, outer) = (rows.ceil_div(experts.max(1)), &lanes[0].layout.shape[1], &down.layout.shape[1]);
    let up_strides = [strides_of_rows(x), strides_of_lane(lanes[0]), strides_of_lane(lanes[1])];
    let activations = Strides { row: inner, k: &Dim::from(1), bases: vec![] };
    let choose = |lanes, n, strides: &[Strides<'_>]| Wgmma::choose(emitter.target, x.dtype, lanes, [&share, n], strides);
    match (choose(2, inner, &up_strides), choose(1, outer, &[activations, strides_of_lane(down)])) {
        (Ok(up), Ok(down)) => (Engine::Clusters(up), Engine::Clusters(down)),
        (Err(why), _) | (_, Err(why)) => {
            let block = |lanes, n| MainLoop::choose(emitter.target, x.dtype, lanes, &share, n);
            let (up, down) = block(2, inner).over_same_rows(block(1, outer));
            (Engine::Blocks(up, why), Engine::Blocks(down, why))
        }
    }
}

fn strides_of_rows(x: &TensorRef) -> Strides<'_> {
    Strides { row: &x.layout.strides[0], k: &x.layout.strides[1], bases: vec![&x.layout.offset] }
}

fn strides_of_lane(weight: &TensorRef) -> Strides<'_> {
    let [outer, row, k] = [0, 1, 2].map(|i| &weight.layout.strides[i]);
    Strides { row, k, bases: vec![outer, &weight.layout.offset] }
}

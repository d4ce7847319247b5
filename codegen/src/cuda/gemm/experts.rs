//! Products by expert: grouped rows, and rows with ids.

use super::{
    super::{
        emitter::{Emitter, optional, tensor},
        error::{Emit, Unsupported},
    },
    dispatch,
    epilogue::with_biases,
    expert_product::{Engine, ExpertProduct, Rows, Target},
    main_loop::{MainLoop, RowCount},
    swapped::{Swapped, Variant},
    wgmma::{Strides, Wgmma},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, Program};

/// Rows in groups times their group's matrix.
pub(in super::super) fn grouped_mm(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, offsets) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?);
    let weight = TensorRef { layout: w.layout.permute(&[0, 2, 1]), ..w.clone() };
    let groups = experts_of(&weight)?;
    let rows = &x.layout.shape[0];
    let cases = single(emitter, x, &weight, groups, step.outputs[0].dtype);
    let dispatched = dispatch::by_offsets(emitter, offsets, groups, rows, &heights(&cases))?;
    let program = Program::identity(x.dtype, step.outputs[0].dtype);
    for (engine, when) in cases {
        let product = ExpertProduct {
            name: "grouped_mm",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: Rows::Tensor(x),
            weights: vec![weight.clone()],
            biases: vec![],
            captures: vec![],
            program: &program,
            parts: vec![],
            target: Target::Tensor(&step.outputs[0]),
            unordered: false,
            dispatched: &dispatched,
            engine,
            when,
            zero_dropped: true,
        };
        product.emit(emitter)?;
    }
    Ok(())
}

/// Rows times the matrix that their id names.
pub(in super::super) fn expert_matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, w, bias, ids) = (tensor(step, 0)?, tensor(step, 1)?, optional(step, 2), tensor(step, 3)?);
    let experts = experts_of(w)?;
    let rows = &x.layout.shape[0];
    let cases = single(emitter, x, w, experts, step.outputs[0].dtype);
    let dispatched = dispatch::by_ids(emitter, ids, experts, &heights(&cases), true)?;
    let plain = Program::identity(x.dtype, step.outputs[0].dtype);
    let program = with_biases(&plain, &[bias.map(|b| b.dtype)]);
    for (engine, when) in cases {
        let product = ExpertProduct {
            name: "expert_matmul",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: Rows::of(emitter, x, 1),
            weights: vec![w.clone()],
            biases: bias.into_iter().collect(),
            captures: vec![],
            program: &program,
            parts: vec![],
            target: Target::Tensor(&step.outputs[0]),
            unordered: !emitter.is_ordered(&step.outputs[0]),
            dispatched: &dispatched,
            engine,
            when,
            zero_dropped: true,
        };
        product.emit(emitter)?;
    }
    Ok(())
}

/// The engines of `x [S, K]` times one matrix `[N, K]` for each expert, each with when it runs.
fn single(emitter: &Emitter, x: &TensorRef, weight: &TensorRef, experts: i64, stored: DType) -> Vec<(Engine, Dim)> {
    let [all, depth] = [0, 1].map(|i| &x.layout.shape[i]);
    let columns = weight.layout.shape[1].as_const();
    let strides = Strides::of_rows(x);
    RowCount::chosen(RowCount::by_expert(emitter.target, x.dtype, all, experts), |rows| {
        let variant = Variant::of(rows, all);
        if let Ok(main) = Swapped::choose(emitter.target, [x.dtype, stored], variant, &strides, depth, &[weight]) {
            return Engine::Swapped(main);
        }
        match Wgmma::choose(emitter.target, x.dtype, rows, &strides, &[weight]) {
            Ok(main) => Engine::Clusters(main),
            Err(why) => Engine::Blocks(MainLoop::choose(emitter.target, x.dtype, 1, rows, columns), why),
        }
    })
}

fn heights(cases: &[(Engine, Dim)]) -> Vec<dispatch::Height> {
    cases.iter().map(|(engine, when)| (engine.tile(), when.clone())).collect()
}

pub(super) fn experts_of(weight: &TensorRef) -> Emit<i64> {
    weight.layout.shape[0].as_const().ok_or_else(|| Unsupported::new("the number of experts must be known"))
}

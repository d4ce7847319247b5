//! Products by expert with an epilogue of captures and several results.

use super::{
    super::{
        emitter::{Emitter, elements, tensor, tensors},
        error::Emit,
    },
    dispatch, expert_captured, expert_fold,
    expert_product::{Engine, ExpertProduct, Rows, Target},
    experts::experts_of,
    fold,
    main_loop::{MainLoop, RowCount},
    swapped::{Swapped, Variant},
    wgmma::{Strides, Wgmma},
};
use crate::Step;
use eglu_ir::ops::ExpertContract;

/// Rows that may repeat, gathered by expert, times each lane; the program while accumulators are in registers.
pub(in super::super) fn expert_contract(emitter: &mut Emitter, step: &Step, op: &ExpertContract) -> Emit<()> {
    let (x, ids, rest) = (tensor(step, 0)?, tensor(step, 1)?, tensors(step, 2)?);
    let (weights, captures) = rest.split_at(op.lanes);
    let (tables, captures) = captures.split_at(op.tables);
    let rows = if op.grouped { x.layout.shape[0].clone() } else { elements(ids) };
    let (experts, columns) = (experts_of(weights[0])?, weights[0].layout.shape[1].as_const());
    let all = &rows;
    let cases = RowCount::chosen(RowCount::by_expert(emitter.target, x.dtype, all, experts), |rows| {
        let swapped =
            |variant| Swapped::choose(emitter.target, [x.dtype; 2], variant, &Strides::of_rows(x), &x.layout.shape[1], weights);
        let variant = if captures.is_empty() {
            side_by_side(emitter, step, op).then(|| Variant::of(rows, all))
        } else {
            expert_captured::fits(emitter, op, x.dtype, &weights[0].layout.shape[1], captures)
                .then(|| Variant::captured(rows, all))
        };
        if let Some(Ok(main)) = variant.map(swapped) {
            return Engine::Swapped(main);
        }
        match Wgmma::choose(emitter.target, x.dtype, rows, &Strides::of_rows(x), weights) {
            Ok(main) => Engine::Clusters(main.taking_turns(!captures.is_empty())),
            Err(why) => Engine::Blocks(MainLoop::choose(emitter.target, x.dtype, op.lanes, rows, columns), why),
        }
    });
    let heights: Vec<dispatch::Height> = cases.iter().map(|(engine, when)| (engine.tile(), when.clone())).collect();
    let dispatched = match op.grouped {
        true => dispatch::by_offsets(emitter, ids, experts, &rows, &heights)?,
        false => dispatch::by_ids(emitter, ids, experts, &heights, true)?,
    };
    let program = fold::unrounded(&op.program, op.folds.len());
    let width = columns.unwrap_or_default();
    for (engine, when) in cases {
        let parts = expert_fold::parts(emitter, op, &engine, &rows, width)?;
        let product = ExpertProduct {
            name: "expert_contract",
            dtype: x.dtype,
            depth: x.layout.shape[1].clone(),
            count: rows.clone(),
            rows: if op.grouped { Rows::Tensor(x) } else { Rows::of(emitter, x, op.repeat as i64) },
            weights: weights.iter().map(|&w| w.clone()).collect(),
            biases: tables.to_vec(),
            captures: captures.to_vec(),
            program: &program,
            parts,
            target: Target::Tensors {
                outputs: &step.outputs[..step.outputs.len() - op.folds.len()],
                packed: op.packed,
                interleaved: op.interleaved,
            },
            unordered: !op.grouped,
            dispatched: &dispatched,
            engine,
            when: when.clone(),
            zero_dropped: false,
        };
        product.emit(emitter)?;
        expert_fold::merge(emitter, step, op, &product.parts, &rows, &when)?;
    }
    Ok(())
}

/// True if the program takes nothing but products and biases, and its results are tensors of 16 bits whose columns are neighbours and whose
/// rows lie in one order.
fn side_by_side(emitter: &Emitter, step: &Step, op: &ExpertContract) -> bool {
    let plain = op.folds.is_empty() && op.program.params.len() == op.lanes + op.tables && !(op.packed > 0 && op.interleaved);
    let short = op.program.results.iter().all(|(_, dtype)| dtype.size() == 2 && dtype.is_float());
    let mut ordered = step.outputs.iter().map(|output| emitter.is_ordered(output));
    let first = ordered.next();
    plain && short && ordered.all(|other| Some(other) == first)
}

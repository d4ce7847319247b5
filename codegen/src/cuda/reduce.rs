//! Reductions over any dims, with a pointwise prologue and epilogue, and chains of them (softmax, norms, variances): how a step becomes a
//! chain, and which kernels walk it.

mod chain;
mod columns;
mod few;
mod forms;
mod pairs;
mod rows;
mod short;
mod steps;
mod walk;

pub(super) use chain::{Chain, Finish, Source, Stage};
pub(super) use pairs::{Pairs, emit_pair};

use super::{
    emitter::{Emitter, tensor, tensors},
    error::{Emit, Unsupported},
};
use crate::Step;
use eglu_ir::{
    DType, Op, Program, Ref, Shape,
    ops::{MapReduce, Reduce, ReduceKind, infer::broadcast},
    program::InstrOp,
    types::numel,
};
use walk::Walk;

/// A step that reduces, as a chain of one stage; `None` for other steps.
fn chain_of(step: &Step) -> Option<Emit<Chain>> {
    match &step.op {
        Op::Reduce(op) => Some(plain(step, op)),
        Op::MapReduce(op) => Some(mapped(step, op)),
        Op::ReduceChain(op) => Some(steps::chained(step, op)),
        _ => None,
    }
}

/// A reduction, plain or with programs around it.
pub(super) fn reduce(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    match chain_of(step) {
        Some(chain) => emit(emitter, &chain?),
        None => Err(Unsupported::new("this is no reduction")),
    }
}

/// A plain reduction.
fn plain(step: &Step, op: &Reduce) -> Emit<Chain> {
    let x = tensor(step, 0)?;
    let (value, reduced) = match op.kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => (op.dtype, op.dtype),
        ReduceKind::Amax | ReduceKind::Amin => (x.dtype, x.dtype),
        ReduceKind::Any | ReduceKind::All => (x.dtype, DType::Bool),
        ReduceKind::Argmax | ReduceKind::Argmin => (x.dtype, DType::I64),
    };
    let mut prologue = Program::new([x.dtype]);
    // Elements are rounded to the result's dtype first (torch.sum's `dtype`), where it does not hold them as they are.
    let exact = value == x.dtype
        || value == x.dtype.opmath()
        || (value.is_int() && !x.dtype.is_float() && value.size() >= x.dtype.size());
    let element = if exact { Ref::Param(0) } else { prologue.push(InstrOp::Cast, [Ref::Param(0)], value) };
    prologue.results.push((element, value));
    let stage = Stage {
        prologue,
        args: vec![Source::Element(0)],
        kinds: vec![op.kind],
        epilogue: Program::identity(reduced, op.dtype),
        captures: vec![],
        outputs: step.outputs.iter().cloned().map(Some).collect(),
    };
    let name = format!("{}_{}", op.kind.name(), step.outputs[0].dtype);
    let full = x.layout.shape.to_vec();
    let (inputs, dims) = (vec![x.clone()], op.dims.to_vec());
    Ok(Chain { name, full, dims, inputs, lines: vec![], stages: vec![stage], finish: None })
}

/// Several reductions of one pass.
fn mapped(step: &Step, op: &MapReduce) -> Emit<Chain> {
    let operands = tensors(step, 0)?;
    let (inputs, lines) = operands.split_at(op.prologue.params.len());
    let full = inputs
        .iter()
        .try_fold(Shape::new(), |shape, t| broadcast(&shape, &t.layout.shape))
        .map_err(|e| Unsupported::new(e.to_string()))?;
    let stage = Stage {
        prologue: (*op.prologue).clone(),
        args: (0..inputs.len()).map(Source::Element).collect(),
        kinds: op.kinds.clone(),
        epilogue: (*op.epilogue).clone(),
        captures: (0..lines.len()).map(Source::Line).collect(),
        outputs: step.outputs.iter().cloned().map(Some).collect(),
    };
    let owned = |tensors: &[&crate::TensorRef]| tensors.iter().map(|&t| t.clone()).collect::<Vec<_>>();
    Ok(Chain {
        name: format!("map_reduce_{}", step.outputs[0].dtype),
        full: full.to_vec(),
        dims: op.dims.to_vec(),
        inputs: owned(inputs),
        lines: owned(lines),
        stages: vec![stage],
        finish: None,
    })
}

/// Lines up to which products that every factor rounds take their factors in order: PyTorch's CPU does below four vectors of 16-bit floats
/// (aten/src/ATen/native/cpu/Reduce.h, `vectorized_inner_reduction`).
const IN_ORDER: i64 = 128;

/// Emits the kernels of a chain.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain) -> Emit<()> {
    let walk = Walk::single(chain);
    if !chain.rounds() {
        return in_any_order(emitter, chain, &walk);
    }
    let length = numel(&walk.reduced.shape);
    emitter.only(walk::at_most(&length, IN_ORDER), |emitter| forms::in_order(emitter, chain))?;
    emitter.only(walk::more_than(&length, IN_ORDER), |emitter| in_any_order(emitter, chain, &walk))
}

fn in_any_order(emitter: &mut Emitter, chain: &Chain, walk: &Walk) -> Emit<()> {
    let across = walk.goes_across(chain) && !chain.reads_positions();
    match (across, few::fits(chain, walk)) {
        (true, Some(sizes)) => few::emit(emitter, chain, walk, sizes),
        (true, None) => {
            let length = numel(&walk.reduced.shape);
            let most = length.as_const().unwrap_or(i64::MAX);
            if most < i64::MAX || !chain.holds_positions() {
                return columns::emit(emitter, chain, walk, most);
            }
            // Positions take 32 bits where that is enough.
            let short = i64::from(i32::MAX);
            emitter.only(walk::at_most(&length, short), |emitter| columns::emit(emitter, chain, walk, short))?;
            emitter.only(walk::more_than(&length, short), |emitter| columns::emit(emitter, chain, walk, most))
        }
        (false, _) => forms::emit(emitter, chain),
    }
}

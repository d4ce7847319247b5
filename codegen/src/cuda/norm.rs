//! Softmax, RMSNorm and LayerNorm as chains of reductions.

use super::{
    emitter::{Emitter, optional, tensor},
    error::{Emit, Unsupported},
    reduce::{self, Chain, Finish, Source, Stage},
};
use crate::Step;
use eglu_ir::{
    DType, Program, Ref, Scalar,
    ops::{LayerNorm, Pointwise, ReduceKind, RmsNorm, Softmax},
    program::InstrOp,
};

/// A program over `params` of one result, written by `body`.
fn program(params: &[DType], stored: DType, body: impl FnOnce(&mut Program) -> Ref) -> Program {
    let mut program = Program::new(params.iter().copied());
    let result = body(&mut program);
    program.results.push((result, stored));
    program
}

fn apply(program: &mut Program, op: Pointwise, args: &[Ref], dtype: DType) -> Ref {
    program.push(InstrOp::Pointwise(op), args.iter().copied(), dtype)
}

/// A parameter as a value of `dtype`, rounded where that is narrower.
fn converted(program: &mut Program, param: u32, dtype: DType) -> Ref {
    match program.params[param as usize] == dtype {
        true => Ref::Param(param),
        false => program.push(InstrOp::Cast, [Ref::Param(param)], dtype),
    }
}

/// A stage of one reduction whose result is not rounded; `captures` go to the epilogue.
fn stage(prologue: Program, args: Vec<Source>, kind: ReduceKind, epilogue: Program) -> Stage {
    Stage { prologue, args, kinds: vec![kind], epilogue, captures: vec![], outputs: vec![None] }
}

/// Softmax along one dim, in the opmath of the result's dtype.
pub(super) fn softmax(emitter: &mut Emitter, step: &Step, op: &Softmax) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let (from, compute) = (x.dtype, op.dtype.opmath());
    // Elements become the result's dtype first.
    let rounded = |p: &mut Program| converted(p, 0, op.dtype);
    let distance = |p: &mut Program| {
        let value = rounded(p);
        apply(p, Pointwise::Sub, &[value, Ref::Param(1)], compute)
    };
    let top = stage(
        program(&[from], compute, rounded),
        vec![Source::Element(0)],
        ReduceKind::Amax,
        Program::identity(compute, compute),
    );
    let powers = program(&[from, compute], compute, |p| {
        let distance = distance(p);
        apply(p, Pointwise::Exp, &[distance], compute)
    });
    let of_sum = match op.log {
        true => program(&[compute], compute, |p| apply(p, Pointwise::Log, &[Ref::Param(0)], compute)),
        false => program(&[compute], compute, |p| apply(p, Pointwise::Reciprocal, &[Ref::Param(0)], compute)),
    };
    let sum = stage(powers, vec![Source::Element(0), Source::Stat(0)], ReduceKind::Sum, of_sum);
    let end = program(&[from, compute, compute], op.dtype, |p| {
        let distance = distance(p);
        match op.log {
            true => apply(p, Pointwise::Sub, &[distance, Ref::Param(2)], compute),
            false => {
                let power = apply(p, Pointwise::Exp, &[distance], compute);
                apply(p, Pointwise::Mul, &[power, Ref::Param(2)], compute)
            }
        }
    });
    let args = vec![Source::Element(0), Source::Stat(0), Source::Stat(1)];
    let chain = Chain {
        name: format!("{}softmax_{}", if op.log { "log_" } else { "" }, op.dtype),
        full: x.layout.shape.to_vec(),
        dims: vec![op.dim],
        inputs: vec![x.clone()],
        lines: vec![],
        stages: vec![top, sum],
        finish: Some(Finish { program: end, args, outputs: vec![y.clone()] }),
    };
    reduce::emit(emitter, &chain)
}

/// `1 / sqrt(x + eps)`.
fn reciprocal_root(eps: Scalar, compute: DType) -> Program {
    program(&[compute], compute, |p| {
        let shifted = apply(p, Pointwise::Add, &[Ref::Param(0), Ref::Scalar(eps)], compute);
        let root = apply(p, Pointwise::Sqrt, &[shifted], compute);
        apply(p, Pointwise::Div, &[Ref::Scalar(Scalar::Float(1.0)), root], compute)
    })
}

/// RMSNorm over the last dim.
pub(super) fn rms_norm(emitter: &mut Emitter, step: &Step, op: &RmsNorm) -> Emit<()> {
    let x = tensor(step, 0)?;
    let Some(last) = x.layout.shape.len().checked_sub(1) else { return Err(Unsupported::new("x must have at least one dim")) };
    let compute = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let squares = program(&[x.dtype], compute, |p| {
        let value = converted(p, 0, compute);
        apply(p, Pointwise::Mul, &[value, value], compute)
    });
    let scale = reciprocal_root(op.eps, compute);
    let (mut inputs, mut args, mut params) = (vec![x.clone()], vec![Source::Element(0), Source::Stat(0)], vec![x.dtype, compute]);
    if let Some(weight) = optional(step, 1) {
        inputs.push(weight.clone());
        args.push(Source::Element(1));
        params.push(weight.dtype);
    }
    let end = program(&params, op.dtype, |p| {
        let value = converted(p, 0, compute);
        let scaled = apply(p, Pointwise::Mul, &[value, Ref::Param(1)], compute);
        match params.len() {
            2 => scaled,
            _ => {
                let weight = converted(p, 2, compute);
                apply(p, Pointwise::Mul, &[scaled, weight], compute)
            }
        }
    });
    let chain = Chain {
        name: format!("rms_norm_{}", op.dtype),
        full: x.layout.shape.to_vec(),
        dims: vec![last],
        inputs,
        lines: vec![],
        stages: vec![stage(squares, vec![Source::Element(0)], ReduceKind::Mean, scale)],
        finish: Some(Finish { program: end, args, outputs: step.outputs.clone() }),
    };
    reduce::emit(emitter, &chain)
}

/// LayerNorm over the last dim: elements are squared about their mean, in opmath.
pub(super) fn layer_norm(emitter: &mut Emitter, step: &Step, op: &LayerNorm) -> Emit<()> {
    let x = tensor(step, 0)?;
    let Some(last) = x.layout.shape.len().checked_sub(1) else { return Err(Unsupported::new("x must have at least one dim")) };
    let [y, mean, scale] = &step.outputs[..] else { return Err(Unsupported::new("a layer norm has three results")) };
    let compute = x.dtype.opmath();
    let centered = |p: &mut Program| {
        let value = converted(p, 0, compute);
        apply(p, Pointwise::Sub, &[value, Ref::Param(1)], compute)
    };
    let value = program(&[x.dtype], compute, |p| converted(p, 0, compute));
    let mut means = stage(value, vec![Source::Element(0)], ReduceKind::Mean, Program::identity(compute, compute));
    means.outputs = vec![Some(mean.clone())];
    let squares = program(&[x.dtype, compute], compute, |p| {
        let centered = centered(p);
        apply(p, Pointwise::Mul, &[centered, centered], compute)
    });
    let from = vec![Source::Element(0), Source::Stat(0)];
    let mut scales = stage(squares, from.clone(), ReduceKind::Mean, reciprocal_root(op.eps, compute));
    scales.outputs = vec![Some(scale.clone())];
    let (mut inputs, mut args, mut params) = (vec![x.clone()], from, vec![x.dtype, compute, compute]);
    args.push(Source::Stat(1));
    let mut then = Vec::new();
    for (i, op) in [(1, Pointwise::Mul), (2, Pointwise::Add)] {
        let Some(operand) = optional(step, i) else { continue };
        args.push(Source::Element(inputs.len()));
        then.push((op, params.len() as u32));
        inputs.push(operand.clone());
        params.push(operand.dtype);
    }
    let end = program(&params, op.dtype, |p| {
        let centered = centered(p);
        let scaled = apply(p, Pointwise::Mul, &[centered, Ref::Param(2)], compute);
        then.iter().fold(scaled, |value, &(op, param)| {
            let operand = converted(p, param, compute);
            apply(p, op, &[value, operand], compute)
        })
    });
    let chain = Chain {
        name: format!("layer_norm_{}", op.dtype),
        full: x.layout.shape.to_vec(),
        dims: vec![last],
        inputs,
        lines: vec![],
        stages: vec![means, scales],
        finish: Some(Finish { program: end, args, outputs: vec![y.clone()] }),
    };
    reduce::emit(emitter, &chain)
}

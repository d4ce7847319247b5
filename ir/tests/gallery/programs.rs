//! Small programs for ops that take one.

use eglu_ir::{
    DType, Program, Ref, Scalar,
    ops::{Axes, Pointwise, ReduceChain, ReduceKind},
    program::InstrOp,
};
use std::sync::Arc;

/// `silu(gate) · up + 0.5`, with a cast and a comparison on the way.
pub fn gating(dtype: DType) -> Arc<Program> {
    let mut program = Program::new([dtype, dtype]);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [Ref::Param(0)], dtype);
    let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(1)], dtype);
    let rounded = program.push(InstrOp::Cast, [product], DType::Bf16);
    let large = program.push(InstrOp::Pointwise(Pointwise::Gt), [rounded, Ref::Scalar(Scalar::Float(1e9))], DType::Bool);
    let half = Ref::Scalar(Scalar::Float(0.5));
    let shifted = program.push(InstrOp::Pointwise(Pointwise::Add), [product, half], dtype);
    let result = program.push(InstrOp::Pointwise(Pointwise::Where), [large, half, shifted], dtype);
    program.results.push((result, dtype));
    Arc::new(program)
}

/// A program that adds its parameters, all of one dtype.
pub fn sum(params: usize, dtype: DType) -> Arc<Program> {
    let mut program = Program::new(vec![dtype; params]);
    let total = (1..params as u32)
        .fold(Ref::Param(0), |sum, i| program.push(InstrOp::Pointwise(Pointwise::Add), [sum, Ref::Param(i)], dtype));
    program.results.push((total, dtype));
    Arc::new(program)
}

/// A chain over the last dim of two operands of one dtype, with a pass for each of `kinds`: it reduces their product, times what the pass before
/// gave. Its end is what the last pass gave, and the position of each element where `positions`.
pub fn chain(dtype: DType, kinds: Vec<ReduceKind>, positions: bool) -> ReduceChain {
    let (mut prologues, mut epilogues) = (Vec::new(), Vec::new());
    let mut params = vec![dtype, dtype, DType::I32];
    for _ in &kinds {
        let mut prologue = Program::new(params.iter().copied());
        let factors = (1..params.len() as u32).filter(|&i| i != 2);
        let times =
            |program: &mut Program, product, i| program.push(InstrOp::Pointwise(Pointwise::Mul), [product, Ref::Param(i)], dtype);
        let product = factors.fold(Ref::Param(0), |product, i| times(&mut prologue, product, i));
        prologue.results.push((product, dtype.opmath()));
        let mut epilogue = Program::new([dtype.opmath()].into_iter().chain(params.iter().copied()));
        epilogue.results.push((Ref::Param(0), dtype));
        prologues.push(Arc::new(prologue));
        epilogues.push(Arc::new(epilogue));
        params.push(dtype);
    }
    let mut end = Program::new(params.iter().copied());
    end.results.push((Ref::Param(params.len() as u32 - 1), dtype));
    if positions {
        end.results.push((Ref::Param(2), DType::I32));
    }
    ReduceChain { dims: Axes::from_slice(&[1]), prologues, kinds, epilogues, kept: Axes::new(), end: end.into() }
}

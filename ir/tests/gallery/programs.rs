//! Small programs for ops that take one.

use eglu_ir::{DType, Program, Ref, Scalar, ops::Pointwise, program::InstrOp};
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

//! The interpreter of pointwise programs.

use super::{
    Call, EvalError,
    pointwise::{apply, arithmetic},
    values::Values,
};
use crate::{
    DType, Program, Ref, Tensor, TensorType,
    ops::{OperandType, TypeRule},
    program::{Instr, InstrOp},
};
use std::ops::Range;

/// Elements that go through a program at a time: registers stay in the cache.
const BLOCK: usize = 4096;

/// The results of a program on `len` elements, stored in their dtypes. Each of `params` is in the arithmetic of its parameter's dtype.
pub(super) fn run(program: &Program, params: &[Values<'_>], shape: &[usize]) -> Result<Vec<Tensor>, EvalError> {
    let len: usize = shape.iter().product();
    let mut outputs = program.results.iter().map(|&(_, dtype)| Tensor::zeros(dtype, shape)).collect::<Result<Vec<_>, _>>()?;
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let results = block(program, params, range.clone())?;
        for ((result, &(from, dtype)), output) in results.iter().zip(&program.results).zip(&mut outputs) {
            let stored = result.store(program.dtype_of(from), dtype, &[range.len()])?;
            let size = dtype.size();
            output.bytes_mut()[range.start * size..range.end * size].copy_from_slice(stored.bytes());
        }
    }
    Ok(outputs)
}

/// The results of a program on `len` elements, in the arithmetic of their dtypes but not rounded to them.
pub(super) fn unrounded(program: &Program, params: &[Values<'_>], len: usize) -> Result<Vec<Values<'static>>, EvalError> {
    let results = block(program, params, 0..len)?.into_iter().zip(&program.results);
    Ok(results.map(|(values, &(from, dtype))| values.converted(program.dtype_of(from), dtype)).collect())
}

/// One block's results, in the arithmetic of what computed them.
fn block(program: &Program, params: &[Values<'_>], range: Range<usize>) -> Result<Vec<Values<'static>>, EvalError> {
    let mut registers: Vec<Values<'static>> = Vec::with_capacity(program.instrs.len());
    for instr in &program.instrs {
        let dtype = instr_arithmetic(program, instr)?;
        let operand = |arg: Ref, dtype: DType| match arg {
            Ref::Param(i) => params[i as usize].slice(range.clone()).converted(program.dtype_of(arg), dtype),
            Ref::Instr(i) => {
                let register = &registers[i as usize];
                register.slice(0..register.len()).converted(program.dtype_of(arg), dtype)
            }
            Ref::Scalar(scalar) => Values::splat(scalar, dtype, range.len()),
        };
        let result = match instr.op {
            InstrOp::Pointwise(op) => {
                let args: Vec<Values<'_>> = instr.args.iter().map(|&arg| operand(arg, dtype)).collect();
                let value = apply(op, dtype, &args)?;
                let truth = matches!(op.rule(), TypeRule::Compare | TypeRule::Logical);
                value.converted(if truth { DType::Bool } else { dtype }, instr.dtype)
            }
            InstrOp::Cast => {
                let from = program.dtype_of(instr.args[0]);
                operand(instr.args[0], from).cast(from, instr.dtype)?
            }
        };
        registers.push(result);
    }
    Ok(program
        .results
        .iter()
        .map(|&(result, _)| match result {
            Ref::Param(i) => params[i as usize].slice(range.clone()).into_owned(),
            Ref::Instr(i) => registers[i as usize].clone(),
            Ref::Scalar(scalar) => Values::splat(scalar, program.dtype_of(result), range.len()),
        })
        .collect())
}

/// The dtype in whose arithmetic an instruction computes: for comparisons that of the operands, otherwise its own.
fn instr_arithmetic(program: &Program, instr: &Instr) -> Result<DType, EvalError> {
    let InstrOp::Pointwise(op) = instr.op else { return Ok(instr.dtype) };
    match op.rule() {
        TypeRule::Logical => Ok(DType::Bool),
        TypeRule::Compare => {
            // A dim of extent 1 makes the operands tensors rather than numbers for promotion.
            let vector = |arg| TensorType::fixed(program.dtype_of(arg), &[1]);
            let types: Vec<TensorType> = instr.args.iter().map(|&arg| vector(arg)).collect();
            let operands: Vec<OperandType<'_>> = instr
                .args
                .iter()
                .zip(&types)
                .map(|(arg, ty)| match arg {
                    Ref::Scalar(scalar) => OperandType::Scalar(*scalar),
                    _ => OperandType::Tensor(ty),
                })
                .collect();
            arithmetic(op, &operands)
        }
        _ => Ok(instr.dtype),
    }
}

/// A program over broadcast tensors.
pub(super) fn map(program: &Program, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let Some(shape) = call.shapes.first() else { return Ok(Vec::new()) };
    let tensors = call.tensors(0..call.count())?;
    let params: Vec<Values<'_>> = tensors.iter().map(|x| Values::load(x).broadcast(x.shape(), shape)).collect();
    run(program, &params, shape)
}

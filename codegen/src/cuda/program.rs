//! Pointwise programs as C++ device functions.

use super::{
    ctype,
    error::{Emit, Unsupported},
};
use eglu_ir::{
    DType, Program, Ref, TensorType,
    ops::{OperandType, Pointwise, TypeRule, infer::compute_dtype},
    program::{Instr, InstrOp},
};

/// `name(a0, …, r0, …)`: parameters in their opmath, results stored by reference.
pub(super) fn function(name: &str, program: &Program) -> Emit<String> {
    let mut params = Vec::new();
    for (i, &dtype) in program.params.iter().enumerate() {
        params.push(format!("const {} a{i}", ctype::opmath(dtype)?));
    }
    for (i, &(_, dtype)) in program.results.iter().enumerate() {
        params.push(format!("{}& r{i}", ctype::storage(dtype)?));
    }
    let mut text = format!("DEVICE void {name}({}) {{\n", params.join(", "));
    for (i, instr) in program.instrs.iter().enumerate() {
        text += &format!("    const {} v{i} = {};\n", ctype::opmath(instr.dtype)?, instruction(program, instr)?);
    }
    for (i, &(result, dtype)) in program.results.iter().enumerate() {
        let value = match result {
            Ref::Scalar(scalar) => ctype::literal(scalar, dtype)?,
            _ => name_of(result),
        };
        text += &format!("    r{i} = cast<{}>({value});\n", ctype::storage(dtype)?);
    }
    Ok(text + "}\n")
}

fn name_of(operand: Ref) -> String {
    match operand {
        Ref::Param(i) => format!("a{i}"),
        Ref::Instr(i) => format!("v{i}"),
        Ref::Scalar(scalar) => scalar.to_string(),
    }
}

/// The operand as a value of `to`'s opmath; one of another dtype rounds to `to` on the way, as PyTorch's promotion does.
fn converted(program: &Program, operand: Ref, to: DType) -> Emit<String> {
    if let Ref::Scalar(scalar) = operand {
        return ctype::literal(scalar, to);
    }
    let value = name_of(operand);
    if program.dtype_of(operand) == to {
        return Ok(value);
    }
    Ok(format!("up(cast<{}>({value}))", ctype::storage(to)?))
}

fn instruction(program: &Program, instr: &Instr) -> Emit<String> {
    let op = match instr.op {
        InstrOp::Cast => {
            let to = ctype::storage(instr.dtype)?;
            return Ok(match instr.args[0] {
                Ref::Scalar(scalar) => format!("up(cast<{to}>({}))", ctype::literal(scalar, program.dtype_of(instr.args[0]))?),
                arg => format!("up(cast<{to}>({}))", name_of(arg)),
            });
        }
        InstrOp::Pointwise(op) => op,
    };
    let compute = match op.rule() {
        TypeRule::Compare => compared(program, op, instr)?,
        _ => instr.dtype,
    };
    let mut args = Vec::new();
    for (i, &arg) in instr.args.iter().enumerate() {
        let own = program.dtype_of(arg);
        args.push(match op.rule() {
            TypeRule::Logical => converted(program, arg, own)?,
            TypeRule::Select if i == 0 => converted(program, arg, DType::Bool)?,
            _ => converted(program, arg, compute)?,
        });
    }
    // Signed overflow is undefined in C++; PyTorch's integers wrap.
    let wraps = matches!(op, Pointwise::Neg | Pointwise::Add | Pointwise::Sub | Pointwise::Mul);
    if let (true, Some(unsigned)) = (wraps, unsigned(compute)) {
        args = args.into_iter().map(|arg| format!("({unsigned})({arg})")).collect();
    }
    let mut text = op.cuda().to_string();
    for (i, arg) in args.iter().enumerate() {
        text = text.replace(&format!("{{{i}}}"), arg);
    }
    Ok(format!("({}){text}", ctype::opmath(instr.dtype)?))
}

fn unsigned(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 => Some("u32"),
        DType::I64 => Some("u64"),
        _ => None,
    }
}

/// The dtype that a comparison's operands promote to.
fn compared(program: &Program, op: Pointwise, instr: &Instr) -> Emit<DType> {
    let types: Vec<Option<TensorType>> = instr
        .args
        .iter()
        .map(|&arg| match arg {
            Ref::Scalar(_) => None,
            other => Some(TensorType::fixed(program.dtype_of(other), &[1])),
        })
        .collect();
    let operands: Vec<OperandType<'_>> = instr
        .args
        .iter()
        .zip(&types)
        .map(|(&arg, ty)| match (arg, ty) {
            (Ref::Scalar(scalar), _) => OperandType::Scalar(scalar),
            (_, Some(ty)) => OperandType::Tensor(ty),
            (_, None) => OperandType::None,
        })
        .collect();
    compute_dtype(op, &operands).map_err(|e| Unsupported::new(e.to_string()))
}

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

/// How a program's results leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    /// Rounded to the dtype they are stored in.
    Stored,
    /// In the opmath of that dtype, not rounded: a reduction goes on with them.
    Opmath,
}

/// `name(a0, …, r0, …)`: parameters in their opmath, results by reference.
pub(super) fn function(name: &str, program: &Program, results: Results) -> Emit<String> {
    let mut params = Vec::new();
    for (i, &dtype) in program.params.iter().enumerate() {
        params.push(format!("const {} a{i}", ctype::opmath(dtype)?));
    }
    let stored: Vec<&str> = program
        .results
        .iter()
        .map(|&(_, dtype)| match results {
            Results::Stored => ctype::storage(dtype),
            Results::Opmath => ctype::opmath(dtype),
        })
        .collect::<Emit<_>>()?;
    for (i, ty) in stored.iter().enumerate() {
        params.push(format!("{ty}& r{i}"));
    }
    let mut text = format!("DEVICE void {name}({}) {{\n", params.join(", "));
    for (i, instr) in program.instrs.iter().enumerate() {
        text += &format!("    const {} v{i} = {};\n", ctype::opmath(instr.dtype)?, instruction(program, instr)?);
    }
    for (i, (&(result, dtype), ty)) in program.results.iter().zip(stored).enumerate() {
        let value = match result {
            Ref::Scalar(scalar) => ctype::literal(scalar, dtype)?,
            _ => name_of(result),
        };
        text += &format!("    r{i} = cast<{ty}>({value});\n");
    }
    Ok(text + "}\n")
}

/// Elementwise ops that have a complex form on CUDA.
const OF_COMPLEX: [Pointwise; 16] = [
    Pointwise::Where,
    Pointwise::Neg,
    Pointwise::Exp,
    Pointwise::Log,
    Pointwise::Conj,
    Pointwise::Reciprocal,
    Pointwise::IsNan,
    Pointwise::LogicalNot,
    Pointwise::LogicalAnd,
    Pointwise::LogicalOr,
    Pointwise::Add,
    Pointwise::Sub,
    Pointwise::Mul,
    Pointwise::Div,
    Pointwise::Eq,
    Pointwise::Ne,
];

fn name_of(operand: Ref) -> String {
    match operand {
        Ref::Param(i) => format!("a{i}"),
        Ref::Instr(i) => format!("v{i}"),
        Ref::Scalar(scalar) => scalar.to_string(),
    }
}

/// The operand as a value of `to`'s opmath; only a cast rounds to `to` itself.
fn converted(program: &Program, operand: Ref, to: DType) -> Emit<String> {
    if let Ref::Scalar(scalar) = operand {
        return ctype::literal(scalar, to);
    }
    let value = name_of(operand);
    if program.dtype_of(operand).opmath() == to.opmath() {
        return Ok(value);
    }
    Ok(format!("cast<{}>({value})", ctype::opmath(to)?))
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
    let complex = instr.dtype.is_complex() || instr.args.iter().any(|&arg| program.dtype_of(arg).is_complex());
    if complex && !OF_COMPLEX.contains(&op) {
        return Err(Unsupported::new(format!("{} of complex numbers is not supported on CUDA yet: run on the CPU", op.name())));
    }
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
    let mut text = match (op, instr.dtype) {
        (Pointwise::Sigmoid, DType::Bf16 | DType::F16) => "sigmoid_16({0})",
        (Pointwise::Silu, DType::Bf16 | DType::F16) => "silu_16({0})",
        _ => op.cuda(),
    }
    .to_string();
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

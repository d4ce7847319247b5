//! Elementwise ops and generators.

use super::{
    ctype, elementwise,
    emitter::{Emitter, elements, flat, tensor, tensors},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel},
};
use crate::{Arg, Layout, Step, TensorRef};
use eglu_ir::{
    DType, Dim, Program, Ref, Shape,
    ops::{Cast, Full, Iota, Pointwise, TypeRule, infer::compute_dtype},
    program::InstrOp,
};

const THREADS: u32 = 256;

/// A single elementwise op, its promotion made explicit.
pub(super) fn pointwise(emitter: &mut Emitter, step: &Step, op: Pointwise) -> Emit<()> {
    let types = step.input_types();
    let operands = step.operand_types(&types);
    let compute = compute_dtype(op, &operands).map_err(|e| Unsupported::new(e.to_string()))?;
    let mut program = Program::new(types.iter().flatten().map(|ty| ty.dtype));
    let mut params = 0;
    let mut args = Vec::new();
    for (i, arg) in step.inputs.iter().enumerate() {
        args.push(match arg {
            Arg::Scalar(scalar) => Ref::Scalar(*scalar),
            Arg::Tensor(tensor) => {
                let param = Ref::Param(params);
                params += 1;
                // A logical op asks of each operand whether it is zero, a mask is bool already: neither promotes.
                let promotes = op.rule() != TypeRule::Logical && !(op.rule() == TypeRule::Select && i == 0);
                let compute = compute.opmath();
                if promotes && tensor.dtype.opmath() != compute { program.push(InstrOp::Cast, [param], compute) } else { param }
            }
            Arg::None => return Err(Unsupported::new(format!("operand {i} is missing"))),
        });
    }
    let dtype = step.outputs[0].dtype;
    let result = program.push(InstrOp::Pointwise(op), args, dtype);
    program.results.push((result, dtype));
    map(emitter, step, op.name(), &program)
}

/// Conversion between dtypes.
pub(super) fn cast(emitter: &mut Emitter, step: &Step, op: &Cast) -> Emit<()> {
    let program = Program::identity(tensor(step, 0)?.dtype, op.dtype);
    map(emitter, step, "cast", &program)
}

/// The same bytes as another dtype: a copy of units of the smaller of both sizes.
pub(super) fn bitcast(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let unit = match x.dtype.size().min(y.dtype.size()) {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    let larger = if x.dtype.size() > y.dtype.size() { x } else { y };
    let each = Dim::from((larger.dtype.size() / unit.size()) as i64);
    let shape: Shape = larger.layout.shape.iter().cloned().chain([each.clone()]).collect();
    let in_units = |tensor: &TensorRef| -> Emit<TensorRef> {
        let layout = if tensor.dtype.size() == unit.size() {
            let split = tensor.layout.reshape(&shape);
            split.ok_or_else(|| Unsupported::new("its last dim does not divide where it is"))?
        } else {
            let strides = tensor.layout.strides.iter().map(|stride| stride.clone() * each.clone());
            let offset = tensor.layout.offset.clone() * each.clone();
            Layout { shape: shape.clone(), strides: strides.chain([Dim::from(1)]).collect(), offset }
        };
        Ok(TensorRef { buffer: tensor.buffer, dtype: unit, layout })
    };
    let entry = format!("bitcast_{}_{}", x.dtype, y.dtype);
    let (x, y) = (in_units(x)?, in_units(y)?);
    elementwise::apply(emitter, &entry, &Program::identity(unit, unit), &shape, &[&x], &[&y])
}

/// A program over the tensors among a step's operands.
pub(super) fn map(emitter: &mut Emitter, step: &Step, name: &str, program: &Program) -> Emit<()> {
    let reads: Vec<_> = step
        .inputs
        .iter()
        .filter_map(|arg| match arg {
            Arg::Tensor(tensor) => Some(tensor),
            _ => None,
        })
        .collect();
    let writes: Vec<_> = step.outputs.iter().collect();
    let entry = format!("{name}_{}", step.outputs[0].dtype);
    elementwise::apply(emitter, &entry, program, &step.outputs[0].layout.shape, &reads, &writes)
}

/// `start + step · i`.
pub(super) fn iota(emitter: &mut Emitter, step: &Step, op: &Iota) -> Emit<()> {
    fill(emitter, step, op.dtype, "iota", &format!("{}LL + {}LL * at", op.start, op.step))
}

/// One value everywhere.
pub(super) fn full(emitter: &mut Emitter, step: &Step, op: &Full) -> Emit<()> {
    fill(emitter, step, op.dtype, "full", &ctype::literal(op.value, op.dtype)?)
}

fn fill(emitter: &mut Emitter, step: &Step, dtype: DType, name: &str, value: &str) -> Emit<()> {
    if !tensors(step, 0)?.is_empty() {
        return Err(Unsupported::new("a generator takes no operands"));
    }
    let mut kernel = Kernel::new(format!("{name}_{dtype}"));
    let to = kernel.write(&step.outputs[0])?;
    let count = elements(&step.outputs[0]);
    let total = kernel.dim(&count);
    let body = format!(
        "const i64 at = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (at < {total}) {to}[at] = cast<{}>({value});\n",
        ctype::storage(dtype)?
    );
    let code = Code { headers: vec![Header::Math], body, threads: [THREADS, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(count.ceil_div(i64::from(THREADS))));
    Ok(())
}

//! Elementwise ops over columns, in PyTorch's opmath.

use super::{
    Call, EvalError, EvalOperand,
    values::{Class, Values, class},
};
use crate::{
    DType, Tensor,
    ops::{OperandType, Pointwise, TypeRule, infer::compute_dtype},
};
use num_complex::Complex64;
use std::borrow::Cow;

/// The dtype in whose arithmetic an op computes.
pub(super) fn arithmetic(op: Pointwise, operands: &[OperandType<'_>]) -> Result<DType, EvalError> {
    match op.rule() {
        TypeRule::Logical => Ok(DType::Bool),
        _ => Ok(compute_dtype(op, operands)?),
    }
}

/// Applies `op` to columns that are already in the arithmetic of `dtype`. Truth values come back as integers.
pub(super) fn apply(op: Pointwise, dtype: DType, args: &[Values<'_>]) -> Result<Values<'static>, EvalError> {
    let len = args.first().map_or(0, Values::len);
    let truth = matches!(op.rule(), TypeRule::Compare | TypeRule::Logical);
    let mixed = || EvalError::Data(format!("{}: operands of different arithmetic", op.name()));
    macro_rules! columns {
        ($variant:ident) => {
            args.iter()
                .map(|arg| match arg {
                    Values::$variant(x) => Ok(x.as_ref()),
                    _ => Err(mixed()),
                })
                .collect::<Result<Vec<_>, _>>()?
        };
    }
    let out = match class(dtype) {
        Class::F32 => {
            let mut out = vec![0f32; len];
            op.map_real(&columns!(F32), &mut out);
            Values::F32(Cow::Owned(out))
        }
        Class::F64 => {
            let mut out = vec![0f64; len];
            op.map_real(&columns!(F64), &mut out);
            Values::F64(Cow::Owned(out))
        }
        Class::Int => integers(op, dtype, &columns!(Int))?,
        Class::Complex => complex(op, &columns!(Complex))?,
    };
    Ok(if truth { out.converted(dtype, DType::Bool) } else { out.wrapped(dtype) })
}

fn integers(op: Pointwise, dtype: DType, args: &[&[i64]]) -> Result<Values<'static>, EvalError> {
    let mut out = vec![0; args.first().map_or(0, |x| x.len())];
    let op = match op {
        Pointwise::BitNot if dtype == DType::Bool => Pointwise::LogicalNot,
        other => other,
    };
    let done = match (dtype, args) {
        (DType::U64, [x, y]) if differs_unsigned(op) => {
            let rows = out.iter_mut().zip(x.iter().zip(*y));
            rows.fold(true, |done, (slot, (&x, &y))| {
                let value = unsigned(op, x as u64, y as u64);
                *slot = value.unwrap_or(0) as i64;
                done && value.is_some()
            })
        }
        (DType::U64, _) if op == Pointwise::SignBit => true,
        (DType::U64, _) if matches!(op, Pointwise::Abs | Pointwise::Relu) => {
            out.copy_from_slice(args[0]);
            true
        }
        _ => op.map_int(args, &mut out),
    };
    if done {
        return Ok(Values::Int(Cow::Owned(out)));
    }
    Err(match op {
        Pointwise::FloorDiv | Pointwise::TruncDiv | Pointwise::Remainder | Pointwise::Fmod => {
            EvalError::Data(format!("{}: integer division by zero", op.name()))
        }
        _ => EvalError::Unsupported { op: op.name(), dtype },
    })
}

/// Ops whose result on u64 is not that on the same bits as i64.
fn differs_unsigned(op: Pointwise) -> bool {
    use Pointwise::*;
    matches!(op, FloorDiv | TruncDiv | Remainder | Fmod | Maximum | Minimum | Lt | Le | Gt | Ge | ShiftRight)
}

fn unsigned(op: Pointwise, x: u64, y: u64) -> Option<u64> {
    use Pointwise::*;
    match op {
        FloorDiv | TruncDiv => x.checked_div(y),
        Remainder | Fmod => x.checked_rem(y),
        ShiftRight => Some(if y < 64 { x >> y } else { 0 }),
        Maximum => Some(x.max(y)),
        Minimum => Some(x.min(y)),
        Lt => Some(u64::from(x < y)),
        Le => Some(u64::from(x <= y)),
        Gt => Some(u64::from(x > y)),
        Ge => Some(u64::from(x >= y)),
        _ => None,
    }
}

fn complex(op: Pointwise, args: &[&[Complex64]]) -> Result<Values<'static>, EvalError> {
    use Pointwise::*;
    let truth = |t: bool| Complex64::from(f64::from(u8::from(t)));
    let f: Box<dyn Fn(Complex64, Complex64, Complex64) -> Complex64> = match op {
        Neg => Box::new(|x, _, _| -x),
        Abs => Box::new(|x, _, _| x.norm().into()),
        Log => Box::new(|x, _, _| x.ln()),
        Log2 => Box::new(|x, _, _| x.ln() / std::f64::consts::LN_2),
        Rsqrt => Box::new(|x, _, _| x.sqrt().inv()),
        Sin => Box::new(|x, _, _| x.sin()),
        Cos => Box::new(|x, _, _| x.cos()),
        Tanh => Box::new(|x, _, _| x.tanh()),
        Sigmoid => Box::new(|x, _, _| (Complex64::ONE + (-x).exp()).inv()),
        Silu => Box::new(|x, _, _| x / (Complex64::ONE + (-x).exp())),
        Pow => Box::new(|x, y, _| if y == Complex64::ZERO { Complex64::ONE } else { x.powc(y) }),
        Conj => Box::new(|x, _, _| x.conj()),
        Tan => Box::new(|x, _, _| x.tan()),
        Asin => Box::new(|x, _, _| x.asin()),
        Acos => Box::new(|x, _, _| x.acos()),
        Atan => Box::new(|x, _, _| x.atan()),
        Asinh => Box::new(|x, _, _| x.asinh()),
        Acosh => Box::new(|x, _, _| x.acosh()),
        Atanh => Box::new(|x, _, _| x.atanh()),
        Exp2 => Box::new(|x, _, _| (x * std::f64::consts::LN_2).exp()),
        Expm1 => Box::new(|x, _, _| x.exp() - 1.0),
        Log10 => Box::new(|x, _, _| x.ln() / std::f64::consts::LN_10),
        Log1p => Box::new(|x, _, _| (x + 1.0).ln()),
        Sign => Box::new(|x, _, _| if x == Complex64::ZERO { x } else { x / x.norm() }),
        Sinh => Box::new(|x, _, _| x.sinh()),
        Cosh => Box::new(|x, _, _| x.cosh()),
        Exp => Box::new(|x, _, _| x.exp()),
        Sqrt => Box::new(|x, _, _| x.sqrt()),
        Reciprocal => Box::new(|x, _, _| x.inv()),
        Add => Box::new(|x, y, _| x + y),
        Sub => Box::new(|x, y, _| x - y),
        Mul => Box::new(|x, y, _| x * y),
        Div => Box::new(|x, y, _| x / y),
        Eq => Box::new(move |x, y, _| truth(x == y)),
        Ne => Box::new(move |x, y, _| truth(x != y)),
        IsNan => Box::new(move |x, _, _| truth(x.is_nan())),
        Where => Box::new(|c, x, y| if c.re != 0.0 { x } else { y }),
        _ => return Err(EvalError::Unsupported { op: op.name(), dtype: DType::C64 }),
    };
    let at = |arg: usize, i: usize| args.get(arg).map_or(Complex64::ZERO, |x| x[i]);
    let len = args.first().map_or(0, |x| x.len());
    Ok(Values::Complex((0..len).map(|i| f(at(0, i), at(1, i), at(2, i))).collect()))
}

/// True if PyTorch's kernels read numbers and 0-d tensors in the operands' own dtype. Other arithmetic on halves keeps them in opmath
/// (`binary_kernel_reduced_floating_point_vec_opmath_support` in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp).
fn rounds_operands(op: Pointwise) -> bool {
    op.rule() == TypeRule::Compare || matches!(op, Pointwise::Remainder | Pointwise::Fmod)
}

/// An elementwise op on operands.
pub(super) fn eval(op: Pointwise, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (shape, dtype) = (call.shape(), arithmetic(op, call.types)?);
    let len = shape.iter().product();
    let rounded = |values: Values<'_>| values.cast(dtype, dtype);
    let args = call
        .operands
        .iter()
        .map(|operand| match operand {
            EvalOperand::Tensor(x) => {
                let values = Values::load(x).converted(x.dtype(), dtype);
                let values = if x.dtype() != dtype && rounds_operands(op) { rounded(values)? } else { values };
                Ok(values.broadcast(x.shape(), shape))
            }
            EvalOperand::Scalar(scalar) => {
                let number = Values::splat(*scalar, dtype, len);
                if rounds_operands(op) { rounded(number) } else { Ok(number) }
            }
            EvalOperand::None => Err(EvalError::Data(format!("{}: every operand must be given", op.name()))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let truth = matches!(op.rule(), TypeRule::Compare | TypeRule::Logical);
    apply(op, dtype, &args)?.store(if truth { DType::Bool } else { dtype }, call.dtype(), shape)
}

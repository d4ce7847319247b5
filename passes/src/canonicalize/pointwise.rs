//! Pointwise identities that hold bit for bit, and the canonical order of operands.

use super::{Rewrite, call, first};
use eglu_ir::{
    DType, Graph, Op, Operand, Scalar, Value,
    dtype::Category,
    ops::{Cast, Expand, Full, Pointwise},
};
use std::cmp::Ordering;

/// Rules for a pointwise op or a cast.
pub(super) fn simplify(graph: &Graph, op: &Op, operands: &[Operand]) -> Option<Rewrite> {
    match op {
        Op::Cast(Cast { dtype }) => cast(graph, *dtype, first(operands)?),
        Op::Pointwise(op) => neutral(graph, *op, operands)
            .or_else(|| involution(graph, *op, operands))
            .or_else(|| select(graph, *op, operands))
            .or_else(|| square(*op, operands))
            .or_else(|| order(graph, *op, operands)),
        _ => None,
    }
}

fn cast(graph: &Graph, dtype: DType, x: Value) -> Option<Rewrite> {
    if graph.ty(x).dtype == dtype {
        return Some(Rewrite::Forward(x));
    }
    let (inner, from) = call(graph, x)?;
    match inner {
        Op::Cast(Cast { dtype: middle }) if holds(*middle, graph.ty(first(from)?).dtype) => {
            Some(Rewrite::Call(Cast { dtype }.into(), from.iter().copied().collect()))
        }
        Op::Full(full) => {
            let value = convert(full.value, full.dtype, dtype)?;
            Some(Rewrite::Call(Full { value, dtype, shape: full.shape.clone() }.into(), std::iter::empty().collect()))
        }
        _ => None,
    }
}

/// True if every value of `narrow` is one of `wide`, so that converting there and on rounds only once.
fn holds(wide: DType, narrow: DType) -> bool {
    use DType::*;
    match (wide, narrow) {
        (_, Bool) => wide != Bool,
        (F32, F16 | Bf16 | F8E4M3Fn | F8E5M2 | I8 | U8 | I16 | U16) => true,
        (F64, F32 | F16 | Bf16 | F8E4M3Fn | F8E5M2 | I8 | U8 | I16 | U16 | I32 | U32) => true,
        (I64, I32 | I16 | I8 | U8 | U16 | U32) | (I32, I16 | I8 | U8 | U16) | (I16, I8 | U8) => true,
        _ => false,
    }
}

/// A number of one dtype in another, where no rounding can be in question.
fn convert(value: Scalar, from: DType, to: DType) -> Option<Scalar> {
    let exact = match value {
        Scalar::Float(f) if from.is_float() => f,
        _ if from.category() <= Category::Int && value.as_i64().unsigned_abs() <= 256 => value.as_i64() as f64,
        _ => return None,
    };
    match to.category() {
        Category::Float if holds(to, from) || (exact.abs() <= 8.0 && exact.fract() == 0.0 && to.size() > 1) => {
            Some(Scalar::Float(exact))
        }
        Category::Int if exact.fract() == 0.0 && (0.0..=127.0).contains(&exact) => Some(Scalar::Int(exact as i64)),
        Category::Bool if !exact.is_nan() => Some(Scalar::Bool(exact != 0.0)),
        _ => None,
    }
}

/// `x + 0`, `x · 1` and their like, where the other operand is a number.
fn neutral(graph: &Graph, op: Pointwise, operands: &[Operand]) -> Option<Rewrite> {
    let (x, number, mirrored) = match *operands {
        [Operand::Value(x), number] => (x, constant(graph, number)?, false),
        [number, Operand::Value(x)] => (x, constant(graph, number)?, true),
        _ => return None,
    };
    let dtype = graph.ty(x).dtype;
    let float = dtype.is_float();
    let is = |value: f64| number.as_f64() == value && number.as_f64().is_sign_negative() == value.is_sign_negative();
    let holds = match op {
        // IEEE 754: x + (-0) is x for every x, but -0 + 0 is 0.
        Pointwise::Add => {
            if float {
                is(-0.0)
            } else {
                is(0.0)
            }
        }
        Pointwise::Sub => !mirrored && is(0.0),
        Pointwise::Mul => is(1.0),
        Pointwise::Div => !mirrored && float && is(1.0),
        Pointwise::FloorDiv => !mirrored && dtype.is_int() && is(1.0),
        Pointwise::Pow => !mirrored && is(1.0),
        Pointwise::BitAnd | Pointwise::LogicalAnd => dtype == DType::Bool && is(1.0),
        Pointwise::BitOr | Pointwise::LogicalOr | Pointwise::BitXor => dtype == DType::Bool && is(0.0),
        _ => false,
    };
    let keeps = graph.infer(&op.into(), operands).is_ok_and(|types| types[0] == *graph.ty(x));
    (holds && keeps && dtype.category() != Category::Complex).then_some(Rewrite::Forward(x))
}

/// The number that an operand is, everywhere.
fn constant(graph: &Graph, operand: Operand) -> Option<Scalar> {
    match operand {
        Operand::Scalar(scalar) => Some(scalar),
        Operand::Value(value) => match call(graph, value)?.0 {
            Op::Full(full) => Some(full.value),
            _ => None,
        },
        Operand::None => None,
    }
}

/// `-(-x)` and `!!x`.
fn involution(graph: &Graph, op: Pointwise, operands: &[Operand]) -> Option<Rewrite> {
    let x = first(operands)?;
    let (inner, from) = call(graph, x)?;
    let undone = match op {
        Pointwise::Neg | Pointwise::BitNot => true,
        Pointwise::LogicalNot => graph.ty(first(from)?).dtype == DType::Bool,
        _ => false,
    };
    (undone && *inner == op.into()).then_some(Rewrite::Forward(first(from)?))
}

/// A choice whose mask is the same everywhere.
fn select(graph: &Graph, op: Pointwise, operands: &[Operand]) -> Option<Rewrite> {
    let &[mask, x, y] = operands else { return None };
    if op != Pointwise::Where {
        return None;
    }
    let chosen = if constant(graph, mask)?.as_f64() != 0.0 { x } else { y };
    let ty = graph.infer(&op.into(), operands).ok()?.into_iter().next()?;
    match chosen {
        Operand::Value(value) if *graph.ty(value) == ty => Some(Rewrite::Forward(value)),
        Operand::Value(value) if graph.ty(value).dtype == ty.dtype => {
            Some(Rewrite::Call(Expand { shape: ty.shape }.into(), [value.into()].into_iter().collect()))
        }
        _ => None,
    }
}

/// `x²` is `x · x`, as PyTorch computes it (`pow_tensor_scalar_optimized_kernel`).
fn square(op: Pointwise, operands: &[Operand]) -> Option<Rewrite> {
    match *operands {
        [Operand::Value(x), Operand::Scalar(exponent)] if op == Pointwise::Pow && exponent.as_f64() == 2.0 => {
            Some(Rewrite::Call(Pointwise::Mul.into(), [x.into(), x.into()].into_iter().collect()))
        }
        _ => None,
    }
}

/// Tensors in order of creation, numbers last, where the order means nothing. (The order of `maximum` decides between -0 and 0.)
fn order(graph: &Graph, op: Pointwise, operands: &[Operand]) -> Option<Rewrite> {
    use Pointwise::*;
    let &[a, b] = operands else { return None };
    let integers = |operand: Operand| operand.value().is_none_or(|x| graph.ty(x).dtype.category() <= Category::Int);
    let commutes = match op {
        Add | Mul | Eq | Ne | BitAnd | BitOr | BitXor | LogicalAnd | LogicalOr => true,
        Maximum | Minimum => integers(a) && integers(b),
        _ => false,
    };
    let swapped = match (a.value(), b.value()) {
        (Some(a), Some(b)) => a.cmp(&b) == Ordering::Greater,
        (a, b) => a.is_none() && b.is_some(),
    };
    (commutes && swapped).then(|| Rewrite::Call(op.into(), [b, a].into_iter().collect()))
}

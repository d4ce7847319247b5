//! Promotion and broadcasting of elementwise ops.

use super::broadcast;
use crate::{
    DType, Scalar, Shape, TensorType,
    dtype::Category,
    ops::Cast,
    ops::{
        Args, Cost, Glu, InferError, Map, OpDef, OperandType, Pointwise, TypeRule, Types,
        cost::{instructions, results},
        one,
    },
    program::Program,
};
use smallvec::SmallVec;

/// `torch.result_type`: tensors with dims first, then 0-d tensors, then numbers; a lower priority counts only where its category is higher.
pub fn promote(operands: &[OperandType<'_>]) -> Result<DType, InferError> {
    let mut classes: [Option<DType>; 3] = [None; 3];
    for operand in operands {
        let (class, dtype) = match operand {
            OperandType::Tensor(ty) => (usize::from(ty.rank() == 0), ty.dtype),
            OperandType::Scalar(Scalar::Bool(_)) => (2, DType::Bool),
            OperandType::Scalar(Scalar::Int(_)) => (2, DType::I64),
            OperandType::Scalar(Scalar::Float(_)) => (2, DType::F32),
            OperandType::None => continue,
        };
        classes[class] = Some(match classes[class] {
            None => dtype,
            Some(other) => other
                .promote(dtype)
                .ok_or_else(|| InferError(format!("{other} and {dtype} do not promote: cast one of them first")))?,
        });
    }
    let higher = |a: Option<DType>, b: Option<DType>| match (a, b) {
        (Some(a), Some(b)) if b.category() > a.category() => Some(match (a.category(), b) {
            // Something complex beside a float tensor gives the complex dtype of the tensor's width.
            (Category::Float, b) if b.is_complex() => match a {
                DType::F64 => DType::C128,
                DType::F16 => DType::C32,
                _ => DType::C64,
            },
            _ => b,
        }),
        (Some(a), _) => Some(a),
        (None, b) => b,
    };
    let [dims, zero, numbers] = classes;
    higher(higher(dims, zero), numbers).ok_or_else(|| InferError::new("needs at least one operand"))
}

/// The dtype that an elementwise op converts its operands to: their promotion, integers becoming f32 where the op is real-valued.
pub fn compute_dtype(op: Pointwise, operands: &[OperandType<'_>]) -> Result<DType, InferError> {
    let promoted = match op.rule() {
        TypeRule::Select => promote(&operands[1.min(operands.len())..])?,
        _ => promote(operands)?,
    };
    Ok(match op.rule() {
        TypeRule::Float if promoted.category() < Category::Float => DType::F32,
        _ => promoted,
    })
}

pub(in crate::ops) fn pointwise(op: Pointwise, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
    if operands.len() != op.arity() || operands.contains(&OperandType::None) {
        return Err(InferError(format!("takes {} operands, {} given", op.arity(), operands.len())));
    }
    let dtype = compute_dtype(op, operands)?;
    if matches!(op, Pointwise::Neg | Pointwise::Sub) && operands.iter().any(is_bool) {
        return Err(InferError::new("is not defined for bool: cast first, or use logical_not or bitwise_xor"));
    }
    if dtype == DType::Bool && matches!(op, Pointwise::ShiftLeft | Pointwise::ShiftRight) {
        return Err(InferError::new("is not defined for bool: cast first"));
    }
    let result = match op.rule() {
        TypeRule::Compare | TypeRule::Logical => DType::Bool,
        TypeRule::Bits if dtype.category() > Category::Int => {
            return Err(InferError(format!("needs integers or bool, not {dtype}")));
        }
        TypeRule::Select => {
            if !matches!(operands[0], OperandType::Tensor(ty) if ty.dtype == DType::Bool) {
                return Err(InferError::new("the mask must be a bool tensor"));
            }
            dtype
        }
        _ => match (op, dtype) {
            (Pointwise::Abs, DType::C128) => DType::F64,
            (Pointwise::Abs, DType::C64) => DType::F32,
            (Pointwise::Abs, DType::C32) => DType::F16,
            _ => dtype,
        },
    };
    Ok(one(result, broadcast_all(operands)?))
}

fn is_bool(operand: &OperandType<'_>) -> bool {
    match operand {
        OperandType::Tensor(ty) => ty.dtype == DType::Bool,
        OperandType::Scalar(scalar) => matches!(scalar, Scalar::Bool(_)),
        OperandType::None => false,
    }
}

pub(super) fn broadcast_all(operands: &[OperandType<'_>]) -> Result<Shape, InferError> {
    operands.iter().try_fold(Shape::new(), |shape, operand| match operand {
        OperandType::Tensor(ty) => broadcast(&shape, &ty.shape),
        _ => Ok(shape),
    })
}

/// Checks the operands' dtypes against a program's parameters.
pub(super) fn check_params(program: &Program, dtypes: impl ExactSizeIterator<Item = DType>) -> Result<(), InferError> {
    program.check().map_err(|why| InferError(format!("its program is malformed: {why}")))?;
    if program.params.len() != dtypes.len() {
        return Err(InferError(format!("its program takes {} operands, {} given", program.params.len(), dtypes.len())));
    }
    match program.params.iter().copied().zip(dtypes).position(|(param, dtype)| param != dtype) {
        None => Ok(()),
        Some(i) => Err(InferError(format!("operand {i} is not of its program's dtype {}", program.params[i]))),
    }
}

impl OpDef for Map {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let types: Vec<_> = (0..operands.len()).map(|i| args.tensor(i, "x")).collect::<Result<_, _>>()?;
        check_params(&self.program, types.iter().map(|ty| ty.dtype))?;
        let shape = broadcast_all(operands)?;
        Ok(self
            .program
            .results
            .iter()
            .map(|&(_, dtype)| crate::TensorType { dtype, shape: shape.clone() })
            .collect::<SmallVec<_>>())
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, results(outputs) * instructions(&self.program), false)
    }
}

impl OpDef for Glu {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        Map { program: self.program.clone() }.infer(operands)
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, results(outputs) * instructions(&self.program), false)
    }
}

impl OpDef for Cast {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        Ok(one(self.dtype, x.shape.clone()))
    }
}

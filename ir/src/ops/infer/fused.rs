//! The fused vocabulary: gated units and mixture-of-experts blocks.

use super::{integer, matmul::expert_weight, pointwise::check_params, rank, same};
use crate::{
    DType, Dim, TensorType,
    ops::{
        Args, Combine, Cost, DenseGlu, InferError, Moe, OpDef, OperandType, Types,
        cost::{extent_from_end, instructions, multiply_adds, numel, results},
        one,
    },
};

impl OpDef for Combine {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (y, weights) = (args.tensor(0, "y")?, args.tensor(1, "weights")?);
        rank("y", y, 2)?;
        rank("weights", weights, 2)?;
        same("the number of rows and of weights", &y.shape[0], &weights.numel())?;
        Ok(one(self.dtype, [weights.shape[0].clone(), y.shape[1].clone()]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, numel(operands, 0) * Dim::from(2), false)
    }
}

impl OpDef for DenseGlu {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, gate, up) = (args.tensor(0, "x")?, args.tensor(1, "gate")?, args.tensor(3, "up")?);
        let inner = x.shape.last().ok_or_else(|| InferError::new("x must have at least one dim"))?;
        for (what, w, bias) in [("gate", gate, args.optional(2)), ("up", up, args.optional(4))] {
            rank(what, w, 2)?;
            same("inner extents", inner, &w.shape[1])?;
            same("output extents of gate and up", &w.shape[0], &gate.shape[0])?;
            if let Some(bias) = bias {
                rank("bias", bias, 1)?;
                same("extents of bias and output", &bias.shape[0], &w.shape[0])?;
            }
            if w.dtype != x.dtype {
                return Err(InferError(format!("x {x} and {what} {w} must have one dtype: cast first")));
            }
        }
        let dtype = gating(&self.program, x.dtype, 2)?;
        let mut shape = x.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = gate.shape[0].clone();
        }
        Ok(one(dtype, shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let products = multiply_adds(outputs, extent_from_end(operands, 0, 0)) * Dim::from(2);
        Cost::of(operands, outputs, products + results(outputs) * instructions(&self.program), true)
    }
}

/// Checks a gating program of (gate, up), or of the gate alone, and gives the dtype it stores.
fn gating(program: &crate::Program, dtype: DType, lanes: usize) -> Result<DType, InferError> {
    check_params(program, [dtype; 2][..lanes].iter().copied())?;
    match program.results[..] {
        [(_, stored)] => Ok(stored),
        _ => Err(InferError(format!("a gating program has one result, not {}", program.results.len()))),
    }
}

impl OpDef for Moe {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let x = args.tensor(0, "x")?;
        let (gate, up, down) = (args.tensor(1, "gate")?, args.optional(3), args.tensor(5, "down")?);
        let (ids, weights) = (args.tensor(7, "ids")?, args.tensor(8, "weights")?);
        rank("x", x, 2)?;
        rank("ids", ids, 2)?;
        integer("ids", ids)?;
        expert_weight("gate", gate, args.optional(2), &x.shape[1])?;
        expert_weight("down", down, args.optional(6), &gate.shape[1])?;
        same("the number of experts of gate and down", &gate.shape[0], &down.shape[0])?;
        if let Some(up) = up {
            expert_weight("up", up, args.optional(4), &x.shape[1])?;
            same("output extents of gate and up", &gate.shape[1], &up.shape[1])?;
            same("the number of experts of gate and up", &gate.shape[0], &up.shape[0])?;
        } else if args.optional(4).is_some() {
            return Err(InferError::new("there is a bias of up, but no up"));
        }
        if ids.shape != weights.shape {
            return Err(InferError(format!("ids {ids} and weights {weights} must have one shape")));
        }
        same("the number of tokens and of id rows", &x.shape[0], &ids.shape[0])?;
        gating(&self.program, x.dtype, 1 + usize::from(up.is_some()))?;
        Ok(one(self.dtype, [x.shape[0].clone(), down.shape[1].clone()]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let (rows, inner) = (numel(operands, 7), extent_from_end(operands, 1, 1));
        let (hidden, width) = (extent_from_end(operands, 0, 0), extent_from_end(operands, 5, 1));
        let lanes = if matches!(operands.get(3), Some(OperandType::Tensor(_))) { 2 } else { 1 };
        let products = rows.clone() * inner.clone() * (hidden * Dim::from(2 * lanes) + width.clone() * Dim::from(2));
        let gating = rows.clone() * (inner * instructions(&self.program) + width * Dim::from(2));
        Cost::of(operands, outputs, products + gating, true).with_experts(operands, &[1, 2, 3, 4, 5, 6], &rows)
    }
}

//! Matrix products.

use super::{broadcast, integer, pointwise::check_params, rank, same};
use crate::{
    DType, Dim, Shape, TensorType,
    ops::{
        Args, Contract, Cost, ExpertMatmul, GroupedMm, InferError, MatMul, OpDef, OperandType, Types,
        cost::{extent_from_end, instructions, multiply_adds, results},
        one,
    },
};

/// The shape of `a · b`.
fn product(a: &TensorType, b: &TensorType) -> Result<Shape, InferError> {
    if a.rank() < 2 || b.rank() < 2 {
        return Err(InferError(format!("matrices need at least 2 dims: {a} and {b}")));
    }
    if a.dtype != b.dtype {
        return Err(InferError(format!("{a} and {b} must have one dtype: cast first")));
    }
    let (a_batch, a_matrix) = a.shape.split_at(a.rank() - 2);
    let (b_batch, b_matrix) = b.shape.split_at(b.rank() - 2);
    same("inner extents", &a_matrix[1], &b_matrix[0]).map_err(|e| InferError(format!("{e} ({a} times {b})")))?;
    let mut shape = broadcast(a_batch, b_batch)?;
    shape.extend([a_matrix[0].clone(), b_matrix[1].clone()]);
    Ok(shape)
}

impl OpDef for MatMul {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (a, b) = (args.tensor(0, "a")?, args.tensor(1, "b")?);
        Ok(one(a.dtype, product(a, b)?))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, multiply_adds(outputs, extent_from_end(operands, 0, 0)), true)
    }
}

impl OpDef for Contract {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let a = args.tensor(0, "a")?;
        if self.lanes == 0 || operands.len() <= self.lanes {
            return Err(InferError(format!("{} operands cannot fill {} lanes", operands.len(), self.lanes)));
        }
        let shapes: Vec<Shape> = (1..=self.lanes).map(|i| product(a, args.tensor(i, "b")?)).collect::<Result<_, _>>()?;
        if let Some(other) = shapes.iter().find(|shape| **shape != shapes[0]) {
            return Err(InferError(format!("its products must have one shape: {:?} and {other:?}", shapes[0])));
        }
        let captures: Vec<&TensorType> =
            (self.lanes + 1..operands.len()).map(|i| args.tensor(i, "capture")).collect::<Result<_, _>>()?;
        let lanes = self.program.params.iter().take(self.lanes).copied();
        check_params(&self.program, lanes.chain(captures.iter().map(|ty| ty.dtype)).collect::<Vec<DType>>().into_iter())?;
        for capture in captures {
            if broadcast(&shapes[0], &capture.shape)? != shapes[0] {
                return Err(InferError(format!("the capture {capture} does not broadcast to {:?}", shapes[0])));
            }
        }
        self.outputs(&shapes[0])
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Rows and columns of the products: outputs may be packed or reduced.
        let types = |i: usize| operands.get(i).and_then(|operand| Args(std::slice::from_ref(operand)).tensor(0, "").ok());
        let each = types(0).zip(types(1)).and_then(|(a, b)| product(a, b).ok().map(|shape| TensorType { dtype: a.dtype, shape }));
        let each: Vec<TensorType> = each.into_iter().collect();
        let products = multiply_adds(&each, extent_from_end(operands, 0, 0)) * Dim::from(self.lanes as i64);
        let stored = Dim::from(self.program.results.len() as i64);
        Cost::of(operands, outputs, products + results(&each) * stored * instructions(&self.program), true)
    }
}

impl OpDef for GroupedMm {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, w, offs) = (args.tensor(0, "x")?, args.tensor(1, "w")?, args.tensor(2, "offs")?);
        rank("x", x, 2)?;
        rank("w", w, 3)?;
        rank("offs", offs, 1)?;
        integer("offs", offs)?;
        same("inner extents", &x.shape[1], &w.shape[1])?;
        same("the number of groups and of matrices", &offs.shape[0], &w.shape[0])?;
        if x.dtype != w.dtype {
            return Err(InferError(format!("{x} and {w} must have one dtype: cast first")));
        }
        Ok(one(x.dtype, [x.shape[0].clone(), w.shape[2].clone()]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let rows = extent_from_end(operands, 0, 1);
        let flops = multiply_adds(outputs, extent_from_end(operands, 0, 0));
        Cost::of(operands, outputs, flops, true).with_experts(operands, &[1], &rows)
    }
}

impl OpDef for ExpertMatmul {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, w, ids) = (args.tensor(0, "x")?, args.tensor(1, "w")?, args.tensor(3, "ids")?);
        rank("x", x, 2)?;
        rank("ids", ids, 1)?;
        integer("ids", ids)?;
        expert_weight("w", w, args.optional(2), &x.shape[1])?;
        same("the number of rows and of ids", &x.shape[0], &ids.shape[0])?;
        if x.dtype != w.dtype {
            return Err(InferError(format!("{x} and {w} must have one dtype: cast first")));
        }
        Ok(one(x.dtype, [x.shape[0].clone(), w.shape[1].clone()]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let rows = extent_from_end(operands, 0, 1);
        let flops = multiply_adds(outputs, extent_from_end(operands, 0, 0));
        Cost::of(operands, outputs, flops, true).with_experts(operands, &[1, 2], &rows)
    }
}

/// Checks a weight `[E, N, K]` and its bias `[E, N]`.
pub(super) fn expert_weight(what: &str, w: &TensorType, bias: Option<&TensorType>, inner: &Dim) -> Result<(), InferError> {
    rank(what, w, 3)?;
    same(&format!("inner extents of the rows and of {what}"), inner, &w.shape[2])?;
    if let Some(bias) = bias {
        rank(&format!("the bias of {what}"), bias, 2)?;
        same("the number of experts of weight and bias", &w.shape[0], &bias.shape[0])?;
        same("output extents of weight and bias", &w.shape[1], &bias.shape[1])?;
    }
    Ok(())
}

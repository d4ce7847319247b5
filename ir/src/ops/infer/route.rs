//! Routers.

use super::{pointwise::check_params, rank, same};
use crate::{
    DType, Dim, TensorType,
    ops::{Args, Cost, InferError, OpDef, OperandType, Route, Types, cost::numel},
};

impl OpDef for Route {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (logits, bias) = (args.tensor(0, "logits")?, args.optional(1));
        rank("logits", logits, 2)?;
        for dtype in [logits.dtype, self.scores].into_iter().chain(bias.map(|bias| bias.dtype)) {
            if !dtype.is_float() || dtype.opmath() != DType::F32 {
                return Err(InferError(format!("scores are computed in f32, so logits, scores and bias cannot be {dtype}")));
            }
        }
        if let Some(bias) = bias {
            rank("bias", bias, 1)?;
            same("the number of experts and of biases", &bias.shape[0], &logits.shape[1])?;
        }
        let experts = logits.shape[1].as_const();
        if experts.is_some_and(|experts| (experts as usize) < self.k) {
            return Err(InferError(format!("k is {} but {logits} has fewer experts", self.k)));
        }
        match (self.groups(), &self.groups[..]) {
            (None, []) => {}
            (None, axes) => return Err(InferError(format!("groups are [count, best, kept], not {axes:?}"))),
            (Some(groups), _) => {
                let width = experts.and_then(|experts| groups.width(experts as usize));
                let width = width.ok_or_else(|| InferError(format!("{logits} does not split into {} groups", groups.count)))?;
                if groups.best == 0 || groups.best > width || groups.kept > groups.count {
                    return Err(InferError(format!("{groups:?} does not fit groups of {width} experts")));
                }
            }
        }
        let value = self.value_dtype(logits.dtype, bias.map(|bias| bias.dtype));
        check_params(&self.weigh, [value; 2].into_iter())?;
        let [(_, dtype)] = self.weigh.results[..] else {
            return Err(InferError(format!("a router's program has one result, not {}", self.weigh.results.len())));
        };
        let shape = [logits.shape[0].clone(), Dim::from(self.k as i64)];
        Ok(Types::from_iter([TensorType::new(dtype, shape.clone()), TensorType::new(DType::I64, shape)]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // A softmax and the selection.
        Cost::of(operands, outputs, numel(operands, 0) * Dim::from(6), false)
    }
}

//! Products by expert beyond the plain one.

use super::{integer, rank, same};
use crate::{
    Dim, TensorType,
    ops::{
        Args, Cost, ExpertOuter, InferError, OpDef, OperandType, Types,
        cost::{extent_from_end, multiply_adds},
        one,
    },
};

/// Checks that `rows`, each `repeat` times, are as many as there are ids.
fn repeated(what: &str, rows: &TensorType, repeat: usize, ids: &TensorType) -> Result<(), InferError> {
    rank(what, rows, 2)?;
    let all = rows.shape[0].clone() * Dim::from(repeat as i64);
    same(&format!("the number of ids and of rows of {what}, each {repeat} times"), &all, &ids.shape[0])
}

impl OpDef for ExpertOuter {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (a, b, ids) = (args.tensor(0, "a")?, args.tensor(1, "b")?, args.tensor(2, "ids")?);
        rank("ids", ids, 1)?;
        integer("ids", ids)?;
        repeated("a", a, self.a_repeat, ids)?;
        repeated("b", b, self.b_repeat, ids)?;
        if a.dtype != b.dtype {
            return Err(InferError(format!("{a} and {b} must have one dtype: cast first")));
        }
        if self.dtype.opmath() != a.dtype.opmath() {
            return Err(InferError(format!("sums of {} cannot be stored as {}: cast", a.dtype, self.dtype)));
        }
        Ok(one(self.dtype, [self.experts.clone(), a.shape[1].clone(), b.shape[1].clone()]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Each row adds one matrix of one expert.
        let each = outputs.iter().map(|ty| TensorType::new(ty.dtype, ty.shape[1..].iter().cloned())).collect::<Vec<_>>();
        let rows = extent_from_end(operands, 2, 0);
        Cost::of(operands, outputs, multiply_adds(&each, rows), true)
    }
}

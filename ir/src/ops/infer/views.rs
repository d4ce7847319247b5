//! Views and generators.

use super::{check_axis, same};
use crate::{
    Dim, TensorType,
    ops::{Args, Bitcast, Cost, Expand, Full, InferError, Iota, OpDef, OperandType, Permute, Reshape, Slice, Types, one},
    types::numel,
};

impl OpDef for Reshape {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        same("numbers of elements", &x.numel(), &numel(&self.shape))
            .map_err(|e| InferError(format!("{e} ({x} to {:?})", self.shape)))?;
        Ok(one(x.dtype, self.shape.clone()))
    }

    fn cost(&self, _: &[OperandType<'_>], _: &[TensorType]) -> Cost {
        Cost::free()
    }
}

impl OpDef for Permute {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        let mut sorted = self.dims.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.rank()) {
            return Err(InferError(format!("{:?} is no order of the dims of {x}", self.dims)));
        }
        Ok(one(x.dtype, self.dims.iter().map(|&i| x.shape[i].clone())))
    }

    fn cost(&self, _: &[OperandType<'_>], _: &[TensorType]) -> Cost {
        Cost::free()
    }
}

impl OpDef for Expand {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        let refuse = || InferError(format!("{x} does not expand to {:?}", self.shape));
        let new = self.shape.len().checked_sub(x.rank()).ok_or_else(refuse)?;
        if x.shape.iter().zip(&self.shape[new..]).any(|(from, to)| from != to && !from.is(1)) {
            return Err(refuse());
        }
        Ok(one(x.dtype, self.shape.clone()))
    }

    fn cost(&self, _: &[OperandType<'_>], _: &[TensorType]) -> Cost {
        Cost::free()
    }
}

impl OpDef for Slice {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        check_axis(self.dim, x)?;
        if self.step < 1 {
            return Err(InferError(format!("step must be at least 1, not {}", self.step)));
        }
        let extent = &x.shape[self.dim];
        if let (Some(start), Some(end), Some(extent)) = (self.start.as_const(), self.end.as_const(), extent.as_const())
            && !(0 <= start && start <= end && end <= extent)
        {
            return Err(InferError(format!("bounds {start}..{end} do not lie within dim {} of {x}", self.dim)));
        }
        let mut shape = x.shape.clone();
        shape[self.dim] = (self.end.clone() - self.start.clone()).ceil_div(self.step);
        Ok(one(x.dtype, shape))
    }

    fn cost(&self, _: &[OperandType<'_>], _: &[TensorType]) -> Cost {
        Cost::free()
    }
}

impl OpDef for Bitcast {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        let (from, to) = (x.dtype.size() as i64, self.dtype.size() as i64);
        let mut shape = x.shape.clone();
        if from != to {
            let refuse = || InferError(format!("the last dim of {x} does not divide into elements of {}", self.dtype));
            let last = shape.last_mut().ok_or_else(refuse)?;
            *last = (last.clone() * Dim::from(from)).exact_div(&Dim::from(to)).ok_or_else(refuse)?;
        }
        Ok(one(self.dtype, shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::streaming(operands, outputs, 0)
    }
}

impl OpDef for Iota {
    fn infer(&self, _: &[OperandType<'_>]) -> Result<Types, InferError> {
        Ok(one(self.dtype, [self.len.clone()]))
    }
}

impl OpDef for Full {
    fn infer(&self, _: &[OperandType<'_>]) -> Result<Types, InferError> {
        if let Some(dim) = self.shape.iter().filter_map(Dim::as_const).find(|&dim| dim < 0) {
            return Err(InferError(format!("an extent cannot be {dim}")));
        }
        Ok(one(self.dtype, self.shape.clone()))
    }
}

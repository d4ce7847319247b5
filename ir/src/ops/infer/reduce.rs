//! Reductions, scans and row norms.

use super::{broadcast, check_axis, pointwise::check_params, same};
use crate::{
    DType, Dim, Shape, TensorType,
    dtype::Category,
    ops::{
        Args, Axes, Cost, Cumsum, InferError, LayerNorm, MapReduce, OpDef, OperandType, Reduce, ReduceKind, RmsNorm, Softmax,
        Types,
        cost::{instructions, numel, results},
        one,
    },
};

/// The shape left when `dims` are reduced.
pub fn reduced(shape: &[Dim], dims: &Axes, keepdim: bool) -> Shape {
    let kept = |i: usize| (!dims.contains(&i)).then(|| shape[i].clone());
    (0..shape.len()).filter_map(|i| kept(i).or(keepdim.then_some(Dim::from(1)))).collect()
}

impl OpDef for Reduce {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        for &dim in &self.dims {
            check_axis(dim, x)?;
        }
        let empty = self.dims.iter().any(|&dim| x.shape[dim].is(0));
        let has_identity =
            matches!(self.kind, ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean | ReduceKind::Any | ReduceKind::All);
        if empty && !has_identity {
            return Err(InferError(format!("{:?} of no elements has no value ({x}, dims {:?})", self.kind, self.dims)));
        }
        // Complex numbers have no order. Where no element is compared, PyTorch does not find out.
        if !has_identity && x.dtype.is_complex() && !x.numel().is(0) {
            return Err(InferError(format!("{} has no order, which {} needs", x.dtype, self.kind.name())));
        }
        if self.kind == ReduceKind::Mean && self.dtype.category() < Category::Float {
            return Err(InferError(format!("mean needs a float or complex dtype, not {}: cast first", self.dtype)));
        }
        Ok(one(self.dtype, reduced(&x.shape, &self.dims, self.keepdim)))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, numel(operands, 0), false)
    }
}

impl OpDef for MapReduce {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let types: Vec<&TensorType> = (0..operands.len()).map(|i| args.tensor(i, "x")).collect::<Result<_, _>>()?;
        let read = self.prologue.params.len();
        if types.len() < read {
            return Err(InferError(format!("its prologue takes {read} operands, {} given", types.len())));
        }
        let (inputs, captures) = types.split_at(read);
        check_params(&self.prologue, inputs.iter().map(|ty| ty.dtype))?;
        if self.prologue.results.len() != self.kinds.len() {
            return Err(InferError(format!("{} values for {} reductions", self.prologue.results.len(), self.kinds.len())));
        }
        let full = inputs.iter().try_fold(Shape::new(), |shape, ty| broadcast(&shape, &ty.shape))?;
        let values = self.epilogue.params.iter().take(self.kinds.len()).copied();
        check_params(&self.epilogue, values.chain(captures.iter().map(|ty| ty.dtype)).collect::<Vec<DType>>().into_iter())?;
        let kept = reduced(&full, &self.dims, true);
        for capture in captures {
            if broadcast(&kept, &capture.shape)? != kept {
                return Err(InferError(format!("the capture {capture} does not broadcast to {kept:?}")));
            }
        }
        let shape = reduced(&full, &self.dims, self.keepdim);
        Ok(self.epilogue.results.iter().map(|&(_, dtype)| TensorType { dtype, shape: shape.clone() }).collect())
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let inputs = operands.iter().take(self.prologue.params.len()).filter_map(|operand| match operand {
            OperandType::Tensor(ty) => Some(*ty),
            _ => None,
        });
        let full = inputs.fold(Shape::new(), |shape, ty| broadcast(&shape, &ty.shape).unwrap_or(shape));
        let each = instructions(&self.prologue) + Dim::from(self.kinds.len() as i64);
        Cost::of(operands, outputs, crate::types::numel(&full) * each + results(outputs) * instructions(&self.epilogue), false)
    }
}

impl OpDef for Cumsum {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        check_axis(self.dim, x)?;
        Ok(one(self.dtype, x.shape.clone()))
    }
}

impl OpDef for Softmax {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        check_axis(self.dim, x)?;
        if !self.dtype.is_float() {
            return Err(InferError(format!("softmax gives a float, not {}", self.dtype)));
        }
        Ok(one(self.dtype, x.shape.clone()))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Maximum, difference, exponential, sum, quotient.
        Cost::streaming(operands, outputs, 5)
    }
}

impl OpDef for RmsNorm {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let x = args.tensor(0, "x")?;
        let last = x.shape.last().ok_or_else(|| InferError::new("x must have at least one dim"))?;
        if let Some(weight) = args.optional(1) {
            super::rank("weight", weight, 1)?;
            same("extents of weight and of x's last dim", &weight.shape[0], last)?;
        }
        Ok(one(self.dtype, x.shape.clone()))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Square, sum, scale, weight.
        Cost::streaming(operands, outputs, 4)
    }
}

impl OpDef for LayerNorm {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let x = args.tensor(0, "x")?;
        let [outer @ .., last] = &x.shape[..] else { return Err(InferError::new("x must have at least one dim")) };
        for (at, name) in [(1, "weight"), (2, "bias")] {
            if let Some(parameter) = args.optional(at) {
                super::rank(name, parameter, 1)?;
                same(&format!("extents of {name} and of x's last dim"), &parameter.shape[0], last)?;
            }
        }
        let floats = [Some(x), args.optional(1), args.optional(2)];
        if let Some(other) = floats.into_iter().flatten().find(|ty| !ty.dtype.is_float()) {
            return Err(InferError(format!("a layer norm is of floats, not {}", other.dtype)));
        }
        let statistic = TensorType { dtype: x.dtype.opmath(), shape: outer.iter().cloned().chain([Dim::from(1)]).collect() };
        Ok([TensorType { dtype: self.dtype, shape: x.shape.clone() }, statistic.clone(), statistic].into_iter().collect())
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        // Sum, distance, square, sum, scale, weight, bias.
        Cost::streaming(operands, outputs, 7)
    }
}

//! Gathers, scatters, joins and orders.

use super::{broadcast, check_axis, integer, rank, same};
use crate::{
    DType, Dim, Shape, TensorType,
    ops::{
        Args, Axes, Cat, Cost, Gather, Histc, Index, IndexPut, InferError, InversePermutation, OpDef, OperandType, ScatterAdd,
        Sort, TopK, Types, cost::numel, one,
    },
};

/// The shape of `x[indices]` with PyTorch's rule: adjacent indexed dims are replaced in place, separated ones go to the front.
fn indexed(x: &TensorType, axes: &Axes, indices: &[&TensorType]) -> Result<Shape, InferError> {
    if axes.len() != indices.len() || axes.is_empty() {
        return Err(InferError(format!("{} index tensors for {} dims", indices.len(), axes.len())));
    }
    for index in indices {
        integer("indices", index)?;
    }
    for pair in axes.windows(2) {
        if pair[0] >= pair[1] {
            return Err(InferError(format!("indexed dims {axes:?} must ascend")));
        }
    }
    check_axis(axes[axes.len() - 1], x)?;
    let picked = indices.iter().try_fold(Shape::new(), |shape, index| broadcast(&shape, &index.shape))?;
    let adjacent = axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let front = if adjacent { axes[0] } else { 0 };
    let rest: Shape = (0..x.rank()).filter(|i| !axes.contains(i)).map(|i| x.shape[i].clone()).collect();
    Ok(rest[..front].iter().chain(&picked).chain(&rest[front..]).cloned().collect())
}

/// Checks that no known extent of `a` is larger than that of `b`, the dim `except` apart.
fn within(what: &str, a: &TensorType, of: &str, b: &TensorType, except: Option<usize>) -> Result<(), InferError> {
    let larger = |i: &usize| match (a.shape[*i].as_const(), b.shape[*i].as_const()) {
        (Some(a), Some(b)) => a > b,
        _ => false,
    };
    match (0..a.rank()).filter(|&i| Some(i) != except).find(larger) {
        None => Ok(()),
        Some(i) => Err(InferError(format!("{what} {a} reaches beyond dim {i} of {of} {b}"))),
    }
}

impl OpDef for Index {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let x = args.tensor(0, "x")?;
        let indices: Vec<&TensorType> = (1..operands.len()).map(|i| args.tensor(i, "indices")).collect::<Result<_, _>>()?;
        Ok(one(x.dtype, indexed(x, &self.axes, &indices)?))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::picking(operands, outputs)
    }
}

impl OpDef for IndexPut {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, values) = (args.tensor(0, "x")?, args.tensor(1, "values")?);
        let indices: Vec<&TensorType> = (2..operands.len()).map(|i| args.tensor(i, "indices")).collect::<Result<_, _>>()?;
        let place = indexed(x, &self.axes, &indices)?;
        if broadcast(&place, &values.shape)? != place {
            return Err(InferError(format!("values {values} do not broadcast to {place:?}")));
        }
        if x.dtype != values.dtype {
            return Err(InferError(format!("{x} and values {values} must have one dtype: cast first")));
        }
        Ok(one(x.dtype, x.shape.clone()))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, if self.accumulate { numel(operands, 1) } else { Dim::from(0) }, false)
    }
}

impl OpDef for Gather {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, index) = (args.tensor(0, "x")?, args.tensor(1, "index")?);
        check_axis(self.dim, x)?;
        integer("index", index)?;
        rank("index", index, x.rank())?;
        within("index", index, "x", x, Some(self.dim))?;
        Ok(one(x.dtype, index.shape.clone()))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::picking(operands, outputs)
    }
}

impl OpDef for ScatterAdd {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, index, src) = (args.tensor(0, "x")?, args.tensor(1, "index")?, args.tensor(2, "src")?);
        check_axis(self.dim, x)?;
        integer("index", index)?;
        rank("index", index, x.rank())?;
        rank("src", src, x.rank())?;
        within("index", index, "x", x, Some(self.dim))?;
        within("index", index, "src", src, None)?;
        if x.dtype != src.dtype {
            return Err(InferError(format!("{x} and src {src} must have one dtype: cast first")));
        }
        Ok(one(x.dtype, x.shape.clone()))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, numel(operands, 2), false)
    }
}

impl OpDef for Cat {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let first = args.tensor(0, "x")?;
        check_axis(self.dim, first)?;
        let mut shape = first.shape.clone();
        for i in 1..operands.len() {
            let next = args.tensor(i, "x")?;
            rank("every operand", next, first.rank())?;
            if next.dtype != first.dtype {
                return Err(InferError(format!("{first} and {next} must have one dtype: cast first")));
            }
            for (dim, extent) in next.shape.iter().enumerate().filter(|(dim, _)| *dim != self.dim) {
                same(&format!("extents of dim {dim}"), &first.shape[dim], extent)?;
            }
            shape[self.dim] = shape[self.dim].clone() + next.shape[self.dim].clone();
        }
        Ok(one(first.dtype, shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::streaming(operands, outputs, 0)
    }
}

fn with_positions(dtype: DType, shape: Shape) -> Types {
    Types::from_iter([TensorType { dtype, shape: shape.clone() }, TensorType { dtype: DType::I64, shape }])
}

impl OpDef for Sort {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        check_axis(self.dim, x)?;
        Ok(with_positions(x.dtype, x.shape.clone()))
    }
}

impl OpDef for TopK {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        check_axis(self.dim, x)?;
        if x.shape[self.dim].as_const().is_some_and(|extent| (extent as usize) < self.k) {
            return Err(InferError(format!("k is {} but dim {} of {x} has fewer elements", self.k, self.dim)));
        }
        let mut shape = x.shape.clone();
        shape[self.dim] = Dim::from(self.k as i64);
        Ok(with_positions(x.dtype, shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, numel(operands, 0), false)
    }
}

impl OpDef for Histc {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let x = Args(operands).tensor(0, "x")?;
        Ok(one(x.dtype, [Dim::from(self.bins as i64)]))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::of(operands, outputs, numel(operands, 0), false)
    }
}

impl OpDef for InversePermutation {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let perm = Args(operands).tensor(0, "perm")?;
        rank("perm", perm, 1)?;
        integer("perm", perm)?;
        Ok(one(DType::I64, perm.shape.clone()))
    }
}

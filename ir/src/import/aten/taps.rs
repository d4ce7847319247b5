//! Linear maps along one dim that read a few elements for each result: windows of pooling, neighbours of resampling. The same taps
//! read forward, and spread the gradient back.

use super::{
    super::call::{Built, Call},
    special::{select, two},
};
use crate::{
    DType, Dim, Scalar, Shape, Tensor, Value,
    ops::{Axes, Expand, Full, Index, IndexPut, Pointwise as P, Reshape},
};

/// For each of `o` results, the `L` positions it reads along a dim: tensors of `[o, L]`.
#[derive(Clone, Copy, Debug)]
pub struct Taps {
    /// Positions, all within the dim.
    pub at: Value,
    /// Which of them count; `None`: all.
    pub valid: Option<Value>,
    /// What each is multiplied by; `None`: one.
    pub weight: Option<Value>,
}

/// A table of known numbers, one row for each result.
pub fn table<T: crate::tensor::Element>(c: &mut Call<'_, '_>, dtype: DType, rows: &[Vec<T>]) -> Built<Value> {
    let width = rows.first().map_or(0, Vec::len);
    let flat: Vec<T> = rows.iter().flatten().copied().collect();
    let tensor = Tensor::from_slice(dtype, &[rows.len(), width], &flat);
    let tensor = tensor.map_err(|e| super::super::call::Fault::Bad(e.to_string()))?;
    let hint = format!("{}.table", c.name);
    Ok(c.translator.graph.add_constant(&hint, tensor))
}

/// A table of `[o, L]` beside a tensor whose dims `dim` and `dim + 1` it describes.
fn beside(c: &mut Call<'_, '_>, table: Value, dim: usize, rank: usize) -> Built<Value> {
    let mut shape = c.ty(table).shape.clone();
    shape.resize(rank - dim, Dim::from(1));
    c.op(Reshape { shape }, [table.into()])
}

impl Taps {
    /// What the results read: `x` with its dim replaced by `[o, L]`, weighted; `fill` where a tap does not count.
    pub fn read(&self, c: &mut Call<'_, '_>, x: Value, dim: usize, fill: Scalar) -> Built<Value> {
        let picked = c.op(Index { axes: Axes::from_iter([dim]) }, [x.into(), self.at.into()])?;
        self.weighted(c, picked, dim, fill)
    }

    fn weighted(&self, c: &mut Call<'_, '_>, mut x: Value, dim: usize, fill: Scalar) -> Built<Value> {
        let rank = c.ty(x).rank();
        if let Some(weight) = self.weight {
            let weight = beside(c, weight, dim, rank)?;
            x = two(c, P::Mul, x, weight)?;
        }
        if let Some(valid) = self.valid {
            let valid = beside(c, valid, dim, rank)?;
            x = select(c, valid, x, fill)?;
        }
        Ok(x)
    }

    /// The transposed map: each result's gradient added to the elements it has read, in a dim of `extent`.
    pub fn spread(&self, c: &mut Call<'_, '_>, grad: Value, dim: usize, extent: Dim) -> Built<Value> {
        let ty = c.ty(grad).clone();
        let taps = c.ty(self.at).shape[1].clone();
        let mut apart = ty.shape.clone();
        apart.insert(dim + 1, Dim::from(1));
        let each = c.op(Reshape { shape: apart.clone() }, [grad.into()])?;
        apart[dim + 1] = taps;
        let each = c.op(Expand { shape: apart }, [each.into()])?;
        self.add(c, each, dim, extent)
    }

    /// A value for each tap of each result, in dims `dim` and `dim + 1`, added up in one dim of `extent`.
    pub fn add(&self, c: &mut Call<'_, '_>, each: Value, dim: usize, extent: Dim) -> Built<Value> {
        let ty = c.ty(each).clone();
        let zero = if ty.dtype.is_float() || ty.dtype.is_complex() { Scalar::Float(0.0) } else { Scalar::Int(0) };
        let each = self.weighted(c, each, dim, zero)?;
        let mut shape: Shape = ty.shape.clone();
        shape.remove(dim + 1);
        shape[dim] = extent;
        let zero = c.op(Full { shape, value: Scalar::Int(0), dtype: ty.dtype }, [])?;
        let op = IndexPut { axes: Axes::from_iter([dim]), accumulate: true };
        c.op(op, [zero.into(), each.into(), self.at.into()])
    }
}

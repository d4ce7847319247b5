//! The joint graph under construction: the forward graph, and behind it the ops that carry gradients back.

use super::slices::{self, Part};
use eglu_ir::{
    DType, Dim, Graph, GraphError, NodeId, Op, Operand, Scalar, Shape, TensorType, Value,
    ops::{Axes, Cast, Expand, Full, Iota, Permute, Pointwise, Reduce, ReduceKind, Reshape},
};
use indexmap::IndexMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// What adds to the gradient by a value.
#[derive(Clone, Debug)]
pub(super) enum Share {
    /// A gradient of the value's type.
    Whole(Value),
    /// That of a slice; elements outside of it get nothing.
    Part(Part),
}

/// The graph, and what is known so far of the gradients by its values.
pub(super) struct Tape {
    pub graph: Graph,
    shares: IndexMap<Value, Vec<Share>>,
    /// Prefix of the names of new nodes.
    hint: Arc<str>,
    /// Equal calls on equal operands within one node's rule are made once.
    made: IndexMap<(Op, SmallVec<[Operand; 4]>), NodeId>,
}

impl Tape {
    pub fn new(graph: Graph) -> Tape {
        Tape { graph, shares: IndexMap::new(), hint: "grad".into(), made: IndexMap::new() }
    }

    /// New nodes are named after this node from now on.
    pub fn name_after(&mut self, id: NodeId) {
        self.hint = format!("{}.grad", self.graph.node(id).name).into();
        self.made.clear();
    }

    /// Adds to the gradient by `of`; `gradient` is of its type.
    pub fn add(&mut self, of: Value, gradient: Value) {
        self.shares.entry(of).or_default().push(Share::Whole(gradient));
    }

    /// Adds to the gradient by the part of `of` that a slice reads.
    pub fn add_part(&mut self, of: Value, part: Part) {
        self.shares.entry(of).or_default().push(Share::Part(part));
    }

    /// The whole gradient by a value; none where nothing depends on it.
    pub fn gradient(&mut self, of: Value) -> Result<Option<Value>, GraphError> {
        let Some(shares) = self.shares.shift_remove(&of) else { return Ok(None) };
        let ty = self.graph.ty(of).clone();
        let mut whole: Vec<Value> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        for share in shares {
            match share {
                Share::Whole(gradient) => whole.push(gradient),
                Share::Part(part) => parts.push(part),
            }
        }
        whole.extend(slices::together(self, &ty, parts)?);
        let mut sum: Option<Value> = None;
        for gradient in whole {
            sum = Some(match sum {
                Some(sum) => self.two(Pointwise::Add, sum, gradient)?,
                None => gradient,
            });
        }
        Ok(sum)
    }

    pub fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value)
    }

    pub fn shape(&self, value: Value) -> Shape {
        self.graph.ty(value).shape.clone()
    }

    pub fn dtype(&self, value: Value) -> DType {
        self.graph.ty(value).dtype
    }

    /// A call with one result.
    pub fn call(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) -> Result<Value, GraphError> {
        let key = (op.into(), operands.into_iter().collect());
        if let Some(&id) = self.made.get(&key) {
            return Ok(id.into());
        }
        let id = self.graph.add_call(&self.hint, key.0.clone(), key.1.iter().copied())?;
        self.made.insert(key, id);
        Ok(id.into())
    }

    pub fn one(&mut self, op: Pointwise, x: Value) -> Result<Value, GraphError> {
        self.call(op, [x.into()])
    }

    pub fn two(&mut self, op: Pointwise, x: impl Into<Operand>, y: impl Into<Operand>) -> Result<Value, GraphError> {
        self.call(op, [x.into(), y.into()])
    }

    pub fn cast(&mut self, x: Value, dtype: DType) -> Result<Value, GraphError> {
        if self.dtype(x) == dtype { Ok(x) } else { self.call(Cast { dtype }, [x.into()]) }
    }

    pub fn reshape(&mut self, x: Value, shape: &Shape) -> Result<Value, GraphError> {
        if self.graph.ty(x).shape == *shape { Ok(x) } else { self.call(Reshape { shape: shape.clone() }, [x.into()]) }
    }

    pub fn expand(&mut self, x: Value, shape: &Shape) -> Result<Value, GraphError> {
        if self.graph.ty(x).shape == *shape { Ok(x) } else { self.call(Expand { shape: shape.clone() }, [x.into()]) }
    }

    /// Dims in another order. What that undoes is taken off instead, so that the gradient by a weight is made in the weight's own order.
    pub fn permute(&mut self, x: Value, dims: Axes) -> Result<Value, GraphError> {
        let node = self.graph.node(x.node);
        if let Some(Op::Permute(before)) = node.op() {
            let undone = dims.iter().enumerate().all(|(i, &dim)| before.dims[dim] == i);
            if let Some(source) = node.operands[0].value().filter(|_| undone) {
                return Ok(source);
            }
        }
        self.call(Permute { dims }, [x.into()])
    }

    /// The last two dims exchanged.
    pub fn transpose(&mut self, x: Value) -> Result<Value, GraphError> {
        let dims = swapped(self.ty(x).rank());
        self.permute(x, dims)
    }

    /// True for a transpose of the last two dims.
    pub fn is_transposed(&self, x: Value) -> bool {
        let node = self.graph.node(x.node);
        matches!(node.op(), Some(Op::Permute(Permute { dims })) if *dims == swapped(dims.len()))
    }

    pub fn reduce(&mut self, x: Value, kind: ReduceKind, dims: Axes, keepdim: bool) -> Result<Value, GraphError> {
        let dtype = self.dtype(x);
        self.call(Reduce { kind, dims, keepdim, dtype }, [x.into()])
    }

    pub fn zeros(&mut self, ty: &TensorType) -> Result<Value, GraphError> {
        self.call(Full { shape: ty.shape.clone(), value: Scalar::Int(0), dtype: ty.dtype }, [])
    }

    /// `0, 1, …` up to `len`.
    pub fn iota(&mut self, len: Dim) -> Result<Value, GraphError> {
        self.call(Iota { len, start: 0, step: 1, dtype: DType::I64 }, [])
    }

    /// A size as an operand: a number where it is known, else the count of that many ones.
    pub fn size(&mut self, dim: &Dim) -> Result<Operand, GraphError> {
        if let Some(value) = dim.as_const() {
            return Ok(Scalar::Int(value).into());
        }
        let ones = Full { shape: Shape::from_iter([dim.clone()]), value: Scalar::Int(1), dtype: DType::I64 };
        let ones = self.call(ones, [])?;
        Ok(self.reduce(ones, ReduceKind::Sum, Axes::from_iter([0]), false)?.into())
    }

    /// Sums over what broadcasting repeated, rounded to the operand's dtype.
    pub fn unbroadcast(&mut self, gradient: Value, to: &TensorType) -> Result<Value, GraphError> {
        let from = self.shape(gradient);
        let new = from.len() - to.rank();
        let repeated = |i: usize| i < new || (to.shape[i - new].is(1) && !from[i].is(1));
        let dims: Axes = (0..from.len()).filter(|&i| repeated(i)).collect();
        let mut sum = gradient;
        if !dims.is_empty() {
            sum = self.reduce(gradient, ReduceKind::Sum, dims, false)?;
        }
        let sum = self.reshape(sum, &to.shape)?;
        self.cast(sum, to.dtype)
    }

    /// A reduced tensor as it is with its dims kept.
    pub fn keep(&mut self, x: Value, full: &Shape, dims: &Axes) -> Result<Value, GraphError> {
        let kept = full.iter().enumerate().map(|(i, extent)| if dims.contains(&i) { Dim::from(1) } else { extent.clone() });
        self.reshape(x, &kept.collect())
    }
}

/// The order of dims with the last two exchanged.
fn swapped(rank: usize) -> Axes {
    let mut dims: Axes = (0..rank).collect();
    if rank >= 2 {
        dims.swap(rank - 2, rank - 1);
    }
    dims
}

//! Graphs by hand, as the importer writes them.

use eglu_ir::{
    DType, Dim, Graph, Op, Operand, OutputKind, Scalar, Shape, TensorType, Value,
    ops::{
        Axes, Cast, Cumsum, Full, GroupedMm, Histc, Index, IndexPut, Iota, MatMul, Permute, Pointwise, Reduce, ReduceKind,
        Reshape, Slice, Softmax, Sort, TopK,
    },
};
use std::collections::HashMap;

/// A graph under construction; ops that do not fit panic.
pub struct Builder {
    pub graph: Graph,
    /// One `iota` of each length for all its readers, as after merging equal nodes.
    pub merged: bool,
    iotas: HashMap<i64, Value>,
}

pub fn shape(dims: &[i64]) -> Shape {
    dims.iter().map(|&dim| Dim::from(dim)).collect()
}

pub fn int(value: i64) -> Operand {
    Operand::Scalar(Scalar::Int(value))
}

pub fn float(value: f64) -> Operand {
    Operand::Scalar(Scalar::Float(value))
}

impl Builder {
    pub fn new(name: &str) -> Builder {
        Builder { graph: Graph::new(name), merged: false, iotas: HashMap::new() }
    }

    pub fn input(&mut self, name: &str, dtype: DType, dims: &[i64]) -> Value {
        self.graph.add_input(name, TensorType::fixed(dtype, dims))
    }

    pub fn weight(&mut self, name: &str, dtype: DType, dims: &[i64]) -> Value {
        self.graph.add_weight(name, name, TensorType::fixed(dtype, dims))
    }

    pub fn output(&mut self, value: Value) {
        self.graph.add_output(value, OutputKind::User);
    }

    pub fn call(&mut self, op: impl Into<Op>, operands: &[Operand]) -> Value {
        let op = op.into();
        self.graph.add_call(op.name(), op.clone(), operands.iter().copied()).unwrap_or_else(|e| panic!("{e}")).into()
    }

    pub fn two(&mut self, op: impl Into<Op>, operands: &[Operand]) -> (Value, Value) {
        let first = self.call(op, operands);
        (first, Value { index: 1, ..first })
    }

    pub fn mul(&mut self, a: Value, b: impl Into<Operand>) -> Value {
        self.call(Pointwise::Mul, &[a.into(), b.into()])
    }

    pub fn add(&mut self, a: Value, b: impl Into<Operand>) -> Value {
        self.call(Pointwise::Add, &[a.into(), b.into()])
    }

    pub fn unary(&mut self, op: Pointwise, x: Value) -> Value {
        self.call(op, &[x.into()])
    }

    pub fn reshape(&mut self, x: Value, dims: &[i64]) -> Value {
        self.call(Reshape { shape: shape(dims) }, &[x.into()])
    }

    pub fn permute(&mut self, x: Value, dims: &[usize]) -> Value {
        self.call(Permute { dims: Axes::from_slice(dims) }, &[x.into()])
    }

    pub fn slice(&mut self, x: Value, dim: usize, bounds: (i64, i64), step: i64) -> Value {
        self.call(Slice { dim, start: bounds.0.into(), end: bounds.1.into(), step }, &[x.into()])
    }

    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.call(Cast { dtype }, &[x.into()])
    }

    pub fn index(&mut self, x: Value, by: Value) -> Value {
        self.call(Index { axes: Axes::from_slice(&[0]) }, &[x.into(), by.into()])
    }

    pub fn linear(&mut self, x: Value, w: Value) -> Value {
        let transposed = self.permute(w, &[1, 0]);
        self.matmul(x, transposed)
    }

    pub fn matmul(&mut self, a: Value, b: Value) -> Value {
        self.call(MatMul {}, &[a.into(), b.into()])
    }

    pub fn sum(&mut self, x: Value, dim: usize, keepdim: bool, dtype: DType) -> Value {
        let dims = Axes::from_slice(&[dim]);
        self.call(Reduce { kind: ReduceKind::Sum, dims, keepdim, dtype }, &[x.into()])
    }

    pub fn mean(&mut self, x: Value, dim: usize, dtype: DType) -> Value {
        let dims = Axes::from_slice(&[dim]);
        self.call(Reduce { kind: ReduceKind::Mean, dims, keepdim: true, dtype }, &[x.into()])
    }

    pub fn softmax(&mut self, x: Value, dtype: DType) -> Value {
        self.call(Softmax { dim: 1, log: false, dtype }, &[x.into()])
    }

    pub fn topk(&mut self, x: Value, k: usize) -> (Value, Value) {
        self.two(TopK { k, dim: 1, largest: true }, &[x.into()])
    }

    pub fn sort(&mut self, x: Value) -> (Value, Value) {
        self.two(Sort { dim: 0, descending: false }, &[x.into()])
    }

    pub fn iota(&mut self, len: i64) -> Value {
        if let Some(&iota) = self.iotas.get(&len).filter(|_| self.merged) {
            return iota;
        }
        let iota = self.call(Iota { len: len.into(), start: 0, step: 1, dtype: DType::I64 }, &[]);
        self.iotas.insert(len, iota);
        iota
    }

    pub fn floor_divide(&mut self, x: Value, by: i64) -> Value {
        self.call(Pointwise::FloorDiv, &[x.into(), int(by)])
    }

    pub fn masked(&mut self, mask: Value, x: Value) -> Value {
        self.call(Pointwise::Where, &[mask.into(), float(0.0), x.into()])
    }

    pub fn clamp(&mut self, x: Value, lo: Option<Operand>, hi: Operand) -> Value {
        let x = match lo {
            Some(lo) => self.call(Pointwise::Maximum, &[x.into(), lo]),
            None => x,
        };
        self.call(Pointwise::Minimum, &[x.into(), hi])
    }

    /// Ends of the rows of each expert among sorted ids.
    pub fn offsets(&mut self, sorted: Value, experts: i64, max: i64, counted: DType) -> Value {
        let ids = self.cast(sorted, counted);
        let (min, max) = (Scalar::Int(0), Scalar::Int(max));
        let counts = self.call(Histc { bins: experts as usize, min, max }, &[ids.into()]);
        self.call(Cumsum { dim: 0, dtype: DType::I32 }, &[counts.into()])
    }

    pub fn grouped_mm(&mut self, x: Value, w: Value, offs: Value) -> Value {
        self.call(GroupedMm {}, &[x.into(), w.into(), offs.into()])
    }

    /// `empty_like(perm)` with `iota` written at `perm`.
    pub fn inverse(&mut self, perm: Value, len: i64) -> Value {
        let empty = self.call(Full { shape: shape(&[len]), value: Scalar::Int(0), dtype: DType::I64 }, &[]);
        let positions = self.iota(len);
        let put = IndexPut { axes: Axes::from_slice(&[0]), accumulate: false };
        self.call(put, &[empty.into(), positions.into(), perm.into()])
    }
}

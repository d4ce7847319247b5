//! Random extents, tensors and numbers for the operands of an op.

use eglu_ir::{
    Bindings, DType, Dim, Scalar, Shape, Tensor,
    eval::{EvalOperand, eval_op},
    ops::{Axes, Cast, ReduceKind},
};
use rand::{Rng, rngs::StdRng};

pub const DTYPES: [DType; 19] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F8E4M3Fn,
    DType::F8E5M2,
    DType::F8E4M3FnUz,
    DType::F8E5M2FnUz,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
];
pub const KINDS: [ReduceKind; 5] = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Mean, ReduceKind::Amax, ReduceKind::Amin];
pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// An operand of a case.
#[derive(Clone, Debug)]
pub enum Operand {
    Tensor(Tensor),
    Scalar(Scalar),
    None,
}

pub struct Case {
    pub rng: StdRng,
    pub operands: Vec<Operand>,
}

pub fn extents(shape: &[usize]) -> Shape {
    shape.iter().map(|&extent| Dim::from(extent as i64)).collect()
}

impl Case {
    pub fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end.max(1))
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn coin(&mut self) -> bool {
        self.rng.random()
    }

    /// Mostly small extents, now and then none.
    pub fn shape(&mut self, ranks: std::ops::Range<usize>) -> Vec<usize> {
        let rank = self.rng.random_range(ranks);
        (0..rank).map(|_| self.pick(&[1, 2, 3, 4, 5, 3, 2, 0])).collect()
    }

    pub fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| self.rng.random_range(-3.0..3.0)).collect();
        let wide = Tensor::from_slice(DType::F64, shape, &values).expect("small");
        eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).expect("casts").remove(0)
    }

    pub fn integers(&mut self, shape: &[usize], below: usize) -> Tensor {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.below(below) as i64).collect();
        Tensor::from_slice(DType::I64, shape, &values).expect("small")
    }

    pub fn add(&mut self, dtype: DType, shape: &[usize]) {
        let tensor = self.tensor(dtype, shape);
        self.operands.push(Operand::Tensor(tensor));
    }

    /// Indices below `below`; an extent of 0 has none, so that there is one for everything else.
    pub fn indices(&mut self, shape: &[usize], below: usize) {
        let tensor = self.integers(shape, below);
        self.operands.push(Operand::Tensor(tensor));
    }

    pub fn optional(&mut self, dtype: DType, shape: &[usize]) {
        if self.coin() { self.add(dtype, shape) } else { self.operands.push(Operand::None) }
    }

    pub fn epsilon(&mut self) -> Scalar {
        self.pick(&[Scalar::Float(1e-5), Scalar::Float(1e-12), Scalar::Int(0), Scalar::Int(1)])
    }

    /// Some dims of a shape, in order.
    pub fn some_dims(&mut self, rank: usize) -> Axes {
        (0..rank).filter(|_| self.coin()).collect()
    }

    /// A shape that broadcasts to this one.
    pub fn narrower(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = self.below(shape.len() + 1);
        shape[skip..].iter().map(|&extent| if self.coin() { extent } else { 1 }).collect()
    }
}

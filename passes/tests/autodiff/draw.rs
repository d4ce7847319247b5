//! Graphs of one op on random inputs in f64.

use eglu_ir::{DType, Graph, Op, Operand, OutputKind, Tensor, TensorType, Value};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::ops::Range;

/// A graph under construction, and tensors for its inputs.
pub struct Draw {
    pub rng: StdRng,
    pub graph: Graph,
    pub inputs: Vec<Tensor>,
}

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw { rng: StdRng::seed_from_u64(seed), graph: Graph::new("row"), inputs: Vec::new() }
    }

    /// An extent from 1 to 3.
    pub fn extent(&mut self) -> usize {
        self.rng.random_range(1..4)
    }

    /// An input of numbers in a range.
    pub fn floats(&mut self, shape: &[usize], range: Range<f64>) -> Value {
        let numbers: Vec<f64> = (0..shape.iter().product()).map(|_| self.rng.random_range(range.clone())).collect();
        self.input(Tensor::from_slice(DType::F64, shape, &numbers).expect("a tensor"))
    }

    /// An input of numbers from 0.2 to 1.5, of both signs.
    pub fn numbers(&mut self, shape: &[usize]) -> Value {
        let count = shape.iter().product();
        let one = |rng: &mut StdRng| if rng.random() { rng.random_range(0.2..1.5) } else { rng.random_range(-1.5..-0.2) };
        let numbers: Vec<f64> = (0..count).map(|_| one(&mut self.rng)).collect();
        self.input(Tensor::from_slice(DType::F64, shape, &numbers).expect("a tensor"))
    }

    /// An input of integers below `end`.
    pub fn ids(&mut self, shape: &[usize], end: usize) -> Value {
        let ids: Vec<i64> = (0..shape.iter().product()).map(|_| self.rng.random_range(0..end as i64)).collect();
        self.input(Tensor::from_slice(DType::I64, shape, &ids).expect("a tensor"))
    }

    pub fn input(&mut self, tensor: Tensor) -> Value {
        let name = format!("x{}", self.inputs.len());
        let ty = TensorType::fixed(tensor.dtype(), &tensor.shape().iter().map(|&extent| extent as i64).collect::<Vec<_>>());
        self.inputs.push(tensor);
        self.graph.add_input(&name, ty)
    }

    /// A call whose float results are outputs.
    pub fn outputs(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) {
        let id = self.graph.add_call("op", op.into(), operands).expect("the op applies");
        for index in 0..self.graph.node(id).outputs.len() as u32 {
            let value = Value { node: id, index };
            if self.graph.ty(value).dtype.is_float() {
                self.graph.add_output(value, OutputKind::User);
            }
        }
    }
}

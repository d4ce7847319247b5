//! What an op costs on any device: arithmetic, and the least traffic to and from memory.

use super::OperandType;
use crate::{Dim, Program, TensorType};

/// The work of one op, as expressions over the symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point (or integer) operations; a multiply-add is two.
    pub flops: Dim,
    /// Bytes read and written if every operand is read once.
    pub bytes: Dim,
    /// True if the operations are those of matrix products, which tensor cores do.
    pub matrix: bool,
}

/// Elements of the operand at `i`; none if it is no tensor.
pub(super) fn numel(operands: &[OperandType<'_>], i: usize) -> Dim {
    shape(operands, i).map_or(Dim::from(0), TensorType::numel)
}

fn shape<'a>(operands: &[OperandType<'a>], i: usize) -> Option<&'a TensorType> {
    match operands.get(i) {
        Some(OperandType::Tensor(ty)) => Some(ty),
        _ => None,
    }
}

/// The extent of dim `dim` of the operand at `i`, counted from the end.
pub(super) fn extent_from_end(operands: &[OperandType<'_>], i: usize, dim: usize) -> Dim {
    let extent = shape(operands, i).and_then(|ty| ty.shape.iter().rev().nth(dim));
    extent.cloned().unwrap_or(Dim::from(1))
}

/// Operations of a matrix product with these outputs and inner extent.
pub(super) fn multiply_adds(outputs: &[TensorType], inner: Dim) -> Dim {
    results(outputs) * inner * Dim::from(2)
}

/// Operations of a program for each element.
pub(super) fn instructions(program: &Program) -> Dim {
    Dim::from(program.instrs.len() as i64)
}

fn total(dims: impl Iterator<Item = Dim>) -> Dim {
    dims.fold(Dim::from(0), |sum, dim| sum + dim)
}

fn traffic(operands: &[OperandType<'_>], outputs: &[TensorType]) -> Dim {
    let read = operands.iter().map(|operand| match operand {
        OperandType::Tensor(ty) => ty.bytes(),
        _ => Dim::from(0),
    });
    total(read) + written(outputs)
}

fn written(outputs: &[TensorType]) -> Dim {
    total(outputs.iter().map(TensorType::bytes))
}

/// Elements of the first output: all outputs of a program have one shape.
pub(super) fn results(outputs: &[TensorType]) -> Dim {
    outputs.first().map_or(Dim::from(0), TensorType::numel)
}

impl Cost {
    /// Nothing: views, which codegen folds into index expressions.
    pub fn free() -> Cost {
        Cost { flops: Dim::from(0), bytes: Dim::from(0), matrix: false }
    }

    /// Every operand read once, every output written once, `each` operations for each output element.
    pub fn streaming(operands: &[OperandType<'_>], outputs: &[TensorType], each: usize) -> Cost {
        let elements = total(outputs.iter().map(TensorType::numel));
        Cost::of(operands, outputs, elements * Dim::from(each as i64), false)
    }

    /// Every operand read once and every output written once, with this much arithmetic.
    pub(super) fn of(operands: &[OperandType<'_>], outputs: &[TensorType], flops: Dim, matrix: bool) -> Cost {
        Cost { flops, bytes: traffic(operands, outputs), matrix }
    }

    /// Elements picked from the first operand: only those are read, with the other operands (indices) and the outputs written.
    pub(super) fn picking(operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        let rest = operands.get(1..).unwrap_or_default();
        Cost { flops: Dim::from(0), bytes: traffic(rest, outputs) + written(outputs), matrix: false }
    }

    /// Less the weights of experts that cannot be in use: no more than `rows` of the experts in the operands `weights` are read.
    pub(super) fn with_experts(mut self, operands: &[OperandType<'_>], weights: &[usize], rows: &Dim) -> Cost {
        for ty in weights.iter().filter_map(|&i| shape(operands, i)) {
            if let Some((experts, matrix)) = ty.shape.split_first() {
                let one = TensorType::new(ty.dtype, matrix.iter().cloned()).bytes();
                self.bytes = self.bytes - ty.bytes() + one * experts.min(rows);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, Op,
        ops::{ExpertMatmul, MatMul, Reshape},
    };

    fn cost(op: impl Into<Op>, operands: &[TensorType]) -> Cost {
        let op = op.into();
        let operands: Vec<OperandType<'_>> = operands.iter().map(OperandType::Tensor).collect();
        let outputs = op.infer(&operands).expect("types fit");
        op.cost(&operands, &outputs)
    }

    #[test]
    fn matmul_counts_multiply_adds() {
        let s = Dim::symbol("s0");
        let a = TensorType::new(DType::Bf16, [s.clone(), Dim::from(64)]);
        let found = cost(MatMul {}, &[a, TensorType::fixed(DType::Bf16, &[64, 32])]);
        assert_eq!(found.flops, s.clone() * Dim::from(2 * 64 * 32));
        assert_eq!(found.bytes, s * Dim::from(2 * (64 + 32)) + Dim::from(2 * 64 * 32));
        assert!(found.matrix);
    }

    #[test]
    fn few_rows_read_few_experts() {
        let x = TensorType::fixed(DType::F32, &[3, 8]);
        let w = TensorType::fixed(DType::F32, &[128, 4, 8]);
        let ids = TensorType::fixed(DType::I64, &[3]);
        let (op, types) = (Op::from(ExpertMatmul {}), [&x, &w, &ids].map(OperandType::Tensor));
        let operands = [types[0], types[1], OperandType::None, types[2]];
        let outputs = op.infer(&operands).expect("types fit");
        let found = op.cost(&operands, &outputs);
        assert_eq!(found.flops, Dim::from(2 * 3 * 4 * 8));
        assert_eq!(found.bytes, Dim::from(4 * (3 * 8 + 3 * 4 * 8 + 3 * 4) + 8 * 3));
    }

    #[test]
    fn views_are_free() {
        let shape = [Dim::from(6)].into_iter().collect();
        assert_eq!(cost(Reshape { shape }, &[TensorType::fixed(DType::F32, &[2, 3])]), Cost::free());
    }
}

//! Constant folding: what depends on no input and no weight is computed once, here.

use crate::{
    pipeline::{Context, Failure, Pass},
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{
    Bindings, DType, Graph, GraphError, NodeId, NodeKind, Op, Operand, Scalar, Tensor, Value,
    dtype::Category,
    eval::{EvalOperand, eval_op},
    ops::{Cast, Full, Lowering, OperandType, Pointwise, infer::compute_dtype},
};
use rustc_hash::FxHashMap;

/// Larger results are left to the device: a kernel writes them faster than they are loaded.
const FOLDED_BYTES: i64 = 1 << 20;

/// Computes constant subgraphs with the reference evaluator, and turns uniform operands into numbers.
///
/// Generators, their views and `floor_divide(iota, k)` stay symbolic: rules and kernels read more from `iota` than from its elements.
pub struct FoldConstants;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn doc(&self) -> &'static str {
        "computes what depends on no input, and writes uniform operands as numbers"
    }

    fn run(&self, graph: &mut Graph, _: &mut Context<'_>) -> Result<bool, Failure> {
        let numbers = |id: NodeId| match &graph.node(id).kind {
            NodeKind::Constant(_) => true,
            NodeKind::Call(_) => graph.node(id).operands.iter().all(|operand| operand.value().is_none()),
            NodeKind::Input | NodeKind::Weight(_) => false,
        };
        if !graph.node_ids().any(numbers) {
            return Ok(false);
        }
        let mut folding = Folding { rebuild: Rebuild::new(graph), known: FxHashMap::default(), changed: false };
        for id in graph.topological()? {
            folding.node(id)?;
        }
        let Folding { rebuild, changed, .. } = folding;
        if changed {
            *graph = rebuild.finish();
        }
        Ok(changed)
    }
}

struct Folding<'a> {
    rebuild: Rebuild<'a>,
    /// Elements of values of the old graph, as far as they are constant and small.
    known: FxHashMap<Value, Tensor>,
    changed: bool,
}

impl Folding<'_> {
    fn node(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.rebuild.old.node(id);
        let op = match &node.kind {
            NodeKind::Call(op) => op,
            NodeKind::Constant(tensor) => {
                self.known.insert(id.into(), tensor.clone());
                return self.rebuild.copy(id);
            }
            NodeKind::Input | NodeKind::Weight(_) => return self.rebuild.copy(id),
        };
        if let Some(results) = self.evaluate(id, op) {
            let symbolic = self.stays_symbolic(id, op);
            for (index, tensor) in results.into_iter().enumerate() {
                let old = Value { node: id, index: index as u32 };
                if !symbolic {
                    let new = self.constant(id, &tensor)?;
                    self.rebuild.bind(old, new);
                }
                self.known.insert(old, tensor);
            }
            if symbolic {
                return self.rebuild.copy(id);
            }
            self.changed = true;
            return Ok(());
        }
        match op {
            Op::Pointwise(pointwise) => {
                let operands = numbers(&self.rebuild.new, *pointwise, &self.rebuild.operands(id));
                self.changed |= operands != self.rebuild.operands(id);
                let new = self.rebuild.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?;
                self.rebuild.bind(id.into(), new.into());
                Ok(())
            }
            _ => self.rebuild.copy(id),
        }
    }

    /// The results of a call on known operands, if they are small and the evaluator has them.
    fn evaluate(&self, id: NodeId, op: &Op) -> Option<Vec<Tensor>> {
        let node = self.rebuild.old.node(id);
        let bytes: i64 = node.outputs.iter().try_fold(0i64, |sum, ty| sum.checked_add(ty.bytes().as_const()?))?;
        if bytes > FOLDED_BYTES {
            return None;
        }
        let operands: Vec<EvalOperand<'_>> = node
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => self.known.get(value).map(EvalOperand::Tensor),
                Operand::Scalar(scalar) => Some(EvalOperand::Scalar(*scalar)),
                Operand::None => Some(EvalOperand::None),
            })
            .collect::<Option<_>>()?;
        let results = eval_op(op, &operands, &Bindings::new()).ok()?;
        let as_inferred = results.iter().map(Tensor::ty).eq(node.outputs.iter().cloned());
        as_inferred.then_some(results)
    }

    fn stays_symbolic(&self, id: NodeId, op: &Op) -> bool {
        let graph = self.rebuild.old;
        let source = || graph.node(id).operands.first().and_then(|o| o.value()).map(|value| graph.node(value.node));
        match op {
            Op::Pointwise(Pointwise::FloorDiv) => source().is_some_and(|node| matches!(node.op(), Some(Op::Iota(_)))),
            Op::Expand(_) => true,
            _ => match op.code().lowering() {
                Lowering::Generator => true,
                Lowering::View => source().is_some_and(|node| node.op().is_some()),
                _ => false,
            },
        }
    }

    /// A node with these elements: a fill where all are equal.
    fn constant(&mut self, id: NodeId, tensor: &Tensor) -> Result<Value, GraphError> {
        let node = self.rebuild.old.node(id);
        match uniform(tensor) {
            Some(value) => {
                let op = Full { shape: tensor.ty().shape, value, dtype: tensor.dtype() };
                Ok(self.rebuild.call(&node.name, op.into(), [], node.origins.iter().cloned())?.into())
            }
            None => {
                let value = self.rebuild.new.add_constant(&node.name, tensor.clone());
                self.rebuild.new.set_origins(value.node, node.origins.iter().cloned());
                Ok(value)
            }
        }
    }
}

/// The number that every element is; none for NaN, which has many.
fn uniform(tensor: &Tensor) -> Option<Scalar> {
    let size = tensor.dtype().size();
    let mut elements = tensor.bytes().chunks_exact(size);
    let first = elements.next()?;
    if !elements.all(|element| element == first) || tensor.dtype().is_complex() {
        return None;
    }
    let one = Tensor::from_bytes(tensor.dtype(), &[1], first).ok()?;
    let dtype = match tensor.dtype() {
        DType::Bool => return Some(Scalar::Bool(first[0] != 0)),
        dtype if dtype.is_float() => DType::F64,
        DType::U64 => return None,
        _ => DType::I64,
    };
    let wide = eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&one)], &Bindings::new()).ok()?;
    match dtype {
        DType::F64 => wide[0].as_slice::<f64>().first().copied().filter(|value| !value.is_nan()).map(Scalar::Float),
        _ => wide[0].as_slice::<i64>().first().copied().map(Scalar::Int),
    }
}

/// The operands with fills written as numbers, where promotion gives the same dtypes and the number is exact in them.
fn numbers(graph: &Graph, op: Pointwise, operands: &[Operand]) -> Operands {
    let mut operands: Operands = operands.iter().copied().collect();
    for i in 0..operands.len() {
        let Some(fill) = operands[i].value().and_then(|value| fill(graph, value)) else { continue };
        let mut with: Operands = operands.clone();
        let number = typed(fill.value, fill.dtype);
        with[i] = Operand::Scalar(number);
        let types = |operands: &[Operand]| {
            let dtype = compute_dtype(op, &operand_types(graph, operands)).ok()?;
            Some((dtype, graph.infer(&op.into(), operands).ok()?))
        };
        let (Some(before), Some(after)) = (types(&operands), types(&with)) else { continue };
        if before == after && exact(number, fill.dtype) {
            operands = with;
        }
    }
    operands
}

fn fill(graph: &Graph, value: Value) -> Option<&Full> {
    match graph.node(value.node).op() {
        Some(Op::Full(fill)) => Some(fill),
        _ => None,
    }
}

fn operand_types<'a>(graph: &'a Graph, operands: &[Operand]) -> Vec<OperandType<'a>> {
    operands
        .iter()
        .map(|operand| match operand {
            Operand::Value(value) => OperandType::Tensor(graph.ty(*value)),
            Operand::Scalar(scalar) => OperandType::Scalar(*scalar),
            Operand::None => OperandType::None,
        })
        .collect()
}

/// The number as one of the dtype's category, so that promotion sees it as the tensor it replaces.
fn typed(value: Scalar, dtype: DType) -> Scalar {
    match dtype.category() {
        Category::Bool => Scalar::Bool(value.as_f64() != 0.0),
        Category::Int => Scalar::Int(value.as_i64()),
        Category::Float | Category::Complex => Scalar::Float(value.as_f64()),
    }
}

/// True if a tensor of `dtype` filled with the number holds exactly it.
fn exact(value: Scalar, dtype: DType) -> bool {
    let Scalar::Float(number) = value else { return dtype.category() <= Category::Int };
    if number.is_infinite() {
        return matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
    }
    let narrow = number as f32;
    match dtype {
        DType::F64 => true,
        DType::F32 => f64::from(narrow) == number,
        DType::Bf16 => f64::from(narrow) == number && narrow.to_bits() & 0xffff == 0,
        DType::F16 => number.fract() == 0.0 && number.abs() <= 2048.0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_numbers_replace_fills() {
        assert!(exact(Scalar::Float(f64::from(f32::MIN)), DType::F32));
        assert!(!exact(Scalar::Float(0.1), DType::F32));
        assert!(exact(Scalar::Float(0.5), DType::Bf16));
        assert!(!exact(Scalar::Float(1.001), DType::Bf16));
        assert!(exact(Scalar::Bool(true), DType::Bool));
        assert!(!exact(Scalar::Int(1), DType::F32));
    }
}

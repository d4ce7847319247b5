//! Row norms in their parts, so that what stands around them can share their passes, and put together again where nothing does.

use crate::rebuild::{Operands, Rebuild};
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, Operand, Scalar, Value,
    ops::{Axes, Cast, LayerNorm, Pointwise, Reduce, ReduceKind, RmsNorm, Softmax},
};
use std::sync::Arc;

/// A norm that was taken apart.
pub(crate) struct Norm {
    /// What it was.
    op: Op,
    name: Arc<str>,
    origins: Vec<Arc<str>>,
    operands: Operands,
    /// Its parts.
    pub parts: Vec<NodeId>,
    /// The parts that stand for its results.
    results: Vec<Value>,
}

impl Norm {
    /// Emits the norm as it was.
    pub fn emit(&self, rebuild: &mut Rebuild<'_>) -> Result<(), GraphError> {
        let operands: Vec<Operand> = self.operands.iter().map(|&operand| rebuild.operand(operand)).collect();
        let new = rebuild.call(&self.name, self.op.clone(), operands, self.origins.iter().cloned())?;
        for (index, &result) in self.results.iter().enumerate() {
            rebuild.bind(result, Value { node: new, index: index as u32 });
        }
        Ok(())
    }
}

/// Takes apart the norms of lines that lie together.
pub(crate) fn take_apart(graph: &mut Graph) -> Result<Vec<Norm>, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut norms = Vec::new();
    for id in graph.topological()? {
        let node = graph.node(id);
        let (Some(op), Some(x)) = (node.op(), node.operands.first().and_then(|o| o.value())) else {
            rebuild.copy(id)?;
            continue;
        };
        let ty = graph.ty(x).clone();
        let last = ty.rank().checked_sub(1);
        // Lines without elements have no largest one.
        let fits = ty.dtype.is_float() && last.is_some_and(|last| !ty.shape[last].is(1) && !ty.shape[last].is(0));
        let fits = fits && !matches!(op, Op::Softmax(softmax) if Some(softmax.dim) != last);
        let operands = rebuild.operands(id);
        let mut parts =
            Parts { rebuild: &mut rebuild, name: &node.name, origins: &node.origins, last: last.unwrap_or(0), ids: Vec::new() };
        let results = match op {
            Op::Softmax(op) if fits => parts.softmax(op, &operands)?,
            Op::RmsNorm(op) if fits => parts.rms_norm(op, ty.dtype, &operands)?,
            Op::LayerNorm(op) if fits => parts.layer_norm(op, ty.dtype, &operands)?,
            _ => {
                rebuild.copy(id)?;
                continue;
            }
        };
        let parts = parts.ids;
        for (index, &result) in results.iter().enumerate() {
            rebuild.bind(Value { node: id, index: index as u32 }, result);
        }
        let (op, name, origins) = (op.clone(), node.name.clone(), node.origins.to_vec());
        norms.push(Norm { op, name, origins, operands, parts, results });
    }
    if !norms.is_empty() {
        *graph = rebuild.finish();
    }
    Ok(norms)
}

/// The parts of one norm under construction; those that are results are named like the norm.
struct Parts<'a, 'g> {
    rebuild: &'a mut Rebuild<'g>,
    name: &'a str,
    origins: &'a [Arc<str>],
    last: usize,
    ids: Vec<NodeId>,
}

impl Parts<'_, '_> {
    fn call(&mut self, op: impl Into<Op>, operands: impl IntoIterator<Item = Operand>) -> Result<Operand, GraphError> {
        let op = op.into();
        let name = format!("{}.{}", self.name, op.name());
        let id = self.rebuild.call(&name, op, operands, self.origins.iter().cloned())?;
        self.ids.push(id);
        Ok(Operand::Value(id.into()))
    }

    fn cast(&mut self, x: Operand, dtype: DType) -> Result<Operand, GraphError> {
        match x {
            Operand::Value(value) if self.rebuild.new.ty(value).dtype != dtype => self.call(Cast { dtype }, [x]),
            other => Ok(other),
        }
    }

    fn reduce(&mut self, x: Operand, kind: ReduceKind, dtype: DType) -> Result<Operand, GraphError> {
        self.call(Reduce { kind, dims: Axes::from_iter([self.last]), keepdim: true, dtype }, [x])
    }

    /// `1 / sqrt(mean(x²) + eps)`.
    fn scale(&mut self, x: Operand, eps: Scalar, dtype: DType) -> Result<Operand, GraphError> {
        let squares = self.call(Pointwise::Mul, [x, x])?;
        let mean = self.reduce(squares, ReduceKind::Mean, dtype)?;
        let shifted = self.call(Pointwise::Add, [mean, eps.into()])?;
        self.call(Pointwise::Rsqrt, [shifted])
    }

    /// Joins a weight or bias, if there is one.
    fn joined(&mut self, op: Pointwise, x: Operand, with: Option<&Operand>, dtype: DType) -> Result<Operand, GraphError> {
        match with {
            Some(&with @ Operand::Value(_)) => {
                let with = self.cast(with, dtype)?;
                self.call(op, [x, with])
            }
            _ => Ok(x),
        }
    }

    fn values(&self, results: &[Operand]) -> Vec<Value> {
        results.iter().filter_map(|result| result.value()).collect()
    }

    fn softmax(&mut self, op: &Softmax, operands: &[Operand]) -> Result<Vec<Value>, GraphError> {
        let wide = op.dtype.opmath();
        // Elements become the result's dtype first.
        let x = self.cast(operands[0], op.dtype)?;
        let x = self.cast(x, wide)?;
        let top = self.reduce(x, ReduceKind::Amax, wide)?;
        let distance = self.call(Pointwise::Sub, [x, top])?;
        let power = self.call(Pointwise::Exp, [distance])?;
        let sum = self.reduce(power, ReduceKind::Sum, wide)?;
        let result = match op.log {
            true => {
                let log = self.call(Pointwise::Log, [sum])?;
                self.call(Pointwise::Sub, [distance, log])?
            }
            false => {
                let share = self.call(Pointwise::Reciprocal, [sum])?;
                self.call(Pointwise::Mul, [power, share])?
            }
        };
        let result = self.cast(result, op.dtype)?;
        Ok(self.values(&[result]))
    }

    fn rms_norm(&mut self, op: &RmsNorm, from: DType, operands: &[Operand]) -> Result<Vec<Value>, GraphError> {
        let wide = from.opmath();
        let x = self.cast(operands[0], wide)?;
        let scale = self.scale(x, op.eps, wide)?;
        let normed = self.call(Pointwise::Mul, [x, scale])?;
        let result = self.joined(Pointwise::Mul, normed, operands.get(1), wide)?;
        let result = self.cast(result, op.dtype)?;
        Ok(self.values(&[result]))
    }

    fn layer_norm(&mut self, op: &LayerNorm, from: DType, operands: &[Operand]) -> Result<Vec<Value>, GraphError> {
        let wide = from.opmath();
        let x = self.cast(operands[0], wide)?;
        let mean = self.reduce(x, ReduceKind::Mean, wide)?;
        let centered = self.call(Pointwise::Sub, [x, mean])?;
        let scale = self.scale(centered, op.eps, wide)?;
        let normed = self.call(Pointwise::Mul, [centered, scale])?;
        let weighted = self.joined(Pointwise::Mul, normed, operands.get(1), wide)?;
        let result = self.joined(Pointwise::Add, weighted, operands.get(2), wide)?;
        let result = self.cast(result, op.dtype)?;
        Ok(self.values(&[result, mean, scale]))
    }
}

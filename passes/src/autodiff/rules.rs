//! Gradients of the structured ops: one function for each row whose derivative is a [`Derivative::Rule`](eglu_ir::ops::Derivative).
//!
//! Forms are those of PyTorch's backward functions (tools/autograd/FunctionsManual.cpp, torch/_decomp), so that the rewrite rules for imported
//! joint graphs apply.

mod convolution;
mod experts;
mod indexing;
mod matmul;
mod norm;
mod reduce;
mod views;

use super::tape::Tape;
use eglu_ir::{Graph, GraphError, NodeId, Op, Operand, Value};
use smallvec::SmallVec;

/// A node whose results have gradients, and what of its operands wants one.
pub(super) struct Site {
    pub id: NodeId,
    pub operands: SmallVec<[Operand; 4]>,
    /// Gradients by the results, in order; none where nothing depends on one.
    pub gradients: SmallVec<[Option<Value>; 1]>,
    /// For each operand, whether its gradient is wanted.
    pub wanted: SmallVec<[bool; 4]>,
}

impl Site {
    /// The tensor operand `i`, if its gradient is wanted.
    pub fn wants(&self, i: usize) -> Option<Value> {
        self.operands.get(i)?.value().filter(|_| self.wanted[i])
    }

    /// The tensor operand `i`; inference has checked that it is one.
    pub fn tensor(&self, graph: &Graph, i: usize) -> Value {
        let operand = self.operands.get(i).and_then(|operand| operand.value());
        operand.unwrap_or_else(|| unreachable!("operand {i} of `{}` is no tensor", graph.node(self.id).name))
    }

    /// Result `index` of the node.
    pub fn result(&self, index: u32) -> Value {
        Value { node: self.id, index }
    }
}

/// Adds what the gradients by a node's results say of those by its operands. False for ops without a rule.
pub(super) fn apply(tape: &mut Tape, op: &Op, site: &Site) -> Result<bool, GraphError> {
    // Second results are positions, which have no gradients, but for the statistics of a layer norm.
    let Some(g) = site.gradients.iter().flatten().next().copied() else { return Ok(true) };
    match op {
        Op::Reshape(_) => views::reshape(tape, site, g)?,
        Op::Permute(op) => views::permute(tape, op, site, g)?,
        Op::Expand(_) => views::expand(tape, site, g)?,
        Op::Slice(op) => views::slice(tape, op, site, g),
        Op::Cast(_) => views::cast(tape, site, g)?,
        Op::Reduce(op) => reduce::reduce(tape, op, site, g)?,
        Op::Cumsum(op) => reduce::cumsum(tape, op, site, g)?,
        Op::Softmax(op) => norm::softmax(tape, op, site, g)?,
        Op::RmsNorm(op) => norm::rms_norm(tape, op, site, g)?,
        Op::LayerNorm(_) => norm::layer_norm(tape, site)?,
        Op::MatMul(_) => matmul::matmul(tape, site, g)?,
        Op::GroupedMm(_) => matmul::grouped_mm(tape, site, g)?,
        Op::Convolution(op) => convolution::convolution(tape, op, site, g)?,
        Op::ConvolutionInput(op) => convolution::by_input(tape, op, site, g)?,
        Op::ConvolutionWeight(op) => convolution::by_weight(tape, op, site, g)?,
        Op::Index(op) => indexing::index(tape, op, site, g)?,
        Op::IndexPut(op) => indexing::index_put(tape, op, site, g)?,
        Op::Gather(op) => indexing::gather(tape, op, site, g)?,
        Op::ScatterAdd(op) => indexing::scatter_add(tape, op, site, g)?,
        Op::Cat(op) => indexing::cat(tape, op, site, g)?,
        Op::Sort(op) => indexing::ordered(tape, op.dim, site, g)?,
        Op::TopK(op) => indexing::ordered(tape, op.dim, site, g)?,
        Op::ExpertMatmul(_) => experts::matmul(tape, site, g)?,
        Op::ExpertOuter(op) => experts::outer(tape, op, site, g)?,
        Op::Combine(_) => experts::combine(tape, site, g)?,
        Op::Pointwise(_)
        | Op::Iota(_)
        | Op::Full(_)
        | Op::Bitcast(_)
        | Op::Map(_)
        | Op::MapReduce(_)
        | Op::ReduceChain(_)
        | Op::Contract(_)
        | Op::Histc(_)
        | Op::InversePermutation(_)
        | Op::ExpertContract(_)
        | Op::Glu(_)
        | Op::DenseGlu(_)
        | Op::Route(_)
        | Op::Moe(_) => return Ok(false),
    }
    Ok(true)
}

//! The gradient of a router's scores without the rows that they weigh.
//!
//! That of row s is `Σ_h y[s, h] · dY[s, h]` for the experts' result `y = a Wᵀ`. The backward pass multiplies dY by the same matrices anyway, for the
//! gradient of a: with `v = dY W` the sum is `Σ_i a[s, i] · v[s, i]`, along the rows of a kernel that has v in hand and computes a again beside it.
//! Nothing reads y after the forward pass then.

use super::parts::Parts;
use crate::{
    cluster::repeated_rows,
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, Operand, Value,
    ops::{Cast, Permute, Pointwise, Reduce, ReduceKind},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// A sum along rows of a product by expert times other rows.
struct Found {
    /// What the product by expert is made of.
    activation: Value,
    /// The product of the other rows by the transposed matrices of the same experts.
    gradient: NodeId,
    /// What both are multiplied in.
    dtype: DType,
}

/// Rewrites what it finds in the backward part; true if there was something.
pub(super) fn through_products(graph: &mut Graph) -> Result<bool, GraphError> {
    let parts = Parts::of(graph)?;
    let found: FxHashMap<NodeId, Found> = parts.readers(graph).filter_map(|id| Some((id, find(graph, id)?))).collect();
    if found.is_empty() {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    let mut done: FxHashSet<NodeId> = graph.inputs().iter().copied().collect();
    // The other product may come later than the sum that now reads it.
    let mut stack: Vec<(NodeId, bool)> = parts.order.iter().rev().map(|&id| (id, false)).collect();
    while let Some((id, ready)) = stack.pop() {
        if done.contains(&id) {
            continue;
        }
        if !ready {
            stack.push((id, true));
            let sources: Vec<NodeId> = match found.get(&id) {
                Some(found) => vec![found.activation.node, found.gradient],
                None => values(graph, id).map(|value| value.node).collect(),
            };
            stack.extend(sources.into_iter().filter(|source| !done.contains(source)).map(|source| (source, false)));
            continue;
        }
        match found.get(&id) {
            Some(found) => sum(&mut rebuild, found, id)?,
            None => rebuild.copy(id)?,
        }
        done.insert(id);
    }
    *graph = rebuild.finish();
    graph.remove_dead();
    Ok(true)
}

fn values(graph: &Graph, id: NodeId) -> impl Iterator<Item = Value> + '_ {
    graph.node(id).operands.iter().filter_map(|operand| operand.value())
}

fn find(graph: &Graph, id: NodeId) -> Option<Found> {
    let Op::Reduce(Reduce { kind: ReduceKind::Sum, dims, .. }) = graph.node(id).op()? else { return None };
    let product = graph.node(graph.node(id).operands[0].value()?.node);
    if dims[..] != [1] || product.outputs[0].rank() != 2 || !matches!(product.op()?, Op::Pointwise(Pointwise::Mul)) {
        return None;
    }
    let sides = [product.operands[0].value()?, product.operands[1].value()?];
    [(sides[0], sides[1]), (sides[1], sides[0])].into_iter().find_map(|(experts, rows)| {
        let expert = graph.node(widened(graph, experts).node);
        let (Op::ExpertMatmul(_), &[Operand::Value(activation), Operand::Value(weight), Operand::None, ids]) =
            (expert.op()?, &expert.operands[..])
        else {
            return None;
        };
        let rows = source(graph, rows);
        let fits = |other: &NodeId| {
            let other = graph.node(*other);
            let by = |place: usize| other.operands.get(place).and_then(|operand| operand.value());
            let same_experts = other.operands.get(2) == Some(&Operand::None) && other.operands.get(3) == Some(&ids);
            let product = matches!(other.op(), Some(Op::ExpertMatmul(_))) && same_experts;
            product && by(0).is_some_and(|of| source(graph, of) == rows) && by(1).is_some_and(|w| turned(graph, w, weight))
        };
        let gradient = graph.users(ids.value()?.node).into_iter().find(fits)?;
        Some(Found { activation, gradient, dtype: product.outputs[0].dtype })
    })
}

/// The value behind casts that lose nothing.
fn widened(graph: &Graph, mut value: Value) -> Value {
    loop {
        let node = graph.node(value.node);
        let Some(from) = node.operands.first().and_then(|operand| operand.value()) else { return value };
        let (narrow, wide) = (graph.ty(from).dtype, graph.ty(value).dtype);
        let keeps = narrow == wide || (narrow.is_float() && narrow.opmath() == wide);
        if !matches!(node.op(), Some(Op::Cast(_))) || !keeps {
            return value;
        }
        value = from;
    }
}

/// How often rows repeat, and the tensor whose elements they are, in order.
fn source(graph: &Graph, rows: Value) -> (usize, Value) {
    let (repeat, mut at) = repeated_rows(graph, widened(graph, rows)).unwrap_or((1, rows));
    loop {
        at = widened(graph, at);
        let node = graph.node(at.node);
        match (node.op(), node.operands.first().and_then(|operand| operand.value())) {
            (Some(Op::Reshape(_)), Some(from)) => at = from,
            _ => return (repeat, at),
        }
    }
}

/// The weight is the other with each matrix transposed.
fn turned(graph: &Graph, weight: Value, other: Value) -> bool {
    let node = graph.node(weight.node);
    matches!(node.op(), Some(Op::Permute(Permute { dims })) if dims[..] == [0, 2, 1]) && node.operands[0] == other.into()
}

/// The sum along rows of activation and gradient.
fn sum(rebuild: &mut Rebuild<'_>, found: &Found, id: NodeId) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let Some(op) = node.op() else { return rebuild.copy(id) };
    let mut factors = Operands::new();
    for value in [found.activation, found.gradient.into()] {
        let mut new = rebuild.value(value);
        if rebuild.new.ty(new).dtype != found.dtype {
            let cast = Cast { dtype: found.dtype };
            new = rebuild.call(&node.name, cast.into(), [new.into()], node.origins.iter().cloned())?.into();
        }
        factors.push(new.into());
    }
    let product = rebuild.call(&node.name, Pointwise::Mul.into(), factors, node.origins.iter().cloned())?;
    let sum = rebuild.call(&node.name, op.clone(), [Value::from(product).into()], node.origins.iter().cloned())?;
    rebuild.bind(id.into(), sum.into());
    Ok(())
}

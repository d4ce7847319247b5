//! Random inputs that a graph accepts: sizes within range, indices within what they index.

use eglu_ir::{
    Bindings, DType, Graph, NodeId, NodeKind, Op, Operand, Tensor, TensorType, Value,
    eval::{EvalError, EvalOperand, eval_op},
    ops::{Cast, Lowering},
};
use indexmap::IndexMap;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::Arc;

/// Sizes are drawn from this many values at the lower end of a symbol's range.
const SIZES: i64 = 6;

/// Integers that index nothing are drawn below this.
const UNBOUNDED: i64 = 4;

/// How sizes are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Each symbol by itself.
    Independent,
    /// One number for all symbols, as far as their ranges allow: exporters give dims that must agree a symbol each where nothing checks it.
    Equal,
}

/// Random values for the symbols and for all inputs, in signature order.
pub fn sample_inputs(graph: &Graph, sizes: Sizes, seed: u64) -> Result<(Bindings, Vec<Tensor>), EvalError> {
    let mut rng = StdRng::seed_from_u64(seed);
    let common = rng.random_range(2..=2 + SIZES);
    let sizes: Bindings = graph
        .symbols
        .iter()
        .map(|(name, range)| {
            let max = range.max.unwrap_or(i64::MAX);
            let low = range.min.max(2).min(max);
            let high = max.min(low.saturating_add(SIZES)).max(low);
            let size = match sizes {
                Sizes::Independent => rng.random_range(low..=high),
                Sizes::Equal => common.clamp(range.min, max.max(range.min)),
            };
            (name.clone(), size)
        })
        .collect();
    let inputs = graph.inputs().iter().map(|&id| {
        let ty = &graph.node(id).outputs[0];
        let limit = limit(graph, id.into(), &sizes).unwrap_or(UNBOUNDED);
        sample(ty, &sizes, limit, &mut rng)
    });
    let inputs = inputs.collect::<Result<_, _>>()?;
    Ok((sizes, inputs))
}

/// Random contents for the weights that `given` does not have.
pub(super) fn sample_weights(
    graph: &Graph,
    given: &dyn Fn(&str) -> Option<Tensor>,
    seed: u64,
) -> Result<IndexMap<Arc<str>, Tensor>, EvalError> {
    let mut rng = StdRng::seed_from_u64(!seed);
    let mut drawn = IndexMap::new();
    for id in graph.node_ids() {
        if let NodeKind::Weight(path) = &graph.node(id).kind
            && given(path).is_none()
        {
            drawn.insert(path.clone(), sample(&graph.node(id).outputs[0], &Bindings::new(), UNBOUNDED, &mut rng)?);
        }
    }
    Ok(drawn)
}

/// Floats are uniform with mean 0 and a variance of one over the last extent, if there is more than one dim, so that products keep their scale.
fn sample(ty: &TensorType, sizes: &Bindings, limit: i64, rng: &mut StdRng) -> Result<Tensor, EvalError> {
    let shape = ty.concrete(sizes)?;
    // Here already: a tensor that does not fit is an error, a list of numbers for it would end the process.
    let len = Tensor::zeros(DType::F64, &shape)?.numel();
    let cast = |tensor: &Tensor| {
        let cast = eval_op(&Cast { dtype: ty.dtype }.into(), &[EvalOperand::Tensor(tensor)], &Bindings::new())?;
        cast.into_iter().next().ok_or_else(|| EvalError::Data("a cast has one result".into()))
    };
    if ty.dtype.is_int() || ty.dtype == DType::Bool {
        let limit = if ty.dtype == DType::Bool { 2 } else { limit.max(1) };
        let numbers: Vec<i64> = (0..len).map(|_| rng.random_range(0..limit)).collect();
        return cast(&Tensor::from_slice(DType::I64, &shape, &numbers)?);
    }
    let inner = if shape.len() > 1 { shape[shape.len() - 1].max(1) } else { 1 };
    let width = (3.0 / inner as f64).sqrt();
    let numbers: Vec<f64> = (0..len).map(|_| rng.random_range(-width..width)).collect();
    cast(&Tensor::from_slice(DType::F64, &shape, &numbers)?)
}

/// The least extent that a value indexes, followed through what leaves integers as they are.
fn limit(graph: &Graph, value: Value, sizes: &Bindings) -> Option<i64> {
    let users = graph.users(value.node).into_iter();
    users.filter_map(|user| limit_at(graph, value, user, sizes)).min()
}

fn limit_at(graph: &Graph, value: Value, user: NodeId, sizes: &Bindings) -> Option<i64> {
    let node = graph.node(user);
    let positions = node.operands.iter().enumerate().filter(|(_, o)| **o == Operand::Value(value)).map(|(i, _)| i);
    let extent = |operand: usize, dim: usize| {
        let source = node.operands.get(operand)?.value()?;
        graph.ty(source).shape.get(dim)?.eval(sizes).ok()
    };
    positions
        .filter_map(|at| match node.op()? {
            Op::Index(index) if at > 0 => extent(0, *index.axes.get(at - 1)?),
            Op::IndexPut(put) if at > 1 => extent(0, *put.axes.get(at - 2)?),
            Op::Gather(gather) if at == 1 => extent(0, gather.dim),
            Op::ScatterAdd(scatter) if at == 1 => extent(0, scatter.dim),
            Op::ExpertMatmul(_) if at == 3 => extent(1, 0),
            Op::ExpertContract(_) if at == 1 => extent(2, 0),
            Op::ExpertOuter(outer) if at == 2 => outer.experts.eval(sizes).ok(),
            Op::Moe(_) if at == 7 => extent(1, 0),
            Op::Histc(histc) => Some(histc.bins as i64),
            Op::Sort(_) | Op::Cast(_) | Op::Index(_) => limit(graph, user.into(), sizes),
            op if op.code().lowering() == Lowering::View => limit(graph, user.into(), sizes),
            _ => None,
        })
        .min()
}

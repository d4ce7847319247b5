//! The gradient of the scores, `Σ_h y[s, h] · dY[t, h]` for each choice s of token t, reads each row of dY where it lies.
//!
//! As rows of choices, dY repeated is no view of strides and would be written out; as `[tokens, choices, hidden]` it is one.

use super::parts::Parts;
use crate::{cluster::repeated_rows, rebuild::Rebuild};
use eglu_ir::{
    Dim, Graph, GraphError, NodeId, Op, Operand, Shape, Value,
    ops::{Axes, Pointwise, Reduce, ReduceKind, Reshape},
};
use rustc_hash::FxHashMap;

/// A sum over the columns of products with rows that repeat.
struct Found {
    /// The products.
    product: NodeId,
    /// Which of their operands repeats, how often its rows do, and the rows `[T, H]` or `[T, 1, H]`.
    place: usize,
    repeat: usize,
    rows: Value,
}

/// Rewrites what it finds in the backward part; true if there was something.
pub(super) fn read_rows_in_place(graph: &mut Graph) -> Result<bool, GraphError> {
    let parts = Parts::of(graph)?;
    let found: FxHashMap<NodeId, Found> = parts.readers(graph).filter_map(|id| Some((id, find(graph, id)?))).collect();
    if found.is_empty() {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    for &id in &parts.order {
        match found.get(&id) {
            Some(found) => apart(&mut rebuild, found, id)?,
            None => rebuild.copy(id)?,
        }
    }
    *graph = rebuild.finish();
    graph.remove_dead();
    Ok(true)
}

fn find(graph: &Graph, id: NodeId) -> Option<Found> {
    let Op::Reduce(Reduce { kind: ReduceKind::Sum, dims, .. }) = graph.node(id).op()? else { return None };
    let product = graph.node(id).operands[0].value()?.node;
    let node = graph.node(product);
    let rows_of_two = dims[..] == [1] && node.outputs[0].rank() == 2 && graph.users(product).len() == 1;
    if !matches!(node.op()?, Op::Pointwise(Pointwise::Mul)) || !rows_of_two {
        return None;
    }
    let repeats = |place: usize| {
        let other = node.operands[1 - place].value()?;
        let repeated = node.operands[place].value()?;
        let (repeat, rows) = repeated_rows(graph, repeated)?;
        // Where something else reads them as rows of choices, they are written out anyway; products by expert read the rows themselves.
        let in_place = |user: NodeId| {
            let user = graph.node(user);
            matches!(user.op(), Some(Op::ExpertMatmul(_))) && user.operands.iter().filter(|x| **x == repeated.into()).count() == 1
        };
        let only = graph.users(repeated.node).into_iter().all(|user| user == product || in_place(user));
        (only && graph.ty(other).shape == node.outputs[0].shape).then_some(Found { product, place, repeat, rows })
    };
    repeats(0).or_else(|| repeats(1))
}

fn apart(rebuild: &mut Rebuild<'_>, found: &Found, id: NodeId) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let (sum, product) = (graph.node(id), graph.node(found.product));
    let Some(Op::Reduce(reduce)) = sum.op() else { return rebuild.copy(id) };
    let (Some(other), rows) = (product.operands[1 - found.place].value(), &graph.ty(found.rows).shape) else {
        return rebuild.copy(id);
    };
    let (tokens, width) = (rows[0].clone(), rows[rows.len() - 1].clone());
    let reshape = |rebuild: &mut Rebuild<'_>, x: Value, shape: Shape| -> Result<Value, GraphError> {
        if rebuild.new.ty(x).shape == shape {
            return Ok(x);
        }
        Ok(rebuild.call(&product.name, Reshape { shape }.into(), [x.into()], product.origins.iter().cloned())?.into())
    };
    let (rows, other) = (rebuild.value(found.rows), rebuild.value(other));
    let once = reshape(rebuild, rows, Shape::from_iter([tokens.clone(), Dim::from(1), width.clone()]))?;
    let each = reshape(rebuild, other, Shape::from_iter([tokens, Dim::from(found.repeat as i64), width]))?;
    let mut operands: [Operand; 2] = [each.into(); 2];
    operands[found.place] = once.into();
    let products = rebuild.call(&product.name, Pointwise::Mul.into(), operands, product.origins.iter().cloned())?;
    let reduce = Reduce { dims: Axes::from_iter([2]), ..reduce.clone() };
    let sums = rebuild.call(&sum.name, reduce.into(), [products.into()], sum.origins.iter().cloned())?;
    let flat = reshape(rebuild, sums.into(), sum.outputs[0].shape.clone())?;
    rebuild.bind(id.into(), flat);
    Ok(())
}

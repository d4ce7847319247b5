//! Scores of the backward pass move behind the products by expert.
//!
//! The gradient of a weighted sum of experts' rows is `s[S, 1] · dY[t]` for each choice of token t, `[S, H]` numbers to write and read, only because
//! the rows differ by a factor. Products by expert are linear in their rows: `(s · dY) W = s · (dY W)`, where s is a capture of a kernel that has its
//! rows in hand, and `(s · dY)ᵀ a = dYᵀ (s · a)`, where s · a is a further result of that kernel, which reads what the activation a is made of anyway.
//! Both then read each row of dY as often as its token has choices, and nothing of `[S, H]` is written.

use super::parts::Parts;
use crate::{
    cluster::{is_pointwise, repeated_rows},
    rebuild::Rebuild,
};
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, Operand, Shape, Value,
    ops::{Cast, ExpertMatmul, ExpertOuter, Lowering, Pointwise, Reshape},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Rows times a score each, that only products by expert read.
struct Scored {
    /// `[S, 1]`.
    score: Value,
    /// The rows without their scores, perhaps wider than the products' operands.
    rows: Value,
    /// What the score and the row are multiplied in.
    wide: DType,
    /// Reads the rows: the product that the score moves behind.
    product: NodeId,
    /// Reads the rows as an operand, with the activations as the other.
    outer: Option<(NodeId, usize)>,
}

/// Rewrites what it finds in the backward part; true if there was something.
pub(super) fn move_behind_products(graph: &mut Graph) -> Result<bool, GraphError> {
    let parts = Parts::of(graph)?;
    let found: Vec<Scored> = parts.readers(graph).filter_map(|id| scored(graph, id)).collect();
    if found.is_empty() {
        return Ok(false);
    }
    let by_reader: FxHashMap<NodeId, &Scored> = found
        .iter()
        .flat_map(|scored| {
            [Some(scored.product), scored.outer.map(|(id, _)| id)].into_iter().flatten().map(move |id| (id, scored))
        })
        .collect();
    let mut rebuild = Rebuild::new(graph);
    for &id in &parts.order {
        match by_reader.get(&id) {
            Some(scored) if scored.product == id => product(&mut rebuild, scored, id)?,
            Some(scored) => outer(&mut rebuild, scored, id)?,
            None => rebuild.copy(id)?,
        }
    }
    *graph = rebuild.finish();
    graph.remove_dead();
    Ok(true)
}

fn scored(graph: &Graph, id: NodeId) -> Option<Scored> {
    let node = graph.node(id);
    let returned = |id: NodeId| graph.outputs().iter().any(|output| output.value.node == id);
    let Op::Pointwise(Pointwise::Mul) = node.op()? else { return None };
    let wide = node.outputs[0].dtype;
    let [a, b] = [node.operands[0].value()?, node.operands[1].value()?];
    let column = |value: Value| graph.ty(value).rank() == 2 && graph.ty(value).shape[1].is(1);
    let (score, rows) = if column(a) { (a, b) } else { (b, a) };
    if !column(score) || column(rows) || graph.ty(rows).shape != node.outputs[0].shape || returned(id) {
        return None;
    }
    // The products may read the scored rows rounded.
    let read = match graph.users(id)[..] {
        [only] if matches!(graph.node(only).op(), Some(Op::Cast(_))) => only,
        _ => id,
    };
    let (mut product, mut outer) = (None, None);
    for user in graph.users(read) {
        let operands = &graph.node(user).operands;
        let places: Vec<usize> = (0..operands.len()).filter(|&i| operands[i] == read.into()).collect();
        match (graph.node(user).op()?, &places[..]) {
            (Op::ExpertMatmul(_), [0]) if operands[2] == Operand::None && product.is_none() => product = Some(user),
            (Op::ExpertOuter(op), &[at @ (0 | 1)]) if outer.is_none() && (op.a_repeat, op.b_repeat) == (1, 1) => {
                outer = Some((user, at));
            }
            _ => return None,
        }
    }
    let product = product.filter(|_| !returned(read))?;
    let found = Scored { score, rows, wide, product, outer };
    narrow(graph, rows, graph.node(read).outputs[0].dtype)?;
    let takes_in = match outer {
        Some((outer, at)) => beside(graph, product, graph.node(outer).operands[1 - at].value()?),
        None => pointwise_users(graph, product),
    };
    takes_in.then_some(found)
}

fn pointwise_users(graph: &Graph, product: NodeId) -> bool {
    let users = graph.users(product);
    !users.is_empty() && users.into_iter().all(|user| is_pointwise(graph, user))
}

/// An activation that is made of the same tensors as what is computed behind the product.
fn beside(graph: &Graph, product: NodeId, activation: Value) -> bool {
    let shape = &graph.node(product).outputs[0].shape;
    if graph.ty(activation).shape != *shape || !is_pointwise(graph, activation.node) || !pointwise_users(graph, product) {
        return false;
    }
    let mut behind: Vec<NodeId> = vec![product];
    let mut at = 0;
    while let Some(&id) = behind.get(at) {
        let next =
            graph.users(id).into_iter().filter(|&user| is_pointwise(graph, user) && graph.node(user).outputs[0].shape == *shape);
        let new: Vec<NodeId> = next.filter(|user| !behind.contains(user)).collect();
        behind.extend(new);
        at += 1;
    }
    let read = leaves(graph, behind[1..].iter().copied(), shape);
    leaves(graph, [activation.node].into_iter(), shape).is_subset(&read)
}

/// The tensors of this shape that pointwise nodes are made of, through pointwise nodes.
pub(crate) fn leaves(graph: &Graph, nodes: impl Iterator<Item = NodeId>, shape: &Shape) -> FxHashSet<Value> {
    let (mut seen, mut stack, mut leaves) = (FxHashSet::default(), nodes.collect::<Vec<_>>(), FxHashSet::default());
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        for value in
            graph.node(id).operands.iter().filter_map(|operand| operand.value()).filter(|&value| graph.ty(value).shape == *shape)
        {
            if is_pointwise(graph, value.node) {
                stack.push(value.node);
            } else {
                leaves.insert(value);
            }
        }
    }
    leaves
}

/// The views from `rows` to a tensor of this dtype that they were widened from, outermost first, and that tensor.
fn narrow(graph: &Graph, rows: Value, dtype: DType) -> Option<(Vec<NodeId>, Value)> {
    let (mut views, mut at) = (Vec::new(), rows);
    loop {
        if graph.ty(at).dtype == dtype {
            return Some((views, at));
        }
        let node = graph.node(at.node);
        match node.op()? {
            Op::Cast(_) if graph.ty(at).dtype.opmath() == graph.ty(at).dtype => {
                at = node.operands[0].value().filter(|&x| graph.ty(x).dtype == dtype)?
            }
            op if op.code().lowering() == Lowering::View => {
                views.push(at.node);
                at = node.operands[0].value()?;
            }
            _ => return None,
        }
    }
}

/// The rows without scores, in the dtype of the products' operands.
fn plain_rows(rebuild: &mut Rebuild<'_>, scored: &Scored, dtype: DType) -> Result<Value, GraphError> {
    let graph = rebuild.old;
    let Some((views, source)) = narrow(graph, scored.rows, dtype) else { return Ok(rebuild.value(scored.rows)) };
    let mut value = rebuild.value(source);
    for &view in views.iter().rev() {
        let node = graph.node(view);
        let Some(op) = node.op() else { continue };
        value = rebuild.call(&node.name, op.clone(), [value.into()], node.origins.iter().cloned())?.into();
    }
    Ok(value)
}

/// `score · x`, computed as it was and rounded to the dtype of x.
fn times_score(rebuild: &mut Rebuild<'_>, scored: &Scored, x: Value, of: NodeId) -> Result<Value, GraphError> {
    let node = rebuild.old.node(of);
    let dtype = rebuild.new.ty(x).dtype;
    let score = rebuild.value(scored.score);
    let cast = |rebuild: &mut Rebuild<'_>, x: Value, dtype: DType| -> Result<Value, GraphError> {
        if rebuild.new.ty(x).dtype == dtype {
            return Ok(x);
        }
        Ok(rebuild.call(&node.name, Cast { dtype }.into(), [x.into()], node.origins.iter().cloned())?.into())
    };
    let wide = cast(rebuild, x, scored.wide)?;
    let name = format!("{}.scored", node.name);
    let product = rebuild.call(&name, Pointwise::Mul.into(), [score.into(), wide.into()], node.origins.iter().cloned())?;
    cast(rebuild, product.into(), dtype)
}

fn product(rebuild: &mut Rebuild<'_>, scored: &Scored, id: NodeId) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let rows = plain_rows(rebuild, scored, node.outputs[0].dtype)?;
    let mut operands = rebuild.operands(id);
    operands[0] = rows.into();
    let new = rebuild.call(&node.name, ExpertMatmul {}.into(), operands, node.origins.iter().cloned())?;
    let scaled = times_score(rebuild, scored, new.into(), id)?;
    rebuild.bind(id.into(), scaled);
    Ok(())
}

fn outer(rebuild: &mut Rebuild<'_>, scored: &Scored, id: NodeId) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let (Some(Op::ExpertOuter(op)), Some((_, at))) = (node.op(), scored.outer) else { return rebuild.copy(id) };
    let mut operands = rebuild.operands(id);
    let Some(activation) = operands[1 - at].value() else { return rebuild.copy(id) };
    let dtype = rebuild.new.ty(activation).dtype;
    let mut rows = plain_rows(rebuild, scored, dtype)?;
    let mut op: ExpertOuter = op.clone();
    if let Some((repeat, source)) = repeated_rows(&rebuild.new, rows) {
        rows = source;
        if rebuild.new.ty(source).rank() == 3 {
            let shape = &rebuild.new.ty(source).shape;
            let shape = Shape::from_iter([shape[0].clone(), shape[2].clone()]);
            rows = rebuild.call(&node.name, Reshape { shape }.into(), [source.into()], node.origins.iter().cloned())?.into();
        }
        if at == 0 { op.a_repeat = repeat } else { op.b_repeat = repeat }
    }
    operands[at] = rows.into();
    operands[1 - at] = times_score(rebuild, scored, activation, id)?.into();
    let new = rebuild.call(&node.name, op.into(), operands, node.origins.iter().cloned())?;
    rebuild.bind_all(id, new);
    Ok(())
}

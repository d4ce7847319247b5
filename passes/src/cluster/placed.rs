//! One element of each line put into a constant is a comparison with each element's position: elementwise, where a scatter takes its turns.

use crate::rebuild::Rebuild;
use eglu_ir::{
    DType, Dim, Graph, GraphError, NodeId, Op, Operand, Scalar, Shape, Value,
    ops::{Cast, Full, IndexPut, Iota, Pointwise, Reshape, ScatterAdd},
};

/// What a node puts into each line, all of one number.
struct Placed {
    /// The number; it stays but at one place.
    rest: Scalar,
    /// Where in each line: one index for each.
    index: Value,
    /// What stands there then, or what is added to the number.
    element: Operand,
    adds: bool,
    /// True where an index below zero counts from the end.
    wraps: bool,
}

/// `scatter_add(zeros, index, src)` with one index for each line becomes `where(position == index, src, 0)`; likewise where elements of a constant
/// are replaced.
pub(crate) fn compare(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in graph.topological()? {
        match placed(graph, id) {
            Some(placed) => {
                changed = true;
                emit(&mut rebuild, id, &placed)?;
            }
            None => rebuild.copy(id)?,
        }
    }
    if changed {
        *graph = rebuild.finish();
        graph.remove_dead();
    }
    Ok(changed)
}

/// What a node puts into each line along the last dim, if it does.
fn placed(graph: &Graph, id: NodeId) -> Option<Placed> {
    let node = graph.node(id);
    let operand = |i: usize| node.operands.get(i).and_then(|o| o.value());
    let full = &node.outputs.first()?.shape;
    let (last, outer) = full.split_last()?;
    if node.outputs[0].dtype.is_complex() {
        return None;
    }
    let one: Shape = outer.iter().cloned().chain([Dim::from(1)]).collect();
    let rest = |x: Value| match graph.node(x.node).op() {
        Some(Op::Full(Full { value, .. })) => Some(*value),
        _ => None,
    };
    match node.op()? {
        Op::ScatterAdd(ScatterAdd { dim }) => {
            let (index, element) = (operand(1)?, operand(2)?);
            let alike = graph.ty(index).shape == one && graph.ty(element).shape == one;
            let placed = Placed { rest: rest(operand(0)?)?, index, element: element.into(), adds: true, wraps: false };
            (dim + 1 == full.len() && alike && placed.rest.as_f64() == 0.0).then_some(placed)
        }
        Op::IndexPut(IndexPut { axes, accumulate: false }) => {
            let (element, index) = (operand(1)?, operand(1 + axes.len())?);
            let all = axes.iter().copied().eq(0..full.len()) && graph.ty(index).shape == one;
            let own = (0..outer.len()).all(|dim| operand(2 + dim).is_some_and(|at| counts(graph, at, dim, &one)));
            let whole = graph.ty(element).rank() == 0 || graph.ty(element).shape == one;
            let wraps = last.as_const().is_some();
            let number = rest(element).filter(|_| graph.ty(element).rank() == 0);
            let element = number.map_or(element.into(), Operand::Scalar);
            (all && own && whole && wraps).then_some(Placed { rest: rest(operand(0)?)?, index, element, adds: false, wraps })
        }
        _ => None,
    }
}

/// True for the positions along one dim of `shape`, which broadcast against the others.
fn counts(graph: &Graph, value: Value, dim: usize, shape: &Shape) -> bool {
    let node = graph.node(value.node);
    let along: Shape = (0..shape.len()).map(|i| if i == dim { shape[i].clone() } else { Dim::from(1) }).collect();
    let iota = match node.op() {
        Some(Op::Reshape(Reshape { shape })) if *shape == along => node.operands[0].value().map(|value| value.node),
        _ => None,
    };
    let iota = iota.and_then(|id| graph.node(id).op());
    matches!(iota, Some(Op::Iota(Iota { start: 0, step: 1, len, .. })) if *len == shape[dim])
}

fn emit(rebuild: &mut Rebuild<'_>, id: NodeId, placed: &Placed) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let ty = node.outputs[0].clone();
    let Some(last) = ty.shape.last().cloned() else { return rebuild.copy(id) };
    let (name, origins) = (node.name.clone(), node.origins.clone());
    let call = |rebuild: &mut Rebuild<'_>, what: &str, op: Op, operands: &[Operand]| -> Result<Operand, GraphError> {
        let new = rebuild.call(&format!("{name}{what}"), op, operands.iter().copied(), origins.iter().cloned())?;
        Ok(Operand::Value(new.into()))
    };
    let mut index: Operand = rebuild.value(placed.index).into();
    let element = rebuild.operand(placed.element);
    if let (true, Some(extent)) = (placed.wraps, last.as_const()) {
        let below = call(rebuild, ".below", Pointwise::Lt.into(), &[index, Scalar::Int(0).into()])?;
        let from_end = call(rebuild, ".from_end", Pointwise::Add.into(), &[index, Scalar::Int(extent).into()])?;
        index = call(rebuild, ".index", Pointwise::Where.into(), &[below, from_end, index])?;
    }
    let positions = call(rebuild, ".position", Iota { len: last, start: 0, step: 1, dtype: DType::I64 }.into(), &[])?;
    let here = call(rebuild, ".here", Pointwise::Eq.into(), &[positions, index])?;
    let rest = match (ty.dtype, placed.adds) {
        (dtype, true) if dtype.is_float() => Scalar::Float(0.0),
        (_, true) => Scalar::Int(0),
        _ => placed.rest,
    };
    let mut result = call(rebuild, "", Pointwise::Where.into(), &[here, element, rest.into()])?;
    if result.value().is_some_and(|value| rebuild.new.ty(value).dtype != ty.dtype) {
        // Two numbers are of no dtype of their own.
        result = call(rebuild, "", Cast { dtype: ty.dtype }.into(), &[result])?;
    }
    if let Some(value) = result.value() {
        debug_assert_eq!(*rebuild.new.ty(value), ty);
        rebuild.bind(id.into(), value);
    }
    Ok(())
}

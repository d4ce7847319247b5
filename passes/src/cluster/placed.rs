//! A few elements of each line put into a constant are comparisons with each element's position: elementwise, where a scatter takes its turns. So the
//! gradient of a router's scores, of which each token has a few, is part of the loop over its line.

use crate::rebuild::Rebuild;
use eglu_ir::{
    DType, Dim, Graph, GraphError, NodeId, Op, Operand, Scalar, Shape, Value,
    ops::{Cast, Full, IndexPut, Iota, Pointwise, Reshape, ScatterAdd, Slice},
};

/// Elements of a line up to which comparing every position with each of theirs costs less than another kernel.
const MOST: i64 = 16;

/// What a node puts into each line, all of one number.
struct Placed {
    /// The number; it stays but at one place.
    rest: Scalar,
    /// Where in each line: so many indices for each, of which the last wins where they meet.
    index: Value,
    count: i64,
    /// What stands there then, or what is added to the number.
    element: Operand,
    adds: bool,
    /// True where an index below zero counts from the end.
    wraps: bool,
}

/// `scatter_add(zeros, index, src)` with one index for each line becomes `where(position == index, src, 0)`; likewise where a few elements of a
/// constant are replaced.
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
            let placed = Placed { rest: rest(operand(0)?)?, index, count: 1, element: element.into(), adds: true, wraps: false };
            (dim + 1 == full.len() && alike && placed.rest.as_f64() == 0.0).then_some(placed)
        }
        Op::IndexPut(IndexPut { axes, accumulate: false }) => {
            let (element, index) = (operand(1)?, operand(1 + axes.len())?);
            let shape = &graph.ty(index).shape;
            let count = shape.last().and_then(Dim::as_const).filter(|count| (1..=MOST).contains(count))?;
            let all = axes.iter().copied().eq(0..full.len()) && shape.len() == full.len() && shape[..outer.len()] == *outer;
            let own = (0..outer.len()).all(|dim| operand(2 + dim).is_some_and(|at| counts(graph, at, dim, shape)));
            let whole = graph.ty(element).rank() == 0 || graph.ty(element).shape == *shape;
            // The indices of what is highest are none below zero.
            let counted = matches!(graph.node(index.node).op(), Some(Op::Route(_) | Op::TopK(_)));
            let wraps = last.as_const().is_some();
            let number = rest(element).filter(|_| graph.ty(element).rank() == 0);
            let element = number.map_or(element.into(), Operand::Scalar);
            let found = Placed { rest: rest(operand(0)?)?, index, count, element, adds: false, wraps: !counted };
            (all && own && whole && wraps).then_some(found)
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
    let rest = match (ty.dtype, placed.adds) {
        (dtype, true) if dtype.is_float() => Scalar::Float(0.0),
        (_, true) => Scalar::Int(0),
        _ => placed.rest,
    };
    let positions = call(rebuild, ".position", Iota { len: last.clone(), start: 0, step: 1, dtype: DType::I64 }.into(), &[])?;
    // One of several in each line; what is taken is widened, or that would be a kernel of its own.
    let dim = ty.shape.len() - 1;
    let one_of = |rebuild: &mut Rebuild<'_>, what: &str, operand: Operand, i: i64| match operand.value() {
        Some(value) if placed.count > 1 && rebuild.new.ty(value).rank() > 0 => {
            call(rebuild, what, Slice { dim, start: Dim::from(i), end: Dim::from(i + 1), step: 1 }.into(), &[operand])
        }
        _ => Ok(operand),
    };
    let (indices, (elements, cast)) = (rebuild.value(placed.index).into(), uncast(rebuild, placed, &call)?);
    let mut result: Operand = rest.into();
    for i in 0..placed.count {
        let mut index: Operand = one_of(rebuild, ".at", indices, i)?;
        let mut element = one_of(rebuild, ".element", elements, i)?;
        if let Some(dtype) = cast {
            element = call(rebuild, ".element", Cast { dtype }.into(), &[element])?;
        }
        if let (true, Some(extent)) = (placed.wraps, last.as_const()) {
            let below = call(rebuild, ".below", Pointwise::Lt.into(), &[index, Scalar::Int(0).into()])?;
            let from_end = call(rebuild, ".from_end", Pointwise::Add.into(), &[index, Scalar::Int(extent).into()])?;
            index = call(rebuild, ".index", Pointwise::Where.into(), &[below, from_end, index])?;
        }
        let here = call(rebuild, ".here", Pointwise::Eq.into(), &[positions, index])?;
        result = call(rebuild, "", Pointwise::Where.into(), &[here, element, result])?;
    }
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

/// The elements before they were widened as they lie in lines, if there are several and nothing else reads them wide, and the dtype they then have. What
/// narrows them is better left to who makes them.
fn uncast(
    rebuild: &mut Rebuild<'_>,
    placed: &Placed,
    call: &impl Fn(&mut Rebuild<'_>, &str, Op, &[Operand]) -> Result<Operand, GraphError>,
) -> Result<(Operand, Option<DType>), GraphError> {
    let graph = rebuild.old;
    let alone = |value: Value| graph.use_count(value) == 1;
    let cast_of = |value: Value| match graph.node(value.node).op() {
        Some(Op::Cast(Cast { dtype })) => {
            let from = graph.node(value.node).operands[0].value()?;
            (graph.ty(from).dtype.size() < dtype.size()).then_some((from, *dtype))
        }
        _ => None,
    };
    let Some(element) = placed.element.value().filter(|&value| placed.count > 1 && alone(value)) else {
        return Ok((rebuild.operand(placed.element), None));
    };
    if let Some((from, dtype)) = cast_of(element) {
        return Ok((rebuild.value(from).into(), Some(dtype)));
    }
    let reshaped = match graph.node(element.node).op() {
        Some(Op::Reshape(op)) => graph.node(element.node).operands[0].value().map(|inner| (op.clone(), inner)),
        _ => None,
    };
    match reshaped.and_then(|(op, inner)| Some((op, cast_of(inner).filter(|_| alone(inner))?))) {
        Some((op, (from, dtype))) => {
            let from: Operand = rebuild.value(from).into();
            Ok((call(rebuild, ".elements", op.into(), &[from])?, Some(dtype)))
        }
        None => Ok((rebuild.operand(placed.element), None)),
    }
}

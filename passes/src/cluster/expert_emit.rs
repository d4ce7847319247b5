//! From plans of products by expert to the new graph.

use super::{
    expert::{Plan, lane_slice, repeated},
    inline::Inliner,
    partition::Kind,
};
use crate::rebuild::{Operands, Rebuild};
use eglu_ir::{
    Dim, Graph, GraphError, NodeId, Operand, Shape, Value,
    ops::{ExpertContract, Pointwise, Reshape, Slice},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Rows of a product that repeat, if they do.
pub(crate) fn repeated_rows(graph: &Graph, product: NodeId) -> Option<(usize, Value)> {
    repeated(graph, graph.node(product).operands.first()?.value()?)
}

/// The graph with every plan as one node, in the order of the schedule.
pub(crate) fn emit(graph: &Graph, plans: &[Plan], schedule: &[(Kind, Vec<NodeId>)]) -> Result<Graph, GraphError> {
    let by_node: FxHashMap<NodeId, usize> =
        plans.iter().enumerate().flat_map(|(i, plan)| plan.nodes().into_iter().map(move |id| (id, i))).collect();
    let needed = needed(graph, plans, &by_node);
    let mut rebuild = Rebuild::new(graph);
    for (kind, nodes) in schedule {
        match by_node.get(&nodes[0]).filter(|_| *kind == Kind::Contract) {
            Some(&plan) => contract(&mut rebuild, &plans[plan], &needed)?,
            None if needed.contains(&nodes[0]) || graph.node(nodes[0]).op().is_none() => rebuild.copy(nodes[0])?,
            None => {}
        }
    }
    Ok(rebuild.finish())
}

/// The nodes whose values must be there in memory, or be views of such.
fn needed(graph: &Graph, plans: &[Plan], by_node: &FxHashMap<NodeId, usize>) -> FxHashSet<NodeId> {
    let mut needed: FxHashSet<NodeId> = FxHashSet::default();
    let mut stack: Vec<NodeId> = graph.outputs().iter().map(|output| output.value.node).collect();
    let sources = |id: NodeId| graph.node(id).operands.iter().filter_map(|operand| operand.value()).map(|value| value.node);
    while let Some(id) = stack.pop() {
        if !needed.insert(id) {
            continue;
        }
        let Some(plan) = by_node.get(&id).map(|&plan| &plans[plan]) else {
            stack.extend(sources(id));
            continue;
        };
        if plan.lanes.contains(&id) {
            stack.push(plan.product);
            continue;
        }
        stack.extend(sources(plan.product).skip(1));
        match repeated_rows(graph, plan.product) {
            Some((_, source)) => stack.push(source.node),
            None => stack.extend(sources(plan.product).take(1)),
        }
        stack.extend(leaves(graph, plan, id));
    }
    needed
}

/// What the program reads from memory to compute a node of the plan.
fn leaves(graph: &Graph, plan: &Plan, id: NodeId) -> Vec<NodeId> {
    let accumulators = plan.accumulators();
    let joins = |id: NodeId| plan.joined.as_ref().is_some_and(|joined| joined.nodes.contains(&id));
    let (mut seen, mut stack, mut leaves) = (FxHashSet::default(), vec![id], Vec::new());
    while let Some(at) = stack.pop() {
        if accumulators.contains(&at) || at == plan.product || !seen.insert(at) {
            continue;
        }
        if plan.computes(at) || joins(at) {
            stack.extend(graph.node(at).operands.iter().filter_map(|operand| operand.value()).map(|value| value.node));
        } else {
            leaves.push(at);
        }
    }
    leaves
}

fn contract(rebuild: &mut Rebuild<'_>, plan: &Plan, needed: &FxHashSet<NodeId>) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let product = graph.node(plan.product);
    let name = product.name.clone();
    let joined = plan.joined.as_ref().filter(|joined| joined.nodes.last().is_some_and(|last| needed.contains(last)));
    let keeps = needed.contains(&plan.product);
    let exits: Vec<NodeId> = plan
        .members
        .iter()
        .copied()
        .filter(|id| needed.contains(id) && joined.is_none_or(|joined| !joined.parts.contains(id)))
        .collect();

    let (repeat, rows) = match repeated_rows(graph, plan.product) {
        Some((repeat, source)) => (repeat, matrix(rebuild, source, &name)?),
        None => (1, rebuild.operand(product.operands[0])),
    };
    let mut operands: Operands = [rows, rebuild.operand(product.operands[3])].into_iter().collect();
    operands.extend(by_lane(rebuild, plan, product.operands[1], &name)?);
    let bias = product.operands[2];
    let tables = if bias == Operand::None { vec![] } else { by_lane(rebuild, plan, bias, &name)? };
    operands.extend(tables.iter().copied());

    let mut program = Inliner::new(graph);
    let accumulators = plan.accumulators();
    accumulators.iter().for_each(|&lane| program.seed(lane.into()));
    for (&lane, table) in accumulators.iter().zip(&tables) {
        let dtype = table.value().map_or(product.outputs[0].dtype, |value| rebuild.new.ty(value).dtype);
        program.add_table(lane.into(), Pointwise::Add, dtype);
    }
    if !plan.members.is_empty() {
        // A backward pass reads what is stored of the accumulators: the forward pass goes on with the same.
        accumulators.iter().for_each(|&lane| program.round(lane.into()));
    }
    let (mut packed, interleaved) = (0, joined.map_or(plan.interleaved, |joined| joined.interleaved));
    if keeps && plan.lanes.len() > 1 {
        packed = plan.lanes.len();
    } else if joined.is_some() {
        packed = 2;
    }
    let whole = (keeps && plan.lanes.is_empty()).then_some(plan.product);
    let together: Vec<NodeId> = match joined {
        Some(joined) => joined.parts.to_vec(),
        None if packed > 0 => plan.lanes.clone(),
        None => Vec::new(),
    };
    let results: Vec<NodeId> = together.into_iter().chain(whole).chain(exits.iter().copied()).collect();
    compute(graph, plan, &results, &mut program)?;
    results.iter().for_each(|&id| program.result(id.into()));
    operands.extend(program.captures.iter().map(|&value| Operand::from(rebuild.value(value))));

    let op = ExpertContract {
        lanes: accumulators.len(),
        tables: tables.len(),
        repeat,
        packed,
        interleaved: packed > 0 && interleaved,
        grouped: false,
        program: Arc::new(program.finish()),
    };
    let origins = super::origins(graph, &plan.nodes());
    let new = rebuild.call(&name, op.into(), operands, origins)?;
    let first = u32::from(packed > 0);
    for (index, &id) in results[packed..].iter().enumerate() {
        rebuild.bind(id.into(), Value { node: new, index: first + index as u32 });
    }
    match joined {
        Some(joined) => {
            let result = joined.nodes[joined.nodes.len() - 1];
            rebuild.bind(result.into(), new.into());
            parts_of(rebuild, joined, needed, new, &name)?;
        }
        None if packed > 0 => {
            rebuild.bind(plan.product.into(), new.into());
            for &lane in plan.lanes.iter().filter(|lane| needed.contains(lane)) {
                rebuild.copy(lane)?;
            }
        }
        None => {}
    }
    Ok(())
}

/// Parts of a joined result that are read by themselves too.
fn parts_of(
    rebuild: &mut Rebuild<'_>,
    joined: &super::expert::Joined,
    needed: &FxHashSet<NodeId>,
    from: NodeId,
    name: &str,
) -> Result<(), GraphError> {
    for (i, &part) in joined.parts.iter().enumerate().filter(|(_, part)| needed.contains(part)) {
        let columns = rebuild.old.node(part).outputs[0].shape[1].clone();
        let (start, end, step) = match joined.interleaved {
            true => (Dim::from(i as i64), columns * Dim::from(2), 2),
            false => (columns.clone() * Dim::from(i as i64), columns * Dim::from(i as i64 + 1), 1),
        };
        let slice = Slice { dim: 1, start, end, step };
        let view = rebuild.call(&format!("{name}_part"), slice.into(), [from.into()], std::iter::empty())?;
        rebuild.bind(part.into(), view.into());
    }
    Ok(())
}

/// `[T, 1, H]` or `[T, H]` as the latter.
fn matrix(rebuild: &mut Rebuild<'_>, source: Value, name: &str) -> Result<Operand, GraphError> {
    let (new, shape) = (rebuild.value(source), &rebuild.old.ty(source).shape);
    if shape.len() == 2 {
        return Ok(new.into());
    }
    let shape = Shape::from_iter([shape[0].clone(), shape[2].clone()]);
    Ok(rebuild.call(&format!("{name}_rows"), Reshape { shape }.into(), [new.into()], std::iter::empty())?.into())
}

/// The lanes' parts of a weight or bias, whose dim 1 is the columns of the product.
fn by_lane(rebuild: &mut Rebuild<'_>, plan: &Plan, whole: Operand, name: &str) -> Result<Vec<Operand>, GraphError> {
    let whole = rebuild.operand(whole);
    let slices: Vec<Slice> = plan.lanes.iter().filter_map(|&lane| lane_slice(rebuild.old, lane)).collect();
    if slices.is_empty() {
        return Ok(vec![whole]);
    }
    let part = |slice: Slice| Ok(rebuild.call(&format!("{name}_lane"), slice.into(), [whole], std::iter::empty())?.into());
    slices.into_iter().map(part).collect()
}

/// Appends what the results need, producers first.
fn compute(graph: &Graph, plan: &Plan, results: &[NodeId], program: &mut Inliner<'_>) -> Result<(), GraphError> {
    let mut done: FxHashSet<NodeId> = FxHashSet::default();
    let mut stack: Vec<(NodeId, bool)> = results.iter().rev().map(|&id| (id, false)).collect();
    while let Some((id, ready)) = stack.pop() {
        if ready {
            program.node(id)?;
            continue;
        }
        if !plan.computes(id) || !done.insert(id) {
            continue;
        }
        stack.push((id, true));
        let sources = graph.node(id).operands.iter().rev().filter_map(|operand| operand.value());
        stack.extend(sources.map(|value| (value.node, false)));
    }
    Ok(())
}

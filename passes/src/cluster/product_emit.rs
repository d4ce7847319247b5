//! From plans of products to the new graph.

use super::{
    folded::Folded,
    inline::Inliner,
    partition::Kind,
    product::{Head, Joined, Plan, lane_slice, operands as sources, repeated},
};
use crate::rebuild::{Operands, Rebuild};
use eglu_ir::{
    Dim, Graph, GraphError, NodeId, Op, Operand, Shape, Value,
    ops::{Axes, Contract, ExpertContract, Permute, Pointwise, Reshape, Slice},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Rows of a product by expert that repeat, if they do.
pub(crate) fn repeated_rows(graph: &Graph, product: NodeId) -> Option<(usize, Value)> {
    Head::of(graph, product).filter(|&head| head == Head::Expert)?;
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
    while let Some(id) = stack.pop() {
        if !needed.insert(id) {
            continue;
        }
        let Some(plan) = by_node.get(&id).map(|&plan| &plans[plan]) else {
            stack.extend(sources(graph, id));
            continue;
        };
        if plan.folds.iter().any(|fold| fold.view == Some(id)) {
            // Read elsewhere too, it is a view of what is stored.
            stack.extend(sources(graph, id));
            continue;
        }
        if plan.lanes.contains(&id) && plan.head != Head::Dense {
            stack.push(plan.product);
            continue;
        }
        for head in [plan.product].into_iter().chain(plan.partner) {
            stack.extend(sources(graph, head).skip(1));
            match repeated_rows(graph, head) {
                Some((_, source)) => stack.push(source.node),
                None => stack.extend(sources(graph, head).take(1)),
            }
        }
        stack.extend(leaves(graph, plan, id));
    }
    needed
}

/// What the program reads from memory to compute a node of the plan.
fn leaves(graph: &Graph, plan: &Plan, id: NodeId) -> Vec<NodeId> {
    let accumulators = plan.accumulators();
    let joins = |id: NodeId| plan.joined.as_ref().is_some_and(|joined| joined.nodes.contains(&id));
    let folds = |id: NodeId| plan.folds.iter().find(|fold| fold.reduce == id);
    let views = |id: NodeId| plan.folds.iter().any(|fold| fold.view == Some(id));
    let (mut seen, mut stack, mut leaves) = (FxHashSet::default(), vec![id], Vec::new());
    while let Some(at) = stack.pop() {
        if accumulators.contains(&at) || at == plan.product || !seen.insert(at) {
            continue;
        }
        if let Some(fold) = folds(at) {
            stack.push(fold.of);
        } else if views(at) || plan.computes(at) || joins(at) {
            stack.extend(sources(graph, at));
        } else {
            leaves.push(at);
        }
    }
    leaves
}

/// What a plan's kernel makes, in the order of its program's results.
struct Results<'p> {
    /// Members or lanes that share an output.
    packed: Vec<NodeId>,
    interleaved: bool,
    /// Accumulators and members with an output each.
    apart: Vec<NodeId>,
    folds: Vec<&'p Folded>,
    joined: Option<&'p Joined>,
}

impl<'p> Results<'p> {
    fn of(plan: &'p Plan, needed: &FxHashSet<NodeId>) -> Results<'p> {
        let joined = plan.joined.as_ref().filter(|joined| joined.nodes.last().is_some_and(|last| needed.contains(last)));
        let whole = needed.contains(&plan.product) && plan.lanes.len() > 1;
        let packed = match joined {
            Some(joined) => joined.parts.to_vec(),
            None if whole => plan.lanes.clone(),
            None => vec![],
        };
        let interleaved = !packed.is_empty() && joined.map_or(plan.interleaved, |joined| joined.interleaved);
        let accumulators = plan.accumulators().into_iter().filter(|id| !whole && needed.contains(id));
        let parts = |id: &NodeId| joined.is_some_and(|joined| joined.parts.contains(id));
        let members = plan.members.iter().copied().filter(|id| needed.contains(id) && !parts(id));
        let apart = accumulators.chain(members).collect();
        let folds = plan.folds.iter().filter(|fold| needed.contains(&fold.reduce)).collect();
        Results { packed, interleaved, apart, folds, joined }
    }

    fn stored(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.packed.iter().chain(&self.apart).copied()
    }
}

fn contract(rebuild: &mut Rebuild<'_>, plan: &Plan, needed: &FxHashSet<NodeId>) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let name = graph.node(plan.product).name.clone();
    let results = Results::of(plan, needed);
    let (repeat, mut operands, tables) = operands(rebuild, plan, &name)?;

    let mut program = Inliner::new(graph);
    let accumulators = plan.accumulators();
    accumulators.iter().for_each(|&lane| program.seed(lane.into()));
    for (&lane, table) in accumulators.iter().zip(&tables) {
        let dtype = table.value().map_or(graph.node(lane).outputs[0].dtype, |value| rebuild.new.ty(value).dtype);
        program.add_table(lane.into(), Pointwise::Add, dtype);
    }
    if !plan.members.is_empty() {
        // A backward pass reads what is stored of the accumulators: the forward pass goes on with the same.
        accumulators.iter().for_each(|&lane| program.round(lane.into()));
    }
    let all: Vec<NodeId> = results.stored().chain(results.folds.iter().map(|fold| fold.of)).collect();
    compute(graph, plan, &all, &mut program)?;
    results.stored().for_each(|id| program.result(id.into()));
    for fold in &results.folds {
        program.reduced(fold.of.into(), graph.node(fold.reduce).outputs[0].dtype);
    }
    operands.extend(program.captures.iter().map(|&value| Operand::from(rebuild.value(value))));

    let (lanes, packed, interleaved) = (accumulators.len(), results.packed.len(), results.interleaved);
    let program = Arc::new(program.finish());
    let (folds, groups) = results.folds.iter().map(|fold| (fold.kind, fold.group)).unzip::<_, _, Vec<_>, Axes>();
    let op: Op = match plan.head {
        Head::Dense => Contract { lanes, packed, interleaved, folds, groups, program }.into(),
        Head::Expert | Head::Grouped => {
            let grouped = plan.head == Head::Grouped;
            ExpertContract { lanes, tables: tables.len(), repeat, packed, interleaved, grouped, folds, groups, program }.into()
        }
    };
    let origins = super::origins(graph, &plan.nodes());
    let new = rebuild.call(&name, op, operands, origins)?;
    bind(rebuild, plan, &results, needed, new)
}

/// Lets the kernel's outputs stand for what it computes.
fn bind(
    rebuild: &mut Rebuild<'_>,
    plan: &Plan,
    results: &Results<'_>,
    needed: &FxHashSet<NodeId>,
    new: NodeId,
) -> Result<(), GraphError> {
    let name = rebuild.old.node(plan.product).name.clone();
    let mut index = u32::from(!results.packed.is_empty());
    for &id in &results.apart {
        rebuild.bind(id.into(), Value { node: new, index });
        index += 1;
    }
    for fold in &results.folds {
        let (value, shape) = (Value { node: new, index }, rebuild.old.node(fold.reduce).outputs[0].shape.clone());
        let value = if rebuild.new.ty(value).shape == shape {
            value
        } else {
            let view = Reshape { shape };
            rebuild.call(&format!("{name}_reduced"), view.into(), [value.into()], std::iter::empty())?.into()
        };
        rebuild.bind(fold.reduce.into(), value);
        index += 1;
    }
    let mut views: Vec<NodeId> = plan.folds.iter().filter_map(|fold| fold.view).filter(|view| needed.contains(view)).collect();
    views.dedup();
    views.into_iter().try_for_each(|view| rebuild.copy(view))?;
    match results.joined {
        Some(joined) => {
            let result = joined.nodes[joined.nodes.len() - 1];
            rebuild.bind(result.into(), new.into());
            parts_of(rebuild, joined, needed, new, &name)?;
        }
        None if !results.packed.is_empty() => {
            rebuild.bind(plan.product.into(), new.into());
            for &lane in plan.lanes.iter().filter(|lane| needed.contains(lane)) {
                rebuild.copy(lane)?;
            }
        }
        None => {}
    }
    Ok(())
}

/// How often each row repeats, the operands before the captures, and the tables among them.
fn operands(rebuild: &mut Rebuild<'_>, plan: &Plan, name: &str) -> Result<(usize, Operands, Vec<Operand>), GraphError> {
    let product = rebuild.old.node(plan.product);
    let (repeat, rows) = match repeated_rows(rebuild.old, plan.product) {
        Some((repeat, source)) => (repeat, matrix(rebuild, source, name)?),
        None => (1, rebuild.operand(product.operands[0])),
    };
    let whole = rebuild.operand(product.operands[1]);
    let mut operands: Operands = [rows].into_iter().collect();
    let mut tables = vec![];
    match plan.head {
        Head::Dense => {
            operands.extend(by_lane(rebuild, plan, whole, name)?);
            let partner = plan.partner.map(|partner| rebuild.operand(rebuild.old.node(partner).operands[1]));
            operands.extend(partner);
        }
        Head::Grouped => {
            operands.push(rebuild.operand(product.operands[2]));
            let turned = Permute { dims: Axes::from_slice(&[0, 2, 1]) };
            let turned = rebuild.call(&format!("{name}_weight"), turned.into(), [whole], std::iter::empty())?;
            operands.extend(by_lane(rebuild, plan, Value::from(turned).into(), name)?);
        }
        Head::Expert => {
            operands.push(rebuild.operand(product.operands[3]));
            operands.extend(by_lane(rebuild, plan, whole, name)?);
            if product.operands[2] != Operand::None {
                let bias = rebuild.operand(product.operands[2]);
                tables = by_lane(rebuild, plan, bias, name)?;
            }
            operands.extend(tables.iter().copied());
        }
    }
    Ok((repeat, operands, tables))
}

/// Parts of a joined result that are read by themselves too.
fn parts_of(
    rebuild: &mut Rebuild<'_>,
    joined: &Joined,
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

/// The lanes' parts of a weight or bias of the new graph, whose dim 1 is the columns of the product.
fn by_lane(rebuild: &mut Rebuild<'_>, plan: &Plan, whole: Operand, name: &str) -> Result<Vec<Operand>, GraphError> {
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

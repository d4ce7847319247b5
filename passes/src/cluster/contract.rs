//! Matmuls and gated units take in the pointwise ops behind them: bias, activation, residual, casts; two matmuls of the same rows share a
//! main loop.

use super::{
    absorb::next_exit,
    exits,
    inline::{Inliner, is_pointwise},
    partition::{Kind, Partition},
};
use crate::{cost, pipeline::Context, rebuild::Rebuild};
use eglu_ir::{
    Graph, GraphError, NodeId, Op, Operand, Program, Ref, Value,
    ops::{Axes, Contract, DenseGlu, Permute, Pointwise},
    program::InstrOp,
};

/// Most tensors that one kernel writes.
const RESULTS: usize = 4;
/// Fewest columns of products that share a main loop: the order in which narrower ones are summed depends on their width, and it decides
/// between nearly equal experts of a router.
pub(crate) const COLUMNS: i64 = 64;
/// Most nodes of an epilogue.
const EPILOGUE: usize = 24;

/// Groups every product with its epilogue, then products that share a main loop, where that pays on the device.
pub(crate) fn group(partition: &mut Partition<'_>, context: &Context<'_>) {
    for id in partition.order.clone() {
        if !is_head(partition.graph, id) {
            continue;
        }
        let (mut exit, mut members) = (id, vec![id]);
        while let Some(taken) = next_exit(partition, exit) {
            exit = *taken.last().unwrap_or(&exit);
            members.extend(taken);
        }
        while let Some(next) = another_result(partition, &members) {
            members.extend(next);
            members.sort_unstable_by_key(|&id| partition.rank(id));
        }
        if members.len() > 1 && cost::fusing_pays(partition.graph, &members, context.profile) {
            partition.join(&members, Kind::Contract);
        }
    }
    for id in partition.order.clone() {
        if let Some(other) = shares_main_loop(partition, id) {
            let both: Vec<NodeId> = [id, other].iter().flat_map(|&id| partition.members(id)).copied().collect();
            partition.join(&both, Kind::Contract);
        }
    }
}

/// A product that can have an epilogue. Accumulators are real numbers: integer products wrap at every step, which no epilogue could make good.
fn is_head(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match node.op() {
        Some(Op::MatMul(_)) => node.outputs[0].dtype.is_float(),
        Some(Op::DenseGlu(_)) => node.outputs[0].rank() > 1,
        _ => false,
    }
}

/// Pointwise nodes, one behind the other, that go from what the group computes to a value that is stored anyway, since something else than a
/// loop reads it.
fn another_result(partition: &Partition<'_>, members: &[NodeId]) -> Option<Vec<NodeId>> {
    let graph = partition.graph;
    let shape = &graph.node(members[0]).outputs[0].shape;
    let fits =
        |id: NodeId| partition.members(id).len() == 1 && is_pointwise(graph, id) && graph.node(id).outputs[0].shape == *shape;
    let stored = |id: NodeId| {
        let looped = |&user: &NodeId| is_pointwise(graph, user) || matches!(graph.node(user).op(), Some(Op::Reduce(_)));
        partition.is_output(id) || !partition.users(id).iter().all(looped)
    };
    let chain = |first: NodeId| {
        let (mut chain, mut last) = (vec![first], first);
        while fits(last) && members.len() + chain.len() <= EPILOGUE {
            match partition.users(last) {
                _ if stored(last) => return Some(chain),
                &[next] if !members.contains(&next) => {
                    chain.push(next);
                    last = next;
                }
                _ => return None,
            }
        }
        None
    };
    let users = members.iter().flat_map(|&id| partition.users(id)).copied().filter(|user| !members.contains(user));
    users.filter_map(chain).find(|chain| {
        let wider: Vec<NodeId> = members.iter().chain(chain).copied().collect();
        exits(graph, &wider).len() <= RESULTS && partition.is_convex(&wider)
    })
}

/// The next product of the same rows by a matrix of the same type, not yet paired.
fn shares_main_loop(partition: &Partition<'_>, id: NodeId) -> Option<NodeId> {
    let graph = partition.graph;
    let single = |id: NodeId| {
        let heads = partition.members(id).iter().filter(|&&member| is_head(graph, member)).count();
        let ty = &graph.node(id).outputs[0];
        let wide = ty.shape.last().and_then(|columns| columns.as_const()).is_some_and(|columns| columns >= COLUMNS);
        let matmul = matches!(graph.node(id).op(), Some(Op::MatMul(_))) && ty.dtype.is_float();
        matmul && wide && heads == 1 && matches!(partition.kind(id), Kind::Single | Kind::Contract)
    };
    if !single(id) {
        return None;
    }
    let operands = |id: NodeId| Some((graph.node(id).operands.first()?.value()?, graph.node(id).operands.get(1)?.value()?));
    let (a, b) = operands(id)?;
    let alike = |other: NodeId| {
        let Some((x, w)) = operands(other) else { return false };
        x == a && graph.ty(w) == graph.ty(b) && graph.ty(b).rank() == 2 && graph.ty(a).rank() > 1
    };
    let later = |other: &NodeId| partition.rank(*other) > partition.rank(id);
    let mut others: Vec<NodeId> = partition.users(a.node).iter().copied().filter(later).collect();
    others.sort_unstable_by_key(|&other| partition.rank(other));
    others.into_iter().find(|&other| {
        let both: Vec<NodeId> = [id, other].iter().flat_map(|&id| partition.members(id)).copied().collect();
        // Neither matrix may come from the other's epilogue.
        let apart = [id, other].iter().all(|&id| operands(id).is_some_and(|(_, w)| !both.contains(&w.node)));
        single(other) && alike(other) && apart && exits(graph, &both).len() <= RESULTS && partition.is_convex(&both)
    })
}

/// Emits a group as one contraction, with an output for each exit.
pub(crate) fn emit(rebuild: &mut Rebuild<'_>, members: &[NodeId]) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let (heads, epilogue): (Vec<NodeId>, Vec<NodeId>) = members.iter().partition(|&&id| is_head(graph, id));
    let mut program = Inliner::new(graph);
    for &head in &heads {
        program.seed(head.into());
    }
    for &id in &epilogue {
        program.node(id)?;
    }
    let exits = exits(graph, members);
    for &exit in &exits {
        program.result(exit.into());
    }
    let captures: Vec<Operand> = program.captures.iter().map(|&value| rebuild.value(value).into()).collect();
    let program = program.finish();
    let (lanes, mut operands, program) = match graph.node(heads[0]).op() {
        Some(Op::DenseGlu(unit)) => {
            let (operands, biases) = unit_operands(rebuild, heads[0])?;
            (2, operands, after_unit(unit, &biases, &program))
        }
        _ => {
            let first = graph.node(heads[0]).operands.first().copied();
            let matrices = heads.iter().filter_map(|&head| graph.node(head).operands.get(1).copied());
            let operands = first.into_iter().chain(matrices).map(|operand| rebuild.operand(operand)).collect();
            (heads.len(), operands, program)
        }
    };
    operands.extend(captures);
    let name = graph.node(*exits.last().unwrap_or(&members[0])).name.clone();
    let op = Contract::new(lanes, program);
    let new = rebuild.call(&name, op.into(), operands, super::origins(graph, members))?;
    for (index, &exit) in exits.iter().enumerate() {
        rebuild.bind(exit.into(), Value { node: new, index: index as u32 });
    }
    Ok(())
}

/// What a gated unit reads as a contraction of two lanes: rows, matrices and biases; and the lane of each bias.
fn unit_operands(rebuild: &mut Rebuild<'_>, unit: NodeId) -> Result<(Vec<Operand>, Vec<usize>), GraphError> {
    let node = rebuild.old.node(unit);
    let given = node.operands.clone();
    let mut operands = vec![rebuild.operand(given[0])];
    for lane in [1, 3] {
        let weight = rebuild.operand(given[lane]);
        let turned = Permute { dims: Axes::from_slice(&[1, 0]) };
        let view = rebuild.call(&format!("{}_lane", node.name), turned.into(), [weight], std::iter::empty())?;
        operands.push(Value::from(view).into());
    }
    let mut biases = Vec::new();
    for (lane, at) in [2, 4].into_iter().enumerate() {
        if given[at] != Operand::None {
            operands.push(rebuild.operand(given[at]));
            biases.push(lane);
        }
    }
    Ok((operands, biases))
}

/// The program of a contraction: the unit's gating of two biased lanes, then `then` of its result and captures.
fn after_unit(unit: &DenseGlu, biases: &[usize], then: &Program) -> Program {
    let gating = &unit.program;
    let dtype = gating.params[0];
    let captures = then.params[1..].iter().copied();
    let mut program = Program::new(gating.params.iter().copied().chain(biases.iter().map(|_| dtype)).chain(captures));
    let mut lanes = [Ref::Param(0), Ref::Param(1)];
    for (i, &lane) in biases.iter().enumerate() {
        let bias = Ref::Param(2 + i as u32);
        lanes[lane] = program.push(InstrOp::Pointwise(Pointwise::Add), [lanes[lane], bias], dtype);
    }
    let append = |program: &mut Program, from: &Program, params: &dyn Fn(u32) -> Ref| {
        let shift = program.instrs.len() as u32;
        let moved = |operand: Ref| match operand {
            Ref::Param(i) => params(i),
            Ref::Instr(i) => Ref::Instr(i + shift),
            scalar => scalar,
        };
        for instr in &from.instrs {
            program.push(instr.op, instr.args.iter().map(|&arg| moved(arg)), instr.dtype);
        }
        from.results.iter().map(|&(result, dtype)| (moved(result), dtype)).collect::<Vec<_>>()
    };
    let (mut result, stored) = append(&mut program, gating, &|i| lanes[i as usize])[0];
    if program.dtype_of(result) != stored {
        result = program.push(InstrOp::Cast, [result], stored);
    }
    let first_capture = 2 + biases.len() as u32;
    let results = append(&mut program, then, &|i| if i == 0 { result } else { Ref::Param(first_capture + i - 1) });
    program.results.extend(results);
    program
}

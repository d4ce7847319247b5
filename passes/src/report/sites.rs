//! Which nodes of an optimised graph are fused, and what that saves.

use super::{Kind, Report, Saves, Site, Step};
use crate::cost;
use eglu_ir::{
    Graph, NodeId, Op, Operand, Program, Ref, Value,
    ops::{Lowering, Pointwise},
    program::InstrOp,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The fused nodes in topological order.
///
/// A rule that makes several nodes at once, such as a block and its router, lets all of them stand for what it matched; savings are
/// counted for one of them, blocks first.
pub(super) fn find(report: &Report, graph: &Graph) -> Vec<Site> {
    let order = graph.topological().unwrap_or_default();
    let mut kinds: Vec<(usize, NodeId, Kind)> =
        order.into_iter().enumerate().filter_map(|(at, id)| Some((at, id, kind(graph, id)?))).collect();
    kinds.sort_by_key(|&(at, _, kind)| (kind != Kind::Moe, at));
    let ops = kinds.iter().filter_map(|&(_, id, _)| Some(graph.node(id).op()?.name()));
    let found = Occurrences::new(report, ops);
    let mut claimed: FxHashSet<Arc<str>> = FxHashSet::default();
    let mut sites: Vec<(usize, Site)> = Vec::new();
    for (at, id, kind) in kinds {
        if let Some(site) = site(report, &found, graph, (id, kind), &claimed) {
            claimed.extend(site.nodes.iter().cloned());
            sites.push((at, site));
        }
    }
    sites.sort_by_key(|&(at, _)| at);
    sites.into_iter().map(|(_, site)| site).collect()
}

/// Where names occur, so that deep models are not searched for each of their sites.
struct Occurrences {
    /// The imported node of each name.
    nodes: FxHashMap<Arc<str>, NodeId>,
    /// Positions in the trail of the steps that rewrote each imported node.
    steps: FxHashMap<Arc<str>, Vec<usize>>,
    /// What the steps that rewrote no imported node made, by op.
    elsewhere: FxHashMap<&'static str, Last>,
}

/// Positions in the trail of the last steps that made an op.
#[derive(Clone, Copy, Default)]
struct Last {
    /// At the top of what the rule gave.
    top: Option<usize>,
    /// Inside of it, where texts are cut short and only the rule's name tells.
    inside: Option<usize>,
}

impl Last {
    fn among(report: &Report, steps: &[usize], op: &str) -> Last {
        let (call, family) = (format!("{op}("), format!("{}-", op.replace('_', "-")));
        let last = |made: &dyn Fn(&Step) -> bool| steps.iter().rev().copied().find(|&at| made(&report.trail[at]));
        Last {
            // A rule that rewrites something inside of it did not make it.
            top: last(&|step| step.after.starts_with(&call) && !step.before.starts_with(&call)),
            inside: last(&|step| step.after.contains(&call) || step.rule.starts_with(&family)),
        }
    }
}

impl Occurrences {
    /// For sites that are these ops.
    fn new(report: &Report, ops: impl Iterator<Item = &'static str>) -> Occurrences {
        let graph = report.before();
        let nodes = graph.node_ids().map(|id| (graph.node(id).name.clone(), id)).collect();
        let (mut steps, mut none) = (FxHashMap::<Arc<str>, Vec<usize>>::default(), Vec::new());
        for (at, step) in report.trail.iter().enumerate() {
            for node in &step.nodes {
                steps.entry(node.clone()).or_default().push(at);
            }
            if step.nodes.is_empty() {
                none.push(at);
            }
        }
        let mut elsewhere = FxHashMap::default();
        for op in ops {
            elsewhere.entry(op).or_insert_with(|| Last::among(report, &none, op));
        }
        Occurrences { nodes, steps, elsewhere }
    }

    /// Positions of the steps that rewrote any of these nodes, in order.
    fn steps_of(&self, origins: &[Arc<str>]) -> Vec<usize> {
        let mut own: Vec<usize> = origins.iter().filter_map(|name| self.steps.get(name)).flatten().copied().collect();
        own.sort_unstable();
        own.dedup();
        own
    }
}

fn site(
    report: &Report,
    found: &Occurrences,
    graph: &Graph,
    (id, kind): (NodeId, Kind),
    claimed: &FxHashSet<Arc<str>>,
) -> Option<Site> {
    let node = graph.node(id);
    let own: Vec<Arc<str>> = node.origins.iter().filter(|name| !claimed.contains(*name)).cloned().collect();
    let saves = saves(report, found, &own);
    // Blocks are worth naming however they arrived; anything else is a site only where several kernels became one.
    let named = matches!(kind, Kind::Moe | Kind::Glu | Kind::Route);
    (named || saves.launches > 0).then(|| Site {
        kind,
        rule: rule(report, found, node.op(), &node.origins),
        nodes: if own.is_empty() { node.origins.to_vec() } else { own },
        saves,
        node: node.name.clone(),
    })
}

fn kind(graph: &Graph, id: NodeId) -> Option<Kind> {
    Some(match graph.node(id).op()? {
        Op::Moe(_) => Kind::Moe,
        Op::DenseGlu(_) => Kind::Glu,
        Op::Contract(op) if op.lanes == 2 && gates(&op.program) => Kind::Glu,
        Op::Glu(_) if gates_one_input(graph, id) => Kind::Glu,
        Op::Contract(_) | Op::MatMul(_) | Op::ExpertMatmul(_) | Op::ExpertContract(_) | Op::ExpertOuter(_) => Kind::Contract,
        Op::Reduce(_) | Op::MapReduce(_) | Op::Combine(_) | Op::Cumsum(_) => Kind::Reduce,
        Op::RmsNorm(_) | Op::LayerNorm(_) | Op::Softmax(_) | Op::ReduceChain(_) => Kind::RowNorm,
        Op::Route(_) => Kind::Route,
        Op::Pointwise(_) | Op::Cast(_) | Op::Map(_) | Op::Glu(_) => Kind::Pointwise,
        _ => return None,
    })
}

/// True for a program that multiplies what it makes of its first accumulator alone by what it makes of the second.
fn gates(program: &Program) -> bool {
    let mut reads: Vec<[bool; 2]> = Vec::with_capacity(program.instrs.len());
    program.instrs.iter().any(|instr| {
        let of = |arg: &Ref| match arg {
            Ref::Param(0) => [true, false],
            Ref::Param(1) => [false, true],
            Ref::Instr(i) => reads[*i as usize],
            _ => [false; 2],
        };
        let args: Vec<[bool; 2]> = instr.args.iter().map(of).collect();
        reads.push([0, 1].map(|lane| args.iter().any(|reads| reads[lane])));
        let lanes = [[true, false], [false, true]];
        instr.op == InstrOp::Pointwise(Pointwise::Mul) && lanes.iter().all(|lane| args.contains(lane))
    })
}

/// True for gate and up that are matmuls of one tensor.
fn gates_one_input(graph: &Graph, id: NodeId) -> bool {
    let sources: Vec<Option<Value>> = graph.node(id).operands.iter().map(|&operand| product_of(graph, operand)).collect();
    sources.len() == 2 && sources[0].is_some() && sources[0] == sources[1]
}

/// What a matmul multiplies, looking through views of its result.
fn product_of(graph: &Graph, operand: Operand) -> Option<Value> {
    let node = graph.node(operand.value()?.node);
    let first = *node.operands.first()?;
    match node.op()? {
        Op::MatMul(_) | Op::Contract(_) => first.value(),
        op if op.code().lowering() == Lowering::View => product_of(graph, first),
        _ => None,
    }
}

/// The last rule that made this op of these nodes, at the top of its result or else inside; without one, the pass that fuses without rules.
fn rule(report: &Report, found: &Occurrences, op: Option<&Op>, origins: &[Arc<str>]) -> String {
    let Some(name) = op.map(Op::name) else { return String::new() };
    let own = Last::among(report, &found.steps_of(origins), name);
    let elsewhere = found.elsewhere.get(name).copied().unwrap_or_default();
    let step = own.top.max(elsewhere.top).or(own.inside.max(elsewhere.inside));
    step.map_or_else(|| "cluster".into(), |at| report.trail[at].rule.clone())
}

/// Kernels that the imported nodes would launch one by one, less the one left; and the traffic between them.
fn saves(report: &Report, found: &Occurrences, origins: &[Arc<str>]) -> Saves {
    let graph = report.before();
    let sizes = report.sizes();
    let inside: FxHashSet<NodeId> = origins.iter().filter_map(|name| found.nodes.get(name).copied()).collect();
    let launching: Vec<NodeId> = inside.iter().copied().filter(|&id| graph.node(id).op().is_some_and(cost::launches)).collect();
    let bytes: f64 = launching
        .iter()
        .flat_map(|&id| (0..graph.node(id).outputs.len()).map(move |index| Value { node: id, index: index as u32 }))
        .filter_map(|value| Some(cost::bytes(graph, value, &sizes) * (1 + readers(graph, value, &inside)?) as f64))
        .sum();
    Saves { launches: launching.len().saturating_sub(1), bytes: bytes as u64 }
}

/// How many kernels read a value, directly or through views; `None` if one is outside, or if the graph returns the value.
fn readers(graph: &Graph, value: Value, inside: &FxHashSet<NodeId>) -> Option<usize> {
    if graph.outputs().iter().any(|output| output.value == value) {
        return None;
    }
    let users = graph.users(value.node).into_iter();
    users.filter(|&user| graph.node(user).operands.contains(&Operand::Value(value))).try_fold(0, |count, user| {
        let op = graph.node(user).op()?;
        if op.code().lowering() == Lowering::View {
            return Some(count + readers(graph, user.into(), inside)?);
        }
        inside.contains(&user).then_some(count + 1)
    })
}

//! Products take in what is behind them beyond a chain of pointwise ops: the gating of a forward pass that keeps its pre-activations, the
//! gating's derivative in a backward pass, sums of rows and columns. Several results leave one kernel, halves or lanes that are joined
//! afterwards in one tensor. Products by expert come here with all that is behind them.
//!
//! What is cheap to compute from tensors that the kernel reads anyway (an activation from its pre-activation) is computed there again rather
//! than kept in memory from the forward pass.

use super::{
    beside,
    contract::COLUMNS,
    folded::{self, Folded},
    inline::is_pointwise,
    partition::{Kind, Partition},
    product_emit,
};
use crate::{
    cost,
    pipeline::Context,
    recompute::{Parts, Recompute},
};
use eglu_ir::{
    Graph, GraphError, NodeId, Op, Operand, Value,
    ops::{Cat, Pointwise, Reshape, Slice},
};
use rustc_hash::FxHashSet;
use std::{cmp::Reverse, collections::BinaryHeap};

/// More instructions than these are not computed a second time.
pub(crate) const AGAIN: usize = 32;

/// More nodes than these do not join one kernel.
const MOST: usize = 64;
/// So many nodes of one reader each are followed to where a dense product's value is read twice.
const CHAIN: usize = 24;

/// Most readers of a value that is more than a link of a chain.
const READERS: usize = 16;

/// What kind of product it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Rows by ids.
    Expert,
    /// Rows that lie by expert.
    Grouped,
    /// Rows by one matrix.
    Dense,
}

impl Head {
    /// That of a node, if it is a product of floats that can have an epilogue here.
    pub fn of(graph: &Graph, id: NodeId) -> Option<Head> {
        let node = graph.node(id);
        let head = match node.op()? {
            Op::ExpertMatmul(_) => Head::Expert,
            Op::GroupedMm(_) => Head::Grouped,
            Op::MatMul(_) if node.operands.iter().all(|x| x.value().is_some_and(|x| graph.ty(x).rank() == 2)) => Head::Dense,
            _ => return None,
        };
        node.outputs[0].dtype.is_float().then_some(head)
    }
}

/// A product with what its kernel shall compute besides.
pub(crate) struct Plan {
    pub head: Head,
    /// The product.
    pub product: NodeId,
    /// Another dense product of the same rows, which is a lane of its own.
    pub partner: Option<NodeId>,
    /// Slices of the product that are lanes of their own; none where the product as a whole is one.
    pub lanes: Vec<NodeId>,
    /// Lanes are columns in turn, not halves.
    pub interleaved: bool,
    /// Pointwise nodes that are computed here, and only here.
    pub members: Vec<NodeId>,
    /// Pointwise nodes that are computed here too.
    pub again: FxHashSet<NodeId>,
    /// Two members that are joined to one tensor.
    pub joined: Option<Joined>,
    /// Reductions of accumulators or members.
    pub folds: Vec<Folded>,
}

/// Members side by side, or interleaved, in one tensor.
pub(crate) struct Joined {
    pub parts: [NodeId; 2],
    /// The nodes that join them; the last is the result.
    pub nodes: Vec<NodeId>,
    pub interleaved: bool,
}

impl Plan {
    /// The nodes whose place in the graph the kernel takes.
    pub fn nodes(&self) -> Vec<NodeId> {
        let joined = self.joined.iter().flat_map(|joined| joined.nodes.iter().copied());
        let folds = self.folds.iter().flat_map(|fold| fold.view.into_iter().chain([fold.reduce]));
        let heads = [self.product].into_iter().chain(self.partner);
        let all = heads.chain(self.lanes.iter().copied()).chain(self.members.iter().copied()).chain(joined).chain(folds);
        let (mut seen, mut nodes): (FxHashSet<NodeId>, Vec<NodeId>) = Default::default();
        nodes.extend(all.filter(|&id| seen.insert(id)));
        nodes
    }

    /// The values that accumulators stand for.
    pub fn accumulators(&self) -> Vec<NodeId> {
        if self.lanes.is_empty() { [self.product].into_iter().chain(self.partner).collect() } else { self.lanes.clone() }
    }

    /// Nothing but the product.
    fn alone(head: Head, product: NodeId) -> Plan {
        let again = FxHashSet::default();
        Plan {
            head,
            product,
            partner: None,
            lanes: vec![],
            interleaved: false,
            members: vec![],
            again,
            joined: None,
            folds: vec![],
        }
    }

    /// The node is computed in this kernel's program.
    pub fn computes(&self, id: NodeId) -> bool {
        self.members.contains(&id) || self.again.contains(&id)
    }
}

/// Fuses the graph's products.
pub(crate) fn fuse(graph: &mut Graph, context: &Context<'_>) -> Result<bool, GraphError> {
    let (plans, schedule): (Vec<Plan>, Vec<(Kind, Vec<NodeId>)>) = {
        let mut partition = Partition::new(graph)?;
        let products = partition.order.clone();
        let parts = Parts::of(graph)?;
        let mut plans = Vec::new();
        for product in products {
            if partition.kind(product) == Kind::Single
                && let Some(plan) = plan(&partition, product, &parts, context)
            {
                partition.join(&plan.nodes(), Kind::Contract);
                plans.push(plan);
            }
        }
        let schedule = partition.schedule().into_iter().map(|(kind, nodes)| (kind, nodes.to_vec())).collect();
        (plans, schedule)
    };
    if plans.is_empty() {
        return Ok(false);
    }
    *graph = product_emit::emit(graph, &plans, &schedule)?;
    graph.remove_dead();
    Ok(true)
}

fn plan(partition: &Partition<'_>, product: NodeId, parts: &Parts, context: &Context<'_>) -> Option<Plan> {
    let graph = partition.graph;
    let head = Head::of(graph, product)?;
    if head == Head::Dense && !forks(partition, product) {
        return None;
    }
    let mut plan = gated(partition, head, product).unwrap_or_else(|| behind(partition, head, product, parts, context));
    if head != Head::Grouped {
        folded::find(partition, &mut plan, parts, context.profile);
    }
    let several = plan.partner.is_some() || !plan.lanes.is_empty() || !plan.again.is_empty() || plan.joined.is_some();
    // A chain behind one dense product has a pass of its own.
    let wanted = head != Head::Dense || several || !plan.folds.is_empty();
    let computes = !plan.members.is_empty() || !plan.folds.is_empty();
    if wanted && computes && cost::fusing_pays(graph, &plan.nodes(), context.profile) {
        return Some(plan);
    }
    let repeats = product_emit::repeated_rows(graph, product).is_some();
    repeats.then(|| Plan::alone(head, product))
}

/// True if more than a chain of pointwise nodes is behind a product: such a chain has a pass of its own.
fn forks(partition: &Partition<'_>, product: NodeId) -> bool {
    let mut at = product;
    for _ in 0..CHAIN {
        match partition.users(at) {
            [next] if !partition.is_output(at) => match partition.graph.node(*next).op() {
                _ if is_pointwise(partition.graph, *next) => at = *next,
                Some(Op::Reduce(_) | Op::Reshape(_) | Op::Slice(_) | Op::Cat(_)) => return true,
                _ => return false,
            },
            // What very many read is a residual stream, not a pre-activation.
            users => return (1..=READERS).contains(&users.len()),
        }
    }
    false
}

/// The gating of a product's two lanes, up to what the next product reads or the graph returns.
fn gated(partition: &Partition<'_>, head: Head, product: NodeId) -> Option<Plan> {
    let graph = partition.graph;
    let found = lanes(partition, product).map(|(lanes, interleaved)| Plan { lanes, interleaved, ..Plan::alone(head, product) });
    let partner = || Some(Plan { partner: Some(partner(partition, head, product)?), ..Plan::alone(head, product) });
    let plan = found.or_else(partner)?;
    let heads: Vec<NodeId> = [product].into_iter().chain(plan.partner).collect();
    let closure = pointwise_behind(partition, &plan.accumulators(), &heads);
    let goes_on = |id: NodeId| {
        let read = |user: &NodeId| Head::of(graph, *user).is_some() && graph.node(*user).operands[0] == id.into();
        partition.users(id).iter().any(read) || (partition.is_output(id) && head != Head::Expert)
    };
    let mut members: FxHashSet<NodeId> = closure.iter().copied().filter(|&id| goes_on(id)).collect();
    for &id in closure.iter().rev() {
        if members.contains(&id) {
            members.extend(operands(graph, id).filter(|source| closure.contains(source)));
        }
    }
    let reads = |lane: &NodeId| members.iter().any(|&id| operands(graph, id).any(|source| source == *lane));
    if !plan.accumulators().iter().all(reads) {
        return None;
    }
    let plan = Plan { members: closure.into_iter().filter(|id| members.contains(id)).collect(), ..plan };
    partition.is_convex(&plan.nodes()).then_some(plan)
}

/// Another dense product of the same rows by a matrix of the same type, which gates this one.
fn partner(partition: &Partition<'_>, head: Head, product: NodeId) -> Option<NodeId> {
    let graph = partition.graph;
    if head != Head::Dense {
        return None;
    }
    let operands = |id: NodeId| Some((graph.node(id).operands[0].value()?, graph.ty(graph.node(id).operands[1].value()?)));
    let (rows, matrix) = operands(product)?;
    matrix.shape.last()?.as_const().filter(|&columns| columns >= COLUMNS)?;
    let fits = |other: NodeId| {
        let alike = Head::of(graph, other) == Some(Head::Dense) && operands(other) == Some((rows, matrix));
        other != product && alike && partition.kind(other) == Kind::Single
    };
    let mut others: Vec<NodeId> = partition.users(rows.node).iter().copied().filter(|&other| fits(other)).collect();
    others.sort_unstable_by_key(|&other| partition.rank(other));
    others.into_iter().find(|&other| partition.rank(other) > partition.rank(product))
}

/// The slices of a product that are its two halves, or its even and odd columns.
fn lanes(partition: &Partition<'_>, product: NodeId) -> Option<(Vec<NodeId>, bool)> {
    let graph = partition.graph;
    let columns = graph.node(product).outputs[0].shape.get(1)?.as_const()?;
    let lane = |index: i64, interleaved: bool| {
        let (start, step) = if interleaved { (index, 2) } else { (index * columns / 2, 1) };
        partition.users(product).iter().copied().find(|&user| match graph.node(user).op() {
            Some(Op::Slice(slice)) => {
                let fits = |end: i64| if interleaved { end > columns - 2 + index } else { end == start + columns / 2 };
                slice.dim == 1 && slice.step == step && slice.start.is(start) && slice.end.as_const().is_some_and(fits)
            }
            _ => false,
        })
    };
    if columns % 2 != 0 {
        return None;
    }
    [false, true].into_iter().find_map(|interleaved| {
        let (first, second) = (lane(0, interleaved)?, lane(1, interleaved)?);
        let same = graph.node(first).outputs == graph.node(second).outputs;
        same.then(|| (vec![first, second], interleaved))
    })
}

/// Pointwise nodes of the product's shape behind it.
fn behind(partition: &Partition<'_>, head: Head, product: NodeId, parts: &Parts, context: &Context<'_>) -> Plan {
    let graph = partition.graph;
    let closure = pointwise_behind(partition, &[product], &[]);
    // What only a reduction reads is better computed while it reduces.
    let mut reduced: FxHashSet<NodeId> = FxHashSet::default();
    for &id in closure.iter().rev() {
        let reduces = |user: &NodeId| matches!(graph.node(*user).op(), Some(Op::Reduce(_))) || reduced.contains(user);
        if !partition.is_output(id) && partition.users(id).iter().all(reduces) {
            reduced.insert(id);
        }
    }
    let members = closure.into_iter().filter(|id| !reduced.contains(id)).collect();
    let mut plan = Plan { members, ..Plan::alone(head, product) };
    if plan.members.is_empty() {
        return plan;
    }
    beside::take(partition, &mut plan, parts);
    compute_again(graph, &mut plan, |id| context.recompute != Recompute::None || parts.is_backward(id));
    plan.joined = joined(partition, &plan);
    if plan.joined.is_some() && !partition.is_convex(&plan.nodes()) {
        plan.joined = None;
    }
    plan
}

pub(crate) fn operands(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
    graph.node(id).operands.iter().filter_map(|operand| operand.value()).map(|value| value.node)
}

/// Pointwise nodes of the seeds' shape that depend on them, as far as the kernel can take them in; in topological order.
fn pointwise_behind(partition: &Partition<'_>, seeds: &[NodeId], with: &[NodeId]) -> Vec<NodeId> {
    let graph = partition.graph;
    let shape = &graph.node(seeds[0]).outputs[0].shape;
    let mut taken: Vec<NodeId> = Vec::new();
    let later = |id: &NodeId| Reverse((partition.rank(*id), *id));
    let mut waiting: BinaryHeap<Reverse<(usize, NodeId)>> =
        seeds.iter().flat_map(|&seed| partition.users(seed)).map(later).collect();
    let mut seen: FxHashSet<NodeId> = FxHashSet::default();
    while let Some(Reverse((_, id))) = waiting.pop() {
        let fits = partition.kind(id) == Kind::Single && is_pointwise(graph, id) && graph.node(id).outputs[0].shape == *shape;
        if !fits || !seen.insert(id) {
            continue;
        }
        let all: Vec<NodeId> = seeds.iter().chain(with).chain(&taken).copied().chain([id]).collect();
        if partition.is_convex(&all) {
            taken.push(id);
            waiting.extend(partition.users(id).iter().map(later));
        }
        if taken.len() == MOST {
            break;
        }
    }
    taken
}

/// Takes producers of captures in, where the kernel then reads no more tensors than before.
fn compute_again(graph: &Graph, plan: &mut Plan, allowed: impl Fn(NodeId) -> bool) {
    let shape = graph.node(plan.product).outputs[0].shape.clone();
    let full = |id: NodeId, index: u32| graph.ty(Value { node: id, index }).shape == shape;
    let captured = |computed: &dyn Fn(NodeId) -> bool, among: &[NodeId]| -> FxHashSet<Value> {
        let read = among.iter().flat_map(|&id| graph.node(id).operands.iter().filter_map(|operand| operand.value()));
        read.filter(|value| value.node != plan.product && !computed(value.node) && full(value.node, value.index)).collect()
    };
    let before = captured(&|id| plan.members.contains(&id), &plan.members);
    let mut again: Vec<NodeId> = Vec::new();
    let mut stack: Vec<NodeId> = before.iter().map(|value| value.node).collect();
    while let Some(id) = stack.pop() {
        let fits = is_pointwise(graph, id) && full(id, 0) && allowed(id);
        if fits && !again.contains(&id) && !plan.members.contains(&id) {
            again.push(id);
            stack.extend(operands(graph, id));
        }
        // A residual stream goes on through the whole model.
        if plan.members.len() + again.len() > AGAIN {
            return;
        }
    }
    let all: Vec<NodeId> = plan.members.iter().chain(&again).copied().collect();
    let after = captured(&|id| all.contains(&id), &all);
    if !again.is_empty() && after.len() <= before.len() {
        plan.again = again.into_iter().collect();
    }
}

/// Two members that a `cat` joins, side by side or as alternating columns.
fn joined(partition: &Partition<'_>, plan: &Plan) -> Option<Joined> {
    let graph = partition.graph;
    let only_user = |id: NodeId| match partition.users(id) {
        [user] => Some(*user),
        _ => None,
    };
    let part = |operand: &Operand| operand.value().map(|value| value.node).filter(|id| plan.members.contains(id));
    plan.members.iter().flat_map(|&id| partition.users(id)).find_map(|&user| {
        let node = graph.node(user);
        match node.op()? {
            Op::Cat(Cat { dim: 1 }) if node.outputs[0].rank() == 2 => {
                let [first, second] = &node.operands[..] else { return None };
                let parts = [part(first)?, part(second)?];
                let alike = graph.node(parts[0]).outputs == graph.node(parts[1]).outputs;
                (alike && parts[0] != parts[1]).then(|| Joined { parts, nodes: vec![user], interleaved: false })
            }
            Op::Reshape(_) => {
                let cat = only_user(user)?;
                let (Op::Cat(Cat { dim: 2 }), [first, second]) = (graph.node(cat).op()?, &graph.node(cat).operands[..]) else {
                    return None;
                };
                let views = [first.value()?.node, second.value()?.node];
                let columns = |view: NodeId| {
                    let shape = &graph.node(view).outputs[0].shape;
                    let apart = matches!(graph.node(view).op(), Some(Op::Reshape(_))) && shape.len() == 3 && shape[2].is(1);
                    if apart && partition.users(view).len() == 1 { part(&graph.node(view).operands[0]) } else { None }
                };
                let parts = [columns(views[0])?, columns(views[1])?];
                let back = only_user(cat)
                    .filter(|&back| matches!(graph.node(back).op(), Some(Op::Reshape(Reshape { shape })) if shape.len() == 2))?;
                let alike = graph.node(parts[0]).outputs == graph.node(parts[1]).outputs && parts[0] != parts[1];
                alike.then(|| Joined { parts, nodes: vec![views[0], views[1], cat, back], interleaved: true })
            }
            _ => None,
        }
    })
}

/// Rows of a product that are each row of another tensor several times: how often, and that tensor.
pub(crate) fn repeated(graph: &Graph, rows: Value) -> Option<(usize, Value)> {
    let node = graph.node(rows.node);
    match node.op()? {
        Op::Index(index) if index.axes[..] == [0] => {
            let (source, by) = (node.operands[0].value()?, graph.node(node.operands.get(1)?.value()?.node));
            let (Op::Pointwise(Pointwise::FloorDiv), Operand::Scalar(k)) = (by.op()?, *by.operands.get(1)?) else { return None };
            let Op::Iota(iota) = graph.node(by.operands[0].value()?.node).op()? else { return None };
            let k = usize::try_from(k.as_i64()).ok().filter(|&k| k > 0)?;
            let all = graph.ty(source).shape[0].clone() * eglu_ir::Dim::from(k as i64);
            (iota.start == 0 && iota.step == 1 && iota.len == all && graph.ty(source).rank() == 2).then_some((k, source))
        }
        Op::Reshape(_) => {
            let expand = graph.node(node.operands[0].value()?.node);
            let Op::Expand(_) = expand.op()? else { return None };
            let source = expand.operands[0].value()?;
            let (from, to, flat) = (&graph.ty(source).shape, &expand.outputs[0].shape, &node.outputs[0].shape);
            let ([t, one, h], [_, k, _], [_, width]) = (&from[..], &to[..], &flat[..]) else { return None };
            let fits = one.is(1) && *t == to[0] && *h == to[2] && width == h;
            fits.then_some((k.as_const()? as usize, source))
        }
        _ => None,
    }
}

/// The slice of a weight's or bias's columns that belongs to a lane's slice of the product.
pub(crate) fn lane_slice(graph: &Graph, lane: NodeId) -> Option<Slice> {
    match graph.node(lane).op() {
        Some(Op::Slice(slice)) => Some(slice.clone()),
        _ => None,
    }
}

//! Passes over the same lines become one kernel: norms, softmax, variances, losses and their gradients, with what stands around them.

use super::{
    inline::is_pointwise,
    lines::{Lines, Role, levels, pass},
    norms::Norm,
    partition::{Kind, Partition},
};
use crate::{
    cost,
    pipeline::Context,
    recompute::{Parts, Recompute},
};
use eglu_ir::{Graph, NodeId, Op, Value, ops::Lowering, types::numel};
use rustc_hash::FxHashSet;

/// Limits of one kernel: its programs stay in registers, its tensors fit a launch, and its lines are read from memory once.
const NODES: usize = 96;
const TENSORS: usize = 16;
const PASSES: usize = 4;

/// Lines of at least this many elements are left to kernels that share them among blocks, where lines are few.
const LONG: i64 = 1 << 14;

/// Puts the parts of norms together, and then groups what shares passes.
pub(crate) fn group(partition: &mut Partition<'_>, norms: &[Norm], parts: &Parts, context: &Context<'_>) {
    for (i, norm) in norms.iter().enumerate() {
        partition.join(&norm.parts, Kind::Norm(i as u32));
    }
    for id in by_size(partition) {
        let taken = !matches!(partition.kind(id), Kind::Single | Kind::Norm(_));
        let Some(lines) = Lines::of(partition.graph, id).filter(|_| !taken) else { continue };
        if is_few(partition.graph, &lines, context) {
            continue;
        }
        let growth = Growth { partition, lines, parts, context };
        let members = growth.members(id);
        if super::chain_emit::reads_whole_lines(growth.partition.graph, &members) && growth.pays(&members) {
            partition.join(&members, Kind::Chain);
        }
    }
}

/// All nodes, those that reduce more first, so that what belongs to lines is theirs before what they give is reduced.
fn by_size(partition: &Partition<'_>) -> Vec<NodeId> {
    let graph = partition.graph;
    let sizes = cost::typical_sizes(graph);
    let size =
        |id: NodeId| graph.node(id).operands.first().and_then(|o| o.value()).map_or(0.0, |x| cost::bytes(graph, x, &sizes));
    let mut nodes: Vec<(f64, NodeId)> = partition.order.iter().map(|&id| (size(id), id)).collect();
    nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
    nodes.into_iter().map(|(_, id)| id).collect()
}

/// True for lines that are too long and few for one block each.
fn is_few(graph: &Graph, lines: &Lines, context: &Context<'_>) -> bool {
    let sizes = cost::typical_sizes(graph);
    let size = |dims: &[eglu_ir::Dim]| numel(dims).eval(&sizes).unwrap_or(0);
    let (rows, length) = lines.full.split_at(lines.full.len() - lines.dims.len());
    size(length) >= LONG && size(rows) < i64::from(context.profile.multiprocessors)
}

struct Growth<'p, 'g> {
    partition: &'p Partition<'g>,
    lines: Lines,
    parts: &'p Parts,
    context: &'p Context<'p>,
}

impl Growth<'_, '_> {
    /// What can share passes with a reduction, in topological order.
    fn members(&self, seed: NodeId) -> Vec<NodeId> {
        let (partition, graph) = (self.partition, self.partition.graph);
        let mut members: Vec<NodeId> = partition.members(seed).to_vec();
        let mut refused: FxHashSet<NodeId> = FxHashSet::default();
        loop {
            let before = members.len();
            let mut at = 0;
            while at < members.len() {
                let id = members[at];
                at += 1;
                let producers = graph.node(id).operands.iter().filter_map(|o| o.value()).map(|value| value.node);
                let neighbours: Vec<NodeId> = producers.chain(partition.users(id).iter().copied()).collect();
                for next in neighbours {
                    if members.contains(&next) || refused.contains(&next) {
                        continue;
                    }
                    let unit = partition.members(next);
                    match self.fits(&members, unit, next) {
                        true => members.extend(unit),
                        false => drop(refused.insert(next)),
                    }
                }
            }
            if members.len() == before {
                break;
            }
            // What was refused for a detour through others may fit now.
            refused.clear();
        }
        members.sort_unstable_by_key(|&id| partition.rank(id));
        members
    }

    /// True if a node, with what it is grouped with, can join the members.
    fn fits(&self, members: &[NodeId], unit: &[NodeId], next: NodeId) -> bool {
        let (partition, graph) = (self.partition, self.partition.graph);
        if !matches!(partition.kind(next), Kind::Single | Kind::Norm(_)) || members.len() + unit.len() > NODES {
            return false;
        }
        let can = |&id: &NodeId| self.lines.role(graph, id).is_some() && !self.is_column(id);
        if !unit.iter().all(can) {
            return false;
        }
        // A kernel of both passes would keep for the one what it computes for the other.
        if self.context.recompute == Recompute::All && self.parts.is_backward(next) != self.parts.is_backward(members[0]) {
            return false;
        }
        let mut all = [members, unit].concat();
        all.sort_unstable_by_key(|&id| partition.rank(id));
        self.is_sound(&all)
            && partition.is_convex(&all)
            && (is_view(graph, next) || cost::joining_pays(graph, [members, unit], self.context.profile))
    }

    /// True for elements that only reductions across lines read, if not directly: they are computed as these read them.
    fn is_column(&self, id: NodeId) -> bool {
        let (graph, users) = (self.partition.graph, self.partition.users(id));
        let across = |&user: &NodeId| match graph.node(user).op() {
            Some(Op::Reduce(_)) => self.lines.role(graph, user).is_none(),
            _ => is_pointwise(graph, user) && self.is_column(user),
        };
        let element = self.lines.role(graph, id) == Some(Role::Element);
        element && !users.is_empty() && !self.partition.is_output(id) && users.iter().all(across)
    }

    /// True if one kernel can have these members, which are in topological order.
    fn is_sound(&self, members: &[NodeId]) -> bool {
        let graph = self.partition.graph;
        let roles: Vec<(NodeId, Role)> = members.iter().filter_map(|&id| Some((id, self.lines.role(graph, id)?))).collect();
        if roles.len() != members.len() {
            return false;
        }
        let inside: FxHashSet<NodeId> = members.iter().copied().collect();
        let own = |value: &Value| inside.contains(&value.node);
        let read = |id: NodeId| graph.node(id).operands.iter().filter_map(|o| o.value());
        if !members.iter().all(|&id| read(id).filter(own).all(|value| self.lines.aligned(graph, id, value))) {
            return false;
        }
        // A value from outside is read by elements and lines as it stands, or by lines without their dims: never both.
        let bare = self.lines.bare();
        let (mut stands, mut lifted): (FxHashSet<Value>, FxHashSet<Value>) = Default::default();
        for &(id, role) in &roles {
            let lifts = role == Role::Stat && graph.node(id).outputs[0].shape == bare && !is_view(graph, id);
            for value in read(id).filter(|value| !own(value) && graph.ty(*value).rank() > 0) {
                if lifts {
                    lifted.insert(value)
                } else {
                    stands.insert(value)
                };
            }
        }
        let exits = super::exits(graph, members);
        if exits.iter().any(|&id| self.lines.is_shared(&graph.node(id).outputs[0].shape)) {
            return false;
        }
        let levels = levels(graph, &roles);
        let passes = roles.iter().filter_map(|&(id, role)| pass(&levels, graph, id, role)).max().map_or(0, |last| last + 1);
        stands.is_disjoint(&lifted) && stands.len() + lifted.len() + exits.len() <= TENSORS && passes <= PASSES
    }

    /// True if a chain is worth it: several passes, or a pass and elements behind it.
    fn pays(&self, members: &[NodeId]) -> bool {
        let graph = self.partition.graph;
        let roles: Vec<(NodeId, Role)> = members.iter().filter_map(|&id| Some((id, self.lines.role(graph, id)?))).collect();
        let levels = levels(graph, &roles);
        let reduces = roles.iter().filter_map(|&(id, role)| pass(&levels, graph, id, role)).max();
        let elements = super::exits(graph, members).iter().any(|&id| self.lines.role(graph, id) == Some(Role::Element));
        let several = reduces.is_some_and(|last| last > 0 || elements);
        several && members.len() > self.partition.members(members[0]).len().max(1) && self.reads_all(members)
    }

    /// True if what the members read from outside has the lines' full shape when broadcast together.
    fn reads_all(&self, members: &[NodeId]) -> bool {
        let graph = self.partition.graph;
        let values = members.iter().flat_map(|&id| graph.node(id).operands.iter().filter_map(|o| o.value()));
        values.filter(|value| !members.contains(&value.node)).any(|value| graph.ty(value).shape == self.lines.full)
    }
}

fn is_view(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op().is_some_and(|op| op.code().lowering() == Lowering::View)
}

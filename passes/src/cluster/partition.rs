//! Nodes in groups that shall become one kernel each, such that the groups form no cycle.

use eglu_ir::{Graph, GraphError, NodeId};
use rustc_hash::FxHashSet;
use std::{cmp::Reverse, collections::BinaryHeap};

/// What a group becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing new: a single node, copied.
    Single,
    /// A matmul with its epilogue.
    Contract,
    /// Reductions with prologue and epilogue.
    MapReduce,
    /// A pointwise loop.
    Map,
    /// Passes over the same lines.
    Chain,
    /// The parts of the norm of this number.
    Norm(u32),
}

/// A partition of a graph's nodes. Every node starts in a group of its own.
pub(crate) struct Partition<'g> {
    pub graph: &'g Graph,
    /// Nodes in topological order.
    pub order: Vec<NodeId>,
    rank: Vec<usize>,
    group: Vec<usize>,
    members: Vec<Vec<NodeId>>,
    kinds: Vec<Kind>,
    users: Vec<Vec<NodeId>>,
    /// For each rank, how many groups have members both up to it and past it.
    spans: Vec<u32>,
}

impl<'g> Partition<'g> {
    /// One group for each node.
    pub fn new(graph: &'g Graph) -> Result<Self, GraphError> {
        let order = graph.topological()?;
        let size = order.iter().map(|id| id.index() + 1).max().unwrap_or(0);
        let (mut rank, mut users) = (vec![0; size], vec![Vec::new(); size]);
        for (i, id) in order.iter().enumerate() {
            rank[id.index()] = i;
            users[id.index()] = graph.users(*id);
        }
        let members = order.iter().map(|&id| vec![id]).collect();
        let (kinds, spans) = (vec![Kind::Single; order.len()], vec![0; order.len()]);
        Ok(Partition { graph, group: rank.clone(), kinds, rank, members, order, users, spans })
    }

    /// The position of a node in topological order.
    pub fn rank(&self, id: NodeId) -> usize {
        self.rank[id.index()]
    }

    /// The group that a node is in.
    pub fn group(&self, id: NodeId) -> usize {
        self.group[id.index()]
    }

    /// What the group of a node becomes.
    pub fn kind(&self, id: NodeId) -> Kind {
        self.kinds[self.group(id)]
    }

    /// The nodes grouped with `id`, in topological order.
    pub fn members(&self, id: NodeId) -> &[NodeId] {
        &self.members[self.group(id)]
    }

    /// Nodes that read `id`.
    pub fn users(&self, id: NodeId) -> &[NodeId] {
        &self.users[id.index()]
    }

    /// True if the graph returns an output of the node.
    pub fn is_output(&self, id: NodeId) -> bool {
        self.graph.outputs().iter().any(|output| output.value.node == id)
    }

    /// Puts the groups of these nodes together.
    pub fn join(&mut self, nodes: &[NodeId], kind: Kind) {
        let Some(into) = nodes.iter().map(|&id| self.group(id)).min() else { return };
        self.span(into, false);
        for &id in nodes {
            let from = self.group(id);
            if from != into {
                self.span(from, false);
                let moved = std::mem::take(&mut self.members[from]);
                for member in &moved {
                    self.group[member.index()] = into;
                }
                self.members[into].extend(moved);
            }
        }
        let rank = &self.rank;
        self.members[into].sort_unstable_by_key(|id| rank[id.index()]);
        self.kinds[into] = kind;
        self.span(into, true);
    }

    /// First and last rank of a group's members.
    fn ends(&self, group: usize) -> Option<(usize, usize)> {
        let members = &self.members[group];
        Some((self.rank(*members.first()?), self.rank(*members.last()?)))
    }

    /// Counts a group in at the ranks that it spans, or out.
    fn span(&mut self, group: usize, counted: bool) {
        if let Some((first, last)) = self.ends(group) {
            for count in &mut self.spans[first..last] {
                *count = if counted { *count + 1 } else { count.saturating_sub(1) };
            }
        }
    }

    /// A rank past which no path comes back to these groups: none is behind it, and no group lies on both sides. It keeps the search of
    /// [`Self::is_convex`] within a layer or so, where the rest of the model would be walked for every pair of nodes.
    fn horizon(&self, inside: &FxHashSet<usize>) -> usize {
        let last = inside.iter().filter_map(|&group| self.ends(group)).map(|(_, last)| last).max().unwrap_or(0);
        (last..self.spans.len()).find(|&rank| self.spans[rank] == 0).unwrap_or(usize::MAX)
    }

    fn is_behind(&self, group: usize, horizon: usize) -> bool {
        self.ends(group).is_some_and(|(first, _)| first > horizon)
    }

    /// True if no path leaves the groups of these nodes and comes back, so that joining them makes no cycle.
    pub fn is_convex(&self, nodes: &[NodeId]) -> bool {
        let inside: FxHashSet<usize> = nodes.iter().map(|&id| self.group(id)).collect();
        let horizon = self.horizon(&inside);
        let mut seen: FxHashSet<usize> = inside.clone();
        let mut stack: Vec<usize> = Vec::new();
        for &group in &inside {
            self.leave(group, &mut seen, &mut stack);
        }
        while let Some(group) = stack.pop() {
            if self.is_behind(group, horizon) {
                continue;
            }
            let mut next = Vec::new();
            for &member in &self.members[group] {
                for &user in self.users(member) {
                    let to = self.group(user);
                    if inside.contains(&to) {
                        return false;
                    }
                    if seen.insert(to) {
                        next.push(to);
                    }
                }
            }
            stack.extend(next);
        }
        true
    }

    fn leave(&self, group: usize, seen: &mut FxHashSet<usize>, stack: &mut Vec<usize>) {
        for &member in &self.members[group] {
            for &user in self.users(member) {
                if seen.insert(self.group(user)) {
                    stack.push(self.group(user));
                }
            }
        }
    }

    /// True if any nodes were put together to become another kind of kernel.
    pub fn groups_any(&self) -> bool {
        self.kinds.iter().zip(&self.members).any(|(&kind, members)| kind != Kind::Single && !members.is_empty())
    }

    /// Groups so that operands come first; ties go by the position of the first member.
    pub fn schedule(&self) -> Vec<(Kind, &[NodeId])> {
        let sources = |group: usize| -> FxHashSet<usize> {
            let operands = self.members[group].iter().flat_map(|&id| &self.graph.node(id).operands);
            operands.filter_map(|o| o.value()).map(|value| self.group(value.node)).filter(|&from| from != group).collect()
        };
        let mut pending: Vec<usize> = (0..self.members.len()).map(|group| sources(group).len()).collect();
        let live = (0..self.members.len()).filter(|&group| !self.members[group].is_empty());
        let key = |group: usize| Reverse((self.rank(self.members[group][0]), group));
        let mut ready: BinaryHeap<_> = live.filter(|&group| pending[group] == 0).map(key).collect();
        let mut schedule = Vec::new();
        while let Some(Reverse((_, group))) = ready.pop() {
            schedule.push((self.kinds[group], self.members[group].as_slice()));
            let readers: FxHashSet<usize> =
                self.members[group].iter().flat_map(|&id| self.users(id)).map(|&user| self.group(user)).collect();
            for reader in readers.into_iter().filter(|&reader| reader != group) {
                pending[reader] -= 1;
                if pending[reader] == 0 {
                    ready.push(key(reader));
                }
            }
        }
        schedule
    }
}

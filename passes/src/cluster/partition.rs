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
        Ok(Partition { graph, group: rank.clone(), kinds: vec![Kind::Single; order.len()], rank, members, order, users })
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
        for &id in nodes {
            let from = self.group(id);
            if from != into {
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
    }

    /// True if no path leaves the groups of these nodes and comes back, so that joining them makes no cycle.
    pub fn is_convex(&self, nodes: &[NodeId]) -> bool {
        let inside: FxHashSet<usize> = nodes.iter().map(|&id| self.group(id)).collect();
        let mut seen: FxHashSet<usize> = inside.clone();
        let mut stack: Vec<usize> = Vec::new();
        for &group in &inside {
            self.leave(group, &mut seen, &mut stack);
        }
        while let Some(group) = stack.pop() {
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

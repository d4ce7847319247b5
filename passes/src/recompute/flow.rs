//! Minimum cuts: Dinic's algorithm (1970), with levels by breadth and augmenting paths by depth.

use std::collections::VecDeque;

/// A capacity that is never cut.
pub const UNBOUNDED: u64 = u64::MAX / 4;

struct Edge {
    to: usize,
    left: u64,
}

/// A network; edges lie in pairs, the second of which runs back.
pub struct Network {
    edges: Vec<Edge>,
    from: Vec<Vec<usize>>,
}

impl Network {
    /// So many nodes and no edges.
    pub fn new(nodes: usize) -> Network {
        Network { edges: Vec::new(), from: vec![Vec::new(); nodes] }
    }

    /// Adds an edge.
    pub fn connect(&mut self, from: usize, to: usize, capacity: u64) {
        for (from, to, left) in [(from, to, capacity), (to, from, 0)] {
            self.from[from].push(self.edges.len());
            self.edges.push(Edge { to, left });
        }
    }

    /// The nodes on the sink's side of a cheapest cut: of all there are, the one nearest to the sink.
    pub fn cut(mut self, source: usize, sink: usize) -> Vec<bool> {
        loop {
            let levels = self.levels(source);
            if levels[sink].is_none() {
                return self.reaching(sink);
            }
            let mut next = vec![0; self.from.len()];
            while self.augment(source, sink, &levels, &mut next) {}
        }
    }

    /// Distances from the source over edges with capacity left.
    fn levels(&self, source: usize) -> Vec<Option<usize>> {
        let mut levels = vec![None; self.from.len()];
        levels[source] = Some(0);
        let mut queue = VecDeque::from([source]);
        while let Some(at) = queue.pop_front() {
            for &edge in &self.from[at] {
                let Edge { to, left } = self.edges[edge];
                if left > 0 && levels[to].is_none() {
                    levels[to] = levels[at].map(|level: usize| level + 1);
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    /// Nodes with a path to the sink over edges with capacity left.
    fn reaching(&self, sink: usize) -> Vec<bool> {
        let mut reaches = vec![false; self.from.len()];
        reaches[sink] = true;
        let mut stack = vec![sink];
        while let Some(at) = stack.pop() {
            for &edge in &self.from[at] {
                let to = self.edges[edge].to;
                if self.edges[edge ^ 1].left > 0 && !reaches[to] {
                    reaches[to] = true;
                    stack.push(to);
                }
            }
        }
        reaches
    }

    /// Sends what one path to the sink takes; false if there is none.
    fn augment(&mut self, source: usize, sink: usize, levels: &[Option<usize>], next: &mut [usize]) -> bool {
        let (mut path, mut at): (Vec<usize>, usize) = (Vec::new(), source);
        while at != sink {
            let further = |&edge: &usize| {
                let Edge { to, left } = &self.edges[edge];
                *left > 0 && levels[*to].is_some() && levels[*to] == levels[at].map(|level| level + 1)
            };
            match self.from[at][next[at]..].iter().position(further) {
                Some(skipped) => {
                    next[at] += skipped;
                    let edge = self.from[at][next[at]];
                    path.push(edge);
                    at = self.edges[edge].to;
                }
                None => {
                    next[at] = self.from[at].len();
                    let Some(edge) = path.pop() else { return false };
                    at = self.edges[edge ^ 1].to;
                    next[at] += 1;
                }
            }
        }
        let most = path.iter().map(|&edge| self.edges[edge].left).min().unwrap_or(0);
        for edge in path {
            self.edges[edge].left -= most;
            self.edges[edge ^ 1].left += most;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_cut_is_cheaper(edges in prop::collection::vec((0usize..6, 0usize..6, 0u64..20), 0..24)) {
            let mut network = Network::new(6);
            for &(from, to, capacity) in &edges {
                network.connect(from, to, capacity);
            }
            let price = |side: &dyn Fn(usize) -> bool| -> u64 {
                edges.iter().filter(|(from, to, _)| side(*from) && !side(*to)).map(|edge| edge.2).sum()
            };
            let cut = network.cut(0, 5);
            prop_assert!(!cut[0] && cut[5]);
            let least = (0..16u32).map(|mask| price(&|node| node == 0 || (node < 5 && mask >> (node - 1) & 1 == 1))).min();
            prop_assert_eq!(Some(price(&|node| !cut[node])), least);
        }
    }
}

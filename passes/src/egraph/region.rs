//! Regions: the graph is cut where little flows, each piece gets a small e-graph of its own, and equal pieces are solved once.

use super::facts::{Entry, Fact, Source};
use eglu_ir::{
    Graph, NodeId, NodeKind, Op, Operand, Scalar, Value,
    graph::GraphError,
    ops::{Lowering, Pointwise},
};
use indexmap::IndexSet;
use rustc_hash::{FxHashMap, FxHashSet};

/// Fewest nodes before a cut.
const FEWEST: usize = 24;
/// Most nodes of a region.
const MOST: usize = 400;

/// A piece of the graph.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its calls, operands first.
    pub nodes: Vec<NodeId>,
    /// Values it reads and does not compute, in order of first use.
    pub inputs: Vec<Value>,
    /// Values it computes that others read, or that are outputs of the graph.
    pub outputs: Vec<Value>,
}

/// An operand in region-relative terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Output of a node of the region, by position.
    Node(usize, u32),
    /// A value that enters, by position.
    Input(usize),
    /// A number.
    Scalar(Scalar),
    /// Not given.
    Absent,
}

/// What decides a region's solution: two regions with equal keys have equal solutions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Ops with region-relative operands.
    pub calls: Vec<(Op, Vec<Place>)>,
    /// What enters.
    pub entries: Vec<Entry>,
    /// Which values leave.
    pub outputs: Vec<Place>,
}

/// The graph in the order in which it is cut.
struct Walk<'a> {
    graph: &'a Graph,
    /// Calls, operands first, index maps excluded.
    order: Vec<NodeId>,
    /// Calls that every reader's region computes for itself: see [`index_maps`].
    maps: FxHashSet<NodeId>,
    /// For each value the position of the last call that reads it; past the end for outputs of the graph.
    last: FxHashMap<Value, usize>,
    /// For each position the last use of what is made there.
    lasts: Vec<usize>,
    /// Last uses of user inputs.
    inputs: Vec<usize>,
}

/// Cuts the graph; every call that an output needs is in a region, and regions are in execution order.
pub fn split(graph: &Graph) -> Result<Vec<Region>, GraphError> {
    let walk = Walk::new(graph)?;
    let mut regions = Vec::new();
    let mut start = 0;
    while start < walk.order.len() {
        let end = walk.cut(start);
        regions.push(walk.piece(start, end));
        start = end;
    }
    if regions.is_empty() {
        regions.push(walk.piece(0, 0));
    }
    Ok(regions)
}

/// The whole graph as one region.
pub fn whole(graph: &Graph) -> Result<Region, GraphError> {
    let walk = Walk::new(graph)?;
    Ok(walk.piece(0, walk.order.len()))
}

/// What the graph alone tells of the values that enter a region.
pub fn entries(graph: &Graph, region: &Region) -> Vec<Entry> {
    region.inputs.iter().map(|&value| entry(graph, value, None)).collect()
}

/// What is known of a value that enters a region.
pub fn entry(graph: &Graph, value: Value, fact: Option<Fact>) -> Entry {
    let fact = fact.unwrap_or_else(|| Fact::of_type(graph.ty(value).clone()));
    let source = match graph.node(value.node).kind {
        NodeKind::Input => Source::User,
        NodeKind::Weight(_) => Source::Weight,
        NodeKind::Constant(_) | NodeKind::Call(_) => Source::Graph,
    };
    Entry { fact, source }
}

/// Calls in the order of a depth-first walk from the outputs: it follows the structure, not the order of creation, so equal layers are
/// walked alike.
fn depth_first(graph: &Graph) -> Vec<NodeId> {
    let mut order = Vec::new();
    let mut seen: FxHashSet<NodeId> = FxHashSet::default();
    for output in graph.outputs() {
        let mut stack = vec![(output.value.node, false)];
        while let Some((id, leaving)) = stack.pop() {
            if leaving {
                order.push(id);
                continue;
            }
            let node = graph.node(id);
            if !matches!(node.kind, NodeKind::Call(_)) || !seen.insert(id) {
                continue;
            }
            stack.push((id, true));
            stack.extend(node.operands.iter().rev().filter_map(|operand| operand.value()).map(|value| (value.node, false)));
        }
    }
    order
}

/// Generators, and what views and divisions by numbers make of them. Rules must see that an index is `floor_divide(iota, k)`, but a model
/// whose equal nodes are merged has one of each for all layers: it would enter most regions from outside, and nothing be known of it.
fn index_maps(graph: &Graph, order: &[NodeId]) -> FxHashSet<NodeId> {
    let mut maps = FxHashSet::default();
    for &id in order {
        let node = graph.node(id);
        let of_maps = node.operands.iter().all(|operand| operand.value().is_none_or(|value| maps.contains(&value.node)));
        let is_map = node.op().is_some_and(|op| match op.code().lowering() {
            Lowering::Generator | Lowering::View => true,
            _ => *op == Op::Pointwise(Pointwise::FloorDiv),
        });
        if is_map && of_maps {
            maps.insert(id);
        }
    }
    maps
}

impl<'a> Walk<'a> {
    fn new(graph: &'a Graph) -> Result<Walk<'a>, GraphError> {
        // For the error on cycles, which the walk itself would follow for ever.
        graph.topological()?;
        let all = depth_first(graph);
        let maps = index_maps(graph, &all);
        let order: Vec<NodeId> = all.into_iter().filter(|id| !maps.contains(id)).collect();
        let mut last = FxHashMap::default();
        for (i, &id) in order.iter().enumerate() {
            last.extend(graph.node(id).operands.iter().filter_map(|operand| operand.value()).map(|value| (value, i)));
        }
        last.extend(graph.outputs().iter().map(|output| (output.value, order.len())));
        let values = |id: NodeId| (0..graph.node(id).outputs.len() as u32).map(move |index| Value { node: id, index });
        let last_of = |id: NodeId| values(id).filter_map(|value| last.get(&value).copied()).max();
        let lasts = order.iter().enumerate().map(|(i, &id)| last_of(id).unwrap_or(i)).collect();
        let inputs = graph.inputs().iter().filter_map(|&id| last_of(id)).collect();
        Ok(Walk { graph, order, maps, last, lasts, inputs })
    }

    /// Where the region that begins at `start` ends: after the last of a run of calls past which a single value of the region lives on,
    /// or else where the fewest do. Values from before the region (masks, rotary tables) flow past anyway and do not count; weights
    /// and constants are there all along.
    fn cut(&self, start: usize) -> usize {
        let end = self.order.len().min(start + MOST);
        let mut best: Option<(usize, usize)> = None;
        for at in (start + FEWEST).min(end - 1)..end {
            let mut alive = self.lasts[start..=at].iter().filter(|&&last| last > at).count();
            if start == 0 {
                alive += self.inputs.iter().filter(|&&last| last > at && last < self.order.len()).count();
            }
            if let Some((1, before)) = best
                && alive != 1
            {
                return before + 1;
            }
            if best.is_none_or(|(fewest, _)| alive <= fewest) {
                best = Some((alive, at));
            }
        }
        match best {
            Some((_, at)) if end < self.order.len() => at + 1,
            _ => end,
        }
    }

    /// The calls from `start` to `end` with the index maps they read; outputs that are index maps go with the last piece.
    fn piece(&self, start: usize, end: usize) -> Region {
        let last = end == self.order.len();
        let returned = |value: &Value| last && self.graph.outputs().iter().any(|output| output.value == *value);
        let mut nodes: IndexSet<NodeId> = IndexSet::new();
        for &id in &self.order[start..end] {
            self.add_maps(id, &mut nodes);
            nodes.insert(id);
        }
        if last {
            for output in self.graph.outputs().iter().filter(|output| self.maps.contains(&output.value.node)) {
                self.add_maps(output.value.node, &mut nodes);
                nodes.insert(output.value.node);
            }
        }
        let operands = nodes.iter().flat_map(|&id| self.graph.node(id).operands.iter().filter_map(|operand| operand.value()));
        let inputs: IndexSet<Value> = operands.filter(|value| !nodes.contains(&value.node)).collect();
        let leaves = |value: &Value| {
            let is_map = self.maps.contains(&value.node);
            if is_map { returned(value) } else { self.last.get(value).is_some_and(|&last| last >= end) }
        };
        let outputs = nodes
            .iter()
            .flat_map(|&id| (0..self.graph.node(id).outputs.len() as u32).map(move |index| Value { node: id, index }))
            .filter(leaves)
            .collect();
        Region { nodes: nodes.into_iter().collect(), inputs: inputs.into_iter().collect(), outputs }
    }

    /// Adds the index maps that a call reads, operands first.
    fn add_maps(&self, id: NodeId, nodes: &mut IndexSet<NodeId>) {
        let mut stack = vec![(id, false)];
        while let Some((at, ready)) = stack.pop() {
            if ready {
                nodes.insert(at);
                continue;
            }
            if at != id {
                stack.push((at, true));
            }
            let operands = self.graph.node(at).operands.iter().rev().filter_map(|operand| operand.value());
            stack.extend(operands.filter(|value| self.maps.contains(&value.node)).map(|value| (value.node, false)));
        }
    }
}

impl Region {
    /// The region in its own terms.
    pub fn key(&self, graph: &Graph, entries: Vec<Entry>) -> Key {
        let position: FxHashMap<NodeId, usize> = self.nodes.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let inputs: FxHashMap<Value, usize> = self.inputs.iter().enumerate().map(|(i, &value)| (value, i)).collect();
        let place = |operand: &Operand| match operand {
            Operand::Scalar(scalar) => Place::Scalar(*scalar),
            Operand::None => Place::Absent,
            Operand::Value(value) => match position.get(&value.node) {
                Some(&at) => Place::Node(at, value.index),
                None => inputs.get(value).map_or(Place::Absent, |&at| Place::Input(at)),
            },
        };
        // Rules know one form of an op: operands that may be left out at the end are there, and absent.
        let all = |op: &Op, mut given: Vec<Place>| {
            let names = op.code().operands();
            if names.last().is_some_and(|name| name.ends_with('?')) {
                given.resize(names.len().max(given.len()), Place::Absent);
            }
            given
        };
        let calls = self
            .nodes
            .iter()
            .filter_map(|&id| {
                let node = graph.node(id);
                let op = node.op()?;
                Some((op.clone(), all(op, node.operands.iter().map(place).collect())))
            })
            .collect();
        let outputs = self.outputs.iter().map(|&value| place(&Operand::Value(value))).collect();
        Key { calls, entries, outputs }
    }
}

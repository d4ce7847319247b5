//! Regions: the graph is cut where little flows, each piece gets a small e-graph of its own, and equal pieces are solved once.

use super::facts::{Entry, Fact};
use eglu_ir::{Graph, NodeId, NodeKind, Op, Operand, Scalar, Value, graph::GraphError};
use indexmap::{IndexMap, IndexSet};
use std::collections::HashMap;

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

/// Cuts the graph; every call that an output needs is in exactly one region, and regions are in execution order.
pub fn split(graph: &Graph) -> Result<Vec<Region>, GraphError> {
    graph.topological()?;
    let order = depth_first(graph);
    let at: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let last_use = last_uses(graph, &order);
    let mut regions = Vec::new();
    let mut start = 0;
    while start < order.len() {
        let end = cut(&order, &last_use, start);
        regions.push(piece(graph, &order, &at, &last_use, start, end));
        start = end;
    }
    Ok(regions)
}

/// The whole graph as one region.
pub fn whole(graph: &Graph) -> Result<Region, GraphError> {
    graph.topological()?;
    let order = depth_first(graph);
    let at = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    Ok(piece(graph, &order, &at, &last_uses(graph, &order), 0, order.len()))
}

/// What the graph alone tells of the values that enter a region.
pub fn entries(graph: &Graph, region: &Region) -> Vec<Entry> {
    region.inputs.iter().map(|&value| entry(graph, value, None)).collect()
}

/// What is known of a value that enters a region.
pub fn entry(graph: &Graph, value: Value, fact: Option<Fact>) -> Entry {
    let fact = fact.unwrap_or_else(|| Fact::of_type(graph.ty(value).clone()));
    Entry { fact, from_user: matches!(graph.node(value.node).kind, NodeKind::Input) }
}

/// Calls in the order of a depth-first walk from the outputs: it follows the structure, not the order of creation, so equal layers are
/// walked alike.
fn depth_first(graph: &Graph) -> Vec<NodeId> {
    let mut order = Vec::new();
    let mut seen: IndexSet<NodeId> = IndexSet::new();
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

/// For each value the position of the last call that reads it; past the end for outputs of the graph. User inputs count as values,
/// weights and constants do not: they are there all along.
fn last_uses(graph: &Graph, order: &[NodeId]) -> IndexMap<Value, usize> {
    let mut last = IndexMap::new();
    for (i, &id) in order.iter().enumerate() {
        for value in graph.node(id).operands.iter().filter_map(|operand| operand.value()) {
            if !matches!(graph.node(value.node).kind, NodeKind::Weight(_) | NodeKind::Constant(_)) {
                last.insert(value, i);
            }
        }
    }
    for output in graph.outputs() {
        last.insert(output.value, order.len());
    }
    last
}

/// Where the region that begins at `start` ends: after the last of a run of calls past which a single value of the region lives on, or
/// else where the fewest do. Values from before the region (masks, rotary tables) flow past anyway and do not count.
fn cut(order: &[NodeId], last_use: &IndexMap<Value, usize>, start: usize) -> usize {
    let mut by_node: HashMap<NodeId, usize> = HashMap::new();
    for (value, &last) in last_use {
        let entry = by_node.entry(value.node).or_insert(last);
        *entry = (*entry).max(last);
    }
    let end = order.len().min(start + MOST);
    if end == order.len() && end - start <= FEWEST {
        return end;
    }
    let inputs: Vec<usize> = last_use
        .iter()
        .filter(|(value, last)| **last >= start && **last < order.len() && !order.contains(&value.node))
        .map(|(_, &last)| last)
        .collect();
    let live = |at: usize| {
        let made = order[start..=at].iter().filter(|id| by_node.get(id).is_some_and(|&last| last > at)).count();
        made + if start == 0 { inputs.iter().filter(|&&last| last > at).count() } else { 0 }
    };
    let mut best: Option<(usize, usize)> = None;
    for at in start + FEWEST.min(end - start - 1)..end {
        let alive = live(at);
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
        _ if end == order.len() => end,
        Some((_, at)) => at + 1,
        None => end,
    }
}

fn piece(
    graph: &Graph,
    order: &[NodeId],
    at: &HashMap<NodeId, usize>,
    last_use: &IndexMap<Value, usize>,
    start: usize,
    end: usize,
) -> Region {
    let nodes = order[start..end].to_vec();
    let inside = |value: Value| at.get(&value.node).is_some_and(|&i| start <= i && i < end);
    let mut inputs: IndexSet<Value> = IndexSet::new();
    for &id in &nodes {
        inputs.extend(graph.node(id).operands.iter().filter_map(|operand| operand.value()).filter(|&value| !inside(value)));
    }
    let outputs = nodes
        .iter()
        .flat_map(|&id| (0..graph.node(id).outputs.len() as u32).map(move |index| Value { node: id, index }))
        .filter(|value| last_use.get(value).is_some_and(|&last| last >= end))
        .collect();
    Region { nodes, inputs: inputs.into_iter().collect(), outputs }
}

impl Region {
    /// The region in its own terms.
    pub fn key(&self, graph: &Graph, entries: Vec<Entry>) -> Key {
        let position: HashMap<NodeId, usize> = self.nodes.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let inputs: HashMap<Value, usize> = self.inputs.iter().enumerate().map(|(i, &value)| (value, i)).collect();
        let place = |operand: &Operand| match operand {
            Operand::Scalar(scalar) => Place::Scalar(*scalar),
            Operand::None => Place::Absent,
            Operand::Value(value) => match position.get(&value.node) {
                Some(&at) => Place::Node(at, value.index),
                None => inputs.get(value).map_or(Place::Absent, |&at| Place::Input(at)),
            },
        };
        let calls = self
            .nodes
            .iter()
            .filter_map(|&id| {
                let node = graph.node(id);
                Some((node.op()?.clone(), node.operands.iter().map(place).collect()))
            })
            .collect();
        let outputs = self.outputs.iter().map(|&value| place(&Operand::Value(value))).collect();
        Key { calls, entries, outputs }
    }
}

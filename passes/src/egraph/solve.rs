//! One region: into an e-graph, saturated, extracted, and out again in region-relative terms.

use super::{
    EgraphError,
    cost::{Price, Pricing},
    extract::{Extraction, extract, price},
    facts::{EGraph, Fact, FactTable, op_of},
    language::{ENode, Head},
    region::{Key, Place},
    rule::{Refusal, Rule},
    rules::push,
    run::{Limits, Log, Stop, saturate},
    unchosen,
};
use egg::{Id, Language};
use eglu_ir::{Op, OpCode};
use indexmap::{IndexMap, IndexSet};
use std::collections::HashMap;

/// A node of the rewritten region.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The op.
    pub op: Op,
    /// Operands; [`Place::Node`] counts planned nodes.
    pub operands: Vec<Place>,
    /// The node of the original region that it is, unchanged.
    pub survivor: Option<usize>,
    /// Nodes of the original region that it stands for.
    pub origins: Vec<usize>,
    /// What it costs.
    pub price: Price,
}

/// A rewritten region.
#[derive(Clone, Debug)]
pub struct Solution {
    /// Nodes, operands first.
    pub nodes: Vec<Planned>,
    /// Where each output of the region now is.
    pub outputs: Vec<Place>,
    /// Facts of each output.
    pub facts: Vec<Fact>,
    /// What happened.
    pub log: Log,
    /// E-nodes at the end.
    pub size: usize,
    /// What each node of the original region costs.
    pub before: Vec<Price>,
    /// Nodes of the original region at which a permutation of rows got stuck, with the op and why it does not let it pass.
    pub stuck: Vec<(usize, &'static str, Refusal)>,
}

impl Solution {
    /// The region as it is, because solving it failed.
    pub fn unchanged(key: &Key, facts: Vec<Fact>, why: EgraphError) -> Solution {
        let planned = |(at, (op, operands)): (usize, &(Op, Vec<Place>))| Planned {
            op: op.clone(),
            operands: operands.clone(),
            survivor: Some(at),
            origins: vec![at],
            price: Price::default(),
        };
        Solution {
            nodes: key.calls.iter().enumerate().map(planned).collect(),
            outputs: key.outputs.clone(),
            facts,
            log: Log::new(Stop::Failed(why)),
            size: 0,
            before: vec![Price::default(); key.calls.len()],
            stuck: Vec::new(),
        }
    }
}

/// The region's values in the e-graph.
pub struct Loaded {
    /// The e-graph.
    pub egraph: EGraph,
    /// Class of each node's op.
    pub ops: Vec<Id>,
    /// Class of each node's first output.
    pub values: Vec<Id>,
    roots: Vec<Id>,
    entries: Vec<Id>,
}

impl Loaded {
    /// Classes of the region's outputs.
    pub fn roots(&self) -> impl Iterator<Item = Id> + '_ {
        self.roots.iter().copied()
    }
}

/// Solves a region.
pub fn solve(key: &Key, rules: &[Rule], pricing: &Pricing, limits: Limits) -> Result<Solution, EgraphError> {
    let mut loaded = load(key);
    check(&loaded.egraph)?;
    let mut log = saturate(&mut loaded.egraph, rules, &loaded.values, limits);
    if let Some(conflict) = loaded.egraph.analysis.conflicts.first() {
        let last = log.applied.last().map_or_else(|| "none".into(), |applied| rules[applied.rule].name.clone());
        return Err(EgraphError::Conflict { conflict: conflict.clone(), last_rule: last });
    }
    let original = originals(&loaded);
    let egraph = &loaded.egraph;
    let extraction = extract(egraph, pricing, &loaded.roots, &original.by_class).ok_or(EgraphError::NoExtraction)?;
    let before = loaded.ops.iter().map(|&id| price(egraph, pricing, egraph.find(id), egraph.id_to_node(id))).collect();
    let (nodes, placed) = (Vec::new(), IndexMap::new());
    let mut plan = Plan { loaded: &loaded, extraction: &extraction, original: &original, pricing, nodes, placed };
    let outputs = loaded.roots.iter().map(|&root| plan.place(root)).collect::<Result<Vec<_>, _>>()?;
    if outputs.iter().any(|output| matches!(output, Place::Scalar(_) | Place::Absent)) {
        return Err(EgraphError::NoExtraction);
    }
    let mut nodes = plan.nodes;
    let classes: Vec<Id> = plan.placed.iter().filter(|(_, place)| matches!(place, Place::Node(..))).map(|(&id, _)| id).collect();
    let stuck = stuck(&nodes, key);
    trace_origins(&mut nodes, &loaded, key, &classes, &extraction);
    log.refused.extend(unchosen::near_misses(&loaded, key, rules, &log, &extraction));
    let facts = loaded
        .roots
        .iter()
        .map(|&root| egraph[root].data.outputs.first().cloned().ok_or(EgraphError::NoExtraction))
        .collect::<Result<_, _>>()?;
    let size = egraph.total_size();
    let mut why = |position: usize| {
        let class = loaded.egraph.find(loaded.values[position]);
        push::stuck(&mut loaded.egraph, class).unwrap_or_else(|| Refusal::new("permutation-stuck", "no rule takes it further"))
    };
    let stuck = stuck.into_iter().map(|(position, op)| (position, op, why(position))).collect();
    Ok(Solution { nodes, outputs, facts, log, size, before, stuck })
}

fn check(egraph: &EGraph) -> Result<(), EgraphError> {
    match egraph.analysis.conflicts.first() {
        Some(conflict) => Err(EgraphError::Conflict { conflict: conflict.clone(), last_rule: "none".into() }),
        None => Ok(()),
    }
}

/// Puts a region into an e-graph.
pub fn load(key: &Key) -> Loaded {
    let mut egraph = EGraph::new(FactTable { entries: key.entries.clone(), conflicts: Vec::new() });
    let entries: Vec<Id> = (0..key.entries.len()).map(|i| egraph.add(ENode::leaf(Head::Value(i as u32)))).collect();
    let (mut ops, mut values): (Vec<Id>, Vec<Id>) = (Vec::new(), Vec::new());
    for (op, operands) in &key.calls {
        let mut children: Vec<Id> = operands.iter().map(|&operand| class_of(&mut egraph, &ops, &entries, operand)).collect();
        children.extend(op.attrs().into_iter().map(|(_, attr)| egraph.add(ENode::leaf(Head::Attr(attr)))));
        let id = egraph.add(ENode::new(Head::Op(op.code()), children));
        ops.push(id);
        values.push(value_of(&mut egraph, id, 0));
    }
    let roots = key.outputs.iter().map(|&output| class_of(&mut egraph, &ops, &entries, output)).collect();
    Loaded { egraph, ops, values, roots, entries }
}

fn class_of(egraph: &mut EGraph, ops: &[Id], entries: &[Id], place: Place) -> Id {
    match place {
        Place::Node(at, index) => value_of(egraph, ops[at], index),
        Place::Input(at) => entries[at],
        Place::Scalar(scalar) => egraph.add(ENode::leaf(Head::Scalar(scalar))),
        Place::Absent => egraph.add(ENode::leaf(Head::Absent)),
    }
}

fn value_of(egraph: &mut EGraph, op: Id, index: u32) -> Id {
    if egraph[op].data.outputs.len() > 1 { egraph.add(ENode::new(Head::Output(index), [op])) } else { op }
}

/// The nodes of the original region among the e-nodes.
struct Originals {
    /// The first node of each class, as it was.
    by_class: IndexMap<Id, ENode>,
    /// Position of each original node.
    positions: HashMap<ENode, usize>,
}

fn originals(loaded: &Loaded) -> Originals {
    let egraph = &loaded.egraph;
    let canonical = |node: &ENode| node.clone().map_children(|child| egraph.find(child));
    let (mut by_class, mut positions) = (IndexMap::new(), HashMap::new());
    for &id in &loaded.entries {
        by_class.entry(egraph.find(id)).or_insert_with(|| canonical(egraph.id_to_node(id)));
    }
    for (position, &id) in loaded.ops.iter().enumerate() {
        let node = canonical(egraph.id_to_node(id));
        if !node.children().contains(&egraph.find(id)) {
            by_class.entry(egraph.find(id)).or_insert_with(|| node.clone());
        }
        positions.entry(node).or_insert(position);
    }
    Originals { by_class, positions }
}

/// The rewritten region under construction.
struct Plan<'a> {
    loaded: &'a Loaded,
    extraction: &'a Extraction,
    original: &'a Originals,
    pricing: &'a Pricing,
    nodes: Vec<Planned>,
    placed: IndexMap<Id, Place>,
}

impl Plan<'_> {
    /// Plans a class and what it needs, operands first.
    fn place(&mut self, root: Id) -> Result<Place, EgraphError> {
        let egraph = &self.loaded.egraph;
        let mut stack = vec![(egraph.find(root), false)];
        while let Some((id, ready)) = stack.pop() {
            if self.placed.contains_key(&id) {
                continue;
            }
            let node = self.extraction.node(egraph, id).ok_or(EgraphError::NoExtraction)?;
            if ready || node.is_leaf() {
                let place = self.finish(id, node)?;
                self.placed.insert(id, place);
                continue;
            }
            stack.push((id, true));
            stack.extend(node.children().iter().rev().map(|&child| (egraph.find(child), false)));
        }
        self.placed.get(&egraph.find(root)).copied().ok_or(EgraphError::NoExtraction)
    }

    fn finish(&mut self, id: Id, node: &ENode) -> Result<Place, EgraphError> {
        let egraph = &self.loaded.egraph;
        Ok(match &node.head {
            Head::Value(index) => Place::Input(*index as usize),
            Head::Scalar(scalar) => Place::Scalar(*scalar),
            Head::Absent | Head::Attr(_) => Place::Absent,
            Head::Output(index) => match self.placed.get(&egraph.find(node.children[0])) {
                Some(Place::Node(at, _)) => Place::Node(*at, *index),
                _ => return Err(EgraphError::NoExtraction),
            },
            Head::Op(_) => {
                let op = op_of(egraph, node).map_err(|conflict| EgraphError::Conflict { conflict, last_rule: "none".into() })?;
                let operands = node.call().map_or(&[][..], |(_, operands, _)| operands);
                let operands = operands
                    .iter()
                    .map(|&operand| self.placed.get(&egraph.find(operand)).copied().ok_or(EgraphError::NoExtraction))
                    .collect::<Result<_, _>>()?;
                let canonical = node.clone().map_children(|child| egraph.find(child));
                let survivor = self.original.positions.get(&canonical).copied();
                let origins = survivor.into_iter().collect();
                let price = price(egraph, self.pricing, id, node);
                self.nodes.push(Planned { op, operands, survivor, origins, price });
                Place::Node(self.nodes.len() - 1, 0)
            }
        })
    }
}

/// Gives each new node the original nodes it stands for: what computed its value before, down to values that are still computed. New
/// nodes inside take over those of their reader.
fn trace_origins(nodes: &mut [Planned], loaded: &Loaded, key: &Key, placed: &[Id], extraction: &Extraction) {
    let egraph = &loaded.egraph;
    let kept: IndexSet<usize> = nodes.iter().filter_map(|node| node.survivor).collect();
    let computed: IndexSet<Id> = placed.iter().copied().collect();
    // Classes of planned nodes, in order.
    let classes: Vec<Id> =
        placed.iter().copied().filter(|&id| extraction.node(egraph, id).is_some_and(|n| n.call().is_some())).collect();
    for (at, &class) in classes.iter().enumerate() {
        if nodes.get(at).is_none_or(|node| node.survivor.is_some()) {
            continue;
        }
        let mut found: IndexSet<usize> = IndexSet::new();
        let made: Vec<Id> = outputs_of(egraph, class).collect();
        let is = |position: usize| {
            let op = egraph.find(loaded.ops[position]);
            op == class || outputs_of(egraph, op).any(|output| made.contains(&output))
        };
        let mut stack: Vec<usize> = (0..key.calls.len()).filter(|&position| is(position)).collect();
        while let Some(position) = stack.pop() {
            if kept.contains(&position) || !found.insert(position) {
                continue;
            }
            for operand in &key.calls[position].1 {
                if let Place::Node(next, index) = operand {
                    let output = output_of(egraph, egraph.find(loaded.ops[*next]), *index);
                    let there = output.is_some_and(|output| computed.contains(&output));
                    if is(*next) || !there {
                        stack.push(*next);
                    }
                }
            }
        }
        found.sort_unstable();
        nodes[at].origins = found.into_iter().collect();
    }
    for at in (0..nodes.len()).rev() {
        if !nodes[at].origins.is_empty() {
            continue;
        }
        let reads = |node: &Planned| node.operands.iter().any(|operand| matches!(operand, Place::Node(of, _) if *of == at));
        let mut origins: Vec<usize> =
            nodes.iter().filter(|node| node.survivor.is_none() && reads(node)).flat_map(|node| node.origins.clone()).collect();
        origins.sort_unstable();
        origins.dedup();
        nodes[at].origins = origins;
    }
}

/// The class of an op's output; none if nothing reads that output.
fn output_of(egraph: &EGraph, op: Id, index: u32) -> Option<Id> {
    match egraph[op].data.outputs.len() {
        0 | 1 => Some(op),
        _ => egraph.lookup(ENode::new(Head::Output(index), [op])).map(|id| egraph.find(id)),
    }
}

/// The classes of an op's outputs.
fn outputs_of(egraph: &EGraph, op: Id) -> impl Iterator<Item = Id> + '_ {
    (0..egraph[op].data.outputs.len().max(1) as u32).filter_map(move |index| output_of(egraph, op, index))
}

/// Gathers by a permutation that are still there, with what reads them.
fn stuck(nodes: &[Planned], key: &Key) -> Vec<(usize, &'static str)> {
    let permutation = |place: &Place| match place {
        Place::Node(at, 1) => nodes.get(*at).is_some_and(|node| node.op.code() == OpCode::Sort),
        Place::Node(at, 0) => nodes.get(*at).is_some_and(|node| node.op.code() == OpCode::InversePermutation),
        _ => false,
    };
    let mut stuck = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        if node.op.code() != OpCode::Index || !node.operands.get(1).is_some_and(permutation) {
            continue;
        }
        let readers = nodes.iter().filter(|reader| reader.operands.iter().any(|o| matches!(o, Place::Node(of, _) if *of == at)));
        for reader in readers {
            if let Some(position) = reader.survivor.or_else(|| reader.origins.first().copied()).filter(|&p| p < key.calls.len()) {
                stuck.push((position, reader.op.name()));
            }
        }
    }
    stuck
}

//! Extraction: one node for each class, so that the region as a whole (a DAG, shared values paid once) is cheapest.
//!
//! A worklist from the leaves gives each class the choice whose set of needed classes is cheapest; each class is priced once in a
//! set, however often it is read. Then single choices are changed as long as the price of all roots together falls, which is what
//! keeps a fused node from computing again what another reader needs anyway.

use super::{
    cost::{Price, Pricing},
    facts::{EGraph, op_of},
    language::{ENode, Head},
};
use egg::{Id, Language};
use eglu_ir::{OpCode, TensorType, ops::OperandType};
use indexmap::IndexMap;
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// The chosen node of each class that has a finite price.
pub struct Extraction {
    choices: IndexMap<Id, ENode>,
    /// Seconds that all roots take together.
    pub seconds: f64,
}

impl Extraction {
    /// The node chosen for a class.
    pub fn node(&self, egraph: &EGraph, id: Id) -> Option<&ENode> {
        self.choices.get(&egraph.find(id))
    }
}

/// Own price of a node, its operands excluded.
pub fn price(egraph: &EGraph, pricing: &Pricing, class: Id, node: &ENode) -> Price {
    let (Ok(op), Some((_, operands, _))) = (op_of(egraph, node), node.call()) else { return Price::default() };
    let operands: Vec<OperandType<'_>> = operands
        .iter()
        .map(|&id| match (egraph[id].data.outputs.first(), &egraph[id].data.leaf) {
            (Some(fact), _) => OperandType::Tensor(&fact.ty),
            (None, Some(Head::Scalar(scalar))) => OperandType::Scalar(*scalar),
            (None, _) => OperandType::None,
        })
        .collect();
    let outputs: Vec<TensorType> = egraph[class].data.outputs.iter().map(|fact| fact.ty.clone()).collect();
    pricing.of(&op, &operands, &outputs)
}

/// Classes that a choice needs, with the own price of each.
type Needs = Rc<BTreeMap<Id, f64>>;

struct Candidate {
    class: Id,
    node: ENode,
    own: f64,
    pending: usize,
}

/// Extracts the roots; `None` where a root has no acyclic choice. `original` gives the node that each class had at import, as a second
/// starting point.
pub fn extract(egraph: &EGraph, pricing: &Pricing, roots: &[Id], original: &IndexMap<Id, ENode>) -> Option<Extraction> {
    let roots: Vec<Id> = roots.iter().map(|&id| egraph.find(id)).collect();
    let candidates = candidates(egraph, pricing);
    let mut by_class: IndexMap<Id, Vec<(ENode, f64)>> = IndexMap::new();
    for candidate in &candidates {
        by_class.entry(candidate.class).or_default().push((candidate.node.clone(), candidate.own));
    }
    let cheapest = cheapest(egraph, candidates);
    let mut starts = vec![cheapest.clone()];
    starts.push(views_first(&cheapest, &by_class));
    starts.push(cheapest.into_iter().map(|(id, node)| (id, original.get(&id).cloned().unwrap_or(node))).collect());
    starts.into_iter().filter_map(|start| improve(start, &by_class, &roots)).min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// Parts of one product taken from it, where each could be a product of its own, and one router's weights cast, where each dtype could have
/// a router of its own: cheaper together, though a single one is not.
fn views_first(cheapest: &IndexMap<Id, ENode>, options: &IndexMap<Id, Vec<(ENode, f64)>>) -> IndexMap<Id, ENode> {
    let simpler = |node: &ENode| match node.head {
        Head::Op(OpCode::ExpertMatmul | OpCode::MatMul) => Some(OpCode::Slice),
        Head::Output(_) => Some(OpCode::Cast),
        _ => None,
    };
    let choose = |id: &Id, node: &ENode| {
        let code = simpler(node)?;
        options.get(id)?.iter().find(|option| option.0.head == Head::Op(code)).map(|option| option.0.clone())
    };
    cheapest.iter().map(|(&id, node)| (id, choose(&id, node).unwrap_or_else(|| node.clone()))).collect()
}

/// All nodes that could be chosen, in a fixed order; one that reads its own class never can.
fn candidates(egraph: &EGraph, pricing: &Pricing) -> Vec<Candidate> {
    let mut classes: Vec<Id> = egraph.classes().map(|class| class.id).collect();
    classes.sort_unstable();
    let mut candidates = Vec::new();
    for class in classes {
        for node in &egraph[class].nodes {
            if node.children().iter().any(|&child| egraph.find(child) == class) {
                continue;
            }
            let node = node.clone().map_children(|child| egraph.find(child));
            let own = price(egraph, pricing, class, &node).seconds;
            let mut children: Vec<Id> = node.children().to_vec();
            children.sort_unstable();
            children.dedup();
            candidates.push(Candidate { class, node, own, pending: children.len() });
        }
    }
    candidates
}

fn cheapest(egraph: &EGraph, mut candidates: Vec<Candidate>) -> IndexMap<Id, ENode> {
    let mut readers: IndexMap<Id, Vec<usize>> = IndexMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let mut children: Vec<Id> = candidate.node.children().to_vec();
        children.sort_unstable();
        children.dedup();
        for child in children {
            readers.entry(child).or_default().push(at);
        }
    }
    let mut best: IndexMap<Id, (f64, usize, Needs)> = IndexMap::new();
    let mut queue: VecDeque<usize> = (0..candidates.len()).filter(|&at| candidates[at].pending == 0).collect();
    let mut queued: Vec<bool> = candidates.iter().map(|candidate| candidate.pending == 0).collect();
    // Prices only fall, but a fall may spread again and again: the bound is far above what regions need.
    let mut budget = candidates.len().saturating_mul(64);
    while let Some(at) = queue.pop_front() {
        if budget == 0 {
            break;
        }
        budget -= 1;
        queued[at] = false;
        let Candidate { class, node, own, .. } = &candidates[at];
        let class = *class;
        let Some((total, needs)) = needs(node, class, *own, &best) else { continue };
        let first = match best.get(&class) {
            None => true,
            Some((price, ..)) if total < *price => false,
            Some(_) => continue,
        };
        best.insert(class, (total, at, needs));
        for &reader in readers.get(&class).map_or(&[][..], |readers| readers) {
            if first {
                candidates[reader].pending -= 1;
            }
            if candidates[reader].pending == 0 && !std::mem::replace(&mut queued[reader], true) {
                queue.push_back(reader);
            }
        }
    }
    let mut choices: IndexMap<Id, ENode> =
        best.into_iter().map(|(class, (_, at, _))| (egraph.find(class), candidates[at].node.clone())).collect();
    choices.sort_unstable_keys();
    choices
}

/// What a node needs, if its children have choices that do not need the node's own class.
fn needs(node: &ENode, class: Id, own: f64, best: &IndexMap<Id, (f64, usize, Needs)>) -> Option<(f64, Needs)> {
    let mut needs = BTreeMap::new();
    for child in node.children() {
        let (_, _, of_child) = best.get(child)?;
        if needs.is_empty() {
            needs = (**of_child).clone();
        } else {
            needs.extend(of_child.iter().map(|(&id, &price)| (id, price)));
        }
    }
    if needs.contains_key(&class) {
        return None;
    }
    needs.insert(class, own);
    Some((needs.values().sum(), Rc::new(needs)))
}

/// Changes single choices while the price of the roots falls.
fn improve(mut choices: IndexMap<Id, ENode>, options: &IndexMap<Id, Vec<(ENode, f64)>>, roots: &[Id]) -> Option<Extraction> {
    let (mut seconds, mut used) = total(&choices, options, roots)?;
    let mut improved = true;
    while improved {
        improved = false;
        for class in used.clone() {
            let Some(nodes) = options.get(&class).filter(|nodes| nodes.len() > 1) else { continue };
            for (node, _) in nodes {
                let Some(kept) = choices.insert(class, node.clone()) else { continue };
                match total(&choices, options, roots) {
                    Some((price, reached)) if price < seconds * (1.0 - 1e-12) => {
                        (seconds, used, improved) = (price, reached, true);
                    }
                    _ => {
                        choices.insert(class, kept);
                    }
                }
            }
        }
    }
    Some(Extraction { choices, seconds })
}

/// The price of everything the roots need, and the classes; `None` if choices are missing or go in a circle.
fn total(choices: &IndexMap<Id, ENode>, options: &IndexMap<Id, Vec<(ENode, f64)>>, roots: &[Id]) -> Option<(f64, Vec<Id>)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Open,
        Done,
    }
    let mut marks: BTreeMap<Id, Mark> = BTreeMap::new();
    let (mut seconds, mut order) = (0.0, Vec::new());
    let mut stack: Vec<(Id, bool)> = roots.iter().rev().map(|&root| (root, false)).collect();
    while let Some((id, leaving)) = stack.pop() {
        if leaving {
            marks.insert(id, Mark::Done);
            order.push(id);
            continue;
        }
        match marks.get(&id) {
            Some(Mark::Done) => continue,
            Some(Mark::Open) => return None,
            None => {}
        }
        let node = choices.get(&id)?;
        seconds +=
            options.get(&id).and_then(|nodes| nodes.iter().find(|option| option.0 == *node)).map_or(0.0, |option| option.1);
        marks.insert(id, Mark::Open);
        stack.push((id, true));
        for &child in node.children().iter().rev() {
            match marks.get(&child) {
                Some(Mark::Open) => return None,
                Some(Mark::Done) => {}
                None => stack.push((child, false)),
            }
        }
    }
    Some((seconds, order))
}

//! Fused nodes that the rules found and the price refused: mostly because a value inside is needed elsewhere and would be computed twice.

use super::{
    extract::Extraction,
    language::Head,
    region::{Key, Place},
    rule::Rule,
    run::{Log, NearMiss},
    solve::Loaded,
};
use egg::Id;
use eglu_ir::ops::Lowering;
use std::collections::HashSet;

/// Condition by which such nodes are refused.
const CONDITION: &str = "pays-on-the-device";

/// One near-miss for each value of the region that a fusing rule rewrote, where what it became is not what was taken.
pub fn near_misses(loaded: &Loaded, key: &Key, rules: &[Rule], log: &Log, extraction: &Extraction) -> Vec<NearMiss> {
    let egraph = &loaded.egraph;
    let mut missed: Vec<NearMiss> = Vec::new();
    for applied in log.applied.iter().filter(|applied| rules[applied.rule].fuses) {
        let class = egraph.find(applied.class);
        // Not in the result at all: part of something larger, or no longer needed.
        let Some(&at) = applied.nodes.first().filter(|_| kept(loaded, extraction, class)) else { continue };
        // Only where the op is as it was: anything else that was taken instead is fused too.
        if extraction.node(egraph, class).is_none_or(|node| node.head != Head::Op(key.calls[at].0.code())) {
            continue;
        }
        let operands: HashSet<Id> = applied.built.children.iter().map(|&child| egraph.find(child)).collect();
        let Some(why) = shared(loaded, key, at, &operands) else { continue };
        let (rule, nodes, term) = (applied.rule, applied.nodes.clone(), applied.before.clone());
        let miss = NearMiss { rule, nodes, term, condition: CONDITION.into(), why };
        if !missed.contains(&miss) {
            missed.push(miss);
        }
    }
    missed
}

/// The class is needed, through the nodes that were taken, by an output of the region.
fn kept(loaded: &Loaded, extraction: &Extraction, class: Id) -> bool {
    let egraph = &loaded.egraph;
    let (mut seen, mut stack) = (HashSet::new(), loaded.roots().map(|id| egraph.find(id)).collect::<Vec<_>>());
    while let Some(id) = stack.pop() {
        if id == class {
            return true;
        }
        if seen.insert(id)
            && let Some(node) = extraction.node(egraph, id)
        {
            stack.extend(node.children.iter().map(|&child| egraph.find(child)));
        }
    }
    false
}

/// The first value between the node and the operands of what it would become that something else needs too.
fn shared(loaded: &Loaded, key: &Key, at: usize, operands: &HashSet<Id>) -> Option<String> {
    let egraph = &loaded.egraph;
    let (mut inside, mut stack) = (vec![at], vec![at]);
    while let Some(position) = stack.pop() {
        for place in &key.calls[position].1 {
            if let Place::Node(next, _) = *place
                && !operands.contains(&egraph.find(loaded.values[next]))
                && !inside.contains(&next)
            {
                inside.push(next);
                stack.push(next);
            }
        }
    }
    inside.sort_unstable();
    let reads = |by: usize, of: usize| key.calls[by].1.iter().any(|place| matches!(place, Place::Node(next, _) if *next == of));
    // A view that is needed elsewhere too costs nothing.
    let computed = |of: usize| key.calls[of].0.code().lowering() != Lowering::View;
    inside.iter().filter(|&&of| of != at && computed(of)).find_map(|&of| {
        if let Some(by) = (0..key.calls.len()).find(|by| !inside.contains(by) && reads(*by, of)) {
            return Some(format!("`⟦{of}⟧` is used by node `⟦{by}⟧` too, so fusing would compute it twice"));
        }
        let leaves = key.outputs.iter().any(|place| matches!(place, Place::Node(next, _) if *next == of));
        leaves.then(|| format!("`⟦{of}⟧` is needed outside too, so fusing would compute it twice"))
    })
}

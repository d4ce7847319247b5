//! Saturation: rules are applied until nothing changes, and every application and near-miss is written down.

use super::{
    EgraphError,
    facts::EGraph,
    language::{ENode, Head},
    rule::{Numerics, Rule, Site},
};
use egg::{ENodeOrVar, Id, Language, Pattern, Searcher, Subst};
use indexmap::{IndexMap, IndexSet};
use std::collections::HashSet;

/// Bounds on saturation. Rules are one-directional and at most double a region, so that meeting a bound is news.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most rounds over all rules.
    pub rounds: usize,
    /// Most e-nodes.
    pub nodes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { rounds: 200, nodes: 50_000 }
    }
}

/// Why saturation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stop {
    Saturated,
    Rounds(usize),
    Nodes(usize),
    /// The region is left as it was.
    Failed(EgraphError),
}

/// One application of a rule. Nodes are positions in the region; in texts they stand as `⟦n⟧`.
#[derive(Clone, Debug)]
pub struct Application {
    /// Index of the rule in the table.
    pub rule: usize,
    /// How closely both sides agree.
    pub numerics: Numerics,
    /// Nodes of the region that compute the rewritten value.
    pub nodes: Vec<usize>,
    /// The class of the rewritten value.
    pub class: Id,
    /// What it became.
    pub built: ENode,
    /// The matched term.
    pub before: String,
    /// What it became, in words.
    pub after: String,
    /// Claims on user inputs that it rests on.
    pub assumed: Vec<String>,
}

/// A match that a named condition refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NearMiss {
    /// Index of the rule in the table.
    pub rule: usize,
    /// Nodes of the region that compute the matched value.
    pub nodes: Vec<usize>,
    /// The matched term.
    pub term: String,
    /// Name of the condition.
    pub condition: String,
    /// Why it refused.
    pub why: String,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Log {
    /// Rules applied, in order.
    pub applied: Vec<Application>,
    /// Near-misses that were not made good by a later match of the same rule.
    pub refused: Vec<NearMiss>,
    /// Each rule, by its index in the table, with each condition by which a match of it was refused.
    pub declined: IndexSet<(usize, String)>,
    /// Why it ended.
    pub stop: Stop,
    /// Rounds made.
    pub rounds: usize,
}

impl Log {
    /// Nothing happened yet.
    pub fn new(stop: Stop) -> Log {
        Log { applied: Vec::new(), refused: Vec::new(), declined: IndexSet::new(), stop, rounds: 0 }
    }
}

/// Names of classes in texts: the region's nodes in each.
struct Names(IndexMap<Id, Vec<usize>>);

impl Names {
    fn new(egraph: &EGraph, values: &[Id]) -> Names {
        let mut names: IndexMap<Id, Vec<usize>> = IndexMap::new();
        for (node, &id) in values.iter().enumerate() {
            names.entry(egraph.find(id)).or_default().push(node);
            // An op with several outputs has a class of its own.
            if let ENode { head: Head::Output(_), children } = egraph.id_to_node(id) {
                names.entry(egraph.find(children[0])).or_default().push(node);
            }
        }
        Names(names)
    }

    fn of(&self, egraph: &EGraph, id: Id) -> Vec<usize> {
        self.0.get(&egraph.find(id)).cloned().unwrap_or_default()
    }

    fn text(&self, egraph: &EGraph, id: Id) -> String {
        if let Some(node) = self.0.get(&egraph.find(id)).and_then(|nodes| nodes.first()) {
            return format!("⟦{node}⟧");
        }
        let output = egraph[id].nodes.iter().find_map(|node| match node.head {
            Head::Output(index) => Some((index, self.0.get(&egraph.find(node.children[0]))?.first()?)),
            _ => None,
        });
        if let Some((index, node)) = output {
            return format!("⟦{node}⟧#{index}");
        }
        match egraph[id].nodes.first() {
            Some(node) if node.is_leaf() => node.to_string(),
            Some(node) => format!("{node}(…)"),
            None => "?".into(),
        }
    }

    /// The pattern with its variables named.
    fn fill(&self, egraph: &EGraph, pattern: &Pattern<ENode>, subst: &Subst) -> String {
        let mut texts: Vec<String> = Vec::with_capacity(pattern.ast.len());
        for node in &pattern.ast {
            let text = match node {
                ENodeOrVar::Var(var) => subst.get(*var).map_or_else(|| var.to_string(), |&id| self.text(egraph, id)),
                ENodeOrVar::ENode(node) if node.is_leaf() => node.to_string(),
                ENodeOrVar::ENode(node) => {
                    let children: Vec<&str> = node.children().iter().map(|&child| texts[usize::from(child)].as_str()).collect();
                    format!("{node}({})", children.join(", "))
                }
            };
            texts.push(text);
        }
        texts.pop().unwrap_or_default()
    }

    fn shallow(&self, egraph: &EGraph, node: &ENode) -> String {
        let children: Vec<String> = node.children().iter().map(|&child| self.text(egraph, child)).collect();
        if children.is_empty() { node.to_string() } else { format!("{node}({})", children.join(", ")) }
    }
}

/// Saturates. `values` are the classes of the region's nodes, by position.
pub fn saturate(egraph: &mut EGraph, rules: &[Rule], values: &[Id], limits: Limits) -> Log {
    let mut log = Log::new(Stop::Saturated);
    let mut done: HashSet<(usize, usize, Id, Vec<Id>)> = HashSet::new();
    egraph.rebuild();
    loop {
        let size = egraph.total_size();
        let (changed, refused) = round(egraph, rules, values, &mut done, &mut log);
        egraph.rebuild();
        log.rounds += 1;
        log.refused = refused;
        if !egraph.analysis.conflicts.is_empty() || (!changed && egraph.total_size() == size) {
            break;
        }
        if log.rounds >= limits.rounds {
            log.stop = Stop::Rounds(log.rounds);
            break;
        }
        if egraph.total_size() > limits.nodes {
            log.stop = Stop::Nodes(egraph.total_size());
            break;
        }
    }
    let missed = near_misses(egraph, rules, values);
    log.declined.extend(missed.iter().map(|miss| (miss.rule, miss.condition.clone())));
    log.refused.extend(missed);
    let fired: HashSet<(usize, usize)> =
        log.applied.iter().flat_map(|applied| applied.nodes.iter().map(|&node| (applied.rule, node))).collect();
    log.refused.retain(|miss| !miss.nodes.iter().any(|&node| fired.contains(&(miss.rule, node))));
    log
}

/// One round: all rules are matched on the same e-graph, then applied.
fn round(
    egraph: &mut EGraph,
    rules: &[Rule],
    values: &[Id],
    done: &mut HashSet<(usize, usize, Id, Vec<Id>)>,
    log: &mut Log,
) -> (bool, Vec<NearMiss>) {
    let names = Names::new(egraph, values);
    let mut matches: Vec<(usize, usize, Id, Subst)> = Vec::new();
    for (r, rule) in rules.iter().enumerate() {
        for (p, pattern) in rule.patterns.iter().enumerate() {
            for found in pattern.search(egraph) {
                matches.extend(found.substs.into_iter().map(|subst| (r, p, found.eclass, subst)));
            }
        }
    }
    let (mut changed, mut refused) = (false, IndexSet::new());
    for (r, p, class, subst) in matches {
        let rule = &rules[r];
        let bound: Vec<Id> =
            rule.patterns[p].vars().iter().filter_map(|&var| subst.get(var)).map(|&id| egraph.find(id)).collect();
        let key = (r, p, egraph.find(class), bound);
        if done.contains(&key) {
            continue;
        }
        let mut site = Site { egraph, class, subst: &subst };
        let result = rule.check(&site).and_then(|assumed| Ok((assumed, rule.build(&mut site)?)));
        match result {
            Ok((assumed, built)) => {
                done.insert(key);
                if egraph.find(built) == egraph.find(class) {
                    continue;
                }
                let before = names.fill(egraph, &rule.patterns[p], &subst);
                let made = egraph.id_to_node(built).clone();
                let after = names.shallow(egraph, &made);
                let nodes = names.of(egraph, class);
                egraph.union(class, built);
                changed = true;
                let numerics = rule.numerics;
                log.applied.push(Application { rule: r, numerics, nodes, class, built: made, before, after, assumed });
            }
            Err(refusal) if rule.fuses => {
                let term = names.fill(egraph, &rule.patterns[p], &subst);
                let nodes = names.of(egraph, class);
                log.declined.insert((r, refusal.condition.clone()));
                refused.insert(NearMiss { rule: r, nodes, term, condition: refusal.condition, why: refusal.why });
            }
            Err(refusal) => {
                log.declined.insert((r, refusal.condition));
            }
        }
    }
    (changed, refused.into_iter().collect())
}

/// Forms that rules expect to miss, in the saturated e-graph.
fn near_misses(egraph: &mut EGraph, rules: &[Rule], values: &[Id]) -> Vec<NearMiss> {
    let names = Names::new(egraph, values);
    let mut missed = IndexSet::new();
    for (rule, near) in rules.iter().enumerate().flat_map(|(r, rule)| rule.nearly.iter().map(move |near| (r, near))) {
        for found in near.pattern.search(egraph) {
            for subst in &found.substs {
                let site = Site { egraph, class: found.eclass, subst };
                let Some(why) = near.explain(&site) else { continue };
                let (nodes, term) = (names.of(egraph, found.eclass), names.fill(egraph, &near.pattern, subst));
                missed.insert(NearMiss { rule, nodes, term, condition: near.condition.into(), why });
            }
        }
    }
    missed.into_iter().collect()
}

//! Which nodes of the graph given ended in which node of the graph that runs.

use eglu_ir::{Graph, NodeId, ops::Lowering};
use eglu_passes::{
    Optimized,
    report::{Kind, Site},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// A node of the optimised graph that runs as a step of its own, and what it stands for.
pub struct Group {
    /// Its name.
    pub node: Arc<str>,
    /// Its op.
    pub op: &'static str,
    /// What kind of fused kernel it is; `None` for an op that runs as it came.
    pub kind: Option<Kind>,
    /// The rule that made it; empty where none did.
    pub rule: String,
    /// Nodes of the graph given, each in one group only.
    pub before: Vec<Arc<str>>,
    /// Kernels and bytes fewer than with one kernel for each of them.
    pub saves: (usize, u64),
}

/// All groups, in the order of the optimised graph.
pub struct Groups {
    pub list: Vec<Group>,
    /// Position of the group by names of the graph given.
    pub of_before: HashMap<Arc<str>, usize>,
    /// Position of the group by names of the optimised graph.
    pub of_after: HashMap<Arc<str>, usize>,
}

impl Groups {
    /// The groups of an optimised graph.
    pub fn of(optimized: &Optimized) -> Groups {
        let graph = &optimized.graph;
        let sites: HashMap<&str, &Site> = optimized.report.sites.iter().map(|site| (&*site.node, site)).collect();
        let given: HashSet<&str> = steps(optimized.report.before()).map(|id| &*optimized.report.before().node(id).name).collect();
        let mut groups = Groups { list: Vec::new(), of_before: HashMap::new(), of_after: HashMap::new() };
        for id in steps(graph) {
            let node = graph.node(id);
            let site = sites.get(&*node.name);
            let at = groups.list.len();
            groups.of_after.insert(node.name.clone(), at);
            if given.contains(&*node.name) {
                groups.of_before.insert(node.name.clone(), at);
            }
            groups.list.push(Group {
                node: node.name.clone(),
                op: node.op().map_or("", |op| op.name()),
                kind: site.map(|site| site.kind),
                rule: site.map_or_else(String::new, |site| site.rule.clone()),
                before: Vec::new(),
                saves: site.map_or((0, 0), |site| (site.saves.launches, site.saves.bytes)),
            });
        }
        // Names first: several nodes may come of one imported op and share its name as their origin. Then the sites, which share no nodes
        // as the report has it; what other steps stand for may lie in sites too, and is left to them.
        for (at, id) in steps(graph).enumerate() {
            for name in sites.get(&*graph.node(id).name).iter().flat_map(|site| &site.nodes) {
                groups.of_before.entry(name.clone()).or_insert(at);
            }
        }
        for (at, id) in steps(graph).enumerate() {
            for name in &graph.node(id).origins {
                groups.of_before.entry(name.clone()).or_insert(at);
            }
        }
        let before = optimized.report.before();
        groups.adopt(before);
        for id in before.node_ids() {
            let name = &before.node(id).name;
            if let Some(&at) = groups.of_before.get(name) {
                groups.list[at].before.push(name.clone());
            }
        }
        groups
    }

    /// What nobody names, such as a view or a cast that the import added, is its readers' where all of them are in one group.
    fn adopt(&mut self, before: &Graph) {
        for id in before.topological().unwrap_or_default().into_iter().rev() {
            let node = before.node(id);
            if node.op().is_none()
                || self.of_before.contains_key(&node.name)
                || before.outputs().iter().any(|out| out.value.node == id)
            {
                continue;
            }
            let mut readers = before.users(id).into_iter().map(|user| self.of_before.get(&before.node(user).name).copied());
            if let Some(Some(first)) = readers.next()
                && readers.all(|group| group == Some(first))
            {
                self.of_before.insert(node.name.clone(), first);
            }
        }
    }

    /// The kind of the group that a node of the graph given ended in, as a CSS class.
    pub fn class_before(&self, name: &str) -> &'static str {
        self.of_before.get(name).map_or("plain", |&at| class(self.list[at].kind))
    }

    /// The kind of a node of the optimised graph, as a CSS class.
    pub fn class_after(&self, name: &str) -> &'static str {
        self.of_after.get(name).map_or("plain", |&at| class(self.list[at].kind))
    }
}

/// Nodes that become steps: calls that are no views, in topological order.
fn steps(graph: &Graph) -> impl Iterator<Item = NodeId> + '_ {
    let order = graph.topological().unwrap_or_default();
    order.into_iter().filter(|&id| graph.node(id).op().is_some_and(|op| op.code().lowering() != Lowering::View))
}

/// The CSS class of a kind.
pub fn class(kind: Option<Kind>) -> &'static str {
    match kind {
        Some(Kind::Moe) => "moe",
        Some(Kind::Glu) => "glu",
        Some(Kind::Contract) => "contract",
        Some(Kind::Reduce) => "reduce",
        Some(Kind::RowNorm) => "norm",
        Some(Kind::Route) => "route",
        Some(Kind::Pointwise) => "pointwise",
        None => "plain",
    }
}

/// What the classes mean, for legends.
pub const CLASSES: [(&str, &str); 8] = [
    ("moe", "mixture of experts"),
    ("glu", "gated linear unit"),
    ("contract", "matmul with epilogue"),
    ("route", "router"),
    ("norm", "row norm"),
    ("reduce", "reduction"),
    ("pointwise", "elementwise loop"),
    ("plain", "not fused"),
];

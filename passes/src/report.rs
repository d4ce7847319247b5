//! What was done to a graph, for people and for `--report`.

mod sites;

use crate::{
    cost,
    recompute::{self, Kept},
};
use eglu_ir::{Bindings, Graph, NodeId};
use indexmap::IndexMap;
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What a pipeline did. Serialises as the command's `--report`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Ops in the graph given; inputs, weights and constants are not counted.
    pub nodes_before: usize,
    /// Ops in the graph returned.
    pub nodes_after: usize,
    /// Launches of the plan: not known to passes, set by who lowers the graph.
    pub kernels: usize,
    /// Fused parts of the graph, in topological order.
    pub sites: Vec<Site>,
    /// Rules that matched but whose conditions did not hold.
    pub refused: Vec<Refused>,
    /// Why searches ended before they were exhausted; empty if none did.
    pub stops: Vec<String>,
    /// What the backward part keeps of the forward part; none for a graph without gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// Claims on the user's inputs that the result rests on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// Milliseconds of each phase.
    pub time_ms: IndexMap<String, f64>,
    /// When each pass ran.
    #[serde(skip)]
    pub passes: Vec<Ran>,
    /// Rules that were applied, in order, for [`explain`](crate::explain).
    #[serde(skip)]
    pub trail: Vec<Step>,
    /// The graph given.
    #[serde(skip)]
    before: Graph,
}

/// One run of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// Name of the pass.
    pub pass: String,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub time: Duration,
}

/// One fused part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Site {
    /// What kind of kernel it became.
    pub kind: Kind,
    /// The last rule that led there, or the pass.
    pub rule: String,
    /// The imported nodes it stands for.
    pub nodes: Vec<Arc<str>>,
    /// What it saves against one kernel for each imported node.
    pub saves: Saves,
    /// The node of the optimised graph.
    #[serde(skip)]
    pub node: Arc<str>,
}

/// Kinds of fused parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A mixture-of-experts block.
    Moe,
    /// A gated linear unit with its matmuls.
    Glu,
    /// A matmul with an epilogue.
    Contract,
    /// Reductions with what is before and behind them.
    Reduce,
    /// Softmax and RMSNorm.
    RowNorm,
    /// A router.
    Route,
    /// A pointwise loop.
    Pointwise,
}

/// Savings of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Saves {
    /// Kernels fewer.
    pub launches: usize,
    /// Bytes of intermediate results that are neither written nor read, at [typical sizes](crate::cost::typical_sizes).
    pub bytes: u64,
}

/// A near-miss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The rule that matched.
    pub rule: String,
    /// The imported node nearest to where it matched.
    pub node: String,
    /// Name of the condition that did not hold.
    pub condition: String,
    /// Why it did not, in words.
    pub why: String,
}

/// One application of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name of the rule.
    pub rule: String,
    /// What the rule states.
    pub doc: String,
    /// What it matched.
    pub before: String,
    /// What it made of it.
    pub after: String,
    /// The imported nodes that the match stands for.
    pub nodes: Vec<Arc<str>>,
}

impl Report {
    /// The report before any pass has run.
    pub fn new(graph: &Graph) -> Report {
        Report {
            nodes_before: ops(graph),
            nodes_after: ops(graph),
            kernels: 0,
            sites: Vec::new(),
            refused: Vec::new(),
            stops: Vec::new(),
            kept: None,
            assumptions: Vec::new(),
            time_ms: IndexMap::new(),
            passes: Vec::new(),
            trail: Vec::new(),
            before: graph.clone(),
        }
    }

    /// Lets `graph`, which computes more than the graph given, stand for it.
    pub(crate) fn restart(&mut self, graph: &Graph) {
        self.nodes_before = ops(graph);
        self.before = graph.clone();
    }

    /// Adds to the time of a phase.
    pub fn add_time(&mut self, phase: &str, time: Duration) {
        *self.time_ms.entry(phase.into()).or_insert(0.0) += time.as_secs_f64() * 1e3;
    }

    /// Takes down a run of a pass that ends now.
    pub(crate) fn ran(&mut self, pass: &str, start: Instant) {
        let time = start.elapsed();
        self.passes.push(Ran { pass: pass.into(), start, time });
        self.add_time(pass, time);
    }

    /// The graph that the pipeline was given; where it was differentiated, the joint graph.
    pub fn before(&self) -> &Graph {
        &self.before
    }

    /// Finds the sites of the optimised graph.
    pub(crate) fn conclude(&mut self, graph: &Graph) {
        self.nodes_after = ops(graph);
        self.kept = recompute::kept(graph);
        self.sites = sites::find(self, graph);
    }

    /// Sizes for which bytes are counted.
    fn sizes(&self) -> Bindings {
        cost::typical_sizes(&self.before)
    }
}

fn ops(graph: &Graph) -> usize {
    graph.node_ids().filter(|&id: &NodeId| graph.node(id).op().is_some()).count()
}

//! Equality saturation: MoE and GLU blocks, in whatever dress they were exported, become fused nodes.
//!
//! The graph is cut into [regions](region); each goes into an e-graph of its own ([`language`], [`facts`]), where the [rules] apply until
//! nothing changes ([`run`]); the cheapest equivalent on the device is taken out ([`extract`], [`cost`]) and stitched back.

mod cost;
mod extract;
pub mod facts;
pub mod language;
pub mod range;
mod region;
mod report;
pub mod rule;
pub mod rules;
mod run;
mod solve;
pub mod soundness;
mod stitch;
mod unchosen;

pub use cost::Price;
pub use report::{Assumption, EgraphReport, Fired, Refused, Site, Stopped, Stuck};
pub use run::Limits;

use eglu_ir::{DeviceProfile, Graph, GraphError};

/// Why the pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EgraphError {
    #[error(transparent)]
    Rule(#[from] rule::RuleError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("rewriting contradicts itself, a fault of eglu: {conflict} (last rule: {last_rule})")]
    Conflict { conflict: String, last_rule: String },
    #[error("no term without cycles could be taken out of the e-graph, a fault of eglu")]
    NoExtraction,
}

/// Rewrites a graph to the cheapest equivalent that the rules reach on the device, and says what was done.
///
/// A region whose rewriting fails stays as it was, and the report has a stop with the reason.
/// Names of nodes that stay are kept; nodes that are new carry the names of what they stand for as [origins](eglu_ir::Node::origins).
pub fn saturate(graph: &Graph, profile: &DeviceProfile) -> Result<(Graph, EgraphReport), EgraphError> {
    saturate_with(graph, profile, rules::all()?, Limits::default())
}

/// As [`saturate`], with other rules and limits.
pub fn saturate_with(
    graph: &Graph,
    profile: &DeviceProfile,
    rules: &[rule::Rule],
    limits: Limits,
) -> Result<(Graph, EgraphReport), EgraphError> {
    let pricing = cost::Pricing::new(profile, graph);
    stitch::rewrite(graph, rules, &pricing, limits)
}

//! What saturation did, for people and for `--report`.

use super::{cost::Price, rule::Numerics};
use serde::Serialize;

/// What the e-graph pass did to a graph.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EgraphReport {
    /// Regions that the graph was cut into.
    pub regions: usize,
    /// Of these, how many had been solved before.
    pub cached: usize,
    /// E-nodes over all regions that were solved.
    pub e_nodes: usize,
    /// Estimated work before and after, by the cost model.
    pub price: (Price, Price),
    /// Rules applied.
    pub fired: Vec<Fired>,
    /// Near-misses.
    pub refused: Vec<Refused>,
    /// Fused nodes of the result.
    pub sites: Vec<Site>,
    /// Claims on user inputs that the result rests on.
    pub assumptions: Vec<Assumption>,
    /// Permutations of rows that did not meet their inverse.
    pub stuck: Vec<Stuck>,
    /// Saturations that ended before nothing changed any more.
    pub stops: Vec<Stopped>,
}

/// A rule applied.
#[derive(Clone, Debug, Serialize)]
pub struct Fired {
    /// Name of the rule.
    pub rule: String,
    /// How closely both sides agree.
    pub numerics: Numerics,
    /// Graph nodes that computed the rewritten value; none for a value made by another rule.
    pub nodes: Vec<String>,
    /// The matched term.
    pub before: String,
    /// What it became.
    pub after: String,
}

/// A match that a condition refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Name of the rule.
    pub rule: String,
    /// Graph nodes that compute the matched value.
    pub nodes: Vec<String>,
    /// The matched term.
    pub term: String,
    /// Name of the condition.
    pub condition: String,
    /// Why it refused, in words.
    pub why: String,
}

/// A fused node of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// Name of the node.
    pub node: String,
    /// Its op.
    pub op: &'static str,
    /// Graph nodes that it stands for.
    pub origins: Vec<String>,
    /// Estimated work of these nodes, and of the fused one.
    pub price: (Price, Price),
}

/// A claim on a user input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// The rule that needs it.
    pub rule: String,
    /// The claim, in words.
    pub claim: String,
}

/// A permutation of rows that got stuck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// The node that it could not pass.
    pub node: String,
    /// Its op.
    pub op: &'static str,
    /// The condition that refused to let it pass.
    pub condition: String,
    /// Why not, in words.
    pub why: String,
}

/// A saturation cut short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// First and last node of the region.
    pub region: (String, String),
    /// What limit was met.
    pub why: String,
}

//! Equality saturation as a pass, and its findings as part of the report.

use crate::{
    egraph::{self, EgraphReport},
    pipeline::{Context, Failure, Pass},
    report::{Refused, Report, Step},
};
use eglu_ir::Graph;
use rustc_hash::FxHashMap;

/// Rewrites by equality saturation.
pub struct Saturate;

impl Pass for Saturate {
    fn name(&self) -> &'static str {
        "egraph"
    }

    fn doc(&self) -> &'static str {
        "finds mixture-of-experts blocks, gated units, routers and norms by equality saturation"
    }

    fn run(&self, graph: &mut Graph, context: &mut Context<'_>) -> Result<bool, Failure> {
        let (rewritten, found) = egraph::saturate(graph, context.profile)?;
        let changed = !found.fired.is_empty();
        record(context.report, found)?;
        *graph = rewritten;
        Ok(changed)
    }
}

fn record(report: &mut Report, found: EgraphReport) -> Result<(), Failure> {
    let rules = egraph::rules::all().map_err(egraph::EgraphError::from)?;
    let docs: FxHashMap<&str, &str> = rules.iter().map(|rule| (rule.name.as_str(), rule.doc.as_str())).collect();
    report.trail.extend(found.fired.into_iter().map(|fired| Step {
        doc: docs.get(fired.rule.as_str()).copied().unwrap_or_default().into(),
        rule: fired.rule,
        before: fired.before,
        after: fired.after,
        nodes: fired.nodes.into_iter().map(Into::into).collect(),
    }));
    report.refused.extend(found.refused.into_iter().map(|miss| Refused {
        rule: miss.rule,
        node: miss.nodes.into_iter().next().unwrap_or_default(),
        condition: miss.condition,
        why: miss.why,
    }));
    report.refused.extend(found.stuck.into_iter().map(|stuck| Refused {
        rule: format!("permutation-through-{}", stuck.op),
        node: stuck.node,
        condition: stuck.condition,
        why: format!("a permutation of rows is stuck at `{}`: {}", stuck.op, stuck.why),
    }));
    report.assumptions.extend(found.assumptions.into_iter().map(|it| format!("{} ({})", it.claim, it.rule)));
    report.stops.extend(found.stops.into_iter().map(|stop| format!("{} to {}: {}", stop.region.0, stop.region.1, stop.why)));
    Ok(())
}

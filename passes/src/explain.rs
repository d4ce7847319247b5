//! Where an imported node went, and by which rules: the text of `--explain`.

use crate::{cost, pipeline::Optimized, report::Step};
use eglu_ir::{Graph, NodeId, OpCode};
use std::{fmt::Write, sync::Arc};

/// The story of the node of that name, or `None` if neither graph has one.
pub fn explain(optimized: &Optimized, name: &str) -> Option<String> {
    let Optimized { graph, report } = optimized;
    let before = report.before().find(name);
    let after = holders(graph, name);
    if before.is_none() && after.is_empty() {
        return None;
    }
    let mut text = String::new();
    if let Some(op) = before.and_then(|id| report.before().node(id).op()) {
        line(&mut text, format_args!("{name} was imported as `{}`: {}", op.name(), first_sentence(op.code().doc())));
    }
    for &id in &after {
        end(&mut text, graph, id, name);
    }
    let names: Vec<&Arc<str>> = after.iter().flat_map(|&id| &graph.node(id).origins).collect();
    let about = |nodes: &[Arc<str>]| nodes.iter().any(|node| &**node == name || names.contains(&node));
    let steps: Vec<&Step> = report.trail.iter().filter(|step| about(&step.nodes)).collect();
    if after.is_empty() {
        line(
            &mut text,
            format_args!(
                "no node of the optimised graph stands for {name}: its value was constant, not needed, or that of another node"
            ),
        );
    }
    if steps.is_empty() {
        line(&mut text, format_args!("no rewrite rule was applied; canonical forms and fusion are passes of their own"));
    } else {
        line(&mut text, format_args!("\nrules that led there:"));
        for (i, step) in steps.iter().enumerate() {
            line(&mut text, format_args!("{:>3}. {}: {}", i + 1, step.rule, step.doc));
            line(&mut text, format_args!("       from {}", step.before));
            line(&mut text, format_args!("       to   {}", step.after));
        }
    }
    let misses: Vec<_> =
        report.refused.iter().filter(|miss| miss.node == name || names.iter().any(|name| name.as_ref() == miss.node)).collect();
    if !misses.is_empty() {
        line(&mut text, format_args!("\nrules that nearly applied:"));
        for miss in misses {
            line(
                &mut text,
                format_args!("   - {} at {}: `{}` does not hold: {}", miss.rule, miss.node, miss.condition, miss.why),
            );
        }
    }
    Some(text)
}

/// The nodes that stand for the imported node, or else bear its name; views of weights that came with a kernel are left out.
fn holders(graph: &Graph, name: &str) -> Vec<NodeId> {
    let stands = |id: &NodeId| graph.node(*id).origins.iter().any(|origin| &**origin == name);
    let holders: Vec<NodeId> = graph.node_ids().filter(stands).collect();
    let kernels: Vec<NodeId> = holders.iter().copied().filter(|&id| graph.node(id).op().is_some_and(cost::launches)).collect();
    match (kernels.is_empty(), holders.is_empty()) {
        (false, _) => kernels,
        (true, false) => holders,
        (true, true) => graph.find(name).into_iter().collect(),
    }
}

fn end(text: &mut String, graph: &Graph, id: NodeId, name: &str) {
    let node = graph.node(id);
    let Some(op) = node.op() else {
        return line(text, format_args!("it is `{}` of the optimised graph, which computes nothing", node.name));
    };
    let code: OpCode = op.code();
    line(text, format_args!("it ended in `{}`, a `{}`: {}", node.name, op.name(), first_sentence(code.doc())));
    let others: Vec<&str> = node.origins.iter().map(|origin| &**origin).filter(|origin| *origin != name).collect();
    if !others.is_empty() {
        line(text, format_args!("together with {}", others.join(", ")));
    }
}

/// What an op does, in one sentence; the rest is for those who look it up.
fn first_sentence(doc: &str) -> &str {
    doc.split_once(". ").map_or(doc, |(first, _)| first)
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(words);
    text.push('\n');
}

//! Canonical forms: one spelling for what can be written in several ways.
//!
//! Nodes are visited operands first, so each rule sees operands that are canonical already; what a rule makes is simplified
//! again until nothing applies. Every rule is exact: NaN, infinities and the sign of zero come out as they went in.

mod joins;
mod pointwise;
mod sums;
mod views;

use crate::{
    pipeline::{Context, Failure, Pass},
    rebuild::{Operands, Rebuild},
};
use eglu_ir::{Graph, GraphError, NodeId, Op, Operand, Value};

/// What a rule makes of a call.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum Rewrite {
    /// Another call with the same outputs.
    Call(Op, Operands),
    /// A value that exists already.
    Forward(Value),
}

/// A rule looks at a call whose operands are canonical.
type Rule = fn(&Graph, &Op, &[Operand]) -> Option<Rewrite>;

/// All rules: views, pointwise identities, joins.
pub struct Canonicalize;

/// The rules on views alone: nothing that would launch a kernel comes or goes.
pub struct SimplifyViews;

impl Pass for Canonicalize {
    fn name(&self) -> &'static str {
        "canonicalize"
    }

    fn doc(&self) -> &'static str {
        "brings views, pointwise ops and joins to one spelling, exactly"
    }

    fn run(&self, graph: &mut Graph, _: &mut Context<'_>) -> Result<bool, Failure> {
        Ok(apply(graph, &[views::simplify, views::generators, pointwise::simplify, joins::simplify, sums::simplify])?)
    }
}

impl Pass for SimplifyViews {
    fn name(&self) -> &'static str {
        "views"
    }

    fn doc(&self) -> &'static str {
        "merges views of views and drops views that change nothing"
    }

    fn run(&self, graph: &mut Graph, _: &mut Context<'_>) -> Result<bool, Failure> {
        Ok(apply(graph, &[views::simplify])?)
    }
}

fn apply(graph: &mut Graph, rules: &[Rule]) -> Result<bool, GraphError> {
    let order = graph.topological()?;
    let applies = |id: &NodeId| {
        let node = graph.node(*id);
        node.op().is_some_and(|op| rules.iter().any(|rule| rule(graph, op, &node.operands).is_some()))
    };
    if !order.iter().any(applies) {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in order {
        let node = graph.node(id);
        let Some(op) = node.op() else {
            rebuild.copy(id)?;
            continue;
        };
        let (mut op, mut operands, mut forward) = (op.clone(), rebuild.operands(id), None);
        while let Some(rewrite) = rules.iter().find_map(|rule| rule(&rebuild.new, &op, &operands)) {
            match rewrite {
                Rewrite::Call(next, with) if rebuild.new.infer(&next, &with).is_ok_and(|types| types == node.outputs) => {
                    (op, operands) = (next, with);
                }
                Rewrite::Forward(value) if *rebuild.new.ty(value) == node.outputs[0] => {
                    forward = Some(value);
                    changed = true;
                    break;
                }
                // Equal types in two spellings, which only symbolic dims have: readers rely on the spelling there is.
                _ => break,
            }
            changed = true;
        }
        match forward {
            Some(value) => rebuild.forward(id, value),
            None => {
                let new = rebuild.call(&node.name, op, operands, node.origins.iter().cloned())?;
                rebuild.bind_all(id, new);
            }
        }
    }
    if changed {
        *graph = rebuild.finish();
    }
    Ok(changed)
}

/// The op and operands that compute a value, if it is the only output of a call.
fn call(graph: &Graph, value: Value) -> Option<(&Op, &[Operand])> {
    let node = graph.node(value.node);
    Some((node.op()?, node.operands.as_slice())).filter(|_| node.outputs.len() == 1)
}

/// The first operand, if it is a tensor.
fn first(operands: &[Operand]) -> Option<Value> {
    operands.first()?.value()
}

//! The check behind the rules' tests: on given inputs, every term of every class must have the same value.
//!
//! The whole graph goes into one e-graph; after saturation each e-node is evaluated on the values of its operands' classes and
//! compared with the value of its own class. Facts are held against the values too.

use super::{
    EgraphError, Limits,
    cost::Pricing,
    facts::{EGraph, Fact, op_of},
    language::{ENode, Head},
    range::Range,
    region,
    rule::{Numerics, Rule},
    run::saturate,
    solve, stitch,
};
use egg::{Id, Language};
use eglu_ir::{
    Bindings, DType, DeviceProfile, Graph, Tensor, Value,
    eval::{EvalError, EvalOperand, eval_op},
    ops::Cast,
};
use std::collections::BTreeMap;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Terms evaluated and compared.
    pub terms: usize,
    /// Terms that could not be evaluated, and why.
    pub skipped: Vec<String>,
    /// Terms whose value differs from that of their class, and facts that do not hold.
    pub differences: Vec<String>,
    /// Names of the rules that were applied, in order.
    pub fired: Vec<String>,
    /// Names of rules with the conditions that refused matches of them, reported or not.
    pub declined: Vec<(String, String)>,
    /// Rules, conditions and reasons of near-misses.
    pub refused: Vec<(String, String, String)>,
}

/// What values of a dtype may differ by, relative to the largest, where rules of that class and closer ones were applied.
pub type Tolerance<'a> = &'a dyn Fn(DType, Numerics) -> f64;

/// Saturates the graph as one region and evaluates every term. `value` gives the inputs and weights.
pub fn check(
    graph: &Graph,
    rules: &[Rule],
    bindings: &Bindings,
    value: &dyn Fn(Value) -> Tensor,
    tolerance: Tolerance<'_>,
) -> Result<Checked, EgraphError> {
    let region = region::whole(graph)?;
    let key = region.key(graph, region::entries(graph, &region));
    let (egraph, log) = {
        let mut loaded = solve::load(&key);
        let log = saturate(&mut loaded.egraph, rules, &loaded.values, Limits::default());
        (loaded.egraph, log)
    };
    let mut checked = Checked {
        fired: log.applied.iter().map(|applied| rules[applied.rule].name.clone()).collect(),
        declined: log.declined.iter().map(|(rule, condition)| (rules[*rule].name.clone(), condition.clone())).collect(),
        refused: log.refused.iter().cloned().map(|miss| (rules[miss.rule].name.clone(), miss.condition, miss.why)).collect(),
        differences: egraph.analysis.conflicts.clone(),
        ..Checked::default()
    };
    let inputs: Vec<Tensor> = region.inputs.iter().map(|&input| value(input)).collect();
    let loosest = log.applied.iter().map(|applied| applied.numerics).max().unwrap_or(Numerics::Exact);
    let tolerance = |dtype| tolerance(dtype, loosest);
    Evaluation { egraph: &egraph, bindings, inputs, values: BTreeMap::new() }.run(&mut checked, &tolerance);
    Ok(checked)
}

/// The graph of the costliest terms instead of the cheapest: it must compute the same.
pub fn costliest(graph: &Graph, profile: &DeviceProfile, rules: &[Rule]) -> Result<Graph, EgraphError> {
    let pricing = Pricing::new(profile, graph).inverted();
    Ok(stitch::rewrite(graph, rules, &pricing, Limits::default())?.0)
}

struct Evaluation<'a> {
    egraph: &'a EGraph,
    bindings: &'a Bindings,
    inputs: Vec<Tensor>,
    /// Outputs of each class that has a value yet.
    values: BTreeMap<Id, Vec<Tensor>>,
}

impl Evaluation<'_> {
    /// Evaluates what has operands until nothing is left; terms are visited in the order in which they were added, the imported first.
    fn run(&mut self, checked: &mut Checked, tolerance: &dyn Fn(DType) -> f64) {
        let egraph = self.egraph;
        let mut waiting: Vec<(Id, &ENode)> = Vec::new();
        for class in egraph.classes().map(|class| class.id) {
            waiting.extend(egraph[class].nodes.iter().filter(|node| !is_leaf(node)).map(|node| (class, node)));
        }
        waiting.sort_unstable();
        let mut progress = true;
        while progress {
            progress = false;
            let (ready, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, node)| self.ready(node));
            waiting = rest;
            for (class, node) in ready {
                progress = true;
                match self.evaluate(node) {
                    Err(error) => checked.skipped.push(format!("{node}: {error}")),
                    Ok(outputs) => self.compare(class, node, outputs, checked, tolerance),
                }
            }
        }
        checked.skipped.extend(waiting.iter().map(|(_, node)| format!("{node}: its operands have no value")));
    }

    fn ready(&self, node: &ENode) -> bool {
        node.children().iter().all(|&child| {
            let child = self.egraph.find(child);
            self.egraph[child].data.leaf.is_some() || self.values.contains_key(&child)
        })
    }

    fn evaluate(&self, node: &ENode) -> Result<Vec<Tensor>, EvalError> {
        match &node.head {
            Head::Value(index) => Ok(vec![self.inputs[*index as usize].clone()]),
            Head::Output(index) => Ok(vec![self.values[&self.egraph.find(node.children[0])][*index as usize].clone()]),
            _ => {
                let op = op_of(self.egraph, node).map_err(EvalError::Data)?;
                let operands = node.call().map_or(&[][..], |(_, operands, _)| operands);
                let operands: Vec<EvalOperand<'_>> = operands
                    .iter()
                    .map(|&id| match &self.egraph[id].data.leaf {
                        Some(Head::Scalar(scalar)) => EvalOperand::Scalar(*scalar),
                        Some(_) => EvalOperand::None,
                        None => EvalOperand::Tensor(&self.values[&self.egraph.find(id)][0]),
                    })
                    .collect();
                eval_op(&op, &operands, self.bindings)
            }
        }
    }

    fn compare(&mut self, class: Id, node: &ENode, found: Vec<Tensor>, checked: &mut Checked, tolerance: &dyn Fn(DType) -> f64) {
        checked.terms += 1;
        let facts = &self.egraph[class].data.outputs;
        for (fact, tensor) in facts.iter().zip(&found) {
            if let Err(why) = holds(fact, tensor, self.bindings) {
                checked.differences.push(format!("{node}: {why}"));
            }
        }
        let Some(expected) = self.values.get(&class) else {
            self.values.insert(class, found);
            return;
        };
        for (want, got) in expected.iter().zip(&found) {
            if let Err(why) = close(want, got, tolerance(want.dtype())) {
                let members: Vec<String> = self.egraph[class].nodes.iter().map(ENode::to_string).collect();
                checked.differences.push(format!("{node} in the class of {members:?}: {why}"));
            }
        }
    }
}

fn is_leaf(node: &ENode) -> bool {
    matches!(node.head, Head::Attr(_) | Head::Scalar(_) | Head::Absent)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>, String> {
    let wide = eval_op(&Cast { dtype: DType::F64 }.into(), &[EvalOperand::Tensor(tensor)], &Bindings::new());
    let wide = wide.map_err(|e| e.to_string())?.pop().ok_or("no result")?;
    Ok(wide.bytes().chunks_exact(8).map(|b| f64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect())
}

fn holds(fact: &Fact, tensor: &Tensor, bindings: &Bindings) -> Result<(), String> {
    let shape = fact.ty.concrete(bindings).map_err(|e| e.to_string())?;
    if fact.ty.dtype != tensor.dtype() || shape != tensor.shape() {
        return Err(format!("is {:?}, but its type is {}", tensor.ty(), fact.ty));
    }
    if fact.range != Range::ANY {
        let outside = numbers(tensor)?.into_iter().find(|&value| value < fact.range.lo as f64 || value > fact.range.hi as f64);
        if let Some(value) = outside {
            return Err(format!("has the value {value}, but should be {}", fact.range));
        }
    }
    if fact.permutation {
        let mut sorted = numbers(tensor)?;
        sorted.sort_unstable_by(f64::total_cmp);
        if !sorted.iter().enumerate().all(|(i, &value)| value == i as f64) {
            return Err("is no permutation".into());
        }
    }
    Ok(())
}

fn close(want: &Tensor, got: &Tensor, tolerance: f64) -> Result<(), String> {
    if want.ty() != got.ty() {
        return Err(format!("has type {}, not {}", got.ty(), want.ty()));
    }
    let (want, got) = (numbers(want)?, numbers(got)?);
    let scale = want.iter().filter(|x| x.is_finite()).fold(0f64, |max, x| max.max(x.abs()));
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        let same = want == got || (want.is_nan() && got.is_nan()) || (want - got).abs() <= tolerance * scale;
        if !same {
            return Err(format!("element {i} is {got}, not {want}"));
        }
    }
    Ok(())
}

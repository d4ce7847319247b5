//! The rewritten graph, region by region, and the report on it.

use super::{
    EgraphError, EgraphReport, Limits,
    cost::Pricing,
    facts::{Entry, Fact},
    region::{self, Key, Place, Region, split},
    report::{Assumption, Fired, Refused, Site, Stopped, Stuck},
    rule::{Refusal, Rule},
    run::Stop,
    solve::{Solution, solve},
};
use eglu_ir::{Graph, NodeId, NodeKind, Op, OpCode, Operand, Value};
use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{rc::Rc, sync::Arc};

/// Solves every region and builds the new graph.
pub fn rewrite(graph: &Graph, rules: &[Rule], pricing: &Pricing, limits: Limits) -> Result<(Graph, EgraphReport), EgraphError> {
    let mut stitching = Stitching::new(graph, rules);
    let mut solved: FxHashMap<Key, Rc<Solution>> = FxHashMap::default();
    for region in split(graph)? {
        let entries = region.inputs.iter().map(|&value| stitching.entry(value)).collect();
        let key = region.key(graph, entries);
        stitching.report.regions += 1;
        let solution = match solved.get(&key) {
            Some(solution) => {
                stitching.report.cached += 1;
                solution.clone()
            }
            None => {
                // A fault of one region costs that region its fusions, not the user the compile.
                let solution = solve(&key, rules, pricing, limits).unwrap_or_else(|why| {
                    let types = region.outputs.iter().map(|&value| Fact::of_type(graph.ty(value).clone()));
                    Solution::unchanged(&key, types.collect(), why)
                });
                let solution = Rc::new(solution);
                stitching.report.e_nodes += solution.size;
                solved.insert(key, solution.clone());
                solution
            }
        };
        stitching.place(&region, &solution)?;
        stitching.tell(&region, &solution);
    }
    stitching.finish()
}

struct Stitching<'a> {
    graph: &'a Graph,
    rules: &'a [Rule],
    built: Graph,
    /// Where values of the old graph are in the new one.
    moved: FxHashMap<Value, Value>,
    facts: FxHashMap<Value, Fact>,
    /// Names of the old graph, which new nodes must not take.
    taken: FxHashSet<Arc<str>>,
    fresh: IndexMap<&'static str, usize>,
    report: EgraphReport,
}

impl<'a> Stitching<'a> {
    fn new(graph: &'a Graph, rules: &'a [Rule]) -> Stitching<'a> {
        let mut built = Graph::new(graph.name.clone());
        built.symbols = graph.symbols.clone();
        let mut moved = FxHashMap::default();
        for &id in graph.inputs() {
            let node = graph.node(id);
            moved.insert(Value::from(id), built.add_input(&node.name, node.outputs[0].clone()));
        }
        let taken = graph.node_ids().map(|id| graph.node(id).name.clone()).collect();
        let (facts, fresh, report) = (FxHashMap::default(), IndexMap::new(), EgraphReport::default());
        Stitching { graph, rules, built, moved, facts, taken, fresh, report }
    }

    /// What is known of a value that enters a region.
    fn entry(&self, value: Value) -> Entry {
        region::entry(self.graph, value, self.facts.get(&value).cloned())
    }

    /// The value in the new graph; weights and constants are taken over when first read.
    fn value(&mut self, value: Value) -> Option<Value> {
        if let Some(&moved) = self.moved.get(&value) {
            return Some(moved);
        }
        let node = self.graph.node(value.node);
        let copied = match &node.kind {
            NodeKind::Weight(path) => self.built.add_weight(&node.name, path, node.outputs[0].clone()),
            NodeKind::Constant(tensor) => self.built.add_constant(&node.name, tensor.clone()),
            NodeKind::Input | NodeKind::Call(_) => return None,
        };
        self.built.set_origins(copied.node, node.origins.iter().cloned());
        self.moved.insert(value, copied);
        Some(copied)
    }

    fn place(&mut self, region: &Region, solution: &Solution) -> Result<(), EgraphError> {
        let mut placed: Vec<NodeId> = Vec::with_capacity(solution.nodes.len());
        for planned in &solution.nodes {
            let operands: Vec<Operand> = planned
                .operands
                .iter()
                .map(|&place| match place {
                    Place::Node(at, index) => Ok(Operand::Value(Value { node: placed[at], index })),
                    Place::Input(at) => self.value(region.inputs[at]).map(Operand::Value).ok_or(EgraphError::NoExtraction),
                    Place::Scalar(scalar) => Ok(Operand::Scalar(scalar)),
                    Place::Absent => Ok(Operand::None),
                })
                .collect::<Result<_, _>>()?;
            let name = match planned.survivor {
                Some(at) => self.graph.node(region.nodes[at]).name.clone(),
                None => self.fresh_name(planned.op.name()),
            };
            let id = self.built.add_call(&name, planned.op.clone(), operands)?;
            let origins: IndexSet<Arc<str>> =
                planned.origins.iter().flat_map(|&at| self.graph.node(region.nodes[at]).origins.iter().cloned()).collect();
            if is_fused(&planned.op) {
                let origins = origins.iter().map(|name| name.to_string()).collect();
                let before = planned.origins.iter().map(|&at| solution.before[at]).sum();
                let (node, op) = (self.built.node(id).name.to_string(), planned.op.name());
                self.report.sites.push(Site { node, op, origins, price: (before, planned.price) });
            }
            if !origins.is_empty() {
                self.built.set_origins(id, origins);
            }
            placed.push(id);
        }
        for ((&value, &place), fact) in region.outputs.iter().zip(&solution.outputs).zip(&solution.facts) {
            let moved = match place {
                Place::Node(at, index) => Some(Value { node: placed[at], index }),
                Place::Input(at) => self.value(region.inputs[at]),
                Place::Scalar(_) | Place::Absent => None,
            };
            self.moved.insert(value, moved.ok_or(EgraphError::NoExtraction)?);
            self.facts.insert(value, fact.clone());
        }
        Ok(())
    }

    fn fresh_name(&mut self, op: &'static str) -> Arc<str> {
        loop {
            let count = self.fresh.entry(op).or_insert(0);
            let name: Arc<str> = if *count == 0 { op.into() } else { format!("{op}_{count}").into() };
            *count += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Adds to the report, with the names of this region's nodes.
    fn tell(&mut self, region: &Region, solution: &Solution) {
        let graph = self.graph;
        let name = |at: usize| graph.node(region.nodes[at]).name.to_string();
        let names = |nodes: &[usize]| nodes.iter().map(|&at| name(at)).collect::<Vec<_>>();
        let fill = |text: &str| fill(text, |at| region.nodes.get(at).map(|&id| graph.node(id).name.as_ref()));
        let rule = |at: usize| self.rules[at].name.clone();
        for applied in &solution.log.applied {
            for claim in &applied.assumed {
                let claim = name_input(claim, |at| region.inputs.get(at).map(|value| graph.node(value.node).name.as_ref()));
                let assumption = Assumption { rule: rule(applied.rule), claim };
                if !self.report.assumptions.contains(&assumption) {
                    self.report.assumptions.push(assumption);
                }
            }
            let (before, after) = (fill(&applied.before), fill(&applied.after));
            let (rule, numerics) = (rule(applied.rule), applied.numerics);
            self.report.fired.push(Fired { rule, numerics, nodes: names(&applied.nodes), before, after });
        }
        for miss in &solution.log.refused {
            let (condition, why) = (miss.condition.clone(), fill(&miss.why));
            let refused = Refused { rule: rule(miss.rule), nodes: names(&miss.nodes), term: fill(&miss.term), condition, why };
            self.report.refused.push(refused);
        }
        let stuck = |(at, op, by): &(usize, &'static str, Refusal)| Stuck {
            node: name(*at),
            op,
            condition: by.condition.clone(),
            why: by.why.clone(),
        };
        self.report.stuck.extend(solution.stuck.iter().map(stuck));
        let why = match &solution.log.stop {
            Stop::Saturated => None,
            Stop::Rounds(rounds) => Some(format!("still changing after {rounds} rounds")),
            Stop::Nodes(nodes) => Some(format!("grown to {nodes} e-nodes")),
            Stop::Failed(why) => Some(format!("left as it was: {why}")),
        };
        if let (Some(why), Some(last)) = (why, region.nodes.len().checked_sub(1)) {
            self.report.stops.push(Stopped { region: (name(0), name(last)), why });
        }
        self.report.price.0 += solution.before.iter().copied().sum();
        self.report.price.1 += solution.nodes.iter().map(|node| node.price).sum();
    }

    fn finish(mut self) -> Result<(Graph, EgraphReport), EgraphError> {
        for output in self.graph.outputs() {
            let value = self.value(output.value).ok_or(EgraphError::NoExtraction)?;
            self.built.add_output(value, output.kind.clone());
        }
        Ok((self.built, self.report))
    }
}

/// Ops that only rules make.
fn is_fused(op: &Op) -> bool {
    matches!(
        op.code(),
        OpCode::Moe
            | OpCode::DenseGlu
            | OpCode::Glu
            | OpCode::Route
            | OpCode::Combine
            | OpCode::ExpertMatmul
            | OpCode::ExpertOuter
            | OpCode::RmsNorm
    )
}

/// Puts names for the `⟦n⟧` of a text.
fn fill<'n>(text: &str, name: impl Fn(usize) -> Option<&'n str>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((head, tail)) = rest.split_once('⟦') {
        filled.push_str(head);
        let (number, tail) = tail.split_once('⟧').unwrap_or((tail, ""));
        filled.push_str(number.parse().ok().and_then(&name).unwrap_or("?"));
        rest = tail;
    }
    filled.push_str(rest);
    filled
}

/// Puts the input's name for the `%n` of a claim.
fn name_input<'n>(claim: &str, name: impl Fn(usize) -> Option<&'n str>) -> String {
    let Some((head, tail)) = claim.split_once('%') else { return claim.into() };
    let digits = tail.chars().take_while(char::is_ascii_digit).count();
    let (number, rest) = tail.split_at(digits);
    format!("{head}{}{rest}", number.parse().ok().and_then(name).unwrap_or("?"))
}

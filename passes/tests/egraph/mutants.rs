//! Near-misses of every rule, made by machine: each graph that rules are tried on is altered in one place, by another attribute, another
//! operand, operands swapped, another op. What rules still do to it must be right, and each rule must be seen to refuse.

use crate::{
    blocks::Sizes,
    build::{Builder, float, int},
    refusals,
    soundness::{checked, graphs},
};
use eglu_ir::{
    DType, Dim, Graph, NodeId, NodeKind, Op, Operand, Scalar, Value,
    ops::{Attr, Pointwise, ReduceKind},
};
use eglu_passes::egraph::{rule::Rule, rules};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Of so many mutants one is tried without optimisation, where all of them would take minutes.
const SAMPLED: usize = if cfg!(debug_assertions) { 40 } else { 1 };

/// A graph altered in one place.
pub struct Mutant {
    pub graph: Graph,
    /// What was done to it.
    pub how: String,
}

/// The graph with other operands or another op at one node, and one of these operands divided by two, if types still fit.
fn altered(graph: &Graph, at: NodeId, op: &Op, operands: &[Operand], halved: Option<usize>) -> Option<Graph> {
    let mut new = Graph::new(graph.name.clone());
    new.symbols = graph.symbols.clone();
    let mut values: BTreeMap<(usize, u32), Value> = BTreeMap::new();
    for &id in graph.inputs() {
        let node = graph.node(id);
        values.insert((id.index(), 0), new.add_input(&node.name, node.outputs[0].clone()));
    }
    for id in graph.topological().ok()? {
        let node = graph.node(id);
        let made = match &node.kind {
            NodeKind::Input => continue,
            NodeKind::Weight(path) => new.add_weight(&node.name, path, node.outputs[0].clone()).node,
            NodeKind::Constant(tensor) => new.add_constant(&node.name, tensor.clone()).node,
            NodeKind::Call(own) => {
                let (op, operands) = if id == at { (op, operands) } else { (own, &node.operands[..]) };
                let moved = operands.iter().map(|operand| match operand {
                    Operand::Value(value) => values.get(&(value.node.index(), value.index)).copied().map(Operand::Value),
                    other => Some(*other),
                });
                let mut moved = moved.collect::<Option<Vec<_>>>()?;
                if let Some(i) = halved.filter(|_| id == at) {
                    let half = new.add_call("halved", Pointwise::FloorDiv.into(), [moved[i], int(2)]).ok()?;
                    moved[i] = Value::from(half).into();
                }
                new.add_call(&node.name, op.clone(), moved).ok()?
            }
        };
        for index in 0..new.node(made).outputs.len() as u32 {
            values.insert((id.index(), index), Value { node: made, index });
        }
    }
    for output in graph.outputs() {
        new.add_output(*values.get(&(output.value.node.index(), output.value.index))?, output.kind.clone());
    }
    Some(new)
}

/// Other values of an attribute.
fn other_values(attr: &Attr) -> Vec<Attr> {
    match attr {
        Attr::Bool(flag) => vec![Attr::Bool(!flag)],
        Attr::Int(value) => vec![Attr::Int(value + 1), Attr::Int(value - 1)],
        Attr::Axes(axes) => {
            let moved = |by: usize| axes.iter().map(|axis| (axis + by) % 3).collect();
            let reversed = axes.iter().rev().copied().collect();
            vec![Attr::Axes(moved(1)), Attr::Axes(moved(2)), Attr::Axes(reversed)]
        }
        Attr::Scalar(Scalar::Int(value)) => vec![Attr::Scalar(Scalar::Int(value + 1)), Attr::Scalar(Scalar::Float(0.5))],
        Attr::Scalar(_) => vec![Attr::Scalar(Scalar::Float(0.25)), Attr::Scalar(Scalar::Int(3))],
        Attr::DType(DType::F32) => vec![Attr::DType(DType::Bf16), Attr::DType(DType::F64)],
        Attr::DType(DType::I64) => vec![Attr::DType(DType::I32)],
        Attr::DType(DType::I32) => vec![Attr::DType(DType::I16), Attr::DType(DType::I64)],
        Attr::DType(_) => vec![Attr::DType(DType::F32), Attr::DType(DType::I64)],
        Attr::Dim(dim) => [1, -1, 2].map(|by| Attr::Dim(dim.clone() + Dim::from(by))).to_vec(),
        Attr::Shape(shape) => {
            let turned = shape.iter().skip(1).chain(shape.iter().take(1)).cloned().collect();
            let swapped = shape.iter().rev().cloned().collect();
            vec![Attr::Shape(turned), Attr::Shape(swapped)]
        }
        Attr::Reduce(ReduceKind::Sum) => vec![Attr::Reduce(ReduceKind::Amax)],
        Attr::Reduce(_) => vec![Attr::Reduce(ReduceKind::Sum), Attr::Reduce(ReduceKind::Amin)],
        Attr::Score(_) | Attr::Program(_) | Attr::Programs(_) | Attr::Reduces(_) => vec![],
    }
}

/// Other elementwise ops of as many operands.
fn other_op(op: Pointwise) -> Pointwise {
    match op {
        Pointwise::Mul => Pointwise::Add,
        Pointwise::Add => Pointwise::Mul,
        Pointwise::Sub => Pointwise::Add,
        Pointwise::Div => Pointwise::Mul,
        Pointwise::Minimum => Pointwise::Maximum,
        Pointwise::Maximum => Pointwise::Minimum,
        Pointwise::Ge => Pointwise::Gt,
        Pointwise::FloorDiv => Pointwise::Remainder,
        Pointwise::Silu => Pointwise::Tanh,
        _ if op.arity() == 1 => Pointwise::Relu,
        _ => Pointwise::Sub,
    }
}

/// Every way in which one node of the graph is altered here.
pub fn mutants(graph: &Graph) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let order = graph.topological().unwrap_or_default();
    for (rank, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        let Some(op) = node.op() else { continue };
        let mut add = |op: &Op, operands: &[Operand], how: String| {
            mutants.extend(
                altered(graph, id, op, operands, None).map(|graph| Mutant { graph, how: format!("{}: {how}", node.name) }),
            );
        };
        let attrs: Vec<(&str, Attr)> = op.attrs().into_iter().collect();
        for (i, (name, attr)) in attrs.iter().enumerate() {
            for other in other_values(attr) {
                let mut all: Vec<Attr> = attrs.iter().map(|(_, attr)| attr.clone()).collect();
                all[i] = other.clone();
                if let Ok(op) = op.code().build(&all) {
                    add(&op, &node.operands, format!("{name} {attr:?} -> {other:?}"));
                }
            }
        }
        if let Op::Pointwise(op) = op {
            add(&other_op(*op).into(), &node.operands, format!("{} -> {}", op.name(), other_op(*op).name()));
        }
        for i in 0..node.operands.len() {
            let mut with = |operand: Operand, how: &str| {
                let mut operands = node.operands.to_vec();
                operands[i] = operand;
                add(op, &operands, format!("operand {i} {how}"));
            };
            match node.operands[i] {
                Operand::Scalar(Scalar::Int(value)) => {
                    with(Operand::Scalar(Scalar::Int(value + 1)), "+ 1");
                    with(Operand::Scalar(Scalar::Float(0.5)), "0.5");
                }
                Operand::Scalar(_) => {
                    with(float(0.125), "0.125");
                    with(Operand::Scalar(Scalar::Int(2)), "2");
                }
                Operand::None => {}
                Operand::Value(value) => {
                    // The last earlier value of the same type, and the first.
                    let alike = |other: &&NodeId| {
                        let other: Value = (**other).into();
                        other != value && graph.node(other.node).outputs.len() == 1 && graph.ty(other) == graph.ty(value)
                    };
                    let earlier: Vec<NodeId> = order[..rank].iter().filter(alike).copied().collect();
                    earlier.last().into_iter().for_each(|&other| with(Value::from(other).into(), "the last alike"));
                    earlier.first().into_iter().for_each(|&other| with(Value::from(other).into(), "the first alike"));
                }
            }
        }
        for i in 1..node.operands.len() {
            let mut operands = node.operands.to_vec();
            operands.swap(i - 1, i);
            if operands[..] != node.operands[..] {
                add(op, &operands, format!("operands {} and {i} swapped", i - 1));
            }
        }
        for (i, operand) in node.operands.iter().enumerate() {
            // Indices that are no permutation any more, and still in range.
            let integer = operand.value().is_some_and(|value| graph.ty(value).dtype.is_int());
            let half = altered(graph, id, op, &node.operands, Some(i).filter(|_| integer));
            let how = format!("{}: operand {i} halved", node.name);
            mutants.extend(half.filter(|_| integer).map(|graph| Mutant { graph, how }));
        }
    }
    mutants
}

/// What was seen of the rules on mutants.
#[derive(Default)]
struct Seen {
    /// Mutants on which a rule that fires on the original fires no more.
    missed: BTreeMap<String, usize>,
    /// Rules with conditions that refused matches.
    declined: BTreeMap<(String, String), usize>,
    /// Mutants that a rule rewrites wrongly.
    wrong: Vec<String>,
    tried: usize,
}

fn survey(graphs: &[Graph]) -> Seen {
    let table = rules::all().unwrap();
    let seen: Mutex<Seen> = Mutex::default();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(graph) = graphs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = checked(graph, table, 5, 4);
            found.declined.into_iter().for_each(|miss| *seen.lock().unwrap().declined.entry(miss).or_default() += 1);
            let original: BTreeSet<String> = found.fired.into_iter().collect();
            for (i, mutant) in mutants(graph).into_iter().enumerate() {
                if !(i + graph.len()).is_multiple_of(SAMPLED) {
                    continue;
                }
                let found = checked(&mutant.graph, table, 5, 4);
                let fired: BTreeSet<String> = found.fired.into_iter().collect();
                let mut seen = seen.lock().unwrap();
                seen.tried += 1;
                original.difference(&fired).for_each(|rule| *seen.missed.entry(rule.clone()).or_default() += 1);
                found.declined.into_iter().for_each(|miss| *seen.declined.entry(miss).or_default() += 1);
                let fault = found.differences.first().map(|fault| format!("{}, {}: {fault}", graph.name, mutant.how));
                seen.wrong.extend(fault);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    seen.into_inner().unwrap()
}

#[test]
fn rules_do_right_by_every_near_miss_and_each_refuses() {
    let mut graphs = graphs(4, Sizes { t: 4, k: 2, e: 3, h: 3, i: 4 });
    graphs.push(rows_of_a_product());
    graphs.extend(refusals::graphs());
    let seen = survey(&graphs);
    assert!(seen.wrong.is_empty(), "{} of {} mutants:\n{}", seen.wrong.len(), seen.tried, seen.wrong.join("\n"));
    if SAMPLED > 1 {
        return;
    }
    let table = rules::all().unwrap();
    let refused: usize = seen.missed.values().sum();
    println!("{} mutants, {refused} times a rule no longer fires", seen.tried);
    let refuses = |name: &str| seen.missed.contains_key(name) || seen.declined.keys().any(|(rule, _)| rule == name);
    // Rules without a condition rewrite whatever has their form.
    let conditional = table.iter().filter(|rule| !rule.conditions.is_empty());
    let never: Vec<&str> = conditional.map(|rule| &*rule.name).filter(|name| !refuses(name)).collect();
    assert!(never.is_empty(), "rules without a near-miss: {never:#?}");
    let unseen: Vec<String> = table.iter().flat_map(|rule| unseen(rule, &seen)).collect();
    let all: usize = table.iter().map(|rule| rule.conditions.len()).sum();
    println!("{} of {all} conditions seen to refuse by name", all - unseen.len());
    assert!(unseen.is_empty(), "conditions that nothing fails, which need a near-miss or no condition: {unseen:#?}");
}

/// Conditions of a rule that were not seen to refuse.
fn unseen(rule: &Rule, seen: &Seen) -> Vec<String> {
    let refused = |name: &str| seen.declined.contains_key(&(rule.name.clone(), name.to_string()));
    let silent = rule.conditions.iter().filter(|condition| !refused(condition.name));
    silent.map(|condition| format!("{}: {}", rule.name, condition.name)).collect()
}

/// Columns of a product, all of its rows' number, so that the same bounds are rows too.
fn rows_of_a_product() -> Graph {
    let mut b = Builder::new("rows-of-a-product");
    let x = b.input("x", DType::F32, &[6, 4]);
    let w = b.weight("w", DType::F32, &[4, 6]);
    let y = b.matmul(x, w);
    let part = b.slice(y, 1, (1, 4), 1);
    b.output(part);
    b.graph
}

#[test]
fn a_mutant_differs_in_one_place() {
    let mut b = Builder::new("one");
    let (x, y) = (b.input("x", DType::F32, &[2, 3]), b.input("y", DType::F32, &[2, 3]));
    let act = b.unary(Pointwise::Silu, x);
    let out = b.mul(act, y);
    b.output(out);
    let hows: Vec<String> = mutants(&b.graph).into_iter().map(|mutant| mutant.how).collect();
    assert!(hows.iter().any(|how| how == "mul: mul -> add"), "{hows:?}");
    assert!(hows.iter().any(|how| how == "silu: operand 0 the last alike"), "{hows:?}");
    assert!(hows.iter().any(|how| how == "mul: operands 0 and 1 swapped"), "{hows:?}");
}

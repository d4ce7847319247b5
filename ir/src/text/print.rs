//! Graph to text.

use super::{
    attrs, constant,
    cursor::{is_word, quoted},
};
use crate::{Graph, Node, NodeId, NodeKind, Operand, OutputKind, Value};
use std::fmt::Write;

/// The graph as text: inputs in signature order, then every node after its operands.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(graph, &mut text);
    text
}

/// Inputs in signature order, then the other nodes so that operands come first. A graph with a cycle, which only the verifier
/// should see, keeps the order of creation.
pub(crate) fn order(graph: &Graph) -> Vec<NodeId> {
    let sorted = graph.topological().unwrap_or_else(|_| graph.node_ids().collect());
    let others = sorted.into_iter().filter(|&id| !matches!(graph.node(id).kind, NodeKind::Input));
    graph.inputs().iter().copied().chain(others).collect()
}

fn write(graph: &Graph, text: &mut String) -> std::fmt::Result {
    writeln!(text, "graph {}", quoted(&graph.name))?;
    for (symbol, range) in &graph.symbols {
        match range.max {
            Some(max) => writeln!(text, "symbol {symbol}: {}..={max}", range.min)?,
            None => writeln!(text, "symbol {symbol}: {}..", range.min)?,
        }
    }
    for id in order(graph) {
        let node = graph.node(id);
        write!(text, "{}: {} = {}", name(&node.name), types(node), body(graph, node))?;
        if node.origins.len() != 1 || node.origins[0] != node.name {
            let origins: Vec<String> = node.origins.iter().map(|origin| quoted(origin)).collect();
            write!(text, " from [{}]", origins.join(", "))?;
        }
        text.push('\n');
    }
    for output in graph.outputs() {
        write!(text, "output {}", value(graph, output.value))?;
        match &output.kind {
            OutputKind::User => writeln!(text)?,
            OutputKind::Gradient(of) => writeln!(text, " gradient {}", quoted(of))?,
            OutputKind::Mutation(of) => writeln!(text, " mutation {}", quoted(of))?,
        }
    }
    Ok(())
}

fn name(name: &str) -> String {
    if is_word(name) { format!("%{name}") } else { format!("%{}", quoted(name)) }
}

fn value(graph: &Graph, value: Value) -> String {
    if !graph.contains(value.node) {
        return "%removed".to_string();
    }
    let name = name(&graph.node(value.node).name);
    if value.index == 0 { name } else { format!("{name}#{}", value.index) }
}

fn types(node: &Node) -> String {
    match node.outputs.as_slice() {
        [one] => one.to_string(),
        many => format!("({})", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn body(graph: &Graph, node: &Node) -> String {
    let op = match &node.kind {
        NodeKind::Input => return "input".to_string(),
        NodeKind::Weight(path) => return format!("weight {}", quoted(path)),
        NodeKind::Constant(tensor) => return format!("constant {}", constant::print(tensor)),
        NodeKind::Call(op) => op,
    };
    let operands: Vec<String> = node
        .operands
        .iter()
        .map(|operand| match operand {
            Operand::Value(operand) => value(graph, *operand),
            Operand::Scalar(scalar) => scalar.to_string(),
            Operand::None => "none".to_string(),
        })
        .collect();
    let attrs: Vec<String> = op.attrs().iter().map(|(name, attr)| format!("{name}={}", attrs::print(attr))).collect();
    match attrs.as_slice() {
        [] => format!("{}({})", op.name(), operands.join(", ")),
        attrs => format!("{}({}) {{{}}}", op.name(), operands.join(", "), attrs.join(", ")),
    }
}

//! Graphs as Graphviz and Mermaid text.

use eglu_ir::{Graph, NodeKind, Value};
use std::fmt::Write;

/// The graph in Graphviz' language, for `dot -Tsvg`.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from("digraph {\n  rankdir=TB; node [shape=box, fontname=\"monospace\", fontsize=10];\n");
    for node in nodes(graph) {
        let style = match node.role {
            Role::Input | Role::Output => ", style=bold",
            Role::Weight => ", style=dashed",
            Role::Call => "",
        };
        let label = node.lines.iter().map(|line| line.replace('\\', "\\\\").replace('"', "\\\"")).collect::<Vec<_>>().join("\\n");
        let _ = writeln!(text, "  {} [label=\"{label}\"{style}];", node.id);
        for (source, ty) in &node.reads {
            let _ = writeln!(text, "  {source} -> {} [label=\"{ty}\", fontsize=8];", node.id);
        }
    }
    text + "}\n"
}

/// The graph in Mermaid's language.
pub fn mermaid(graph: &Graph) -> String {
    let mut text = String::from("flowchart TB\n");
    for node in nodes(graph) {
        let label = node.lines.iter().map(|line| line.replace('"', "#quot;")).collect::<Vec<_>>().join("<br/>");
        let (open, close) = match node.role {
            Role::Input | Role::Output => ("([", "])"),
            Role::Weight => ("[(", ")]"),
            Role::Call => ("[", "]"),
        };
        let _ = writeln!(text, "  {}{open}\"{label}\"{close}", node.id);
        for (source, ty) in &node.reads {
            let _ = writeln!(text, "  {source} -->|\"{ty}\"| {}", node.id);
        }
    }
    text
}

enum Role {
    Input,
    Weight,
    Call,
    Output,
}

/// A node of the picture: what stands in it, and what it reads with the type on each arrow.
struct Picture {
    id: String,
    role: Role,
    lines: Vec<String>,
    reads: Vec<(String, String)>,
}

fn nodes(graph: &Graph) -> Vec<Picture> {
    let id = |value: Value| format!("n{}", value.node.index());
    let mut pictures = Vec::new();
    for node_id in graph.node_ids() {
        let node = graph.node(node_id);
        let (role, line) = match &node.kind {
            NodeKind::Input => (Role::Input, "input".to_owned()),
            NodeKind::Weight(path) => (Role::Weight, path.to_string()),
            NodeKind::Constant(tensor) => (Role::Weight, format!("constant {}", tensor.ty())),
            NodeKind::Call(op) => (Role::Call, op.name().to_owned()),
        };
        let values = node.operands.iter().filter_map(|operand| operand.value());
        let reads = values.map(|value| (id(value), graph.ty(value).to_string())).collect();
        pictures.push(Picture { id: id(node_id.into()), role, lines: vec![node.name.to_string(), line], reads });
    }
    for (i, output) in graph.outputs().iter().enumerate() {
        let reads = vec![(id(output.value), graph.ty(output.value).to_string())];
        pictures.push(Picture { id: format!("out{i}"), role: Role::Output, lines: vec![format!("output {i}")], reads });
    }
    pictures
}

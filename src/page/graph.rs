//! The graph before and after, as data for the page's script.

use super::{groups::Groups, layout::lay_out};
use eglu_ir::{Graph, NodeId, NodeKind, graph::OutputKind, ops::Lowering};
use serde::Serialize;
use std::collections::HashMap;

/// One graph as the script draws it. Names are short, because a deep model has thousands of nodes.
#[derive(Serialize)]
pub struct Picture {
    ranks: usize,
    width: i64,
    nodes: Vec<Node>,
    /// From, to, and where the edge crosses the ranks between.
    edges: Vec<(usize, usize, Vec<i64>)>,
    /// Edges whose ends name each other.
    long: Vec<(usize, usize)>,
}

#[derive(Serialize)]
struct Node {
    /// Name.
    n: String,
    /// Op, or `input`, `output`.
    o: &'static str,
    /// Type.
    t: String,
    /// Rank and place.
    r: usize,
    x: i64,
    /// Kind, as a class.
    k: &'static str,
    /// Group; −1 for none.
    g: i64,
    /// 1 for what costs nothing: views, inputs and outputs.
    #[serde(skip_serializing_if = "is_zero")]
    v: u8,
    /// Weights and constants that it reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    w: Vec<String>,
    /// Positions of the near-misses at it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    m: Vec<usize>,
}

fn is_zero(value: &u8) -> bool {
    *value == 0
}

/// The graph given: each node in the colour of the group that it ended in.
pub fn before(graph: &Graph, groups: &Groups, refused: &HashMap<&str, Vec<usize>>) -> Picture {
    picture(graph, &|name| groups.of_before.get(name).copied(), groups, refused)
}

/// The optimised graph.
pub fn after(graph: &Graph, groups: &Groups) -> Picture {
    picture(graph, &|name| groups.of_after.get(name).copied(), groups, &HashMap::new())
}

fn picture(
    graph: &Graph,
    group: &dyn Fn(&str) -> Option<usize>,
    groups: &Groups,
    refused: &HashMap<&str, Vec<usize>>,
) -> Picture {
    let order = graph.topological().unwrap_or_default();
    let (mut nodes, mut reads, mut drawn) = (Vec::new(), Vec::new(), HashMap::new());
    // What is a weight or a constant, or a view of one: a text of its own for each reader.
    let mut stored: HashMap<NodeId, String> = HashMap::new();
    for &id in &order {
        let node = graph.node(id);
        let ty = || node.outputs.first().map_or_else(String::new, ToString::to_string);
        let view = node.op().is_some_and(|op| op.code().lowering() == Lowering::View);
        let text = match (&node.kind, node.operands.first().and_then(|operand| operand.value())) {
            (NodeKind::Weight(path), _) => Some(format!("{path}  {}", ty())),
            (NodeKind::Constant(_), _) => Some(format!("constant  {}", ty())),
            (NodeKind::Call(op), Some(of)) if view => stored.get(&of.node).map(|text| format!("{text}, {}", op.name())),
            _ => None,
        };
        if let Some(text) = text {
            stored.insert(id, text);
            continue;
        }
        let (op, free) = match &node.kind {
            NodeKind::Input => ("input", true),
            NodeKind::Call(op) => (op.name(), view),
            // These stand in their readers: a model has as many as ops, and each is read once or twice.
            NodeKind::Weight(_) | NodeKind::Constant(_) => continue,
        };
        let group = group(&node.name);
        let (mut sources, mut weights): (Vec<usize>, Vec<String>) = (Vec::new(), Vec::new());
        for value in node.operands.iter().filter_map(|operand| operand.value()) {
            match (stored.get(&value.node), drawn.get(&value.node)) {
                (Some(text), _) => weights.push(text.clone()),
                (_, Some(&source)) if !sources.contains(&source) => sources.push(source),
                _ => {}
            }
        }
        drawn.insert(id, nodes.len());
        reads.push(sources);
        nodes.push(Node {
            n: node.name.to_string(),
            o: op,
            t: ty(),
            r: 0,
            x: 0,
            k: group.map_or("plain", |at| super::groups::class(groups.list[at].kind)),
            g: group.map_or(-1, |at| at as i64),
            v: u8::from(free),
            w: weights,
            m: refused.get(&*node.name).cloned().unwrap_or_default(),
        });
    }
    for (i, output) in graph.outputs().iter().enumerate() {
        let Some(&source) = drawn.get(&output.value.node) else { continue };
        let what = match &output.kind {
            OutputKind::User => format!("output {i}"),
            OutputKind::Gradient(of) => format!("gradient of {of}"),
            OutputKind::Mutation(of) => format!("new {of}"),
        };
        reads.push(vec![source]);
        let t = graph.ty(output.value).to_string();
        nodes.push(Node { n: what, o: "output", t, r: 0, x: 0, k: "plain", g: -1, v: 1, w: vec![], m: vec![] });
    }
    let layout = lay_out(&reads);
    for (i, node) in nodes.iter_mut().enumerate() {
        (node.r, node.x) = (layout.rank[i], layout.x[i].round() as i64);
    }
    let rounded = |via: Vec<f64>| via.into_iter().map(|x| x.round() as i64).collect();
    Picture {
        ranks: layout.ranks,
        width: layout.width.ceil() as i64,
        nodes,
        edges: layout.edges.into_iter().map(|edge| (edge.from, edge.to, rounded(edge.via))).collect(),
        long: layout.long,
    }
}

//! The project's own file format: one JSON document with a version, exact in both directions.

use crate::{
    DType, Graph, GraphError, NodeId, NodeKind, Op, Operand, OutputKind, Scalar, SymbolRange, Tensor, TensorType, Value,
    text::{from_hex, order, to_hex},
    verify::{VerifyError, verify},
};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::Arc};

/// What the `format` field says.
const FORMAT: &str = "eglu-graph";
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u64 = 1;

/// Why a JSON document is no graph.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JsonError {
    #[error("not a graph in JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("the document is no graph of eglu: {found}, and `{FORMAT}` is wanted")]
    Format { found: String },
    #[error(
        "the graph is of version {found}, but this eglu reads version {VERSION}: write it again with the same eglu, or use one that reads it"
    )]
    Version { found: u64 },
    #[error("the document has no `version`: this eglu reads version {VERSION}")]
    NoVersion,
    #[error("two nodes are called `{0}`")]
    Duplicate(Arc<str>),
    #[error("{reader} reads `{name}`, but no node is called so")]
    Undefined { reader: String, name: Arc<str> },
    #[error("node `{0}` reads itself through a cycle")]
    Cycle(Arc<str>),
    #[error("node `{node}`: {why}")]
    Node { node: Arc<str>, why: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u64,
    name: String,
    symbols: IndexMap<Arc<str>, SymbolRange>,
    nodes: Vec<NodeRecord>,
    outputs: Vec<OutputRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRecord {
    name: Arc<str>,
    kind: KindRecord,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    operands: Vec<OperandRecord>,
    types: Vec<TensorType>,
    /// Left out where the node stands for itself alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origins: Option<Vec<Arc<str>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindRecord {
    Input,
    Weight(Arc<str>),
    /// Bytes in hexadecimal.
    Constant(String),
    Call(Op),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OperandRecord {
    /// Name of the node, and which of its outputs.
    Value(Arc<str>, u32),
    Scalar(Scalar),
    None,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputRecord {
    value: (Arc<str>, u32),
    kind: OutputKind,
}

/// The graph as a JSON document.
pub fn to_json(graph: &Graph) -> Result<String, JsonError> {
    let name = |value: Value| graph.node(value.node).name.clone();
    let mut nodes = Vec::with_capacity(graph.len());
    for id in order(graph) {
        let node = graph.node(id);
        let operands = node.operands.iter().map(|operand| match *operand {
            Operand::Value(value) => OperandRecord::Value(name(value), value.index),
            Operand::Scalar(scalar) => OperandRecord::Scalar(scalar),
            Operand::None => OperandRecord::None,
        });
        let own = node.origins.len() == 1 && node.origins[0] == node.name;
        nodes.push(NodeRecord {
            name: node.name.clone(),
            kind: match &node.kind {
                NodeKind::Input => KindRecord::Input,
                NodeKind::Weight(path) => KindRecord::Weight(path.clone()),
                NodeKind::Constant(tensor) => KindRecord::Constant(to_hex(tensor.bytes())),
                NodeKind::Call(op) => KindRecord::Call(op.clone()),
            },
            operands: operands.collect(),
            types: node.outputs.to_vec(),
            origins: (!own).then(|| node.origins.to_vec()),
        });
    }
    let outputs = graph.outputs().iter();
    let document = Document {
        format: FORMAT.to_string(),
        version: VERSION,
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        nodes,
        outputs: outputs
            .map(|output| OutputRecord { value: (name(output.value), output.value.index), kind: output.kind.clone() })
            .collect(),
    };
    Ok(serde_json::to_string_pretty(&document)?)
}

/// Reads what [`to_json`] wrote; nodes may come in any order. Types are inferred anew, and the verifier checks the whole.
pub fn from_json(text: &str) -> Result<Graph, JsonError> {
    let header: Header = serde_json::from_str(text)?;
    if header.format.as_deref() != Some(FORMAT) {
        let found = header.format.map_or("it has no field `format`".into(), |format| format!("its field `format` is `{format}`"));
        return Err(JsonError::Format { found });
    }
    match header.version {
        Some(VERSION) => {}
        Some(found) => return Err(JsonError::Version { found }),
        None => return Err(JsonError::NoVersion),
    }
    let document: Document = serde_json::from_str(text)?;
    let mut graph = Graph::new(document.name);
    graph.symbols = document.symbols;
    let mut ids: HashMap<Arc<str>, NodeId> = HashMap::new();
    for position in sorted(&document.nodes)? {
        let record = &document.nodes[position];
        let id = add(&mut graph, record, &ids)?;
        if let Some(origins) = &record.origins {
            graph.set_origins(id, origins.iter().cloned());
        }
        ids.insert(record.name.clone(), id);
    }
    for (i, OutputRecord { value: (name, index), kind }) in document.outputs.into_iter().enumerate() {
        let undefined = || JsonError::Undefined { reader: format!("output {i}"), name: name.clone() };
        let node = *ids.get(&name).ok_or_else(undefined)?;
        graph.add_output(Value { node, index }, kind);
    }
    verify(&graph)?;
    Ok(graph)
}

/// Positions of the records: inputs, then operands before their readers, otherwise in the order of the document.
fn sorted(records: &[NodeRecord]) -> Result<Vec<usize>, JsonError> {
    let mut positions = HashMap::new();
    for (position, record) in records.iter().enumerate() {
        if positions.insert(&record.name, position).is_some() {
            return Err(JsonError::Duplicate(record.name.clone()));
        }
    }
    #[derive(Clone, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; records.len()];
    let mut order = Vec::with_capacity(records.len());
    // Inputs first: their order in the document is that of the signature.
    let is_input = |&i: &usize| matches!(records[i].kind, KindRecord::Input);
    for root in (0..records.len()).filter(is_input).chain(0..records.len()) {
        // Each entry: a record, and how many of its operands have been looked at.
        let mut stack = vec![(root, 0)];
        while let Some((position, next)) = stack.pop() {
            let record = &records[position];
            if next == 0 {
                match marks[position] {
                    Mark::Done => continue,
                    Mark::Open => return Err(JsonError::Cycle(record.name.clone())),
                    Mark::New => marks[position] = Mark::Open,
                }
            }
            match record.operands.get(next) {
                None => {
                    marks[position] = Mark::Done;
                    order.push(position);
                }
                Some(operand) => {
                    stack.push((position, next + 1));
                    if let OperandRecord::Value(name, _) = operand {
                        let reader = || format!("node `{}`", record.name);
                        let undefined = || JsonError::Undefined { reader: reader(), name: name.clone() };
                        stack.push((*positions.get(name).ok_or_else(undefined)?, 0));
                    }
                }
            }
        }
    }
    Ok(order)
}

fn add(graph: &mut Graph, record: &NodeRecord, ids: &HashMap<Arc<str>, NodeId>) -> Result<NodeId, JsonError> {
    let wrong = |why: String| JsonError::Node { node: record.name.clone(), why };
    let leaf = || match record.types.as_slice() {
        [ty] => Ok(ty.clone()),
        types => Err(wrong(format!("needs one type, {} given", types.len()))),
    };
    let id = match &record.kind {
        KindRecord::Input => graph.add_input(&record.name, leaf()?).node,
        KindRecord::Weight(path) => graph.add_weight(&record.name, path, leaf()?).node,
        KindRecord::Constant(hex) => {
            let TensorType { dtype, shape } = leaf()?;
            graph.add_constant(&record.name, constant(dtype, &shape, hex).map_err(wrong)?).node
        }
        KindRecord::Call(op) => {
            let operands = record.operands.iter().map(|operand| match operand {
                OperandRecord::Value(name, index) => {
                    let (node, index) = (ids[name], *index);
                    let count = graph.node(node).outputs.len();
                    if index as usize >= count {
                        return Err(wrong(format!("reads output {index} of `{name}`, which has {count}")));
                    }
                    Ok(Operand::Value(Value { node, index }))
                }
                OperandRecord::Scalar(scalar) => Ok(Operand::Scalar(*scalar)),
                OperandRecord::None => Ok(Operand::None),
            });
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            graph.add_call(&record.name, op.clone(), operands)?
        }
    };
    let inferred = &graph.node(id).outputs;
    if inferred.as_slice() != record.types {
        let list = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!("records {}, but its operands make it {}", list(&record.types), list(inferred))));
    }
    Ok(id)
}

fn constant(dtype: DType, shape: &[crate::Dim], hex: &str) -> Result<Tensor, String> {
    let extent = |dim: &crate::Dim| dim.as_const().and_then(|extent| usize::try_from(extent).ok());
    let shape: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>().ok_or("a constant has a fixed shape")?;
    let bytes = from_hex(hex).ok_or("its bytes are no pairs of hexadecimal digits")?;
    Tensor::from_bytes(dtype, &shape, &bytes).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Pointwise;

    fn small() -> String {
        let mut graph = Graph::new("small");
        let x = graph.add_input("x", TensorType::fixed(DType::F32, &[2]));
        let y = graph.add_call("y", Pointwise::Exp.into(), [x.into()]).expect("fits");
        let z = graph.add_call("z", Pointwise::Log.into(), [y.into()]).expect("fits");
        graph.add_output(z.into(), OutputKind::User);
        to_json(&graph).expect("serializes")
    }

    fn refused(from: &str, to: &str) -> String {
        let json = small();
        assert!(json.contains(from), "{json}");
        from_json(&json.replacen(from, to, 1)).expect_err("must be refused").to_string()
    }

    #[test]
    fn other_versions_are_refused() {
        assert!(refused("\"version\": 1", "\"version\": 7").contains("of version 7, but this eglu reads version 1"));
        assert!(refused("eglu-graph", "onnx").contains("its field `format` is `onnx`"));
        assert!(refused("\"format\"", "\"fromat\"").contains("it has no field `format`"));
    }

    #[test]
    fn malformed_graphs_are_refused() {
        let reads = |name: &str| format!("\"value\": [\n            \"{name}\"");
        assert_eq!(refused(&reads("x"), &reads("nothing")), "node `y` reads `nothing`, but no node is called so");
        assert_eq!(refused(&reads("x"), &reads("z")), "node `y` reads itself through a cycle");
        assert_eq!(refused("\"name\": \"z\"", "\"name\": \"y\""), "two nodes are called `y`");
        assert_eq!(refused("\"pointwise\": \"log\"", "\"pointwise\": \"eq\""), "node `z` (eq): takes 2 operands, 1 given");
        assert!(refused("\"f32\"", "\"f64\"").contains("node `y`: records f32[2], but its operands make it f64[2]"));
        assert!(refused("\"call\"", "\"cull\"").contains("unknown variant `cull`"));
    }

    #[test]
    fn nodes_may_come_in_any_order() {
        let mut document: serde_json::Value = serde_json::from_str(&small()).expect("is JSON");
        if let Some(nodes) = document["nodes"].as_array_mut() {
            nodes.reverse();
        }
        let graph = from_json(&document.to_string()).expect("reads");
        assert_eq!(to_json(&graph).expect("serializes"), small());
    }
}

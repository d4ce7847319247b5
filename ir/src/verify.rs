//! Checks of a whole graph: what every pass and importer must leave true.

use crate::{
    Dim, Graph, GraphError, Node, NodeKind, Operand, TensorType, Value,
    ops::{Attr, InferError},
    text::is_symbol,
};
use indexmap::IndexSet;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Why a graph is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum VerifyError {
    #[error("two nodes are called `{0}`")]
    DuplicateName(Arc<str>),
    #[error("{reader} reads a node that was removed")]
    Dangling { reader: String },
    #[error("{reader} reads output {index} of node `{source_name}`, which has {count}")]
    NoSuchOutput { reader: String, source_name: Arc<str>, index: u32, count: usize },
    #[error("node `{node}` ({op}): {source}")]
    Infer { node: Arc<str>, op: &'static str, source: InferError },
    #[error("node `{node}` ({op}) records output {index} as {recorded}, but its operands make it {inferred}")]
    WrongType { node: Arc<str>, op: &'static str, index: usize, recorded: Box<TensorType>, inferred: Box<TensorType> },
    #[error("node `{node}` ({op}) records {recorded} outputs, but has {inferred}")]
    WrongCount { node: Arc<str>, op: &'static str, recorded: usize, inferred: usize },
    #[error("node `{node}` ({op}) mentions the symbol `{symbol}`, which the graph does not declare")]
    UndeclaredSymbol { node: Arc<str>, op: &'static str, symbol: Arc<str> },
    #[error("node `{node}` ({op}) has a dim of extent {extent}, but an extent cannot be negative")]
    NegativeExtent { node: Arc<str>, op: &'static str, extent: i64 },
    #[error("`{0}` cannot name a symbol: use letters, digits and `_`, and no function of dims")]
    BadSymbol(Arc<str>),
    #[error("the symbol `{symbol}` has no value between {min} and {max}")]
    EmptyRange { symbol: Arc<str>, min: i64, max: i64 },
    #[error("the list of inputs and the input nodes differ at `{0}`")]
    Inputs(Arc<str>),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Checks names, references, types, symbols and order. Errors name the node and its op.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    for (symbol, range) in &graph.symbols {
        if !is_symbol(symbol) {
            return Err(VerifyError::BadSymbol(symbol.clone()));
        }
        if let Some(max) = range.max.filter(|&max| max < range.min) {
            return Err(VerifyError::EmptyRange { symbol: symbol.clone(), min: range.min, max });
        }
    }
    let mut names: FxHashSet<&str> = FxHashSet::default();
    for id in graph.node_ids() {
        let node = graph.node(id);
        if !names.insert(&node.name) {
            return Err(VerifyError::DuplicateName(node.name.clone()));
        }
        for operand in &node.operands {
            if let Operand::Value(value) = operand {
                reference(graph, *value, || format!("node `{}` ({})", node.name, kind_name(node)))?;
            }
        }
        let listed = graph.inputs().iter().filter(|&&input| input == id).count();
        if listed != usize::from(matches!(node.kind, NodeKind::Input)) {
            return Err(VerifyError::Inputs(node.name.clone()));
        }
    }
    for (i, output) in graph.outputs().iter().enumerate() {
        reference(graph, output.value, || format!("output {i} of the graph"))?;
    }
    for id in graph.topological()? {
        let node = graph.node(id);
        types(graph, node)?;
        symbols(graph, node)?;
    }
    Ok(())
}

/// What to call a node's kind in messages: its op's name, or `input`, `weight`, `constant`.
fn kind_name(node: &Node) -> &'static str {
    match &node.kind {
        NodeKind::Input => "input",
        NodeKind::Weight(_) => "weight",
        NodeKind::Constant(_) => "constant",
        NodeKind::Call(op) => op.name(),
    }
}

fn reference(graph: &Graph, value: Value, reader: impl Fn() -> String) -> Result<(), VerifyError> {
    if !graph.contains(value.node) {
        return Err(VerifyError::Dangling { reader: reader() });
    }
    let source = graph.node(value.node);
    if (value.index as usize) < source.outputs.len() {
        return Ok(());
    }
    let (index, count) = (value.index, source.outputs.len());
    Err(VerifyError::NoSuchOutput { reader: reader(), source_name: source.name.clone(), index, count })
}

fn types(graph: &Graph, node: &Node) -> Result<(), VerifyError> {
    let (name, op) = (node.name.clone(), kind_name(node));
    let inferred = match &node.kind {
        NodeKind::Call(call) => {
            graph.infer(call, &node.operands).map_err(|source| VerifyError::Infer { node: name.clone(), op, source })?
        }
        NodeKind::Constant(tensor) => [tensor.ty()].into_iter().collect(),
        NodeKind::Input | NodeKind::Weight(_) => node.outputs.iter().take(1).cloned().collect(),
    };
    let leaf = !matches!(node.kind, NodeKind::Call(_));
    if inferred.len() != node.outputs.len() || leaf && inferred.is_empty() {
        let (recorded, inferred) = (node.outputs.len(), inferred.len());
        return Err(VerifyError::WrongCount { node: name, op, recorded, inferred });
    }
    let mut pairs = node.outputs.iter().zip(inferred).enumerate();
    if let Some((index, (recorded, inferred))) = pairs.find(|(_, (recorded, inferred))| *recorded != inferred) {
        let (recorded, inferred) = (Box::new(recorded.clone()), Box::new(inferred));
        return Err(VerifyError::WrongType { node: name, op, index, recorded, inferred });
    }
    let mut extents = node.outputs.iter().flat_map(|ty| ty.shape.iter().filter_map(Dim::as_const));
    match extents.find(|&extent| extent < 0) {
        Some(extent) => Err(VerifyError::NegativeExtent { node: name, op, extent }),
        None => Ok(()),
    }
}

fn symbols(graph: &Graph, node: &Node) -> Result<(), VerifyError> {
    let mut used = IndexSet::new();
    for dim in node.outputs.iter().flat_map(|ty| &ty.shape) {
        dim.collect_symbols(&mut used);
    }
    for (_, attr) in node.op().map(|op| op.attrs()).unwrap_or_default() {
        match attr {
            Attr::Dim(dim) => dim.collect_symbols(&mut used),
            Attr::Shape(shape) => shape.iter().for_each(|dim| dim.collect_symbols(&mut used)),
            _ => {}
        }
    }
    match used.into_iter().find(|symbol| !graph.symbols.contains_key(symbol)) {
        Some(symbol) => Err(VerifyError::UndeclaredSymbol { node: node.name.clone(), op: kind_name(node), symbol }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, OutputKind,
        ops::{Pointwise, TopK},
    };

    fn message(graph: &Graph) -> String {
        verify(graph).expect_err("must be refused").to_string()
    }

    fn small() -> (Graph, Value) {
        let mut graph = Graph::new("small");
        let x = graph.add_input("x", TensorType::fixed(DType::F32, &[2, 3]));
        (graph, x)
    }

    #[test]
    fn accepts_a_sound_graph() {
        let (mut graph, x) = small();
        let top = graph.add_call("top", TopK { k: 2, dim: 1, largest: true }.into(), [x.into()]).expect("fits");
        graph.add_output(Value { node: top, index: 1 }, OutputKind::User);
        assert_eq!(verify(&graph), Ok(()));
    }

    #[test]
    fn finds_an_output_that_does_not_exist() {
        let (mut graph, x) = small();
        let y = graph.add_call("y", Pointwise::Exp.into(), [x.into()]).expect("fits");
        graph.set_operands(y, [Operand::Value(Value { node: x.node, index: 3 })]);
        assert_eq!(message(&graph), "node `y` (exp) reads output 3 of node `x`, which has 1");
    }

    #[test]
    fn finds_a_cycle() {
        let (mut graph, x) = small();
        let y = graph.add_call("y", Pointwise::Exp.into(), [x.into()]).expect("fits");
        let z = graph.add_call("z", Pointwise::Log.into(), [y.into()]).expect("fits");
        graph.set_operands(y, [z.into()]);
        assert_eq!(message(&graph), "the graph has a cycle through node `y`");
    }

    #[test]
    fn finds_a_type_that_no_longer_holds() {
        let (mut graph, x) = small();
        let w = graph.add_input("w", TensorType::fixed(DType::F64, &[2, 3]));
        let y = graph.add_call("y", Pointwise::Exp.into(), [x.into()]).expect("fits");
        graph.set_operands(y, [w.into()]);
        let want = "node `y` (exp) records output 0 as f32[2, 3], but its operands make it f64[2, 3]";
        assert_eq!(message(&graph), want);
    }

    #[test]
    fn finds_an_undeclared_symbol() {
        let mut graph = Graph::new("dynamic");
        graph.add_input("x", TensorType::new(DType::F32, [Dim::symbol("s0")]));
        assert_eq!(message(&graph), "node `x` (input) mentions the symbol `s0`, which the graph does not declare");
    }
}

//! The graph: named nodes, ordered operands, dense immutable values.

use crate::{
    Op, Scalar, SymbolRange, Tensor, TensorType,
    ops::{InferError, OperandType},
};
use indexmap::IndexMap;
use petgraph::{
    Direction,
    stable_graph::{NodeIndex, StableDiGraph},
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

/// Names a node for the life of the graph.
pub type NodeId = NodeIndex<u32>;

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// Which of the node's outputs.
    pub index: u32,
}

impl From<NodeId> for Value {
    fn from(node: NodeId) -> Value {
        Value { node, index: 0 }
    }
}

/// What a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// A tensor.
    Value(Value),
    /// A number written in the graph.
    Scalar(Scalar),
    /// An optional operand that is not given.
    None,
}

impl Operand {
    /// The tensor, if it is one.
    pub fn value(self) -> Option<Value> {
        match self {
            Operand::Value(value) => Some(value),
            _ => None,
        }
    }
}

impl From<Value> for Operand {
    fn from(value: Value) -> Operand {
        Operand::Value(value)
    }
}

impl From<NodeId> for Operand {
    fn from(node: NodeId) -> Operand {
        Operand::Value(node.into())
    }
}

impl From<Scalar> for Operand {
    fn from(scalar: Scalar) -> Operand {
        Operand::Scalar(scalar)
    }
}

/// What kind of node it is.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A user input; its position is that in [`Graph::inputs`].
    Input,
    /// A parameter or buffer, by its fully qualified name; its bytes are kept apart from the graph.
    Weight(Arc<str>),
    /// A tensor written in the graph.
    Constant(Tensor),
    /// An op applied to operands.
    Call(Op),
}

/// A node with its operands and the types of its outputs.
#[derive(Clone, Debug)]
pub struct Node {
    /// Unique in the graph; survives import, so that messages can name what a user knows.
    pub name: Arc<str>,
    /// What it is.
    pub kind: NodeKind,
    /// What it reads, in order.
    pub operands: SmallVec<[Operand; 4]>,
    /// Types of what it computes.
    pub outputs: SmallVec<[TensorType; 1]>,
    /// Names of the imported nodes it stands for: itself, or what a pass replaced.
    pub origins: SmallVec<[Arc<str>; 1]>,
}

impl Node {
    /// The op, if the node is a call.
    pub fn op(&self) -> Option<&Op> {
        match &self.kind {
            NodeKind::Call(op) => Some(op),
            _ => None,
        }
    }
}

/// What an output of the graph is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Returned to the user (in a joint graph the loss first).
    User,
    /// The gradient of the named parameter or input; a user output too.
    Gradient(Arc<str>),
    /// The new contents of the named buffer or input; no user output.
    Mutation(Arc<str>),
}

/// An output of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Output {
    pub value: Value,
    pub kind: OutputKind,
}

/// Why a graph operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum GraphError {
    #[error("node `{node}` ({op}): {source}")]
    Infer { node: Arc<str>, op: &'static str, source: InferError },
    #[error("the graph has a cycle through node `{0}`")]
    Cycle(Arc<str>),
}

/// A dataflow graph. Iteration orders are deterministic everywhere.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name for messages, usually the file's stem.
    pub name: String,
    dag: StableDiGraph<Node, ()>,
    names: unique::Names,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
    /// Symbols of the dims, with the values each may take.
    pub symbols: IndexMap<Arc<str>, SymbolRange>,
}

/// Unique names: a taken name gets `_1`, `_2`, …
mod unique {
    use rustc_hash::FxHashMap;
    use std::sync::Arc;

    #[derive(Clone, Debug, Default)]
    pub struct Names(FxHashMap<Arc<str>, u32>);

    impl Names {
        pub fn reserve(&mut self, names: usize) {
            self.0.reserve(names);
        }

        pub fn release(&mut self, name: &str) {
            self.0.remove(name);
        }

        pub fn claim(&mut self, hint: &str) -> Arc<str> {
            if !self.0.contains_key(hint) {
                let name: Arc<str> = hint.into();
                self.0.insert(name.clone(), 0);
                return name;
            }
            loop {
                let count = self.0.entry(hint.into()).or_insert(0);
                *count += 1;
                let candidate = format!("{hint}_{count}");
                if !self.0.contains_key(candidate.as_str()) {
                    return self.claim(&candidate);
                }
            }
        }
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// Makes room for so many more nodes, so that adding them moves none of those that are there.
    pub fn reserve(&mut self, nodes: usize) {
        self.dag.reserve_nodes(nodes);
        self.names.reserve(nodes);
    }

    fn add(
        &mut self,
        hint: &str,
        kind: NodeKind,
        operands: SmallVec<[Operand; 4]>,
        outputs: SmallVec<[TensorType; 1]>,
    ) -> NodeId {
        let name = self.names.claim(hint);
        let origins = SmallVec::from_iter([name.clone()]);
        let sources: SmallVec<[NodeId; 4]> = operands.iter().filter_map(|o| o.value()).map(|v| v.node).collect();
        let id = self.dag.add_node(Node { name, kind, operands, outputs, origins });
        for source in sources {
            self.dag.add_edge(source, id, ());
        }
        id
    }

    /// Adds a user input.
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Value {
        let id = self.add(name, NodeKind::Input, SmallVec::new(), SmallVec::from_iter([ty]));
        self.inputs.push(id);
        id.into()
    }

    /// Adds a parameter or buffer; `path` is its fully qualified name.
    pub fn add_weight(&mut self, name: &str, path: &str, ty: TensorType) -> Value {
        self.add(name, NodeKind::Weight(path.into()), SmallVec::new(), SmallVec::from_iter([ty])).into()
    }

    /// Adds a tensor written in the graph.
    pub fn add_constant(&mut self, name: &str, tensor: Tensor) -> Value {
        let ty = tensor.ty();
        self.add(name, NodeKind::Constant(tensor), SmallVec::new(), SmallVec::from_iter([ty])).into()
    }

    /// Adds an op; infers and checks its types. A name already taken gets a numbered suffix.
    pub fn add_call(&mut self, name: &str, op: Op, operands: impl IntoIterator<Item = Operand>) -> Result<NodeId, GraphError> {
        let operands: SmallVec<[Operand; 4]> = operands.into_iter().collect();
        let outputs =
            self.infer(&op, &operands).map_err(|source| GraphError::Infer { node: name.into(), op: op.name(), source })?;
        Ok(self.add(name, NodeKind::Call(op), operands, outputs))
    }

    /// The output types that `op` has on these operands.
    pub fn infer(&self, op: &Op, operands: &[Operand]) -> Result<SmallVec<[TensorType; 1]>, InferError> {
        let types: SmallVec<[OperandType<'_>; 4]> = operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => OperandType::Tensor(self.ty(*value)),
                Operand::Scalar(scalar) => OperandType::Scalar(*scalar),
                Operand::None => OperandType::None,
            })
            .collect();
        op.infer(&types)
    }

    /// Marks a value as an output.
    pub fn add_output(&mut self, value: Value, kind: OutputKind) {
        self.outputs.push(Output { value, kind });
    }

    /// User inputs in signature order.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// Outputs in signature order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The node; panics if it was removed.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.dag[id]
    }

    /// True while the node has not been removed.
    pub fn contains(&self, id: NodeId) -> bool {
        self.dag.contains_node(id)
    }

    /// Gives a node another name and returns it; a taken name gets a numbered suffix.
    pub fn rename(&mut self, id: NodeId, hint: &str) -> Arc<str> {
        self.names.release(&self.dag[id].name);
        let name = self.names.claim(hint);
        self.dag[id].name = name.clone();
        name
    }

    /// Sets which imported nodes a node stands for.
    pub fn set_origins(&mut self, id: NodeId, origins: impl IntoIterator<Item = Arc<str>>) {
        self.dag[id].origins = origins.into_iter().collect();
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.dag[value.node].outputs[value.index as usize]
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.dag.node_indices().find(|&id| &*self.dag[id].name == name)
    }

    /// Nodes in order of creation.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.dag.node_indices()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nodes that read any output of `id`, each once, in order of creation.
    pub fn users(&self, id: NodeId) -> Vec<NodeId> {
        let mut users: Vec<NodeId> = self.dag.neighbors_directed(id, Direction::Outgoing).collect();
        users.sort_unstable();
        users.dedup();
        users
    }

    /// How often a value is read, by nodes and as an output.
    pub fn use_count(&self, value: Value) -> usize {
        let by_nodes: usize = self
            .users(value.node)
            .iter()
            .map(|&user| self.dag[user].operands.iter().filter(|o| **o == Operand::Value(value)).count())
            .sum();
        by_nodes + self.outputs.iter().filter(|output| output.value == value).count()
    }

    /// Nodes so that operands come first; ties go by order of creation.
    pub fn topological(&self) -> Result<Vec<NodeId>, GraphError> {
        let mut pending: Vec<usize> = vec![0; self.dag.node_indices().next_back().map_or(0, |id| id.index() + 1)];
        let mut ready = BinaryHeap::new();
        for id in self.dag.node_indices() {
            pending[id.index()] = self.dag.edges_directed(id, Direction::Incoming).count();
            if pending[id.index()] == 0 {
                ready.push(Reverse(id));
            }
        }
        let mut order = Vec::with_capacity(self.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for user in self.dag.neighbors_directed(id, Direction::Outgoing) {
                pending[user.index()] -= 1;
                if pending[user.index()] == 0 {
                    ready.push(Reverse(user));
                }
            }
        }
        if order.len() == self.len() {
            return Ok(order);
        }
        let stuck = self.dag.node_indices().find(|id| pending[id.index()] > 0);
        Err(GraphError::Cycle(stuck.map_or_else(|| "".into(), |id| self.dag[id].name.clone())))
    }

    /// Makes every reader of `from` read `to` instead, the graph's outputs included.
    pub fn replace_uses(&mut self, from: Value, to: Value) {
        for user in self.users(from.node) {
            let operands: SmallVec<[Operand; 4]> = self.dag[user]
                .operands
                .iter()
                .map(|&operand| if operand == Operand::Value(from) { Operand::Value(to) } else { operand })
                .collect();
            self.set_operands(user, operands);
        }
        for output in &mut self.outputs {
            if output.value == from {
                output.value = to;
            }
        }
    }

    /// Replaces a node's operands; types are the caller's care (the verifier checks them).
    pub fn set_operands(&mut self, id: NodeId, operands: impl IntoIterator<Item = Operand>) {
        let incoming: Vec<_> = {
            use petgraph::visit::EdgeRef;
            self.dag.edges_directed(id, Direction::Incoming).map(|edge| edge.id()).collect()
        };
        for edge in incoming {
            self.dag.remove_edge(edge);
        }
        let operands: SmallVec<[Operand; 4]> = operands.into_iter().collect();
        for value in operands.iter().filter_map(|o| o.value()) {
            self.dag.add_edge(value.node, id, ());
        }
        self.dag[id].operands = operands;
    }

    /// Removes every call, weight and constant that no output needs; inputs stay. Returns how many went.
    pub fn remove_dead(&mut self) -> usize {
        let mut live = vec![false; self.dag.node_indices().next_back().map_or(0, |id| id.index() + 1)];
        let mut stack: Vec<NodeId> =
            self.outputs.iter().map(|output| output.value.node).chain(self.inputs.iter().copied()).collect();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut live[id.index()], true) {
                stack.extend(self.dag.neighbors_directed(id, Direction::Incoming));
            }
        }
        let before = self.len();
        self.dag.retain_nodes(|_, id| live[id.index()]);
        before - self.len()
    }
}

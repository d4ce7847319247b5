//! Copying a graph node by node, with replacements: how the passes of this crate rewrite.
//!
//! A pass visits the old graph in topological order, so operands are already rewritten when a node is reached, and one
//! sweep carries a rewrite as far as it goes. Names and origins survive.

use eglu_ir::{Graph, GraphError, NodeId, NodeKind, Op, Operand, Value};
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use std::sync::Arc;

/// Operands of a node, in order.
pub(crate) type Operands = SmallVec<[Operand; 4]>;

/// A graph under construction from an old one.
pub(crate) struct Rebuild<'a> {
    pub old: &'a Graph,
    pub new: Graph,
    values: FxHashMap<Value, Value>,
}

impl<'a> Rebuild<'a> {
    /// Starts with the inputs, in their order.
    pub fn new(old: &'a Graph) -> Self {
        let mut new = Graph::new(old.name.clone());
        new.symbols = old.symbols.clone();
        new.reserve(old.len());
        let mut values = FxHashMap::with_capacity_and_hasher(old.len(), FxBuildHasher);
        for &id in old.inputs() {
            let node = old.node(id);
            let value = new.add_input(&node.name, node.outputs[0].clone());
            values.insert(id.into(), value);
        }
        Rebuild { old, new, values }
    }

    /// The new value that stands for an old one; operands come first, so it exists.
    pub fn value(&self, old: Value) -> Value {
        self.values[&old]
    }

    /// An old operand in the new graph.
    pub fn operand(&self, old: Operand) -> Operand {
        match old {
            Operand::Value(value) => self.value(value).into(),
            other => other,
        }
    }

    /// A node's operands in the new graph.
    pub fn operands(&self, id: NodeId) -> Operands {
        self.old.node(id).operands.iter().map(|&operand| self.operand(operand)).collect()
    }

    /// Copies a node as it is.
    pub fn copy(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.old.node(id);
        let new = match &node.kind {
            NodeKind::Input => return Ok(()),
            NodeKind::Weight(path) => self.new.add_weight(&node.name, path, node.outputs[0].clone()).node,
            NodeKind::Constant(tensor) => {
                let new = self.new.add_constant(&node.name, tensor.clone()).node;
                self.new.set_origins(new, node.origins.iter().cloned());
                new
            }
            NodeKind::Call(op) => {
                let operands = self.operands(id);
                self.call(&node.name, op.clone(), operands, node.origins.iter().cloned())?
            }
        };
        self.bind_all(id, new);
        Ok(())
    }

    /// Adds a call that stands for the nodes named by `origins`.
    pub fn call(
        &mut self,
        name: &str,
        op: Op,
        operands: impl IntoIterator<Item = Operand>,
        origins: impl IntoIterator<Item = Arc<str>>,
    ) -> Result<NodeId, GraphError> {
        let id = self.new.add_call(name, op, operands)?;
        self.new.set_origins(id, origins);
        Ok(id)
    }

    /// Lets `new` stand for the old value.
    pub fn bind(&mut self, old: Value, new: Value) {
        self.values.insert(old, new);
    }

    /// Lets the outputs of `new` stand for those of `id`, one for one.
    pub fn bind_all(&mut self, id: NodeId, new: NodeId) {
        for index in 0..self.old.node(id).outputs.len() as u32 {
            self.bind(Value { node: id, index }, Value { node: new, index });
        }
    }

    /// Lets an existing value stand for a node that vanishes; a call takes over the node's origins.
    pub fn forward(&mut self, id: NodeId, to: Value) {
        self.bind(id.into(), to);
        self.adopt(to.node, id);
    }

    /// Adds the origins of the old node `from` to those of the new call `into`.
    pub fn adopt(&mut self, into: NodeId, from: NodeId) {
        let node = self.new.node(into);
        if node.op().is_none() {
            return;
        }
        let mut origins = node.origins.clone();
        for name in &self.old.node(from).origins {
            if !origins.contains(name) {
                origins.push(name.clone());
            }
        }
        self.new.set_origins(into, origins);
    }

    /// The new graph, with the outputs of the old one.
    pub fn finish(mut self) -> Graph {
        for output in self.old.outputs() {
            let value = self.value(output.value);
            self.new.add_output(value, output.kind.clone());
        }
        self.new
    }
}

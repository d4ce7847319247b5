//! Graph to plan: views become layouts, everything else a step.

use crate::{Arg, Buffer, Layout, Plan, PlanInput, PlanOutput, Source, Step, TensorRef};
use eglu_ir::{
    Graph, GraphError, NodeId, NodeKind, Op, Operand, Program, Value,
    ops::{Expand, Map, Permute, Reshape, Slice},
};
use std::{collections::HashMap, sync::Arc};

/// Why a graph has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum LowerError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("node `{node}` reads `{operand}`, which has no value yet: the graph does not verify")]
    Undefined { node: Arc<str>, operand: Arc<str> },
}

/// The plan of a graph. Nodes that no output needs are left out.
pub fn lower(graph: &Graph) -> Result<Plan, LowerError> {
    let mut lowering = Lowering { graph, refs: HashMap::new(), plan: empty(graph) };
    let live = live(graph);
    for id in graph.topological()? {
        if live.contains(&id) || graph.inputs().contains(&id) {
            lowering.node(id)?;
        }
    }
    for &id in graph.inputs() {
        let node = graph.node(id);
        let buffer = lowering.refs[&id.into()].buffer;
        lowering.plan.inputs.push(PlanInput { name: node.name.clone(), ty: node.outputs[0].clone(), buffer });
    }
    for output in graph.outputs() {
        let tensor = lowering.tensor(output.value, output.value.node)?;
        lowering.plan.outputs.push(PlanOutput { tensor, kind: output.kind.clone() });
    }
    Ok(lowering.plan)
}

fn empty(graph: &Graph) -> Plan {
    let symbols = graph.symbols.clone();
    Plan { name: graph.name.clone(), symbols, buffers: vec![], steps: vec![], inputs: vec![], outputs: vec![] }
}

fn live(graph: &Graph) -> std::collections::HashSet<NodeId> {
    let mut live = std::collections::HashSet::new();
    let mut stack: Vec<NodeId> = graph.outputs().iter().map(|output| output.value.node).collect();
    while let Some(id) = stack.pop() {
        if live.insert(id) {
            stack.extend(graph.node(id).operands.iter().filter_map(|o| o.value()).map(|v| v.node));
        }
    }
    live
}

struct Lowering<'a> {
    graph: &'a Graph,
    refs: HashMap<Value, TensorRef>,
    plan: Plan,
}

impl Lowering<'_> {
    fn node(&mut self, id: NodeId) -> Result<(), LowerError> {
        let graph = self.graph;
        match &graph.node(id).kind {
            NodeKind::Input => {
                let position = graph.inputs().iter().position(|&input| input == id).unwrap_or_default();
                self.define(id, Source::Input(position));
            }
            NodeKind::Weight(path) => self.define(id, Source::Weight(path.clone())),
            NodeKind::Constant(tensor) => self.define(id, Source::Constant(tensor.clone())),
            NodeKind::Call(op) => self.call(id, op)?,
        }
        Ok(())
    }

    /// Gives each output of a node a buffer of its own.
    fn define(&mut self, id: NodeId, source: Source) {
        let node = self.graph.node(id);
        for (index, ty) in node.outputs.iter().enumerate() {
            let value = Value { node: id, index: index as u32 };
            let tensor = self.buffer(node.name.clone(), ty, source.clone());
            self.refs.insert(value, tensor);
        }
    }

    fn buffer(&mut self, name: Arc<str>, ty: &eglu_ir::TensorType, source: Source) -> TensorRef {
        self.plan.buffers.push(Buffer { name, dtype: ty.dtype, numel: ty.numel(), source });
        Buffer::view(self.plan.buffers.len() - 1, ty.dtype, ty.shape.clone())
    }

    fn tensor(&self, value: Value, reader: NodeId) -> Result<TensorRef, LowerError> {
        self.refs.get(&value).cloned().ok_or_else(|| LowerError::Undefined {
            node: self.graph.node(reader).name.clone(),
            operand: self.graph.node(value.node).name.clone(),
        })
    }

    fn call(&mut self, id: NodeId, op: &Op) -> Result<(), LowerError> {
        let node = self.graph.node(id);
        if let Some(view) = self.view(id, op)? {
            self.refs.insert(id.into(), view);
            return Ok(());
        }
        let inputs = node
            .operands
            .iter()
            .map(|&operand| {
                Ok(match operand {
                    Operand::Value(value) => Arg::Tensor(self.tensor(value, id)?),
                    Operand::Scalar(scalar) => Arg::Scalar(scalar),
                    Operand::None => Arg::None,
                })
            })
            .collect::<Result<Vec<Arg>, LowerError>>()?;
        self.define(id, Source::Step);
        let outputs = (0..node.outputs.len()).map(|i| self.refs[&Value { node: id, index: i as u32 }].clone()).collect();
        let origins = node.origins.to_vec();
        self.plan.steps.push(Step { name: node.name.clone(), op: op.clone(), inputs, outputs, origins });
        Ok(())
    }

    /// The layout of a view op, after a copy where strides cannot express it; `None` for any other op.
    fn view(&mut self, id: NodeId, op: &Op) -> Result<Option<TensorRef>, LowerError> {
        let node = self.graph.node(id);
        let Some(source) = node.operands.first().and_then(|o| o.value()) else { return Ok(None) };
        let from = self.tensor(source, id)?;
        let layout = match op {
            Op::Permute(Permute { dims }) => from.layout.permute(dims),
            Op::Expand(Expand { shape }) => from.layout.expand(shape),
            Op::Slice(Slice { dim, start, end, step }) => from.layout.slice(*dim, start, end, *step),
            Op::Reshape(Reshape { shape }) => match from.layout.reshape(shape) {
                Some(layout) => layout,
                None => return Ok(Some(self.copy(id, from, shape))),
            },
            _ => return Ok(None),
        };
        Ok(Some(TensorRef { layout, ..from }))
    }

    /// Makes a strided view dense, in another shape.
    fn copy(&mut self, id: NodeId, from: TensorRef, shape: &eglu_ir::Shape) -> TensorRef {
        let node = self.graph.node(id);
        let op = Map { program: Arc::new(Program::identity(from.dtype, from.dtype)) }.into();
        let dense = self.buffer(node.name.clone(), &from.ty(), Source::Step);
        self.plan.steps.push(Step {
            name: node.name.clone(),
            op,
            inputs: vec![Arg::Tensor(from)],
            outputs: vec![dense.clone()],
            origins: node.origins.to_vec(),
        });
        TensorRef { layout: Layout::dense(shape.clone()), ..dense }
    }
}

//! What shall be differentiated by what.

use super::AutodiffError;
use eglu_ir::{DType, Graph, NodeKind, OutputKind, Value};
use std::sync::Arc;

/// Stands for all inputs of floats that the outputs depend on.
pub const INPUTS: &str = "inputs";

/// Stands for all weights of floats that the outputs depend on, buffers apart.
pub const PARAMETERS: &str = "parameters";

/// Which outputs to differentiate, and by what. Names that are not given stand for all there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gradients {
    /// Outputs, by position or by the name of their node; empty: all outputs of floats.
    pub of: Vec<String>,
    /// Inputs by name, weights by name or path, [`INPUTS`] or [`PARAMETERS`]; empty: both.
    pub by: Vec<String>,
    /// Weights that are no parameters, by path: they have a gradient only where `by` names them.
    pub buffers: Vec<Arc<str>>,
}

impl Gradients {
    /// The outputs to differentiate.
    pub(super) fn outputs(&self, graph: &Graph) -> Result<Vec<Value>, AutodiffError> {
        let outputs: Vec<Value> = users(graph);
        let real = |value: &Value| graph.ty(*value).dtype.is_float();
        if self.of.is_empty() {
            return Ok(outputs.into_iter().filter(real).collect());
        }
        let named = |name: &String| {
            let at = name.parse().ok().or_else(|| outputs.iter().position(|output| *graph.node(output.node).name == **name));
            let value = at.and_then(|at: usize| outputs.get(at)).copied();
            let value = value.ok_or_else(|| AutodiffError::UnknownOutput { name: name.clone(), known: outputs_of(graph) })?;
            let dtype = graph.ty(value).dtype;
            if real(&value) { Ok(value) } else { Err(AutodiffError::NotReal { what: "output", name: name.clone(), dtype }) }
        };
        self.of.iter().map(named).collect()
    }

    /// Inputs, then weights, to differentiate by, each with the name of its gradient.
    pub(super) fn sources(&self, graph: &Graph) -> Result<Vec<Source>, AutodiffError> {
        let all = sources(graph);
        let of_kind = |input: bool| {
            let wanted = move |source: &&Source| {
                let is_input = matches!(graph.node(source.value.node).kind, NodeKind::Input);
                source.dtype.is_float() && is_input == input && !self.buffers.contains(&source.name)
            };
            all.iter().filter(wanted).cloned()
        };
        if self.by.is_empty() {
            return Ok(of_kind(true).chain(of_kind(false)).collect());
        }
        let mut chosen: Vec<Source> = Vec::new();
        for name in &self.by {
            let named = all.iter().find(|source| *source.name == **name || *graph.node(source.value.node).name == **name);
            match (named, name.as_str()) {
                (Some(source), _) if source.dtype.is_float() => chosen.push(Source { named: true, ..source.clone() }),
                (Some(Source { dtype, .. }), _) => {
                    return Err(AutodiffError::NotReal { what: "input", name: name.clone(), dtype: *dtype });
                }
                (None, INPUTS) => chosen.extend(of_kind(true)),
                (None, PARAMETERS) => chosen.extend(of_kind(false)),
                (None, _) => {
                    let known = all.iter().map(|source| &*source.name).collect::<Vec<_>>().join(", ");
                    return Err(AutodiffError::UnknownSource { name: name.clone(), known });
                }
            }
        }
        // What is named twice has one gradient.
        let mut seen: Vec<Value> = Vec::new();
        chosen.retain(|source| {
            !seen.contains(&source.value) && {
                seen.push(source.value);
                true
            }
        });
        Ok(chosen)
    }
}

/// Something to differentiate by.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub value: Value,
    /// What its gradient is called: an input's name or a weight's path.
    pub name: Arc<str>,
    pub dtype: DType,
    /// The user asked for it, so that it has a gradient even where it is zero.
    pub named: bool,
}

fn users(graph: &Graph) -> Vec<Value> {
    graph.outputs().iter().filter(|output| output.kind == OutputKind::User).map(|output| output.value).collect()
}

fn outputs_of(graph: &Graph) -> String {
    let names =
        users(graph).iter().enumerate().map(|(i, value)| format!("{i} `{}`", graph.node(value.node).name)).collect::<Vec<_>>();
    names.join(", ")
}

fn sources(graph: &Graph) -> Vec<Source> {
    let inputs = graph.inputs().iter().map(|&id| (id, graph.node(id).name.clone()));
    let weights = graph.node_ids().filter_map(|id| match &graph.node(id).kind {
        NodeKind::Weight(path) => Some((id, path.clone())),
        _ => None,
    });
    let source = |(id, name): (eglu_ir::NodeId, Arc<str>)| {
        let value = Value::from(id);
        Source { value, name, dtype: graph.ty(value).dtype, named: false }
    };
    inputs.chain(weights).map(source).collect()
}

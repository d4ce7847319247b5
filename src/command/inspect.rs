//! `eglu inspect`: what a model is made of.

mod package;

use super::model;
use crate::{draw, failure::Failure, screen::show, table};
use clap::{Args, ValueEnum};
use eglu_ir::{Graph, NodeKind, SymbolRange, TensorType, Value, graph::OutputKind, import::Imported};
use eglu_runtime::package::is_package;
use indexmap::IndexMap;
use serde::Serialize;
use std::{path::PathBuf, sync::Arc};

/// Shows a model's signature, the ranges of its dims, its weights and how often each operator occurs.
///
/// Operators are those of eglu after import. A model with operators that eglu does not know is refused with the list of all of them.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Model: .pt2 or .json, or a package: .eglu
    model: PathBuf,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A summary to read
    Text,
    /// The summary for programs
    Json,
    /// The graph for Graphviz
    Dot,
    /// The graph for Mermaid
    Mermaid,
}

impl Inspect {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        if is_package(&self.model) {
            return package::show_package(&self.model, self.format);
        }
        let imported = model::load(&self.model)?;
        let text = match self.format {
            Format::Text => Summary::of(&imported).to_text(),
            Format::Json => super::json(&Summary::of(&imported)),
            Format::Dot => draw::dot(&imported.graph),
            Format::Mermaid => draw::mermaid(&imported.graph),
        };
        show(&text)?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Summary {
    model: String,
    /// The PyTorch that wrote it; empty where the file does not say.
    torch: String,
    schema: String,
    nodes: usize,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    dims: IndexMap<Arc<str>, SymbolRange>,
    weights: Vec<Weight>,
    weight_bytes: i64,
    operators: IndexMap<&'static str, usize>,
}

/// An input or an output.
#[derive(Serialize)]
struct Port {
    name: Arc<str>,
    dtype: &'static str,
    shape: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
}

#[derive(Serialize)]
struct Weight {
    name: Arc<str>,
    dtype: &'static str,
    shape: Vec<String>,
    bytes: Option<i64>,
    /// False for a structure-only archive.
    present: bool,
}

impl Summary {
    fn of(imported: &Imported) -> Summary {
        let graph = &imported.graph;
        let mut weights = Vec::new();
        let mut operators: IndexMap<&'static str, usize> = IndexMap::new();
        for id in graph.node_ids() {
            match &graph.node(id).kind {
                NodeKind::Weight(path) => {
                    let ty = graph.ty(id.into());
                    let (dtype, shape) = parts(ty);
                    let present = imported.weights.contains(path);
                    weights.push(Weight { name: path.clone(), dtype, shape, bytes: ty.bytes().as_const(), present });
                }
                NodeKind::Call(op) => *operators.entry(op.name()).or_default() += 1,
                NodeKind::Input | NodeKind::Constant(_) => {}
            }
        }
        operators.sort_by(|a, m, b, n| n.cmp(m).then(a.cmp(b)));
        let metadata = &imported.metadata;
        Summary {
            model: graph.name.clone(),
            torch: metadata.torch_version.clone(),
            schema: format!("{}.{}", metadata.schema.0, metadata.schema.1),
            nodes: graph.len(),
            inputs: graph.inputs().iter().map(|&id| port(graph, id.into(), None)).collect(),
            outputs: graph.outputs().iter().map(|output| port(graph, output.value, role(&output.kind))).collect(),
            dims: graph.symbols.clone(),
            weight_bytes: weights.iter().filter_map(|weight| weight.bytes).sum(),
            weights,
            operators,
        }
    }

    fn to_text(&self) -> String {
        let torch =
            if self.torch.is_empty() { String::new() } else { format!(", PyTorch {}, schema {}", self.torch, self.schema) };
        let mut text = format!("{}: {}{torch}\n", self.model, super::counted(self.nodes, "node"));
        for (title, ports) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            text += &format!("\n{title}\n");
            for (i, port) in ports.iter().enumerate() {
                let role = port.role.as_ref().map(|role| format!("  ({role})")).unwrap_or_default();
                text += &format!("  {i}  {}  {}[{}]{role}\n", port.name, port.dtype, port.shape.join(", "));
            }
        }
        if !self.dims.is_empty() {
            text += "\ndims\n";
            for (name, range) in &self.dims {
                text += &match range.max {
                    Some(max) => format!("  {name}  {} to {max}\n", range.min),
                    None => format!("  {name}  {} or more\n", range.min),
                };
            }
        }
        text += "\noperators\n";
        for (name, count) in &self.operators {
            text += &format!("  {count:>5}  {name}\n");
        }
        let absent = self.weights.iter().filter(|weight| !weight.present).count();
        let note = match absent {
            0 => "",
            n if n == self.weights.len() => ", none of which the file holds",
            _ => ", some of which the file does not hold",
        };
        if !self.weights.is_empty() {
            let plural = if self.weights.len() == 1 { "" } else { "s" };
            text += &format!(
                "\nweights: {} in {} tensor{plural}{note}\n",
                table::bytes(self.weight_bytes as f64),
                self.weights.len()
            );
        }
        for (name, weight, count) in self.alike() {
            let bytes = weight.bytes.map_or(String::new(), |bytes| format!("  {}", table::bytes((bytes * count) as f64)));
            text += &format!("  {name}  {}[{}]{bytes}\n", weight.dtype, weight.shape.join(", "));
        }
        text
    }
}

impl Summary {
    /// Weights by name: those that differ in one number alone and are of one type, such as a layer's, are one line, with all numbers in
    /// the place of theirs. Gives name, first weight and count.
    fn alike(&self) -> Vec<(String, &Weight, i64)> {
        let mut groups: IndexMap<_, Vec<(&Weight, Option<u64>)>> = IndexMap::new();
        for weight in &self.weights {
            let (pattern, number) = layer(&weight.name);
            groups.entry((pattern, weight.dtype, &weight.shape)).or_default().push((weight, number));
        }
        let lines = groups.into_iter().map(|((pattern, ..), alike)| {
            let numbers = alike.iter().filter_map(|(_, number)| *number).collect();
            (pattern.replacen('*', &ranges(numbers), 1), alike[0].0, alike.len() as i64)
        });
        lines.collect()
    }
}

/// A name with its first component that is a number replaced by `*`, and that number.
fn layer(name: &str) -> (String, Option<u64>) {
    let mut number = None;
    let parts: Vec<&str> = name
        .split('.')
        .map(|part| match part.parse() {
            Ok(found) if number.is_none() => {
                number = Some(found);
                "*"
            }
            _ => part,
        })
        .collect();
    (parts.join("."), number)
}

/// Numbers as ranges: `0-2,5`.
fn ranges(mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if n == *last + 1 => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let run = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

fn port(graph: &Graph, value: Value, role: Option<String>) -> Port {
    let (dtype, shape) = parts(graph.ty(value));
    Port { name: graph.node(value.node).name.clone(), dtype, shape, role }
}

fn parts(ty: &TensorType) -> (&'static str, Vec<String>) {
    (ty.dtype.name(), ty.shape.iter().map(|dim| dim.to_string()).collect())
}

fn role(kind: &OutputKind) -> Option<String> {
    match kind {
        OutputKind::User => None,
        OutputKind::Gradient(of) => Some(format!("gradient of {of}")),
        OutputKind::Mutation(of) => Some(format!("new contents of {of}")),
    }
}

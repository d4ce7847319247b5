//! Norms, softmax, variances and losses with their gradients as PyTorch exports them, whole and decomposed: graphs of `fixtures/norms`, with how many
//! kernels each may take.

use crate::fixture;
use eglu::{
    DeviceProfile, Graph, Options, Pipeline, Plan, Tensor,
    ir::{ops::Lowering, text},
    lower,
    reference::read_tensors,
};
use indexmap::IndexMap;

/// Lines and elements of a line of the graphs.
pub const SIZES: [usize; 2] = [5, 37];

/// One graph with PyTorch's inputs and results.
pub struct Case {
    /// `fwd` for a function, `bwd` for ATen's backward ops, `joint` for a function and its gradients; with a `d`, decomposed. Then which, and its dtype.
    pub name: String,
    /// The graph's textual form.
    text: String,
    /// `input.0 …` and `output.0 …`.
    pub tensors: IndexMap<String, Tensor>,
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(fixture("norms/graphs.txt")).unwrap_or_else(|error| panic!("{error}"));
    let tensors = read_tensors(&fixture("norms/reference.safetensors")).unwrap_or_else(|error| panic!("{error}"));
    text.split("\n\n")
        .map(|text| {
            let name = text.split('"').nth(1).unwrap_or_default().to_string();
            let own = tensors.iter().filter_map(|(key, tensor)| {
                let key = key.strip_prefix(&name)?.strip_prefix('/')?;
                Some((key.to_string(), tensor.clone()))
            });
            Case { tensors: own.collect(), text: text.to_string(), name }
        })
        .collect()
}

impl Case {
    /// The graph.
    pub fn graph(&self) -> Graph {
        text::parse(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The graph of other sizes. Every number that is a size stands for it.
    pub fn resized(&self, sizes: [usize; 2]) -> Graph {
        let mut text = String::new();
        let mut rest = self.text.as_str();
        let word = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        while let Some(start) = rest.find(word) {
            let (before, from) = rest.split_at(start);
            let (token, after) = from.split_at(from.find(|c| !word(c)).unwrap_or(from.len()));
            let size = SIZES.iter().position(|size| token == size.to_string());
            text += before;
            text += &size.map_or(token.to_string(), |i| sizes[i].to_string());
            rest = after;
        }
        text::parse(&(text + rest)).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The most kernels that the graph may take.
    pub fn allowed(&self) -> usize {
        let (kind, what) = self.name.split_once('.').unwrap_or_default();
        let (what, dtype) = what.rsplit_once('.').unwrap_or_default();
        // Totals over all lines are a kernel of their own, and so is what is counted before a mean's gradient.
        let loss = usize::from(what.starts_with("ce_") && what != "ce_none");
        // A loss that is rounded to 16 bits before its gradient takes its parts apart.
        let rounded = usize::from(dtype == "bf16");
        match kind {
            "fwd" | "dec" => 1 + loss,
            // Gradients by weights sum across lines; a mean's divisor is counted first.
            _ if what == "ce_sum" => 2 + usize::from(kind == "jdec") * rounded,
            // What is smoothed has a sum and a divisor of its own.
            "joint" if what == "ce_smooth" => 4 + 2 * rounded,
            "jdec" if what == "ce_smooth" => 4 + rounded,
            "joint" if what == "ce_mean" => 3 + rounded,
            "joint" | "jdec" if what.starts_with("ce_") => 3,
            "joint" | "jdec" => 2 + usize::from(what.contains("norm") || what.starts_with("rms")),
            // Without a reduction of lines it is elementwise, and what it scatters is counted.
            _ if what == "nll" => 3 + usize::from(kind == "bdec"),
            _ if what == "ce" => 2 + usize::from(kind == "bwd") * rounded,
            _ => 1 + usize::from(what.contains("norm")),
        }
    }
}

/// The plan of a graph for the named device, and how many kernels it launches.
pub fn planned(graph: Graph, pipeline: &Pipeline, device: &str) -> (Plan, usize) {
    let profile = DeviceProfile::named(device).expect("a built-in device");
    let name = graph.name.clone();
    let optimized = pipeline.run_with(graph, &Options::new(profile.clone())).unwrap_or_else(|error| panic!("{name}: {error}"));
    let graph = optimized.graph;
    let launched = |lowering| matches!(lowering, Lowering::Pointwise | Lowering::Kernel | Lowering::Generator);
    let kernels = graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| launched(op.code().lowering())).count();
    (lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}")), kernels)
}

//! The fixtures, as plans.

use eglu_codegen::{Plan, lower};
use eglu_ir::{
    DeviceProfile, Tensor,
    import::{import, reference::read_tensors},
    weights::Weights,
};
use eglu_passes::{Options, Pipeline};
use std::path::{Path, PathBuf};

/// Archives with weights and reference tensors; a dynamic one has references of two sizes.
pub const ARCHIVES: [&str; 13] = [
    "llama.block",
    "llama.block.bf16",
    "llama.dyn",
    "llama.lm",
    "mixtral-batched_mm.block",
    "mixtral-batched_mm.dyn",
    "mixtral-batched_mm.lm",
    "mixtral-grouped_mm.block",
    "mixtral-grouped_mm.block.bf16",
    "mixtral-grouped_mm.dyn",
    "mixtral-grouped_mm.experts",
    "mixtral-grouped_mm.lm",
    "mixtral-8x7b-grouped_mm",
];

/// Fused or one kernel for each operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Fused,
    Unfused,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// The plan of an archive for a device, and the weights it has.
pub fn plan(archive: &str, form: Form, profile: &DeviceProfile) -> (Plan, Weights) {
    let imported = import(&folder().join(format!("{archive}.pt2"))).unwrap_or_else(|error| panic!("{archive}: {error}"));
    let pipeline = match form {
        Form::Fused => Pipeline::standard(),
        Form::Unfused => Pipeline::unfused(),
    };
    let optimized =
        pipeline.run(imported.graph, &Options::new(profile.clone())).unwrap_or_else(|error| panic!("{archive}: {error}"));
    (lower(&optimized.graph).unwrap_or_else(|error| panic!("{archive}: {error}")), imported.weights)
}

/// The user inputs and user outputs PyTorch recorded, one pair for each size.
pub fn references(archive: &str) -> Vec<(Vec<Tensor>, Vec<Tensor>)> {
    let files = ["io", "io2"].map(|io| folder().join(format!("{archive}.{io}.safetensors")));
    let read = |file: &PathBuf| {
        let tensors = read_tensors(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let numbered = |kind: &str| (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect();
        (numbered("input"), numbered("output"))
    };
    files.iter().filter(|file| file.exists()).map(read).collect()
}

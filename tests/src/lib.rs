//! What the integration tests share: the fixtures, their references, and plans of them. The tests live in `tests/tests`.

pub mod norms;
pub mod reductions;

use eglu::{
    DeviceProfile, Optimized, Options, Pipeline, Plan, Tensor,
    import::{Imported, import},
    lower,
    reference::read_tensors,
};
use indexmap::IndexMap;
use std::path::PathBuf;

/// Every archive with reference tensors: its name, and the endings of its reference files.
pub const FIXTURES: &[(&str, &[&str])] = &[
    ("llama.block", &["io"]),
    ("llama.block.bf16", &["io"]),
    ("llama.lm", &["io"]),
    ("llama.dyn", &["io", "io2"]),
    ("mixtral-grouped_mm.block", &["io"]),
    ("mixtral-grouped_mm.block.bf16", &["io"]),
    ("mixtral-grouped_mm.experts", &["io", "io2"]),
    ("mixtral-grouped_mm.lm", &["io"]),
    ("mixtral-grouped_mm.dyn", &["io", "io2"]),
    ("mixtral-batched_mm.block", &["io"]),
    ("mixtral-batched_mm.lm", &["io"]),
    ("mixtral-batched_mm.dyn", &["io", "io2"]),
    ("qwen3_moe-batched_mm.joint", &["io"]),
    ("qwen3_moe-grouped_mm.joint.bf16", &["io"]),
];

/// A file of `fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "fixtures", name].iter().collect()
}

/// The imported archive of that name.
pub fn load(name: &str) -> Imported {
    import(&fixture(&format!("{name}.pt2"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The reference tensors of an archive.
pub fn reference(name: &str, ending: &str) -> IndexMap<String, Tensor> {
    read_tensors(&fixture(&format!("{name}.{ending}.safetensors"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The tensors `input.0`, `input.1`, … of a reference file.
pub fn inputs(tensors: &IndexMap<String, Tensor>) -> Vec<Tensor> {
    (0..).map_while(|i| tensors.get(&format!("input.{i}")).cloned()).collect()
}

/// The archive through a pipeline, for the named device.
pub fn optimized(name: &str, pipeline: &Pipeline, device: &str) -> Optimized {
    let profile = DeviceProfile::named(device).expect("a built-in device");
    pipeline.run_with(load(name).graph, &Options::new(profile.clone())).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The plan of the archive through a pipeline, for the named device.
pub fn plan(name: &str, pipeline: &Pipeline, device: &str) -> Plan {
    lower(&optimized(name, pipeline, device).graph).unwrap_or_else(|error| panic!("{name}: {error}"))
}

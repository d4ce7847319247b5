//! `manifest.json`: what a package holds, and where.

use crate::inputs::Bound;
use eglu_codegen::{
    Plan,
    cuda::{Launch, Scratch},
};
use eglu_ir::{TensorType, weights::Placement};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the field `format` says.
pub(super) const FORMAT: &str = "eglu-package";
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u64 = 1;
/// The name of the entry.
pub(super) const MANIFEST: &str = "manifest.json";
/// What the plan for the host is called among the architectures.
pub const CPU: &str = "cpu";

/// The fields that every version has.
#[derive(Deserialize)]
pub(super) struct Header {
    pub format: Option<String>,
    pub version: Option<u64>,
    /// The version of eglu that wrote it.
    pub eglu: Option<String>,
}

/// The whole manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u64,
    pub eglu: String,
    pub programs: Vec<ProgramRecord>,
    /// By architecture and digest of the source, the entry with the cubin: for plans that are made at run time.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub kernels: IndexMap<String, IndexMap<String, String>>,
}

/// A model with its plans.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgramRecord {
    pub name: String,
    /// Each input by name, in signature order, for people; the plans have them, too.
    pub inputs: IndexMap<Arc<str>, InputRecord>,
    /// Type of each output, in signature order.
    pub outputs: Vec<String>,
    pub targets: Vec<TargetRecord>,
    /// The archive that weights are windows of; `None` where they are in the package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ReferenceRecord>,
    pub weights: IndexMap<Arc<str>, WeightRecord>,
    /// Weights that the model needs and that came without contents.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub absent: IndexMap<Arc<str>, TensorType>,
}

/// An input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputRecord {
    #[serde(rename = "type")]
    pub ty: String,
    /// What the model says of the values, for those who draw some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bound>,
}

/// A plan for one architecture.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetRecord {
    /// `cpu`, or what NVRTC calls it.
    pub arch: String,
    /// The entry with the [`PlanRecord`].
    pub plan: String,
    /// What made the cubins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
}

/// Where a weight lies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightRecord {
    /// The entry, of the package or of the archive referred to.
    pub file: String,
    #[serde(flatten)]
    pub place: Placement,
}

/// An archive beside the package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReferenceRecord {
    /// Its path from the package's folder.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its directory, which has the CRC-32 of every entry.
    pub directory: String,
}

/// The plan of one architecture, an entry of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanRecord {
    pub plan: Plan,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Scratch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<Launch>,
}

/// A module and the entry with its cubin.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModuleRecord {
    pub name: String,
    pub cubin: String,
}

//! Why an import fails: what was found, where, and what to do.

use crate::{TensorType, archive::ArchiveError, json::JsonError, verify::VerifyError, weights::WeightError};
use std::{fmt, path::PathBuf, sync::Arc};

/// Why a file does not become a graph.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    OwnJson { path: PathBuf, source: JsonError },
    #[error("{} holds no program (no models/*.json): is it an archive of torch.export.save?", path.display())]
    NoProgram { path: PathBuf },
    #[error("{} holds {} programs ({}): export the one you want into an archive of its own", path.display(), names.len(), names.join(", "))]
    SeveralPrograms { path: PathBuf, names: Vec<String> },
    #[error("{}: the entry `{entry}` is not the JSON expected there: {why}", path.display())]
    Json { path: PathBuf, entry: String, why: String },
    #[error("{}: its schema version is {major}.{minor}, this reads 7 and 8: export with PyTorch 2.5 to 2.15", path.display())]
    Schema { path: PathBuf, major: i64, minor: i64 },
    #[error("{}: it was written on a {order}-endian machine, which is not supported: export it on a little-endian one", path.display())]
    ByteOrder { path: PathBuf, order: String },
    #[error("{}", list_unsupported(.0))]
    Unsupported(Vec<UnsupportedTarget>),
    #[error("node `{node}` reads `{name}`, which nothing defines before it")]
    Undefined { node: Arc<str>, name: String },
    #[error("the name `{name}` is defined twice, the second time by node `{node}`")]
    Duplicate { node: Arc<str>, name: String },
    #[error("the graph returns `{name}`, which nothing defines")]
    DanglingOutput { name: String },
    #[error("node `{node}` ({target}): {why}")]
    Node { node: Arc<str>, target: Arc<str>, why: String },
    #[error("node `{node}` ({target}) gives {inferred}, but the archive declares {declared} for `{output}`")]
    TypeMismatch { node: Arc<str>, target: Arc<str>, output: String, inferred: Box<TensorType>, declared: Box<TensorType> },
    #[error("the size expression `{text}` of {place} is not understood: {why}")]
    Expression { place: String, text: String, why: String },
    #[error("{place} has {what}, which is not supported")]
    Tensor { place: String, what: String },
    #[error("the archive's signature does not fit its graph: {0}")]
    Signature(String),
    #[error("the archive's graph is malformed: {0}")]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Weight(#[from] WeightError),
}

/// A target without a mapping, or a form of one that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedTarget {
    /// As the archive spells it, e.g. `aten.unique.default`.
    pub target: Arc<str>,
    /// The first node with it.
    pub node: Arc<str>,
    /// How many nodes have it.
    pub count: usize,
    /// Where the target itself is known: what about this use is not.
    pub why: Option<String>,
}

impl fmt::Display for UnsupportedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.count == 1 { "once".into() } else { format!("{} times", self.count) };
        write!(f, "{} (node `{}`, {times})", self.target, self.node)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

fn list_unsupported(targets: &[UnsupportedTarget]) -> String {
    let lines: Vec<String> = targets.iter().map(|target| format!("\n  {target}")).collect();
    let noun = if targets.len() == 1 { "op has" } else { "ops have" };
    format!("{} {noun} no counterpart here:{}", targets.len(), lines.concat())
}

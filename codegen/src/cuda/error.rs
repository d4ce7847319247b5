//! Why a plan has no CUDA form.

use std::sync::Arc;

/// A step that has no kernel, with the reason and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step `{step}` ({op}) has no CUDA kernel: {why}")]
pub struct EmitError {
    /// Name of the step's node.
    pub step: Arc<str>,
    /// Name of its op.
    pub op: &'static str,
    /// What stands in the way, and what to do about it.
    pub why: String,
}

/// The reason alone, before the step is known.
#[derive(Clone, Debug)]
pub(super) struct Unsupported(pub String);

impl Unsupported {
    pub fn new(why: impl Into<String>) -> Unsupported {
        Unsupported(why.into())
    }
}

pub(super) type Emit<T> = Result<T, Unsupported>;

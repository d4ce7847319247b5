//! Passes over the graph: canonical forms, equality saturation, fusion, and the report on what was done.
//!
//! [`Pipeline::standard`] is what the command runs; every pass leaves a graph that verifies and computes the same.

pub mod autodiff;
pub mod canonicalize;
pub mod certify;
pub mod cluster;
pub mod cost;
pub mod cse;
pub mod dce;
pub mod egraph;
pub mod equality;
mod explain;
pub mod fold;
pub mod pipeline;
mod rebuild;
pub mod recompute;
pub mod report;

pub use autodiff::{AutodiffError, Gradients};
pub use certify::certify;
pub use explain::explain;
pub use pipeline::{Context, Failure, Optimized, Options, Pass, PassError, Pipeline, PrintAfter};
pub use recompute::Recompute;
pub use report::Report;

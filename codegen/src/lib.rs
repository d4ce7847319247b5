//! From a graph to kernels: the launch plan, tile choice and CUDA source.
//!
//! [`lower`](lower::lower) turns a graph into a [`Plan`]: steps in order, buffers, and views folded into strided layouts. Every backend runs a
//! plan; `cuda` turns one into sources and launches.

mod check;
mod constant;
pub mod cuda;
pub mod layout;
pub mod lower;
pub mod plan;

pub use check::CheckError;
pub use layout::Layout;
pub use lower::{LowerError, lower};
pub use plan::{Arg, Buffer, BufferId, Plan, PlanInput, PlanOutput, Source, Step, TensorRef};

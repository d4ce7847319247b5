//! Inputs drawn at random for measurements: how each is drawn, and what an integer input may hold.

mod bound;
mod draw;
mod sizes;
mod spec;

pub use bound::{Bound, bound};
pub use draw::draw;
pub use sizes::sizes;
pub use spec::{InputSpec, Routing};

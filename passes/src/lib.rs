//! The passes of eglu: equality saturation and what goes before and after it.

pub mod egraph;

//! eglu-runtime

pub mod cuda;

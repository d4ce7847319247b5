//! eglu-passes

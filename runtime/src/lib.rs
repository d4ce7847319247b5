//! eglu-runtime

//! eglu

//! Equality saturation on whole blocks and on single rules.

mod blocks;
mod build;
mod fusing;
mod near_misses;
mod single;
mod soundness;

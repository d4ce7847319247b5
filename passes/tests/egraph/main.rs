//! Equality saturation on whole blocks, on single rules and on exported models.

mod archives;
mod backward;
mod blocks;
mod build;
mod every_rule;
mod fusing;
mod mutants;
mod near_misses;
mod reference;
mod refusals;
mod regions;
mod routers;
mod single;
mod soundness;

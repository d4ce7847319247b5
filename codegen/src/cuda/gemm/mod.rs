//! Matrix products: one generator of main loop × operand loader × scheduler × epilogue program.

mod bulk;
mod dense;
mod dispatch;
mod engine;
mod epilogue;
mod expert_blocks;
mod expert_captured;
mod expert_clusters;
mod expert_contract;
mod expert_fold;
mod expert_outer;
mod expert_product;
mod expert_swapped;
mod experts;
mod few;
mod fold;
mod instruction;
mod main_loop;
mod moe;
mod operand;
mod ordered;
mod outer_column;
mod outer_wgmma;
mod product;
mod stream;
mod swapped;
mod wgmma;
mod widened;

pub(super) use dispatch::Order;
pub(super) use expert_contract::expert_contract;
pub(super) use expert_outer::expert_outer;
pub(super) use experts::{expert_matmul, grouped_mm};
pub(super) use moe::moe;
pub(super) use ordered::find as ordered_buffers;
pub(super) use product::{contract, dense_glu, matmul};
pub(super) use widened::Widened;

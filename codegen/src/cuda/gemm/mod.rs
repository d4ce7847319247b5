//! Matrix products: one generator of main loop × operand loader × scheduler × epilogue program.

mod decode;
mod dispatch;
mod epilogue;
mod expert_blocks;
mod expert_clusters;
mod expert_product;
mod expert_swapped;
mod experts;
mod main_loop;
mod moe;
mod operand;
mod product;
mod swapped;
mod wgmma;

pub(super) use experts::{expert_matmul, grouped_mm};
pub(super) use moe::moe;
pub(super) use product::{contract, dense_glu, matmul};

//! Matrix products: one generator of main loop × operand loader × scheduler × epilogue program.

mod combine;
mod dispatch;
mod epilogue;
mod expert_blocks;
mod expert_clusters;
mod expert_product;
mod experts;
mod main_loop;
mod operand;
mod product;
mod wgmma;

pub(super) use experts::{expert_matmul, grouped_mm, moe};
pub(super) use product::{contract, dense_glu, matmul};

//! CUDA on the fixtures: every kernel compiles (NVRTC, no GPU), and plans compute what PyTorch did (on a device).
//!
//! Where the machine lacks NVRTC or a device the tests skip and say so; `EGLU_REQUIRE_NVRTC=1` and `EGLU_REQUIRE_GPU=1` make that a failure.

mod blocks;
mod compiles;
mod dense;
mod device;
mod folds;
mod machine_code;
mod norms;
mod nvrtc;
mod on_device;
mod reductions;
mod rows;
mod runs;
mod starts;
mod training;

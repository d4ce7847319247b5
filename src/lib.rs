//! eglu: fuses the mixture-of-experts blocks, GLU blocks, matmuls and reductions of exported PyTorch graphs into single kernels.
//!
//! A graph is imported, optimised by equality saturation, lowered to a plan, and run on the CPU or on a CUDA device:
//!
//! ```
//! use eglu::{Device, DeviceProfile, Executable, Options, Pipeline, compare::compare_all, import::import, lower, reference::read_tensors};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = import("fixtures/mixtral-grouped_mm.block.pt2".as_ref())?;
//! let io = read_tensors("fixtures/mixtral-grouped_mm.block.io.safetensors".as_ref())?;
//! let profile = DeviceProfile::named("cpu").ok_or("no such device")?;
//! let optimized = Pipeline::standard().run(model.graph, &Options::new(profile.clone()))?;
//! let plan = lower(&optimized.graph)?;
//! let executable = Executable::load(plan, &model.weights, &Device::Cpu)?;
//! let outputs = executable.run(&[io["input.0"].clone()])?;
//! assert!(compare_all(&outputs, &io)?.iter().all(|difference| difference.within));
//! # Ok(())
//! # }
//! ```

pub mod ahead;
pub mod reductions;

pub use eglu_codegen as codegen;
pub use eglu_codegen::{Plan, lower};
pub use eglu_ir::import::{self, reference};
pub use eglu_ir::{self as ir, DType, DeviceProfile, Dim, Graph, Op, Tensor, TensorType};
pub use eglu_passes::{self as passes, Optimized, Options, Pipeline};
pub use eglu_runtime::{self as runtime, Device, Executable, compare};

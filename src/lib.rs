//! eglu: fuses the mixture-of-experts blocks, GLU blocks, matmuls and reductions of exported PyTorch graphs into single kernels.
//!
//! A graph is imported, optimised by equality saturation, lowered to a plan, and run on the CPU or on a CUDA device:
//!
//! ```
//! use eglu::{Device, Executable, Graph, compare::compare_all, compile, reference::read_tensors};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::Cpu; // or Device::Cuda(0)
//!     let model = Graph::import("fixtures/mixtral-grouped_mm.block.pt2")?;
//!     let io = read_tensors("fixtures/mixtral-grouped_mm.block.io.safetensors".as_ref())?;
//!     let plan = compile(model.graph, &device.profile()?)?;
//!     let executable = Executable::load(plan, &model.weights, &device)?;
//!     let outputs = executable.run(&[io["input.0"].clone()])?;
//!     assert!(compare_all(&outputs, &io)?.iter().all(|difference| difference.within));
//!     Ok(())
//! }
//! ```
//!
//! [`compile()`] is [`Pipeline::standard`] and [`lower()`]; with a pipeline of one's own, here for the host and for a GPU that need not be there:
//!
//! ```
//! use eglu::{DeviceProfile, Graph, Options, Pipeline, lower};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let graph = Graph::import("fixtures/mixtral-grouped_mm.block.pt2")?.graph;
//! let optimized = Pipeline::parse("canonicalize,fold,cse,dce,egraph,cluster,dce")?.run(graph.clone())?;
//! assert!(!optimized.report.sites.is_empty(), "the block is fused");
//! let plan = lower(&optimized.graph)?;
//!
//! let h200 = DeviceProfile::named("h200").ok_or("no such device")?;
//! let optimized = Pipeline::standard().run_with(graph, &Options::new(h200.clone()))?;
//! # let plan = lower(&optimized.graph)?;
//! # Ok(())
//! # }
//! ```
//!
//! On a GPU, [`Executable::run_on`] reads and writes tensors where the caller has them, on the caller's stream, without waiting. Several
//! executables may share a device, and threads may share an executable: see [`Executable`] for the rules.
//!
//! ```no_run
//! # use eglu::{DType, DeviceTensor, Executable, Stream};
//! # fn f(executable: Executable, stream: *mut std::ffi::c_void, x: u64, y: u64) -> Result<(), Box<dyn std::error::Error>> {
//! // SAFETY: the stream is of the device's primary context; x and y are device memory of these sizes, in use by nothing else on another stream.
//! let (stream, x, y) = unsafe {
//!     let x = DeviceTensor::borrow(DType::Bf16, &[1, 128, 1024], x);
//!     (Stream::from_raw(stream), x, DeviceTensor::borrow(DType::Bf16, &[1, 128, 1024], y))
//! };
//! executable.run_on(stream, &[x], &[y])?;
//! # Ok(())
//! # }
//! ```

pub mod ahead;
mod compile;
pub mod reductions;

pub use compile::{CompileError, compile};
pub use eglu_codegen as codegen;
pub use eglu_codegen::{Plan, lower};
pub use eglu_ir::{self as ir, DType, DeviceProfile, Dim, Graph, Op, Tensor, TensorType};
pub use eglu_ir::{import, reference};
pub use eglu_passes::{self as passes, Optimized, Options, Pipeline};
pub use eglu_runtime::{self as runtime, Device, DeviceTensor, Executable, Package, Stream, compare};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_shows_the_example_that_runs() {
        let example: String = include_str!("lib.rs")
            .lines()
            .skip_while(|line| *line != "//! ```")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").trim_start_matches(' ').to_string() + "\n")
            .collect();
        let readme: String = include_str!("../README.md").lines().map(|line| line.trim_start().to_string() + "\n").collect();
        assert!(
            example.lines().count() > 10 && readme.contains(&example),
            "README.md lacks the example of src/lib.rs:\n{example}"
        );
    }

    #[test]
    fn executables_and_lent_tensors_are_for_all_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Executable>();
        shared::<DeviceTensor>();
        shared::<Stream>();
    }
}

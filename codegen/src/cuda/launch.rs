//! A plan made concrete for one CUDA architecture: sources to compile and launches to make.

use crate::{BufferId, Plan};
use eglu_ir::Dim;

/// A plan with the kernels that run it. Grids, sizes and offsets are expressions over the plan's symbols.
#[derive(Clone, Debug)]
pub struct CudaPlan {
    /// The steps and buffers this was made of.
    pub plan: Plan,
    /// Device memory that only kernels see.
    pub scratch: Vec<Scratch>,
    /// Translation units; equal sources appear once.
    pub modules: Vec<Module>,
    /// Kernels to launch, in stream order.
    pub launches: Vec<Launch>,
}

/// Device memory between the launches of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Scratch {
    /// What it holds.
    pub name: String,
    /// Size in bytes.
    pub bytes: Dim,
    /// The step whose launches use it.
    pub step: usize,
}

/// One self-contained CUDA C++ translation unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// File name for messages and `eglu emit`, without extension.
    pub name: String,
    /// Source text; needs no header.
    pub source: String,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The step it is part of.
    pub step: usize,
    /// Position in [`CudaPlan::modules`].
    pub module: usize,
    /// The `extern "C"` kernel's name.
    pub entry: String,
    /// Blocks along x, y and z. A launch with an extent of 0 is skipped.
    pub grid: [Dim; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// Parameters in order.
    pub args: Vec<KernelArg>,
}

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum KernelArg {
    /// The address of a buffer, `offset` bytes in. Kernels move 16 bytes at a time: buffers and scratch start on 16 bytes at least.
    Pointer {
        /// Which memory.
        memory: Memory,
        /// Bytes from its start.
        offset: Dim,
    },
    /// A `long long`.
    Int(Dim),
}

/// Device memory that a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer of the plan.
    Buffer(BufferId),
    /// Position in [`CudaPlan::scratch`].
    Scratch(usize),
}

//! A plan made concrete for one CUDA architecture: sources to compile and launches to make.

use crate::{BufferId, Plan};
use eglu_ir::{DType, Dim};
use serde::{Deserialize, Serialize};

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

/// Device memory between the launches of a step, or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scratch {
    /// What it holds.
    pub name: String,
    /// Size in bytes.
    pub bytes: Dim,
    /// The first step whose launches use it.
    pub step: usize,
    /// The last one.
    pub last: usize,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// It may start while the launch before it still runs, for which the kernel waits by itself (programmatic dependent launch).
    pub overlaps: bool,
}

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// A 128-byte tensor map, by value.
    TensorMap(TensorMap),
}

/// A view of memory as the bulk copy engine (TMA) takes tiles from it: what `cuTensorMapEncodeTiled` is given, with the 128-byte swizzle and
/// zeros for what lies outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorMap {
    /// Which memory.
    pub memory: Memory,
    /// Bytes from its start, a multiple of 16.
    pub offset: Dim,
    /// Type of the elements, 16 bits wide.
    pub dtype: DType,
    /// Extents, the contiguous one first.
    pub dims: Vec<Dim>,
    /// Bytes between neighbours of each dim but the first, multiples of 16.
    pub strides: Vec<Dim>,
    /// Extents of a tile, one for each dim, at most 256; the first covers 128 bytes.
    pub tile: Vec<u32>,
    /// The next tile along the contiguous dim comes soon: memory may be read 256 bytes at a time.
    pub follows: bool,
}

/// Device memory that a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Memory {
    /// A buffer of the plan.
    Buffer(BufferId),
    /// Position in [`CudaPlan::scratch`].
    Scratch(usize),
    /// [`COUNTERS`] numbers of 32 bits that are zero before every launch and that every kernel leaves zero.
    Counters,
}

/// How many counters [`Memory::Counters`] has.
pub const COUNTERS: usize = 1 << 16;

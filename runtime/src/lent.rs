//! What a caller lends to a run on a device: tensors in device memory, and a stream.

use eglu_ir::{DType, types::TensorType};
use smallvec::SmallVec;
use std::{any::Any, ffi::c_void, fmt, sync::Arc};

/// A dense row-major tensor in device memory: of the caller's by its address, or made by [`Executable::to_device`](crate::Executable::to_device).
#[derive(Clone)]
pub struct DeviceTensor {
    dtype: DType,
    shape: SmallVec<[usize; 6]>,
    address: u64,
    /// Keeps memory that this crate allocated.
    _memory: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceTensor {
    /// A tensor in memory of the caller's: a `CUdeviceptr`, PyTorch's `data_ptr()`, a DLPack tensor's data plus its offset.
    ///
    /// # Safety
    /// As long as work that was issued with this tensor is not done, `address` holds its elements on the device that the work runs on, nobody
    /// frees them, nobody writes them unless in stream order, and for a result nobody else reads them either.
    pub unsafe fn borrow(dtype: DType, shape: &[usize], address: u64) -> DeviceTensor {
        DeviceTensor { dtype, shape: SmallVec::from_slice(shape), address, _memory: None }
    }

    /// A tensor in memory that lives as long as `memory`.
    pub(crate) fn owned(dtype: DType, shape: &[usize], address: u64, memory: Arc<dyn Any + Send + Sync>) -> DeviceTensor {
        DeviceTensor { dtype, shape: SmallVec::from_slice(shape), address, _memory: Some(memory) }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where it starts: a `CUdeviceptr`.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.size() as u64, |bytes, &extent| bytes.saturating_mul(extent as u64))
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = TensorType::new(self.dtype, self.shape.iter().map(|&extent| (extent as i64).into()));
        write!(f, "DeviceTensor({ty} at {:#x})", self.address)
    }
}

/// A stream of the caller's. Work is issued to it and not waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(usize);

impl Stream {
    /// The device's legacy default stream, which PyTorch uses unless told otherwise.
    pub const DEFAULT: Stream = Stream(0);

    /// A `CUstream` (or `cudaStream_t`, which is the same): PyTorch's `torch.cuda.current_stream().cuda_stream`.
    ///
    /// # Safety
    /// It is a stream of the primary context of the device that the executable is on, and alive whenever something is issued to it.
    pub unsafe fn from_raw(stream: *mut c_void) -> Stream {
        Stream(stream as usize)
    }

    pub(crate) fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.0)
    }
}

/// What a run on lent memory writes, under one choice of dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// Bytes of each block of memory that the caller gives for results.
    pub blocks: Vec<u64>,
    /// Where each output of the plan lies, in signature order.
    pub outputs: Vec<OutputView>,
}

/// An output as a view, as PyTorch's `as_strided` takes it. Most outputs are a whole block, dense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputView {
    /// Whose memory it is in.
    pub place: OutputPlace,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each dim.
    pub strides: Vec<i64>,
    /// Elements before the first one.
    pub offset: i64,
}

/// Whose memory an output views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPlace {
    /// The caller's block of that number, which the run writes.
    Block(usize),
    /// An input: the graph returns it, or a view of it.
    Input(usize),
    /// A weight or constant of the executable, at this address.
    Resident(u64),
}

impl OutputView {
    /// True if it is row-major without gaps and starts where its memory does.
    pub fn is_plain(&self) -> bool {
        let mut want = 1;
        let dense = self.shape.iter().zip(&self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == want;
            want *= extent as i64;
            fits
        });
        dense && self.offset == 0
    }
}

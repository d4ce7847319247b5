//! A stream, the copies and launches issued to it, and events in it.
//!
//! The calling thread must have entered the stream's context.

use super::{CudaError, context::Context};
use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUresult,
    CUstream,
};
use std::{ffi::c_void, sync::Arc};

/// Copies from the host go in pieces of this size, so that a mapped file is read ahead while earlier pieces travel.
const PIECE: usize = 64 << 20;

/// Work issued to it runs in order. Not the default stream: that one waits for all others, and cannot be captured into a graph.
pub(super) struct Stream {
    context: Arc<Context>,
    pub(super) handle: CUstream,
    /// The caller's, who destroys it.
    borrowed: bool,
}

// SAFETY: a stream is a handle that the driver lets any thread use.
unsafe impl Send for Stream {}

/// A kernel ready to launch. The function's module must be loaded, and `params` point to as many values as it has parameters.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) function: CUfunction,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    /// It may start while the launch before it still runs.
    pub(super) overlaps: bool,
    pub(super) params: *mut *mut c_void,
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        const NON_BLOCKING: u32 = 1;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        unsafe { context.driver.cuStreamCreate(&mut handle, NON_BLOCKING) }
            .map_err(|code| context.driver.error("making a stream", code))?;
        Ok(Stream { context: context.clone(), handle, borrowed: false })
    }

    /// A stream of the caller's.
    ///
    /// # Safety
    /// It is a stream of this context, and alive whenever something is issued to it.
    pub(super) unsafe fn borrow(context: &Arc<Context>, handle: CUstream) -> Stream {
        Stream { context: context.clone(), handle, borrowed: true }
    }

    pub(super) fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    /// Copies to the device. The bytes may change when this returns: the driver stages pageable memory.
    pub(super) fn upload(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<(), CUresult> {
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let to = to + (i * PIECE) as u64;
            // SAFETY: the caller owns at least `bytes.len()` bytes at `to`.
            unsafe { self.context.driver.cuMemcpyHtoDAsync_v2(to, piece.as_ptr().cast(), piece.len(), self.handle) }?;
        }
        Ok(())
    }

    /// Copies to the host; the bytes are there after [`Stream::wait`].
    ///
    /// # Safety
    /// `bytes` must stay alive and untouched until then.
    pub(super) unsafe fn download(&self, bytes: &mut [u8], from: CUdeviceptr) -> Result<(), CUresult> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller owns at least `bytes.len()` bytes at `from`, and keeps the host's side alive.
        unsafe { self.context.driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.handle) }
    }

    /// Sets bytes.
    pub(super) fn fill(&self, at: CUdeviceptr, value: u8, bytes: u64) -> Result<(), CUresult> {
        match bytes {
            0 => Ok(()),
            // SAFETY: the caller owns `bytes` bytes at `at`.
            _ => unsafe { self.context.driver.cuMemsetD8Async(at, value, bytes as usize, self.handle) },
        }
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// `call` keeps its contract, and the kernel's pointers hold memory of this context.
    pub(super) unsafe fn launch(&self, call: &Call) -> Result<(), CUresult> {
        let ([x, y, z], [bx, by, bz]) = (call.grid, call.block);
        let (none, driver) = (std::ptr::null_mut(), &self.context.driver);
        if call.overlaps {
            let mut overlap = CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let config = CUlaunchConfig {
                gridDimX: x,
                gridDimY: y,
                gridDimZ: z,
                blockDimX: bx,
                blockDimY: by,
                blockDimZ: bz,
                sharedMemBytes: call.shared_bytes,
                hStream: self.handle,
                attrs: &mut overlap,
                numAttrs: 1,
            };
            // SAFETY: the caller keeps the contract of `Call`; the attribute outlives the call.
            return unsafe { driver.cuLaunchKernelEx(&config, call.function, call.params, none) };
        }
        // SAFETY: the caller keeps the contract of `Call`.
        unsafe { driver.cuLaunchKernel(call.function, x, y, z, bx, by, bz, call.shared_bytes, self.handle, call.params, none) }
    }

    /// Waits until everything issued so far is done, and gives the first error among it.
    pub(super) fn wait(&self) -> Result<(), CUresult> {
        // SAFETY: the stream is alive.
        unsafe { self.context.driver.cuStreamSynchronize(self.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.borrowed && self.context.enter().is_ok() {
            // SAFETY: made by this context and destroyed once; work in it may still finish.
            let _ = unsafe { self.context.driver.cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// A point in a stream whose time is taken.
pub(super) struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Event, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` outlives the call; no flags, so times are kept.
        unsafe { context.driver.cuEventCreate(&mut handle, 0) }.map_err(|code| context.driver.error("making an event", code))?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Marks the point after everything issued so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), CUresult> {
        // SAFETY: both are alive and of one context.
        unsafe { self.context.driver.cuEventRecord(self.handle, stream.handle) }
    }

    /// Waits until the point is reached.
    pub(super) fn wait(&self) -> Result<(), CUresult> {
        // SAFETY: the event is alive.
        unsafe { self.context.driver.cuEventSynchronize(self.handle) }
    }

    /// Seconds from an earlier event, both reached.
    pub(super) fn seconds_since(&self, earlier: &Event) -> Result<f64, CUresult> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; `milliseconds` outlives the call.
        unsafe { self.context.driver.cuEventElapsedTime(&mut milliseconds, earlier.handle, self.handle) }?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by this context and destroyed once.
            let _ = unsafe { self.context.driver.cuEventDestroy_v2(self.handle) };
        }
    }
}

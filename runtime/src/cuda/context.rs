//! A device's primary context, and memory in it.

use super::{CudaError, DeviceFacts, allocator::Source, driver::Driver};
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUresult};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The primary context of one device: the one PyTorch and every other library in the process use, so that memory can be shared.
pub(super) struct Context {
    pub(super) driver: Arc<Driver>,
    pub(super) facts: Arc<DeviceFacts>,
    handle: CUcontext,
    /// A kernel's fault ended it: every handle in it is void. The driver gives the process no other on this device, whether the context is
    /// reset, released or made beside it, or the driver's library closed and opened again (each was tried with driver 580:
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` again; a second copy of the library in a name space of its own crashes).
    lost: AtomicBool,
}

// SAFETY: a context is a handle that the driver lets any thread use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronises.
unsafe impl Sync for Context {}

impl Context {
    /// The context of device `ordinal`, retained once and for the life of the process.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Context>, CudaError> {
        static OPEN: Mutex<BTreeMap<usize, Arc<Context>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = open.get(&ordinal) {
            return Ok(context.clone());
        }
        let context = Context::with(Driver::open()?, DeviceFacts::of(ordinal)?)?;
        open.insert(ordinal, context.clone());
        Ok(context)
    }

    /// The primary context of the device with these facts.
    pub(super) fn with(driver: Arc<Driver>, facts: Arc<DeviceFacts>) -> Result<Arc<Context>, CudaError> {
        let opening = format!("opening device {}", facts.ordinal);
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: `device` outlives the call.
        unsafe { driver.cuDeviceGet(&mut device, facts.ordinal as i32) }.map_err(|code| driver.error(&opening, code))?;
        // SAFETY: `handle` outlives the call.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut handle, device) }.map_err(|code| driver.error(&opening, code))?;
        Ok(Arc::new(Context { driver, facts, handle, lost: AtomicBool::new(false) }))
    }

    /// Notes that a kernel's fault ended the context.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Makes this the calling thread's context; every function of a stream, an event or a module needs it.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        if self.lost.load(Ordering::Acquire) {
            return Err(CudaError::Lost { ordinal: self.facts.ordinal });
        }
        // SAFETY: the context is retained for the life of `self`.
        unsafe { self.driver.cuCtxSetCurrent(self.handle) }.map_err(|code| self.driver.error("entering a context", code))
    }

    /// Waits for everything issued to the device by anyone.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.enter()?;
        // SAFETY: the context was entered.
        unsafe { self.driver.cuCtxSynchronize() }.map_err(|code| self.driver.error("waiting for the device", code))
    }

    /// Allocates memory; a refusal says for what, and how much there is. The context must be entered.
    pub(super) fn allocate(self: &Arc<Self>, from: &Source, bytes: u64, what: &str) -> Result<DeviceMemory, CudaError> {
        // An empty allocation is an error to the driver, and every buffer wants an address.
        let size = bytes.max(1);
        let address = match from {
            Source::Driver => self.allocate_from_driver(size, what)?,
            Source::Caller(allocator) => allocator.allocate(self.facts.ordinal, size),
        };
        match address {
            Some(address) => Ok(DeviceMemory { context: self.clone(), from: from.clone(), address, bytes }),
            None => {
                // Where even this fails, the message shows zeros.
                let (free, total) = self.free().unwrap_or((0, 0));
                Err(CudaError::OutOfMemory { what: what.into(), wanted: bytes, free, total, ordinal: self.facts.ordinal })
            }
        }
    }

    /// Bytes of the device's memory that are free, and all of them.
    pub(super) fn free(&self) -> Result<(u64, u64), CudaError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both outlive the call.
        let asked = unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) };
        asked.map_err(|code| self.driver.error("asking for free memory", code))?;
        Ok((free as u64, total as u64))
    }

    fn allocate_from_driver(&self, bytes: u64, what: &str) -> Result<Option<CUdeviceptr>, CudaError> {
        let mut address = 0;
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: `address` outlives the call.
        match unsafe { self.driver.cuMemAlloc_v2(&mut address, size) } {
            Ok(()) => Ok(Some(address)),
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Ok(None),
            Err(code) => Err(self.driver.error(format!("allocating {bytes} bytes for {what}"), code)),
        }
    }
}

/// Device memory, freed when dropped. Whoever drops it sees to it that no kernel still uses it.
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    from: Source,
    address: CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory {
    /// Where it starts; a multiple of 256.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // After a fault there is nothing to free: the context took its memory with it.
        if self.context.enter().is_ok() {
            match &self.from {
                // SAFETY: allocated by this context and freed once.
                Source::Driver => drop(unsafe { self.context.driver.cuMemFree_v2(self.address) }),
                // SAFETY: as above, by this allocator with these numbers.
                Source::Caller(from) => unsafe { from.free(self.context.facts.ordinal, self.address, self.bytes.max(1)) },
            }
        }
    }
}

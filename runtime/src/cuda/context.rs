//! A device's primary context, and memory in it.

use super::{CudaError, DeviceFacts, driver::Driver};
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUresult};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The primary context of one device: the one PyTorch and every other library in the process use, so that memory can be shared.
pub(super) struct Context {
    pub(super) driver: Arc<Driver>,
    pub(super) facts: Arc<DeviceFacts>,
    handle: CUcontext,
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
        Ok(Arc::new(Context { driver, facts, handle }))
    }

    /// Makes this the calling thread's context; every function of a stream, an event or a module needs it.
    pub(super) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained for the life of `self`.
        unsafe { self.driver.cuCtxSetCurrent(self.handle) }.map_err(|code| self.driver.error("entering a context", code))
    }

    /// Allocates memory; a refusal says for what, and how much there is.
    pub(super) fn allocate(self: &Arc<Self>, bytes: u64, what: &str) -> Result<DeviceMemory, CudaError> {
        let driver = &self.driver;
        let mut address = 0;
        // An empty allocation is an error to the driver, and every buffer wants an address.
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: `address` outlives the call.
        match unsafe { driver.cuMemAlloc_v2(&mut address, size) } {
            Ok(()) => Ok(DeviceMemory { context: self.clone(), address, bytes }),
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: both outlive the call. Where even this fails, the message shows zeros.
                let _ = unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) };
                let (free, total) = (free as u64, total as u64);
                Err(CudaError::OutOfMemory { what: what.into(), wanted: bytes, free, total, ordinal: self.facts.ordinal })
            }
            Err(code) => Err(driver.error(format!("allocating {bytes} bytes for {what}"), code)),
        }
    }
}

/// Device memory, freed when dropped. Whoever drops it sees to it that no kernel still uses it.
pub(super) struct DeviceMemory {
    context: Arc<Context>,
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
        if self.context.enter().is_ok() {
            // SAFETY: allocated by this context and freed once. After a fault the driver refuses, and the process's end frees it.
            let _ = unsafe { self.context.driver.cuMemFree_v2(self.address) };
        }
    }
}

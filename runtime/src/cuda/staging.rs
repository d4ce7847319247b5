//! Pinned host memory: what the copy engine reads and writes by itself, at the bus's full rate and beside the host's work.

use super::context::Context;
use cudarc::driver::sys::CUresult;
use std::{ffi::c_void, sync::Arc};

/// A block of pinned host memory, freed when dropped. Whoever drops it sees to it that no copy still uses it.
pub(super) struct Pinned {
    context: Arc<Context>,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: it is memory that the object owns alone.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates; the context must be entered. A system may refuse what it has to spare for pinning, so callers need another way.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, CUresult> {
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` outlives the call.
        unsafe { context.driver.cuMemHostAlloc(&mut address, bytes.max(1), 0) }?;
        let pinned = Pinned { context: context.clone(), address, bytes };
        // SAFETY: just allocated with this size. Zeroed, so that the bytes below are initialised.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(pinned)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The memory. No copy may be using the part that is read or written.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size and initialised; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated in this context and freed once.
            let _ = unsafe { self.context.driver.cuMemFreeHost(self.address) };
        }
    }
}

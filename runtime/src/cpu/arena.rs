//! The memory of one run's intermediate values.

use crate::RuntimeError;
use std::{alloc, ptr::NonNull};

/// Zeroed bytes at a multiple of [`ALIGN`](crate::memory::ALIGN).
pub struct Arena {
    start: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: the arena owns its memory, and hands out pieces only through `&mut` or under the promise of `piece`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory of `bytes` bytes; the host gives pages only when they are first touched.
    pub fn new(bytes: u64) -> Result<Arena, RuntimeError> {
        let refused = || RuntimeError::OutOfMemory { what: "intermediate values".into(), bytes, device: "the host".into() };
        let size = usize::try_from(bytes).map_err(|_| refused())?.max(1);
        let layout = alloc::Layout::from_size_align(size, crate::memory::ALIGN as usize).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Arena { start, layout })
    }

    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Bytes `offset .. offset + len`, to read.
    ///
    /// # Safety
    /// While they are read, nothing may write them.
    pub unsafe fn read(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds, initialised when it was allocated, and not written, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }

    /// Bytes `offset .. offset + len`, to write.
    ///
    /// # Safety
    /// While they are written, nothing else may use them.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds, initialised, and used by nobody else, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

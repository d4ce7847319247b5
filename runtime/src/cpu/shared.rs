//! Output memory that parallel tasks write in disjoint pieces.

use std::{marker::PhantomData, ops::Range};

/// Bytes that tasks of one kernel write, each its own part.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointer is only used through `piece`, whose callers write disjoint ranges.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Lends `bytes` to tasks.
    pub fn new(bytes: &'a mut [u8]) -> Shared<'a> {
        Shared { start: bytes.as_mut_ptr(), len: bytes.len(), memory: PhantomData }
    }

    /// One piece, to write.
    ///
    /// # Safety
    /// While the piece lives, no other piece that overlaps it may be used.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn piece(&self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "a piece {range:?} of {} bytes", self.len);
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

//! Counts what the calling thread allocates on the host, for tests.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PAUSED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: i64) {
    if !PAUSED.get() {
        TAKEN.set(TAKEN.get() + u64::from(bytes > 0));
        LIVE.set(LIVE.get() + bytes);
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        unsafe { System.dealloc(at, layout) }
    }
}

/// How many allocations this thread has made.
pub(super) fn allocations() -> u64 {
    TAKEN.get()
}

/// Bytes that this thread has allocated and not freed.
pub(super) fn live_bytes() -> i64 {
    LIVE.get()
}

/// Does something whose allocations do not count.
pub(super) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = PAUSED.replace(true);
    let result = work();
    PAUSED.set(before);
    result
}

//! Where device memory comes from: the driver, or whoever embeds this crate.

use std::{fmt, sync::Arc};

/// Gives device memory to executables: a pool shared with other libraries, or one with a limit of its own.
///
/// An executable asks when it is loaded (weights) and when a run needs more room than any run before on its stream (intermediate values);
/// never in steady state.
pub trait Allocator: Send + Sync {
    /// `bytes` of memory on device `ordinal`, aligned to 256 bytes; `None` where there is none. The device's primary context is current.
    fn allocate(&self, ordinal: usize, bytes: u64) -> Option<u64>;

    /// Takes memory back.
    ///
    /// # Safety
    /// `address` came from [`allocate`](Allocator::allocate) of this allocator with the same `ordinal` and `bytes`, and no work uses it.
    unsafe fn free(&self, ordinal: usize, address: u64, bytes: u64);
}

/// The allocator of an executable.
#[derive(Clone, Default)]
pub(super) enum Source {
    /// `cuMemAlloc`.
    #[default]
    Driver,
    /// The caller's.
    Caller(Arc<dyn Allocator>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Driver => "Driver",
            Source::Caller(_) => "Caller",
        })
    }
}

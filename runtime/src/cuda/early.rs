//! Opening a device before it is needed: the driver takes some tenths of a second for it, in which a model can be imported and compiled.

use super::context::Context;
use std::thread::{self, JoinHandle};

/// A device being opened on another thread. Dropping it waits for that: a process must not end while its driver starts.
#[must_use = "dropping it waits for the device"]
pub struct Opening(Option<JoinHandle<()>>);

/// Starts to open device `ordinal`.
///
/// What fails here fails again, with its reason, where the device is asked for. A process that issues work to one stream at a time opens the
/// device in half the time with `CUDA_DEVICE_MAX_CONNECTIONS=1` in its environment.
pub fn open_early(ordinal: usize) -> Opening {
    Opening(thread::Builder::new().name("open-device".into()).spawn(move || drop(Context::open(ordinal))).ok())
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic over there was told of there.
            let _ = thread.join();
        }
    }
}

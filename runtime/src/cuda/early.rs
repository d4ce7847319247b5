//! Opening a device before it is needed: the driver takes some tenths of a second for it, in which a model can be imported and compiled.

use super::{context::Context, nvrtc::Nvrtc};
use std::thread::{self, JoinHandle};

/// A device being opened on another thread. Dropping it waits for that: a process must not end while its driver starts.
#[must_use = "dropping it waits for the device"]
pub struct Opening(Vec<JoinHandle<()>>);

/// Starts to open device `ordinal`, and to look for NVRTC where `compiler` says that it will be needed.
///
/// What fails here fails again, with its reason, where the device or the compiler is asked for.
pub fn open_early(ordinal: usize, compiler: bool) -> Opening {
    let device = move || drop(Context::open(ordinal));
    let compiler = compiler.then_some(|| drop(Nvrtc::open()));
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.into()).spawn(work).ok();
    let device = start("open-device", Box::new(device));
    let compiler = compiler.and_then(|work| start("open-compiler", Box::new(work)));
    Opening(device.into_iter().chain(compiler).collect())
}

impl Drop for Opening {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // A panic over there was told of there.
            let _ = thread.join();
        }
    }
}

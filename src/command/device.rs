//! Devices as options name them: one to run on, or a profile to optimise for.

use crate::failure::Failure;
use eglu_codegen::cuda::Target;
use eglu_ir::DeviceProfile;
use eglu_runtime::{
    Device,
    cuda::{self, Opening},
};

/// Starts to open a GPU while the model is read.
pub fn open_early(device: Device) -> Option<Opening> {
    match device {
        Device::Cpu => None,
        Device::Cuda(ordinal) => Some(cuda::open_early(ordinal)),
    }
}

/// The profile of a device of this machine.
pub fn profile_of(device: Device) -> Result<DeviceProfile, Failure> {
    Ok(device.profile()?)
}

/// The built-in profile of that name, or that of a device of this machine (`cuda`, `cuda:N`).
pub fn profile_named(name: &str) -> Result<DeviceProfile, Failure> {
    if let Some(profile) = DeviceProfile::named(&name.to_ascii_lowercase()) {
        return Ok(profile.clone());
    }
    match name.parse() {
        Ok(device) => profile_of(device),
        Err(_) => Err(Failure::usage(format!("there is no device profile called `{name}`"))
            .help("give cpu, h200 or a100, or cuda[:N] for a device of this machine")),
    }
}

/// What to emit for the architecture of that name.
pub fn target_named(name: &str) -> Result<Target, Failure> {
    Target::named(name).ok_or_else(|| {
        let names = Target::names().collect::<Vec<_>>().join(", ");
        Failure::usage(format!("no code is made for the architecture `{name}`")).help(format!("give one of {names}"))
    })
}

//! Where a plan runs.

use crate::{RuntimeError, cuda::DeviceFacts};
use eglu_ir::{DeviceProfile, profile};
use std::{fmt, str::FromStr};

/// A place to run: the host, or a CUDA device by ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The embedded default backend.
    Cpu,
    /// A CUDA device, numbered as the driver does (after `CUDA_VISIBLE_DEVICES`).
    Cuda(usize),
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device: give `cpu`, `cuda` or `cuda:N`")]
pub struct DeviceParseError(pub String);

impl FromStr for Device {
    type Err = DeviceParseError;

    fn from_str(text: &str) -> Result<Device, DeviceParseError> {
        let bad = || DeviceParseError(text.into());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Device::Cpu),
            None if text == "cuda" => Ok(Device::Cuda(0)),
            // `usize::from_str` also takes a leading `+`.
            Some(("cuda", n)) if n.bytes().all(|b| b.is_ascii_digit()) => n.parse().map(Device::Cuda).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

impl Device {
    /// What to optimise for, to run here. The driver is asked at the first call for each device only.
    pub fn profile(&self) -> Result<DeviceProfile, RuntimeError> {
        match self {
            Device::Cpu => Ok(profile::CPU),
            Device::Cuda(ordinal) => Ok(DeviceFacts::of(*ordinal)?.profile()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for bad in ["", "gpu", "cpu:0", "cuda:", "cuda:+1", "cuda:-1", "CPU"] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
    }
}

//! Targets by the names that NVRTC gives architectures, and on which devices their code runs.

use super::Target;
use eglu_ir::{DeviceProfile, profile};

/// Every target, oldest first.
const NAMES: [(&str, u32); 4] = [("sm_80", 80), ("sm_86", 86), ("sm_89", 89), ("sm_90a", 90)];

impl Target {
    /// Names of all targets, oldest first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|&(name, _)| name)
    }

    /// The target of that name.
    pub fn named(name: &str) -> Option<Target> {
        NAMES.iter().find(|(known, _)| *known == name).map(|&(_, arch)| Target { arch })
    }

    /// The newest target whose kernels are made for a device of this profile; `None` for a CPU.
    pub fn of_profile(profile: &DeviceProfile) -> Option<Target> {
        NAMES.iter().rev().find(|&&(_, arch)| arch <= profile.arch).map(|&(_, arch)| Target { arch })
    }

    /// What NVRTC calls it.
    pub fn name(self) -> &'static str {
        NAMES.iter().rev().find(|&&(_, arch)| arch <= self.arch).map_or("sm_80", |&(name, _)| name)
    }

    /// The built-in device nearest to it, to optimise for where there is no device to ask.
    pub fn profile(self) -> &'static DeviceProfile {
        if self.arch >= 90 { &profile::H200 } else { &profile::A100 }
    }

    /// True if cubins for this target run on a device of that compute capability: within a major version on the same minor one and later,
    /// and on no other where the name ends in `a` (CUDA C++ programming guide, binary compatibility and architecture-specific features).
    pub fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        match self.name().ends_with('a') {
            true => (major, minor) == (self.arch / 10, self.arch % 10),
            false => major == self.arch / 10 && minor >= self.arch % 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_devices() {
        for name in Target::names() {
            assert_eq!(Target::named(name).map(Target::name), Some(name));
        }
        assert_eq!(Target::named("sm_90"), None, "wgmma needs the architecture-specific name");
        let on = |capability| {
            Target::names().filter(|name| Target::named(name).is_some_and(|t| t.runs_on(capability))).collect::<Vec<_>>()
        };
        assert_eq!(on((8, 0)), ["sm_80"]);
        assert_eq!(on((8, 9)), ["sm_80", "sm_86", "sm_89"]);
        assert_eq!(on((9, 0)), ["sm_90a"]);
        assert!(on((10, 0)).is_empty() && on((7, 5)).is_empty());
        assert_eq!(Target::of_profile(&profile::H200), Some(Target { arch: 90 }));
        assert_eq!(Target::of_profile(&profile::CPU), None);
    }
}

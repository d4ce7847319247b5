//! What is known of a device, read once for each ordinal.

use super::{CudaError, driver::Driver};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};
use eglu_codegen::cuda::Target;
use eglu_ir::DeviceProfile;
use serde::Serialize;
use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::{CStr, c_char},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// The facts of one device. They do not change while the process runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFacts {
    /// Position among the devices the driver shows.
    pub ordinal: usize,
    /// NVIDIA's name for it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory a block may opt in to, bytes.
    pub shared_bytes: u32,
    /// Second-level cache, bytes.
    pub l2_bytes: u64,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Peak clock of the multiprocessors, Hz.
    pub clock_hz: f64,
    /// Peak clock of the memory, Hz; 0 where the driver does not say.
    pub memory_clock_hz: f64,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
}

impl DeviceFacts {
    /// The facts of device `ordinal` of this machine; the driver is asked at the first call only.
    pub fn of(ordinal: usize) -> Result<Arc<DeviceFacts>, CudaError> {
        type Slot = Arc<OnceLock<Result<Arc<DeviceFacts>, CudaError>>>;
        static FACTS: Mutex<BTreeMap<usize, Slot>> = Mutex::new(BTreeMap::new());
        let slot = FACTS.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default().clone();
        slot.get_or_init(|| Self::read(&*Driver::open()?, ordinal).map(|(facts, _)| Arc::new(facts))).clone()
    }

    /// Asks the driver.
    pub(super) fn read(driver: &Driver, ordinal: usize) -> Result<(DeviceFacts, CUdevice), CudaError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let asking = |what: &str| format!("asking device {ordinal} for its {what}");
        let mut device = 0;
        // SAFETY: `device` outlives the call.
        unsafe { driver.cuDeviceGet(&mut device, ordinal as i32) }.map_err(|code| driver.error(asking("handle"), code))?;
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer has the length given.
        unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) }
            .map_err(|code| driver.error(asking("name"), code))?;
        name[255] = 0;
        // SAFETY: NUL-terminated by the line above at the latest.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut memory = 0;
        // SAFETY: `memory` outlives the call.
        unsafe { driver.cuDeviceTotalMem_v2(&mut memory, device) }.map_err(|code| driver.error(asking("memory"), code))?;
        let attribute = |attribute: Attribute, what: &str| {
            let mut value = 0;
            // SAFETY: `value` outlives the call.
            unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }
                .map_err(|code| driver.error(asking(what), code))?;
            Ok::<u32, CudaError>(value.max(0) as u32)
        };
        use Attribute::*;
        let capability = (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "capability")?,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "capability")?,
        );
        let facts = DeviceFacts {
            ordinal,
            name,
            capability,
            multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors")?,
            shared_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "shared memory")?,
            l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2 cache")?.into(),
            memory_bytes: memory as u64,
            clock_hz: f64::from(attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, "clock").unwrap_or(0)) * 1e3,
            memory_clock_hz: f64::from(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, "memory clock").unwrap_or(0)) * 1e3,
            memory_bus_bits: attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, "memory bus").unwrap_or(0),
        };
        Ok((facts, device))
    }

    /// What NVRTC calls the architecture: `sm_80`, `sm_90a`, …
    pub fn arch(&self) -> Result<String, CudaError> {
        match self.capability {
            (major, _) if major < 8 => {
                Err(CudaError::OldDevice { ordinal: self.ordinal, name: self.name.clone(), capability: self.capability })
            }
            // Hopper's tensor cores (wgmma) exist under the architecture-specific name only.
            (9, 0) => Ok("sm_90a".into()),
            (major, minor) => Ok(format!("sm_{major}{minor}")),
        }
    }

    /// What code generation may use on it. A device newer than any target gets the kernels that every newer device runs.
    pub fn target(&self) -> Target {
        let arch = match self.capability {
            (8, 6) => 86,
            (8, 9) | (10.., _) => 89,
            (9, _) => 90,
            _ => 80,
        };
        Target { arch }
    }

    /// The device as the cost model sees it.
    ///
    /// Rates follow from clocks and the FLOPs a multiprocessor does in one clock (CUDA C++ programming guide, arithmetic throughput; NVIDIA's
    /// architecture white papers for the tensor cores, dense 16-bit operands with f32 accumulators), at the share of peak that libraries reach.
    /// For a device with a built-in profile the measured rates of that are taken.
    pub fn profile(&self) -> DeviceProfile {
        let arch = self.capability.0 * 10 + self.capability.1;
        let lower = self.name.to_lowercase();
        let known = ["h200", "a100"].iter().find(|name| lower.contains(**name)).and_then(|name| DeviceProfile::named(name));
        let (matrix, vector) = match arch {
            80 => (2048.0, 128.0),
            81..=89 => (1024.0, 256.0),
            90.. => (4096.0, 256.0),
            _ => (512.0, 128.0),
        };
        let clocks = f64::from(self.multiprocessors) * self.clock_hz.max(1e9);
        // Two transfers a clock; a driver that does not tell the clock leaves a guess at GDDR6's usual rate.
        let memory_hz = if self.memory_clock_hz > 0.0 { self.memory_clock_hz } else { 7e9 };
        let bandwidth = 2.0 * memory_hz * f64::from(self.memory_bus_bits.max(64)) / 8.0;
        DeviceProfile {
            name: known.map_or(Cow::Owned(self.name.clone()), |profile| profile.name.clone()),
            arch,
            multiprocessors: self.multiprocessors,
            shared_bytes: self.shared_bytes,
            l2_bytes: self.l2_bytes,
            bandwidth: known.map_or(bandwidth * 0.85, |profile| profile.bandwidth),
            matrix_flops: known.map_or(clocks * matrix * 0.75, |profile| profile.matrix_flops),
            vector_flops: known.map_or(clocks * vector, |profile| profile.vector_flops),
            launch_seconds: known.map_or(3e-6, |profile| profile.launch_seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn hopper() -> DeviceFacts {
        DeviceFacts {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            multiprocessors: 132,
            shared_bytes: 232_448,
            l2_bytes: 60 << 20,
            memory_bytes: 140 << 30,
            clock_hz: 1.98e9,
            memory_clock_hz: 3.2e9,
            memory_bus_bits: 6144,
        }
    }

    #[test]
    fn known_devices_get_measured_rates() {
        assert_eq!(hopper().profile(), *DeviceProfile::named("h200").unwrap());
    }

    #[test]
    fn unknown_devices_get_rates_of_the_right_size() {
        let profile = DeviceFacts { name: "NVIDIA H100 80GB HBM3".into(), ..hopper() }.profile();
        assert_eq!(profile.name, "NVIDIA H100 80GB HBM3");
        assert!((6e14..1.1e15).contains(&profile.matrix_flops), "{}", profile.matrix_flops);
        assert!((3e12..5e12).contains(&profile.bandwidth), "{}", profile.bandwidth);
    }

    #[test]
    fn architectures_have_names() {
        let arch = |capability| DeviceFacts { capability, ..hopper() }.arch();
        assert_eq!(arch((9, 0)).ok().as_deref(), Some("sm_90a"));
        assert_eq!(arch((8, 6)).ok().as_deref(), Some("sm_86"));
        let target = |capability| DeviceFacts { capability, ..hopper() }.target().arch;
        assert_eq!([(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (12, 0)].map(target), [80, 86, 80, 89, 90, 89]);
        assert_eq!(arch((10, 0)).ok().as_deref(), Some("sm_100"));
        assert!(matches!(arch((7, 5)), Err(CudaError::OldDevice { .. })));
    }
}

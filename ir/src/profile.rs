//! What the cost model and tile choice know of a device: plain data, so that plans can be made for a device that is not there.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A device, described by its limits and peak rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Name used by `--device`, e.g. `h200`.
    pub name: Cow<'static, str>,
    /// Compute capability × 10 (90 for sm_90); 0 for a CPU.
    pub arch: u32,
    /// Streaming multiprocessors, or CPU cores.
    pub multiprocessors: u32,
    /// Shared memory one block may have, bytes.
    pub shared_bytes: u32,
    /// Last-level cache, bytes.
    pub l2_bytes: u64,
    /// Memory bandwidth, bytes a second.
    pub bandwidth: f64,
    /// Matrix rate for 16-bit operands, FLOP/s.
    pub matrix_flops: f64,
    /// Rate of plain f32 arithmetic, FLOP/s.
    pub vector_flops: f64,
    /// Host and device cost of one launch, seconds.
    pub launch_seconds: f64,
}

/// H200 SXM: bandwidth and matrix rate as measured (copy 4.25 TB/s, cuBLAS bf16 in bursts); the rest from the data sheet.
pub const H200: DeviceProfile = DeviceProfile {
    name: Cow::Borrowed("h200"),
    arch: 90,
    multiprocessors: 132,
    shared_bytes: 232_448,
    l2_bytes: 60 << 20,
    bandwidth: 4.25e12,
    matrix_flops: 790e12,
    vector_flops: 67e12,
    launch_seconds: 3e-6,
};

/// A100 SXM 80 GB, from its data sheet.
pub const A100: DeviceProfile = DeviceProfile {
    name: Cow::Borrowed("a100"),
    arch: 80,
    multiprocessors: 108,
    shared_bytes: 166_912,
    l2_bytes: 40 << 20,
    bandwidth: 2.039e12,
    matrix_flops: 312e12,
    vector_flops: 19.5e12,
    launch_seconds: 3e-6,
};

/// A generic host: two cores with AVX2, DDR4.
pub const CPU: DeviceProfile = DeviceProfile {
    name: Cow::Borrowed("cpu"),
    arch: 0,
    multiprocessors: 2,
    shared_bytes: 1 << 20,
    l2_bytes: 32 << 20,
    bandwidth: 2e10,
    matrix_flops: 1e11,
    vector_flops: 1e10,
    launch_seconds: 1e-6,
};

impl DeviceProfile {
    /// The built-in profile of that name.
    pub fn named(name: &str) -> Option<&'static DeviceProfile> {
        [&CPU, &H200, &A100].into_iter().find(|profile| profile.name == name)
    }

    /// Roofline time in seconds: the slower of arithmetic and memory, plus one launch.
    pub fn roofline(&self, flops: f64, bytes: f64, matrix: bool) -> f64 {
        let peak = if matrix { self.matrix_flops } else { self.vector_flops };
        (flops / peak).max(bytes / self.bandwidth) + self.launch_seconds
    }
}

//! What of CUDA this machine has, what it lacks, and how to get it: the substance of `eglu doctor`.

use super::{
    CudaError, DeviceFacts,
    cache::{Cache, CacheReport},
    driver::Driver,
    nvrtc::Nvrtc,
};
use serde::Serialize;
use std::{fmt, path::PathBuf};

/// The outcome of every check. Making one never fails and never panics.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// The driver.
    pub driver: Finding<DriverReport>,
    /// The devices it shows, in order of their ordinals.
    pub devices: Vec<Finding<DeviceFacts>>,
    /// The run-time compiler.
    pub nvrtc: Finding<NvrtcReport>,
    /// Compiled kernels on disk.
    pub cache: CacheReport,
}

/// Something found, or why not and how to get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finding<T> {
    /// It is there and works.
    Found(T),
    /// What is missing, and what to do.
    Missing(String),
}

/// A driver that works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverReport {
    /// The newest CUDA version it supports.
    pub cuda: (u32, u32),
}

/// A compiler that works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NvrtcReport {
    /// Where it is.
    pub path: PathBuf,
    /// Its version.
    pub version: (u32, u32),
}

/// Looks for everything the CUDA backend needs.
pub fn probe() -> Probe {
    let driver = Driver::open();
    let devices = match &driver {
        Ok(driver) => (0..driver.device_count().unwrap_or(0))
            .map(|ordinal| finding(DeviceFacts::of(ordinal).map(|f| (*f).clone())))
            .collect(),
        Err(_) => vec![],
    };
    Probe {
        driver: finding(driver.and_then(|driver| Ok(DriverReport { cuda: driver.version()? }))),
        devices,
        nvrtc: finding(Nvrtc::open().map(|nvrtc| NvrtcReport { path: nvrtc.path().to_path_buf(), version: nvrtc.version() })),
        cache: Cache::from_env(&|name| std::env::var_os(name)).report(),
    }
}

fn finding<T>(result: Result<T, CudaError>) -> Finding<T> {
    match result {
        Ok(found) => Finding::Found(found),
        Err(error) => Finding::Missing(error.to_string()),
    }
}

impl Probe {
    /// True where kernels can be compiled and run.
    pub fn usable(&self) -> bool {
        self.devices.iter().any(|device| matches!(device, Finding::Found(_))) && matches!(self.nvrtc, Finding::Found(_))
    }

    /// What is missing or doubtful, each with what to do.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = vec![];
        problems.extend(self.driver.problem());
        problems.extend(self.devices.iter().filter_map(Finding::problem));
        problems.extend(self.nvrtc.problem());
        problems.extend(self.cache.problem.clone());
        if let Finding::Found(driver) = &self.driver {
            if self.devices.is_empty() {
                problems.push("the driver shows no device; check CUDA_VISIBLE_DEVICES and `nvidia-smi`".into());
            }
            if let Finding::Found(nvrtc) = &self.nvrtc
                && nvrtc.version.0 > driver.cuda.0
            {
                let (want, have) = (driver.cuda.0, nvrtc.version.0);
                problems.push(format!(
                    "NVRTC {have} makes code that a driver for CUDA {want} may refuse; `pip install 'nvidia-cuda-nvrtc-cu{want}'` gets one that fits"
                ));
            }
        }
        problems
    }
}

impl<T> Finding<T> {
    fn problem(&self) -> Option<String> {
        match self {
            Finding::Found(_) => None,
            Finding::Missing(why) => Some(why.clone()),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Finding::Found(DriverReport { cuda: (major, minor) }) => writeln!(f, "driver   CUDA {major}.{minor}")?,
            Finding::Missing(_) => writeln!(f, "driver   missing")?,
        }
        for device in &self.devices {
            let Finding::Found(d) = device else { continue };
            let (major, minor) = d.capability;
            let (memory, shared, l2) = (d.memory_bytes >> 30, d.shared_bytes >> 10, d.l2_bytes >> 20);
            writeln!(
                f,
                "device   {}: {}, capability {major}.{minor}, {} multiprocessors, {memory} GiB, L2 {l2} MiB, {shared} KiB shared a block",
                d.ordinal, d.name, d.multiprocessors
            )?;
        }
        match &self.nvrtc {
            Finding::Found(NvrtcReport { path, version: (major, minor) }) => {
                writeln!(f, "NVRTC    {major}.{minor}, {}", path.display())?
            }
            Finding::Missing(_) => writeln!(f, "NVRTC    missing")?,
        }
        match &self.cache.folder {
            Some(folder) => {
                let CacheReport { entries, bytes, limit, .. } = self.cache;
                writeln!(f, "cache    {}: {entries} kernels, {bytes} bytes of at most {limit}", folder.display())?
            }
            None => writeln!(f, "cache    none")?,
        }
        self.problems().iter().try_for_each(|problem| writeln!(f, "  ! {problem}"))
    }
}

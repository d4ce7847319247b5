//! The CUDA driver, behind a trait: cudarc's bindings where there is a driver, a model of one in tests.
//!
//! cudarc loads each symbol at its first call and panics where it is missing, so [`Driver::open`] looks for the library and for every symbol
//! of the list below before the first call. Functions marked `query` (of drivers, devices, contexts, attributes or free memory) and `resource`
//! (which make or destroy memory, streams, events, modules and graphs) are counted: a run in steady state must make neither.

use super::CudaError;
use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction};
use cudarc::driver::sys::{CUfunction_attribute, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUlaunchConfig, CUmodule};
use cudarc::driver::sys::{CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUtensorMap, CUtensorMapDataType};
use cudarc::driver::sys::{CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle};
use libloading::Library;
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// cudarc's bindings, and what they lack.
mod bindings {
    use super::{CUevent, CUresult};
    pub(super) use cudarc::driver::sys::*;
    use std::sync::OnceLock;

    /// Bound here, as cudarc's bindings for CUDA 13 have only `cuEventElapsedTime_v2`, which drivers before 12.8 lack.
    #[allow(non_snake_case)]
    pub(super) unsafe fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CUresult {
        type Function = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
        // SAFETY: the signature is cuda.h's.
        let function =
            FUNCTION.get_or_init(|| unsafe { culib().get::<Function>("cuEventElapsedTime").ok().map(|symbol| *symbol) });
        match function {
            // SAFETY: the caller keeps the function's contract.
            Some(function) => unsafe { function(milliseconds, start, end) },
            None => CUresult::CUDA_ERROR_NOT_FOUND,
        }
    }
}

macro_rules! driver_api {
    ($($kind:ident $name:ident($($arg:ident: $ty:ty),*);)+) => {
        /// The driver functions this crate calls; their contracts are those of the CUDA driver API.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub(crate) trait Api: Send + Sync {
            $(unsafe fn $name(&self, $($arg: $ty),*) -> CUresult;)+
        }

        impl Api for Cudarc {
            $(unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                // SAFETY: the caller keeps the function's contract.
                unsafe { bindings::$name($($arg),*) }
            })+
        }

        /// Every symbol that must be in the library.
        const SYMBOLS: &[&str] = &[$(stringify!($name)),+];

        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        impl Driver {
            $(pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), CUresult> {
                driver_api!(@count $kind self);
                // SAFETY: the caller keeps the function's contract.
                match unsafe { self.api.$name($($arg),*) } {
                    CUresult::CUDA_SUCCESS => Ok(()),
                    error => Err(error),
                }
            })+
        }
    };
    (@count query $driver:ident) => { $driver.queries.fetch_add(1, Ordering::Relaxed); };
    (@count resource $driver:ident) => { $driver.resources.fetch_add(1, Ordering::Relaxed); };
    (@count work $driver:ident) => {};
}

driver_api! {
    work cuInit(flags: c_uint);
    query cuDriverGetVersion(version: *mut c_int);
    query cuDeviceGetCount(count: *mut c_int);
    query cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    query cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    query cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    query cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    query cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    query cuGetErrorName(error: CUresult, name: *mut *const c_char);
    query cuGetErrorString(error: CUresult, text: *mut *const c_char);
    query cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    work cuCtxSynchronize();
    work cuCtxSetCurrent(context: CUcontext);
    resource cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    resource cuStreamDestroy_v2(stream: CUstream);
    work cuStreamSynchronize(stream: CUstream);
    resource cuEventCreate(event: *mut CUevent, flags: c_uint);
    resource cuEventDestroy_v2(event: CUevent);
    work cuEventRecord(event: CUevent, stream: CUstream);
    work cuEventSynchronize(event: CUevent);
    work cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    resource cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    resource cuMemFree_v2(address: CUdeviceptr);
    resource cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    resource cuMemFreeHost(address: *mut c_void);
    work cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    work cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    work cuMemsetD8Async(to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    resource cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    resource cuModuleUnload(module: CUmodule);
    query cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    query cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    work cuTensorMapEncodeTiled(
        map: *mut CUtensorMap, dtype: CUtensorMapDataType, rank: c_uint, address: *mut c_void, dims: *const u64, strides: *const u64,
        tile: *const c_uint, steps: *const c_uint, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill
    );
    work cuTensorMapReplaceAddress(map: *mut CUtensorMap, address: *mut c_void);
    work cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    query cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph, nodes: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData, count: *mut usize
    );
    work cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    resource cuGraphInstantiateWithFlags(replay: *mut CUgraphExec, graph: CUgraph, flags: u64);
    resource cuGraphDestroy(graph: CUgraph);
    resource cuGraphExecDestroy(replay: CUgraphExec);
    work cuGraphExecKernelNodeSetParams_v2(replay: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
    work cuGraphLaunch(replay: CUgraphExec, stream: CUstream);
    work cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    work cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// The driver through cudarc's bindings; made only by [`Driver::open`].
struct Cudarc;

/// How often the driver was asked for something, or made or destroyed something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCalls {
    /// Questions about drivers, devices, contexts, kernels, attributes and free memory.
    pub queries: u64,
    /// Memory, streams, events, modules and graphs made or destroyed.
    pub resources: u64,
}

/// A driver that has been initialised.
pub(crate) struct Driver {
    api: Box<dyn Api>,
    queries: AtomicU64,
    resources: AtomicU64,
}

const INSTALL: &str =
    "install NVIDIA's driver for this GPU (https://www.nvidia.com/drivers), or, in a container, start it with `--gpus all`";

impl Driver {
    /// This machine's driver, found and initialised at the first call.
    pub(crate) fn open() -> Result<Arc<Driver>, CudaError> {
        static DRIVER: OnceLock<Result<Arc<Driver>, CudaError>> = OnceLock::new();
        DRIVER
            .get_or_init(|| {
                require_symbols().map_err(|why| CudaError::NoDriver { why, how: INSTALL.into() })?;
                Driver::with(Box::new(Cudarc)).map(Arc::new)
            })
            .clone()
    }

    /// A driver over these functions.
    pub(crate) fn with(api: Box<dyn Api>) -> Result<Driver, CudaError> {
        let driver = Driver { api, queries: AtomicU64::new(0), resources: AtomicU64::new(0) };
        // SAFETY: cuInit takes no pointers and may be called at any time.
        unsafe { driver.cuInit(0) }.map_err(|code| {
            let (name, text) = driver.describe(code);
            CudaError::NoDriver { why: format!("cuInit says {name} ({text})"), how: INSTALL.into() }
        })?;
        Ok(driver)
    }

    /// What was counted so far.
    pub(crate) fn calls(&self) -> DriverCalls {
        DriverCalls { queries: self.queries.load(Ordering::Relaxed), resources: self.resources.load(Ordering::Relaxed) }
    }

    /// The CUDA version the driver supports, as major and minor.
    pub(crate) fn version(&self) -> Result<(u32, u32), CudaError> {
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        unsafe { self.cuDriverGetVersion(&mut version) }.map_err(|code| self.error("asking for the driver's version", code))?;
        Ok((version as u32 / 1000, version as u32 % 1000 / 10))
    }

    /// How many devices there are.
    pub(crate) fn device_count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        unsafe { self.cuDeviceGetCount(&mut count) }.map_err(|code| self.error("counting devices", code))?;
        Ok(count.max(0) as usize)
    }

    /// A failed call as an error.
    pub(crate) fn error(&self, doing: impl fmt::Display, code: CUresult) -> CudaError {
        let (name, message) = self.describe(code);
        CudaError::Driver { doing: doing.to_string(), code: name, message }
    }

    /// Name and text of an error code.
    pub(crate) fn describe(&self, code: CUresult) -> (String, String) {
        let text = |ask: &dyn Fn(*mut *const c_char) -> Result<(), CUresult>, default: String| {
            let mut text: *const c_char = std::ptr::null();
            match ask(&mut text) {
                // SAFETY: on success the driver points to a static string.
                Ok(()) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
                _ => default,
            }
        };
        // SAFETY: the pointer outlives the calls.
        let name = text(&|to| unsafe { self.cuGetErrorName(code, to) }, format!("error {}", code as u32));
        // SAFETY: as above.
        let message = text(&|to| unsafe { self.cuGetErrorString(code, to) }, "no description".into());
        (name, message)
    }
}

/// Loads the library cudarc would load, by the same names in the same order, and looks up every symbol.
fn require_symbols() -> Result<(), String> {
    let names: Vec<String> = ["cuda", "nvcuda"].iter().flat_map(|name| cudarc::get_lib_name_candidates(name)).collect();
    // SAFETY: NVIDIA's driver library may be loaded by any program; its initialisers have no preconditions.
    let library = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
    let library = library.ok_or("libcuda.so.1 is not on the loader's path")?;
    let missing: Vec<&str> = SYMBOLS
        .iter()
        .copied()
        // SAFETY: the symbol's address is looked up, never used at this type.
        .filter(|symbol| unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.is_err())
        .collect();
    // Never unloaded: cudarc keeps addresses in it.
    std::mem::forget(library);
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(format!("the driver library is too old: it lacks {}", missing.join(", "))),
    }
}

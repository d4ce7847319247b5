//! A model of the driver on the host, for tests: device memory is host memory, kernels are closures, errors come on request. It has two devices.
//!
//! Pointers come from the code under test, which keeps the contracts of the driver API; tests run under them as they would on a device.
#![allow(clippy::undocumented_unsafe_blocks)]

mod state;

use super::{
    context::Context,
    counting::uncounted,
    device::DeviceFacts,
    driver::{Api, Driver},
};
use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction};
use cudarc::driver::sys::{CUfunction_attribute, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUlaunchConfig, CUmodule};
use cudarc::driver::sys::{CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUtensorMap, CUtensorMapDataType};
use cudarc::driver::sys::{CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle};
use state::{Node, State};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{Arc, Mutex, MutexGuard},
};

use CUresult::{CUDA_ERROR_INVALID_VALUE as INVALID, CUDA_ERROR_OUT_OF_MEMORY as NO_MEMORY, CUDA_SUCCESS as OK};

/// The parameters of a launch.
pub(super) struct Params(*mut *mut c_void);

impl Params {
    /// Parameter `i` as an integer.
    pub(super) fn int(&self, i: usize) -> usize {
        // SAFETY: tests ask for parameters that their plans pass; each is 8 bytes.
        unsafe { *(*self.0.add(i)).cast::<u64>() as usize }
    }

    /// Parameter `i` as an address of `n` floats.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn floats(&self, i: usize, n: usize) -> &mut [f32] {
        // SAFETY: fake device memory is host memory, and fake kernels run one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.int(i) as *mut f32, n) }
    }
}

/// A kernel: its name, the bytes of each parameter, and what it does.
pub(super) type Kernel = (&'static str, &'static [usize], Box<dyn Fn(&Params) + Send + Sync>);

/// Nodes are numbered from this, as none may be null.
const NODES: usize = 1 << 20;

#[derive(Clone)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    kernels: Arc<Vec<Kernel>>,
}

impl Fake {
    /// A device with these kernels, `total` bytes of memory, and the facts of an H200.
    pub(super) fn new(total: usize, kernels: Vec<Kernel>) -> Fake {
        Fake { state: Arc::new(Mutex::new(State { total, ..State::default() })), kernels: Arc::new(kernels) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn context(&self) -> Arc<Context> {
        self.context_of(0)
    }

    pub(super) fn context_of(&self, ordinal: usize) -> Arc<Context> {
        let driver = Arc::new(Driver::with(Box::new(self.clone())).unwrap());
        let (facts, _) = DeviceFacts::read(&driver, ordinal).unwrap();
        Context::with(driver, Arc::new(facts)).unwrap()
    }

    /// A stream of a caller's.
    pub(super) fn stream(&self, number: usize) -> crate::Stream {
        unsafe { crate::Stream::from_raw((number << 32) as *mut c_void) }
    }

    /// Runs a kernel, or keeps it where the stream is being captured.
    fn launch(&self, function: usize, params: *mut *mut c_void, stream: usize) {
        let (name, sizes, kernel) = &self.kernels[function - 1];
        let mut state = self.state();
        if let Some(nodes) = state.captured.get_mut(&stream) {
            nodes.push(Node { function, arguments: copy(sizes, params) });
            return;
        }
        let device = state.current.get(&std::thread::current().id()).copied().unwrap_or(0);
        state.launched.push(name.to_string());
        state.launched_on.push(device - 1);
        drop(state);
        kernel(&Params(params));
    }

    fn block(&self, address: u64, bytes: usize) -> bool {
        let state = self.state();
        let block = state.memory.range(..=address).next_back();
        state.foreign || block.is_some_and(|(start, block)| address + bytes as u64 <= start + (block.len() * 16) as u64)
    }

    fn waited(&self) -> CUresult {
        let state = self.state();
        state.fault.filter(|(after, _)| state.launched.len() >= *after).map_or(OK, |(_, code)| code)
    }

    fn made<T>(&self, to: *mut *mut T) -> CUresult {
        let mut state = self.state();
        state.objects += 1;
        state.serial += 1;
        // SAFETY: the caller passes a valid pointer.
        unsafe { *to = state.serial as *mut T };
        OK
    }

    fn destroyed(&self) -> CUresult {
        self.state().objects -= 1;
        OK
    }
}

/// The arguments that parameters of these sizes point to.
fn copy(sizes: &[usize], params: *mut *mut c_void) -> Vec<Box<[u128]>> {
    let argument = |(i, &size): (usize, &usize)| {
        let mut bytes = vec![0u128; size.div_ceil(16)].into_boxed_slice();
        unsafe { bytes.as_mut_ptr().cast::<u8>().copy_from((*params.add(i)).cast(), size) };
        bytes
    };
    sizes.iter().enumerate().map(argument).collect()
}

#[allow(unused_variables)]
impl Api for Fake {
    unsafe fn cuInit(&self, flags: c_uint) -> CUresult {
        self.state().init.unwrap_or(OK)
    }
    unsafe fn cuDriverGetVersion(&self, version: *mut c_int) -> CUresult {
        unsafe { *version = self.state().version.unwrap_or(13_000) };
        OK
    }
    unsafe fn cuDeviceGetCount(&self, count: *mut c_int) -> CUresult {
        unsafe { *count = 2 };
        OK
    }
    unsafe fn cuDeviceGet(&self, device: *mut CUdevice, ordinal: c_int) -> CUresult {
        unsafe { *device = ordinal };
        OK
    }
    unsafe fn cuDeviceGetName(&self, name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
        let text = c"Fake H200";
        unsafe { name.copy_from(text.as_ptr(), text.to_bytes_with_nul().len()) };
        OK
    }
    unsafe fn cuDeviceGetAttribute(&self, value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) -> CUresult {
        use CUdevice_attribute::*;
        let known = match attribute {
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 232_448,
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 1 << 16,
            _ => return INVALID,
        };
        unsafe { *value = known };
        OK
    }
    unsafe fn cuDeviceTotalMem_v2(&self, bytes: *mut usize, device: CUdevice) -> CUresult {
        unsafe { *bytes = self.state().total };
        OK
    }
    unsafe fn cuMemGetInfo_v2(&self, free: *mut usize, total: *mut usize) -> CUresult {
        let state = self.state();
        unsafe { (*free, *total) = (state.total - state.used(), state.total) };
        OK
    }
    unsafe fn cuGetErrorName(&self, error: CUresult, name: *mut *const c_char) -> CUresult {
        INVALID
    }
    unsafe fn cuGetErrorString(&self, error: CUresult, text: *mut *const c_char) -> CUresult {
        INVALID
    }
    unsafe fn cuDevicePrimaryCtxRetain(&self, context: *mut CUcontext, device: CUdevice) -> CUresult {
        unsafe { *context = (device as usize + 1) as CUcontext };
        OK
    }
    unsafe fn cuCtxSetCurrent(&self, context: CUcontext) -> CUresult {
        uncounted(|| self.state().current.insert(std::thread::current().id(), context as usize));
        OK
    }
    unsafe fn cuCtxSynchronize(&self) -> CUresult {
        self.waited()
    }
    unsafe fn cuStreamCreate(&self, stream: *mut CUstream, flags: c_uint) -> CUresult {
        self.made(stream)
    }
    unsafe fn cuStreamDestroy_v2(&self, stream: CUstream) -> CUresult {
        self.destroyed()
    }
    unsafe fn cuStreamSynchronize(&self, stream: CUstream) -> CUresult {
        self.waited()
    }
    unsafe fn cuEventCreate(&self, event: *mut CUevent, flags: c_uint) -> CUresult {
        self.made(event)
    }
    unsafe fn cuEventDestroy_v2(&self, event: CUevent) -> CUresult {
        self.destroyed()
    }
    unsafe fn cuEventRecord(&self, event: CUevent, stream: CUstream) -> CUresult {
        OK
    }
    unsafe fn cuEventSynchronize(&self, event: CUevent) -> CUresult {
        OK
    }
    unsafe fn cuEventElapsedTime(&self, milliseconds: *mut f32, start: CUevent, end: CUevent) -> CUresult {
        unsafe { *milliseconds = 2.0 };
        OK
    }
    unsafe fn cuMemAlloc_v2(&self, address: *mut CUdeviceptr, bytes: usize) -> CUresult {
        let mut state = self.state();
        if bytes > state.total - state.used() {
            return NO_MEMORY;
        }
        // Not zeroed to look fresh: a kernel that reads what was never written gets odd values.
        let block = uncounted(|| vec![0x7fa0_0bad_7fa0_0bad_7fa0_0bad_7fa0_0badu128; bytes.div_ceil(16)]);
        let start = block.as_ptr() as u64;
        uncounted(|| state.memory.insert(start, block));
        unsafe { *address = start };
        OK
    }
    unsafe fn cuMemFree_v2(&self, address: CUdeviceptr) -> CUresult {
        uncounted(|| self.state().memory.remove(&address).map_or(INVALID, |_| OK))
    }
    unsafe fn cuMemHostAlloc(&self, address: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
        let mut state = self.state();
        let block = uncounted(|| vec![0u128; bytes.div_ceil(16)]);
        unsafe { *address = block.as_ptr() as *mut c_void };
        uncounted(|| state.pinned.insert(block.as_ptr() as u64, block));
        OK
    }
    unsafe fn cuMemFreeHost(&self, address: *mut c_void) -> CUresult {
        uncounted(|| self.state().pinned.remove(&(address as u64)).map_or(INVALID, |_| OK))
    }
    unsafe fn cuMemcpyHtoDAsync_v2(&self, to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) -> CUresult {
        self.state().copies += 1;
        if !self.block(to, bytes) {
            return INVALID;
        }
        unsafe { (to as *mut u8).copy_from(from.cast(), bytes) };
        OK
    }
    unsafe fn cuMemcpyDtoHAsync_v2(&self, to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
        self.state().copies += 1;
        if !self.block(from, bytes) {
            return INVALID;
        }
        unsafe { to.cast::<u8>().copy_from(from as *const u8, bytes) };
        OK
    }
    unsafe fn cuMemsetD8Async(&self, to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> CUresult {
        if !self.block(to, bytes) {
            return INVALID;
        }
        unsafe { (to as *mut u8).write_bytes(value, bytes) };
        OK
    }
    unsafe fn cuModuleLoadData(&self, module: *mut CUmodule, image: *const c_void) -> CUresult {
        let refusal = self.state().load;
        refusal.unwrap_or_else(|| self.made(module))
    }
    unsafe fn cuModuleUnload(&self, module: CUmodule) -> CUresult {
        self.destroyed()
    }
    unsafe fn cuModuleGetFunction(&self, function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult {
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        let Some(at) = self.kernels.iter().position(|(kernel, ..)| *kernel == name) else {
            return CUresult::CUDA_ERROR_NOT_FOUND;
        };
        unsafe { *function = (at + 1) as CUfunction };
        OK
    }
    unsafe fn cuFuncSetAttribute(&self, function: CUfunction, attribute: CUfunction_attribute, value: c_int) -> CUresult {
        let name = self.kernels[function as usize - 1].0.to_string();
        let mut state = self.state();
        if state.shared_limit.is_some_and(|limit| value > limit) {
            return INVALID;
        }
        state.shared.insert(name, value);
        OK
    }
    unsafe fn cuTensorMapEncodeTiled(
        &self,
        map: *mut CUtensorMap,
        dtype: CUtensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        dims: *const u64,
        strides: *const u64,
        tile: *const c_uint,
        steps: *const c_uint,
        interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion,
        fill: CUtensorMapFloatOOBfill,
    ) -> CUresult {
        // A map of the fake device holds the address, then the extents.
        unsafe { (*map).opaque[0] = address as u64 };
        for i in 0..rank as usize {
            unsafe { (*map).opaque[i + 1] = *dims.add(i) };
        }
        OK
    }
    unsafe fn cuLaunchKernelEx(
        &self,
        config: *const CUlaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult {
        let c = unsafe { &*config };
        let ([x, y, z], [bx, by, bz]) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
        unsafe { self.cuLaunchKernel(function, x, y, z, bx, by, bz, c.sharedMemBytes, c.hStream, params, extra) }
    }
    unsafe fn cuLaunchKernel(
        &self,
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult {
        uncounted(|| self.launch(function as usize, params, stream as usize));
        OK
    }
    unsafe fn cuTensorMapReplaceAddress(&self, map: *mut CUtensorMap, address: *mut c_void) -> CUresult {
        unsafe { (*map).opaque[0] = address as u64 };
        OK
    }
    unsafe fn cuStreamBeginCapture_v2(&self, stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
        let mut state = self.state();
        if state.no_capture {
            return CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        state.captured.insert(stream as usize, vec![]);
        OK
    }
    unsafe fn cuStreamGetCaptureInfo_v3(
        &self,
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) -> CUresult {
        let mut state = self.state();
        let last = state.captured[&(stream as usize)].len() - 1;
        *state.node = last + NODES;
        unsafe { (*nodes, *count) = ((&raw const *state.node).cast(), 1) };
        OK
    }
    unsafe fn cuStreamEndCapture(&self, stream: CUstream, graph: *mut CUgraph) -> CUresult {
        self.made(graph);
        let mut state = self.state();
        let nodes = state.captured.remove(&(stream as usize)).unwrap();
        state.captured.insert(unsafe { *graph } as usize, nodes);
        OK
    }
    unsafe fn cuGraphInstantiateWithFlags(&self, replay: *mut CUgraphExec, graph: CUgraph, flags: u64) -> CUresult {
        self.made(replay);
        let mut state = self.state();
        let nodes = state.captured[&(graph as usize)].clone();
        state.captured.insert(unsafe { *replay } as usize, nodes);
        state.graphs[0] += 1;
        OK
    }
    unsafe fn cuGraphDestroy(&self, graph: CUgraph) -> CUresult {
        self.destroyed();
        let removed = self.state().captured.remove(&(graph as usize));
        removed.map_or(INVALID, |_| OK)
    }
    unsafe fn cuGraphExecDestroy(&self, replay: CUgraphExec) -> CUresult {
        self.destroyed();
        let removed = self.state().captured.remove(&(replay as usize));
        removed.map_or(INVALID, |_| OK)
    }
    unsafe fn cuGraphExecKernelNodeSetParams_v2(
        &self,
        replay: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> CUresult {
        let mut state = self.state();
        let nodes = state.captured.get_mut(&(replay as usize)).unwrap();
        let (node, params) = (&mut nodes[node as usize - NODES], unsafe { &*params });
        assert_eq!(node.function, params.func as usize, "the kernel of a node stays");
        uncounted(|| node.arguments = copy(self.kernels[node.function - 1].1, params.kernelParams));
        state.graphs[2] += 1;
        OK
    }
    unsafe fn cuGraphLaunch(&self, replay: CUgraphExec, stream: CUstream) -> CUresult {
        uncounted(|| {
            self.state().graphs[1] += 1;
            let nodes = self.state().captured[&(replay as usize)].clone();
            for node in nodes {
                let mut params: Vec<*mut c_void> = node.arguments.iter().map(|bytes| bytes.as_ptr() as *mut c_void).collect();
                self.launch(node.function, params.as_mut_ptr(), stream as usize);
            }
        });
        OK
    }
}

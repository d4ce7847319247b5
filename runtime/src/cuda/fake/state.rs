//! What the model of the driver holds.

use cudarc::driver::sys::CUresult;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::c_int,
    thread::ThreadId,
};

/// A launch with its arguments, as a graph keeps it. The function is its position among the kernels, plus one.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) function: usize,
    pub(super) arguments: Vec<Box<[u128]>>,
}

/// What a test sees and steers.
#[derive(Default)]
pub(in super::super) struct State {
    /// Live allocations, by address.
    pub(super) memory: BTreeMap<u64, Vec<u128>>,
    /// Pinned memory of the host, by address.
    pub(super) pinned: BTreeMap<u64, Vec<u128>>,
    /// Bytes there are.
    pub(in super::super) total: usize,
    /// Names of the kernels launched, in order.
    pub(in super::super) launched: Vec<String>,
    /// Dynamic shared memory granted, by kernel.
    pub(in super::super) shared: BTreeMap<String, i32>,
    /// The error that waiting gives once this many kernels were launched.
    pub(in super::super) fault: Option<(usize, CUresult)>,
    /// Objects made and not yet destroyed: streams, events, modules, graphs.
    pub(in super::super) objects: i64,
    /// How often there was something made to replay, replayed, and updated.
    pub(in super::super) graphs: [usize; 3],
    /// Device of each launch, in order.
    pub(in super::super) launched_on: Vec<usize>,
    /// Copies between host and device.
    pub(super) copies: usize,
    /// Take any address for device memory.
    pub(in super::super) foreign: bool,
    /// The error of starting the driver.
    pub(in super::super) init: Option<CUresult>,
    /// The CUDA version that the driver supports, as the driver writes it; 13.0 where none is set.
    pub(in super::super) version: Option<c_int>,
    /// The error of loading a module.
    pub(in super::super) load: Option<CUresult>,
    /// Dynamic shared memory a kernel may have, bytes.
    pub(in super::super) shared_limit: Option<c_int>,
    /// Refuse to capture.
    pub(in super::super) no_capture: bool,
    /// Handles given out.
    pub(super) serial: usize,
    /// The context of each thread: a device's ordinal, plus one.
    pub(super) current: HashMap<ThreadId, usize>,
    /// Launches by stream that is being captured, then by graph and by what is ready to launch.
    pub(super) captured: BTreeMap<usize, Vec<Node>>,
    /// The node handed out last.
    pub(super) node: Box<usize>,
}

impl State {
    /// Bytes allocated, and objects alive.
    pub(in super::super) fn usage(&self) -> (usize, i64) {
        (self.used(), self.objects)
    }

    /// [`usage`](State::usage), and bytes of pinned memory.
    pub(in super::super) fn holds(&self) -> ((usize, i64), usize) {
        (self.usage(), self.pinned())
    }

    /// How many copies there were between host and device.
    pub(in super::super) fn memory_copies(&self) -> usize {
        self.copies
    }

    fn pinned(&self) -> usize {
        self.pinned.values().map(|block| block.len() * 16).sum()
    }

    pub(super) fn used(&self) -> usize {
        self.memory.values().map(|block| block.len() * 16).sum()
    }
}

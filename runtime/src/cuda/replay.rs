//! The launches of a run as one CUDA graph: captured once, then replayed by a single call, its arguments patched where addresses move.
//!
//! A replay costs the host less than a single launch, and the update of a node less than half of one (on an H200 with driver 580: 1.5, 0.4 to
//! 1 and 3 to 4 µs), so that a graph that is there is always used.

use super::{
    context::Context,
    stream::{Call, Stream},
};
use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use std::sync::Arc;

/// Whether and how the launches under one choice of dims are replayed.
#[derive(Default)]
pub(super) struct Replay {
    state: State,
}

#[derive(Default)]
enum State {
    /// Dims that come once are not worth a graph.
    #[default]
    New,
    /// They came once.
    Seen,
    /// There is a graph.
    Ready(Recording),
    /// The driver refused; launching works in any case.
    Refused,
}

impl Replay {
    /// Notes that an argument of a call was changed.
    pub(super) fn outdate(&mut self, call: usize) {
        if let State::Ready(recording) = &mut self.state
            && !std::mem::replace(&mut recording.outdated[call], true)
        {
            recording.outdated_count += 1;
        }
    }

    /// The graph for the next run of these calls, up to date; `None` where they are to be launched one by one.
    pub(super) fn next(&mut self, context: &Arc<Context>, calls: &[Call]) -> Option<&Recording> {
        if calls.is_empty() {
            return None;
        }
        let refused = |code: CUresult| {
            log::debug!("launches are not replayed as a graph: the driver says {}", context.driver.describe(code).0);
            State::Refused
        };
        match &mut self.state {
            State::New => self.state = State::Seen,
            State::Seen => self.state = Recording::capture(context, calls).map_or_else(refused, State::Ready),
            State::Ready(recording) => {
                if let Err(code) = recording.update(calls) {
                    self.state = refused(code);
                }
            }
            State::Refused => {}
        }
        match &self.state {
            State::Ready(recording) => Some(recording),
            _ => None,
        }
    }
}

/// A graph of kernels, ready to be launched.
pub(super) struct Recording {
    context: Arc<Context>,
    graph: CUgraph,
    ready: CUgraphExec,
    /// The node of each call.
    nodes: Vec<CUgraphNode>,
    /// Calls whose arguments are not those of their nodes.
    outdated: Vec<bool>,
    outdated_count: usize,
}

// SAFETY: graphs are handles that any one thread may use at a time.
unsafe impl Send for Recording {}

impl Recording {
    /// Captures the calls, with what runs before the end of its predecessor as it is in a stream. The context must be entered.
    fn capture(context: &Arc<Context>, calls: &[Call]) -> Result<Recording, CUresult> {
        // A stream of its own, for the caller's may be one that cannot be captured, or be in use.
        let stream = Stream::new(context).map_err(|_| CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
        let driver = &context.driver;
        let mut recording = Recording {
            context: context.clone(),
            graph: std::ptr::null_mut(),
            ready: std::ptr::null_mut(),
            nodes: Vec::with_capacity(calls.len()),
            outdated: vec![false; calls.len()],
            outdated_count: 0,
        };
        // Relaxed: what other threads do with the driver meanwhile is no concern of this stream's.
        // SAFETY: the stream is alive and captures nothing yet.
        unsafe { driver.cuStreamBeginCapture_v2(stream.handle, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }?;
        let captured = calls.iter().try_for_each(|call| {
            // SAFETY: the call keeps its contract; it is not run now.
            unsafe { stream.launch(call) }?;
            recording.nodes.push(last_node(context, &stream)?);
            Ok(())
        });
        // SAFETY: the capture was begun above; `graph` outlives the call.
        let ended = unsafe { driver.cuStreamEndCapture(stream.handle, &mut recording.graph) };
        captured.and(ended)?;
        // SAFETY: the graph was captured, `ready` outlives the call.
        unsafe { driver.cuGraphInstantiateWithFlags(&mut recording.ready, recording.graph, 0) }?;
        Ok(recording)
    }

    /// Gives outdated nodes the arguments that their calls have now.
    fn update(&mut self, calls: &[Call]) -> Result<(), CUresult> {
        if self.outdated_count == 0 {
            return Ok(());
        }
        for ((call, node), outdated) in calls.iter().zip(&self.nodes).zip(&mut self.outdated) {
            if std::mem::take(outdated) {
                let ([x, y, z], [bx, by, bz]) = (call.grid, call.block);
                let params = CUDA_KERNEL_NODE_PARAMS {
                    func: call.function,
                    gridDimX: x,
                    gridDimY: y,
                    gridDimZ: z,
                    blockDimX: bx,
                    blockDimY: by,
                    blockDimZ: bz,
                    sharedMemBytes: call.shared_bytes,
                    kernelParams: call.params,
                    extra: std::ptr::null_mut(),
                    kern: std::ptr::null_mut(),
                    ctx: std::ptr::null_mut(),
                };
                // SAFETY: the node is of this graph's template; the driver copies the arguments. Runs in flight keep theirs.
                unsafe { self.context.driver.cuGraphExecKernelNodeSetParams_v2(self.ready, *node, &params) }?;
                self.outdated_count -= 1;
            }
        }
        Ok(())
    }

    /// Launches the graph.
    ///
    /// # Safety
    /// The arguments of its kernels hold memory of this context.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Result<(), CUresult> {
        // SAFETY: the graph is ready, and the caller keeps the contract of its kernels.
        unsafe { self.context.driver.cuGraphLaunch(self.ready, stream.handle) }
    }
}

/// The node that was captured last: the one that whatever comes next would depend on.
fn last_node(context: &Context, stream: &Stream) -> Result<CUgraphNode, CUresult> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut nodes, mut edges, mut count) =
        (0, std::ptr::null_mut(), std::ptr::null(), std::ptr::null(), 0usize);
    // SAFETY: all results outlive the call.
    unsafe {
        context.driver.cuStreamGetCaptureInfo_v3(
            stream.handle,
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut edges,
            &mut count,
        )
    }?;
    match (count, nodes.is_null()) {
        // SAFETY: the driver gave `count` nodes, which stay until the next call for this stream.
        (1, false) => Ok(unsafe { *nodes }),
        _ => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let driver = &self.context.driver;
            if !self.ready.is_null() {
                // SAFETY: made by this context and destroyed once; the driver lets a run in flight finish.
                let _ = unsafe { driver.cuGraphExecDestroy(self.ready) };
            }
            if !self.graph.is_null() {
                // SAFETY: as above.
                let _ = unsafe { driver.cuGraphDestroy(self.graph) };
            }
        }
    }
}

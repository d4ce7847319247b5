//! The memory of one run at a time: a stream, an arena, and the launches made for the dims seen lately.

use super::{
    CudaError,
    bound::{self, Bound},
    context::{Context, DeviceMemory},
    executable::Loaded,
    fault::is_fault,
    place::Base,
    staging::Pinned,
    stream::{Call, Stream},
};
use crate::{DeviceTensor, RuntimeError};
use eglu_codegen::cuda::COUNTERS;
use eglu_ir::Bindings;
use std::sync::Arc;

/// How many choices of dims are kept ready; a server's usual batch sizes fit, and each costs some kilobytes, its graph some more.
const KEPT: usize = 16;

/// What every address must be a multiple of: kernels move 16 bytes at a time.
const ALIGNED: u64 = 16;

/// The values of a plan's symbols and the extents of all inputs for them; asked for where these dims were not seen lately.
pub(super) type Bind<'a> = &'a dyn Fn() -> Result<Bindings, RuntimeError>;

/// One run's own memory; a run in another thread or on another stream takes another session.
pub(super) struct Session {
    pub(super) context: Arc<Context>,
    pub(super) stream: Stream,
    /// Pinned memory for inputs and outputs that come from and go to the host.
    pub(super) staging: Option<Pinned>,
    arena: Option<DeviceMemory>,
    /// Zero between launches; runs of other sessions have their own.
    counters: DeviceMemory,
    /// Latest first.
    kept: Vec<Bound>,
    /// The addresses of this run; kept to be filled again.
    bases: Vec<u64>,
}

impl Session {
    /// A session on a stream: its own, or the caller's, who then lends inputs and results, too. The context must be entered.
    pub(super) fn new(context: &Arc<Context>, loaded: &Loaded, stream: Stream) -> Result<Session, CudaError> {
        let (what, bytes) = ("the counters of kernels", 4 * COUNTERS as u64);
        let counters = context.allocate(&loaded.allocator, bytes, what)?;
        stream.fill(counters.address(), 0, bytes).map_err(|code| context.driver.error("zeroing counters", code))?;
        Ok(Session { context: context.clone(), stream, staging: None, arena: None, counters, kept: vec![], bases: vec![] })
    }

    /// Makes launches ready for inputs in the arena, whose extents are given one after the other.
    pub(super) fn ready(
        &mut self,
        loaded: &Loaded,
        extents: impl Iterator<Item = usize> + Clone,
        bind: Bind<'_>,
    ) -> Result<(), RuntimeError> {
        self.choose(loaded, extents, bind)?;
        self.bases.clear();
        self.bases.resize(loaded.layout.bases(&loaded.plan), 0);
        Ok(self.rebase(loaded)?)
    }

    /// Makes launches ready for inputs and results that the caller lends. Nothing is asked, allocated or copied where dims and addresses
    /// are those of the last run.
    pub(super) fn ready_lent(
        &mut self,
        loaded: &Loaded,
        inputs: &[DeviceTensor],
        results: &[DeviceTensor],
        bind: Bind<'_>,
    ) -> Result<(), RuntimeError> {
        let fitting = inputs.len() == loaded.plan.plan.inputs.len()
            && inputs.iter().zip(&loaded.plan.plan.inputs).all(|(given, want)| given.dtype() == want.ty.dtype);
        if !fitting {
            // Says what is wrong with them.
            bind()?;
        }
        self.choose(loaded, inputs.iter().flat_map(|input| input.shape().iter().copied()), bind)?;
        self.bases.clear();
        self.bases.push(0);
        self.bases.extend(inputs.iter().chain(results).map(DeviceTensor::address));
        self.check_lent(loaded, inputs, results)?;
        Ok(self.rebase(loaded)?)
    }

    /// Puts the launches for these dims first, made anew where they were not seen lately.
    fn choose(
        &mut self,
        loaded: &Loaded,
        extents: impl Iterator<Item = usize> + Clone,
        bind: Bind<'_>,
    ) -> Result<(), RuntimeError> {
        match self.kept.iter().position(|bound| bound.extents.iter().copied().eq(extents.clone())) {
            Some(0) => {}
            Some(at) => self.kept[..=at].rotate_right(1),
            None => {
                let (dims, lent) = ((bind()?, extents.collect()), self.stream.is_borrowed());
                let bound = Bound::new(&self.context.driver, loaded, self.counters.address(), dims, lent)?;
                self.kept.truncate(KEPT - 1);
                self.kept.insert(0, bound);
            }
        }
        Ok(())
    }

    /// Makes the arena large enough and turns the launches to the addresses in `bases`.
    fn rebase(&mut self, loaded: &Loaded) -> Result<(), CudaError> {
        let Some(bound) = self.kept.first_mut() else { return Ok(()) };
        if self.arena.as_ref().is_none_or(|arena| arena.bytes() < bound.memory.peak) {
            // The old arena is freed first: both together may not fit. Earlier runs may still use it.
            if self.arena.is_some() {
                self.stream.wait().map_err(|code| self.failure(loaded, "waiting for earlier runs", None, code))?;
                self.arena = None;
            }
            let (peak, what) = (self.kept[0].memory.peak, format!("the intermediate values of `{}`", loaded.plan.plan.name));
            self.arena = Some(self.context.allocate(&loaded.allocator, peak, &what)?);
        }
        self.bases[0] = self.arena.as_ref().map_or(0, DeviceMemory::address);
        let turned = self.kept[0].rebase(&self.context.driver, &self.bases);
        if turned.is_err() {
            // Some of its arguments are turned, others not.
            self.kept.remove(0);
        }
        turned
    }

    /// Refuses lent memory that is too small or where kernels cannot read it.
    fn check_lent(&self, loaded: &Loaded, inputs: &[DeviceTensor], results: &[DeviceTensor]) -> Result<(), CudaError> {
        let (bound, blocks) = (self.bound()?, &loaded.layout.results);
        if results.len() != blocks.len() {
            let why = format!("blocks of memory for results are given, and a run writes {}", blocks.len());
            return Err(CudaError::Lent { what: results.len().to_string(), why });
        }
        let aligned = |address: u64| address.is_multiple_of(ALIGNED) && address != 0;
        for (i, input) in inputs.iter().enumerate() {
            if !aligned(input.address()) && input.bytes() > 0 {
                let why = format!("must lie at a multiple of {ALIGNED} bytes, not at {:#x}: pass a copy", input.address());
                return Err(CudaError::Lent { what: format!("input {i} (`{}`)", loaded.plan.plan.inputs[i].name), why });
            }
        }
        for (i, (result, &id)) in results.iter().zip(blocks).enumerate() {
            let (want, what) =
                (bound.buffer_bytes[id], || format!("block {i} (`{}`) for results", loaded.plan.plan.buffers[id].name));
            if result.bytes() < want {
                return Err(CudaError::Lent {
                    what: what(),
                    why: format!("has {} bytes, and {want} are written", result.bytes()),
                });
            }
            if !aligned(result.address()) && want > 0 {
                let why = format!("must lie at a multiple of {ALIGNED} bytes, not at {:#x}", result.address());
                return Err(CudaError::Lent { what: what(), why });
            }
        }
        Ok(())
    }

    /// The launches that were made ready.
    pub(super) fn bound(&self) -> Result<&Bound, CudaError> {
        self.kept.first().ok_or_else(nothing)
    }

    /// Where a buffer lies that is neither weight nor constant; `None` for one that is never alive.
    pub(super) fn address(&self, loaded: &Loaded, id: usize) -> Option<u64> {
        let offset = *self.kept.first()?.memory.offsets.get(id)?;
        match loaded.layout.base(&loaded.plan, id, self.stream.is_borrowed()) {
            Base::At(base) if base > 0 => self.bases.get(base).copied(),
            _ => Some(self.bases.first()? + offset?),
        }
    }

    /// Fills the arena with a byte.
    pub(super) fn fill_arena(&self, loaded: &Loaded, value: u8) -> Result<(), CudaError> {
        let (base, bytes) = (self.arena.as_ref().map_or(0, DeviceMemory::address), self.bound()?.memory.peak);
        self.stream.fill(base, value, bytes).map_err(|code| self.failure(loaded, "poisoning the arena", None, code))
    }

    /// Issues every launch: as one graph where there is one, else one by one.
    pub(super) fn issue(&mut self, loaded: &Loaded) -> Result<(), CudaError> {
        let bound = self.kept.first_mut().ok_or_else(nothing)?;
        if loaded.debug.replay
            && !loaded.debug.wait_for_each
            && let Some(recording) = bound.replay(&self.context)
        {
            // SAFETY: the arguments are those of the launches below.
            match unsafe { recording.launch(&self.stream) } {
                Ok(()) => return Ok(()),
                // A stream that is being captured takes the launches, if not a graph of them.
                Err(code) if is_fault(code) => return Err(self.failure(loaded, "replaying the run", None, code)),
                Err(_) => {}
            }
        }
        let bound = self.bound()?;
        bound.calls.iter().enumerate().try_for_each(|(i, call)| self.launch_one(loaded, bound, i, call))
    }

    /// Issues one launch, the `i`-th of `bound`.
    pub(super) fn launch_one(&self, loaded: &Loaded, bound: &Bound, i: usize, call: &Call) -> Result<(), CudaError> {
        let launch = bound.launch_of[i];
        // SAFETY: the functions are loaded, the arguments were made for them by the plan, and their memory lives with the session.
        let mut result = unsafe { self.stream.launch(call) };
        if loaded.debug.wait_for_each {
            result = result.and_then(|()| self.stream.wait());
        }
        result.map_err(|code| {
            let entry = loaded.plan.launches.get(launch).map_or("?", |launch| &launch.entry);
            let step = bound::step_name(&loaded.plan, launch);
            self.failure(loaded, &format!("launching kernel `{entry}` of step `{step}`"), Some(launch), code)
        })
    }

    /// Waits for the run; a kernel's fault shows here.
    pub(super) fn wait(&self, loaded: &Loaded) -> Result<(), CudaError> {
        let last = self.kept.first().and_then(|bound| bound.launch_of.last().copied());
        self.stream.wait().map_err(|code| self.failure(loaded, "waiting for the run", last, code))
    }
}

fn nothing() -> CudaError {
    CudaError::Inconsistent { plan: String::new(), why: "nothing is bound".into() }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A run that failed midway may have left copies and kernels in flight over memory that is freed next. The caller's stream may be gone
        // by now, so that where it is the caller's, the whole device is waited for.
        if self.stream.is_borrowed() {
            let _ = self.context.wait();
        } else if self.context.enter().is_ok() {
            let _ = self.stream.wait();
        }
    }
}

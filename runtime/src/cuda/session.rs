//! The memory of one run at a time: a stream, an arena, and the launches made for the dims seen lately.

use super::{
    CudaError,
    bound::{self, Bound},
    context::{Context, DeviceMemory},
    executable::Loaded,
    gather::{Reading, gather},
    stream::Stream,
};
use crate::RuntimeError;
use cudarc::driver::sys::CUresult;
use eglu_codegen::{PlanOutput, Source, cuda::COUNTERS};
use eglu_ir::{Bindings, Tensor};
use std::sync::Arc;

/// How many choices of dims are kept ready; a server's usual batch sizes fit, and each costs some kilobytes.
const KEPT: usize = 16;

/// What poisoned memory holds: NaN in every float format but `f8e8m0`, and −1 or the largest integer.
const POISON: u8 = 0xff;

/// One run's own memory; a run in another thread takes another session.
pub(super) struct Session {
    pub(super) context: Arc<Context>,
    pub(super) stream: Stream,
    arena: Option<DeviceMemory>,
    /// Zero between launches; runs of other sessions have their own.
    counters: DeviceMemory,
    /// Latest first.
    kept: Vec<Bound>,
}

impl Session {
    pub(super) fn new(context: &Arc<Context>) -> Result<Session, CudaError> {
        let (what, bytes) = ("the counters of kernels", 4 * COUNTERS as u64);
        let (stream, counters) = (Stream::new(context)?, context.allocate(bytes, what)?);
        stream.fill(counters.address(), 0, bytes).map_err(|code| context.driver.error("zeroing counters", code))?;
        Ok(Session { context: context.clone(), stream, arena: None, counters, kept: vec![] })
    }

    /// Makes launches for these dims ready, and the arena large enough. Nothing happens where the last run had the same dims.
    pub(super) fn bind(&mut self, loaded: &Loaded, bindings: &Bindings) -> Result<(), CudaError> {
        let key = bound::key(&loaded.plan, bindings);
        match self.kept.iter().position(|bound| bound.key == key) {
            Some(0) => {}
            Some(at) => self.kept[..=at].rotate_right(1),
            None => {
                let counters = self.counters.address();
                let bound =
                    Bound::new(&self.context.driver, &loaded.plan, &loaded.functions, &loaded.resident, counters, bindings)?;
                self.kept.truncate(KEPT - 1);
                self.kept.insert(0, bound);
            }
        }
        let bound = &mut self.kept[0];
        if self.arena.as_ref().is_none_or(|arena| arena.bytes() < bound.memory.peak) {
            // The old arena is freed first: both together may not fit. No run uses it, as each waits for its end.
            self.arena = None;
            let what = format!("the intermediate values of `{}`", loaded.plan.plan.name);
            self.arena = Some(self.context.allocate(bound.memory.peak, &what)?);
        }
        bound.rebase(&self.context.driver, self.arena.as_ref().map_or(0, DeviceMemory::address))?;
        Ok(())
    }

    /// The launches that [`Session::bind`] made ready.
    pub(super) fn bound(&self) -> Result<&Bound, CudaError> {
        self.kept.first().ok_or_else(|| CudaError::Inconsistent { plan: String::new(), why: "nothing is bound".into() })
    }

    /// Puts the inputs in place, over poison if that is asked for.
    pub(super) fn upload(&self, loaded: &Loaded, inputs: &[Tensor]) -> Result<(), CudaError> {
        let bound = self.bound()?;
        let base = self.arena.as_ref().map_or(0, DeviceMemory::address);
        let failed = |what: &str, code| self.failure(loaded, &format!("copying {what} to the device"), None, code);
        if loaded.debug.poison {
            self.stream.fill(base, POISON, bound.memory.peak).map_err(|code| failed("poison", code))?;
        }
        for (id, buffer) in loaded.plan.plan.buffers.iter().enumerate() {
            let (Source::Input(position), Some(offset)) = (&buffer.source, bound.memory.offsets[id]) else { continue };
            let inconsistent = |why| CudaError::Inconsistent { plan: loaded.plan.plan.name.clone(), why };
            let Some(input) = inputs.get(*position) else {
                return Err(inconsistent(format!("input {position} (`{}`) was not given", buffer.name)));
            };
            let (want, got) = (bound.buffer_bytes[id], input.bytes().len() as u64);
            if want != got {
                return Err(inconsistent(format!(
                    "input {position} (`{}`) has {got} bytes, and its shape wants {want}",
                    buffer.name
                )));
            }
            self.stream.upload(base + offset, input.bytes()).map_err(|code| failed(&format!("input `{}`", buffer.name), code))?;
        }
        Ok(())
    }

    /// Issues every launch.
    pub(super) fn launch(&self, loaded: &Loaded) -> Result<(), CudaError> {
        let bound = self.bound()?;
        for (i, call) in bound.calls.iter().enumerate() {
            self.launch_one(loaded, bound, i, call)?;
        }
        Ok(())
    }

    /// Issues one launch, the `i`-th of `bound`.
    pub(super) fn launch_one(
        &self,
        loaded: &Loaded,
        bound: &Bound,
        i: usize,
        call: &super::stream::Call,
    ) -> Result<(), CudaError> {
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
        let last = self.bound()?.launch_of.last().copied();
        self.stream.wait().map_err(|code| self.failure(loaded, "waiting for the run", last, code))
    }

    /// Brings every output to the host, dense. Waits for the run.
    pub(super) fn download(&self, loaded: &Loaded, bindings: &Bindings) -> Result<Vec<Tensor>, RuntimeError> {
        let outputs = &loaded.plan.plan.outputs;
        outputs.iter().map(|output| self.download_one(loaded, output, bindings)).collect()
    }

    fn download_one(&self, loaded: &Loaded, output: &PlanOutput, bindings: &Bindings) -> Result<Tensor, RuntimeError> {
        let view = &output.tensor;
        let name = || loaded.plan.plan.buffers[view.buffer].name.to_string();
        let reading = Reading::of(&view.layout, bindings).map_err(|error| CudaError::Dim { what: name(), error })?;
        let failed = |source| RuntimeError::Tensor { what: format!("output `{}`", name()), source };
        let mut tensor = Tensor::zeros(view.dtype, &reading.shape).map_err(failed)?;
        let Some((first, count)) = reading.span() else { return Ok(tensor) };
        let size = view.dtype.size();
        let base = self.arena.as_ref().map_or(0, DeviceMemory::address);
        let start = match (loaded.resident[view.buffer], self.bound()?.memory.offsets[view.buffer]) {
            (Some(address), _) => address,
            (None, Some(offset)) => base + offset,
            (None, None) => {
                let why = format!("output `{}` is never written", name());
                return Err(CudaError::Inconsistent { plan: loaded.plan.plan.name.clone(), why }.into());
            }
        };
        let copy = |bytes: &mut [u8]| {
            // SAFETY: the bytes stay in place until the wait below, which comes before every return.
            let issued = unsafe { self.stream.download(bytes, start + (first * size) as u64) };
            let waited = self.wait(loaded);
            issued.map_err(|code| self.failure(loaded, &format!("copying output `{}` from the device", name()), None, code))?;
            waited
        };
        if reading.is_dense() {
            copy(tensor.bytes_mut())?;
        } else {
            let mut span = vec![0u8; count * size];
            copy(&mut span)?;
            gather(&reading, first, size, &span, tensor.bytes_mut());
        }
        Ok(tensor)
    }

    /// A failed call as an error: a kernel's fault with what is known of the kernel, or the call itself.
    pub(super) fn failure(&self, loaded: &Loaded, doing: &str, launch: Option<usize>, code: CUresult) -> CudaError {
        use CUresult::*;
        let fault = matches!(
            code,
            CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_LAUNCH_FAILED
                | CUDA_ERROR_LAUNCH_TIMEOUT
                | CUDA_ERROR_ASSERT
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUDA_ERROR_INVALID_PC
        );
        if !fault {
            return self.context.driver.error(doing, code);
        }
        let (code, message) = self.context.driver.describe(code);
        let step = launch.map_or_else(|| "?".into(), |launch| bound::step_name(&loaded.plan, launch));
        let known = match loaded.debug.wait_for_each {
            true => format!("it belongs to step `{step}`"),
            false => format!("the last step launched was `{step}`; EGLU_SYNC=1 waits for each kernel and names the one at fault"),
        };
        CudaError::Fault { plan: loaded.plan.plan.name.clone(), known, code, message }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A run that failed midway may have left copies and kernels in flight over memory that is freed next.
        if self.context.enter().is_ok() {
            let _ = self.stream.wait();
        }
    }
}

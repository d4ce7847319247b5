//! Runs on what the caller lends: a session for each of the caller's streams.

use super::{
    CudaError,
    context::{Context, DeviceMemory},
    executable::CudaExecutable,
    gather::Reading,
    place::Base,
    session::{Bind, Session},
    stream::Stream,
};
use crate::{DeviceTensor, OnDevice, OutputPlace, OutputView, Results, RuntimeError};
use eglu_codegen::Source;
use eglu_ir::{Bindings, DType, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of a tensor of its own: whatever was issued with it is waited for before it is freed.
struct Lasting {
    context: Arc<Context>,
    _memory: DeviceMemory,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // A lost context has freed it already.
        let _ = self.context.wait();
    }
}

/// How many streams keep their session; who uses more at a time pays for making sessions anew.
const KEPT: usize = 32;

/// A stream of the caller's and what runs on it use. Two threads that share the stream take turns.
struct Lane {
    stream: crate::Stream,
    session: Arc<Mutex<Session>>,
}

/// Sessions by stream, the latest first.
#[derive(Default)]
pub(super) struct Lanes(Mutex<Vec<Lane>>);

impl CudaExecutable {
    /// The session of a stream. The context must be entered.
    fn lane(&self, stream: crate::Stream) -> Result<Arc<Mutex<Session>>, CudaError> {
        let mut lanes = self.lanes.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lanes.iter().position(|lane| lane.stream == stream) {
            Some(0) => {}
            Some(at) => lanes[..=at].rotate_right(1),
            None => {
                // SAFETY: what the caller promised when it made the handle.
                let own = unsafe { Stream::borrow(&self.context, stream.raw().cast()) };
                let session = Arc::new(Mutex::new(Session::new(&self.context, &self.loaded, own)?));
                lanes.truncate(KEPT - 1);
                lanes.insert(0, Lane { stream, session });
            }
        }
        Ok(lanes[0].session.clone())
    }
}

impl OnDevice for CudaExecutable {
    fn run_on(
        &self,
        stream: crate::Stream,
        inputs: &[DeviceTensor],
        results: &[DeviceTensor],
        bind: Bind<'_>,
    ) -> Result<(), RuntimeError> {
        self.context.enter()?;
        let lane = self.lane(stream)?;
        let mut session = lane.lock().unwrap_or_else(PoisonError::into_inner);
        session.ready_lent(&self.loaded, inputs, results, bind)?;
        Ok(session.issue(&self.loaded)?)
    }

    fn forget(&self, stream: crate::Stream) {
        self.lanes.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|lane| lane.stream != stream);
    }

    fn results(&self, bindings: &Bindings) -> Result<Results, RuntimeError> {
        let (plan, layout) = (&self.loaded.plan, &self.loaded.layout);
        let (_, bytes) = layout.place(plan, bindings, true)?;
        let outputs = plan.plan.outputs.iter().map(|output| {
            let (view, id) = (&output.tensor, output.tensor.buffer);
            let name = || plan.plan.buffers[id].name.to_string();
            let reading = Reading::of(&view.layout, bindings).map_err(|error| CudaError::Dim { what: name(), error })?;
            let never = || {
                let why = format!("output `{}` is never written", name());
                CudaError::Inconsistent { plan: plan.plan.name.clone(), why }
            };
            let place = match (&plan.plan.buffers[id].source, layout.base(plan, id, true)) {
                (Source::Input(i), _) => OutputPlace::Input(*i),
                (Source::Step, Base::At(base)) if base > plan.plan.inputs.len() => {
                    OutputPlace::Block(base - 1 - plan.plan.inputs.len())
                }
                _ => OutputPlace::Resident(self.loaded.resident[id].ok_or_else(never)?),
            };
            let (shape, strides, offset) = reading.into_parts();
            Ok(OutputView { place, dtype: view.dtype, shape, strides, offset })
        });
        Ok(Results {
            blocks: layout.results.iter().map(|&id| bytes[id]).collect(),
            outputs: outputs.collect::<Result<_, CudaError>>()?,
        })
    }

    fn empty(&self, dtype: DType, shape: &[usize]) -> Result<DeviceTensor, RuntimeError> {
        let bytes = shape.iter().try_fold(dtype.size() as u64, |bytes, &extent| bytes.checked_mul(extent as u64));
        let what = format!("a {dtype} tensor of shape {shape:?}");
        self.context.enter()?;
        let memory = self.context.allocate(&self.loaded.allocator, bytes.unwrap_or(u64::MAX), &what)?;
        let address = memory.address();
        Ok(DeviceTensor::owned(dtype, shape, address, Arc::new(Lasting { context: self.context.clone(), _memory: memory })))
    }

    fn to_device(&self, tensor: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        let there = self.empty(tensor.dtype(), tensor.shape())?;
        let stream = Stream::new(&self.context)?;
        let copied = stream.upload(there.address(), tensor.bytes()).and_then(|()| stream.wait());
        copied.map_err(|code| self.context.driver.error("copying a tensor to the device", code))?;
        Ok(there)
    }

    fn to_host(&self, tensor: &DeviceTensor) -> Result<Tensor, RuntimeError> {
        let failed = |source| RuntimeError::Tensor { what: format!("{tensor:?}"), source };
        let mut here = Tensor::zeros(tensor.dtype(), tensor.shape()).map_err(failed)?;
        // Whatever stream writes it.
        self.context.wait()?;
        let stream = Stream::new(&self.context)?;
        // SAFETY: the bytes stay in place until the wait, which comes before every return.
        let issued = unsafe { stream.download(here.bytes_mut(), tensor.address()) };
        let copied = stream.wait().and(issued);
        copied.map_err(|code| self.context.driver.error("copying a tensor from the device", code))?;
        Ok(here)
    }

    fn wait(&self, stream: crate::Stream) -> Result<(), RuntimeError> {
        self.context.enter()?;
        let lane = self.lane(stream)?;
        let session = lane.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.wait(&self.loaded)?)
    }
}

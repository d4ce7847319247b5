//! A plan made ready on a device.

use crate::{
    Device, DeviceTensor, Phases, Results, RuntimeError, Stream,
    cpu::CpuExecutable,
    cuda::{Allocator, CudaExecutable, Selection},
    memory::MemoryReport,
};
use eglu_codegen::{Buffer, Plan, Source};
use eglu_ir::{Bindings, DType, Dim, Tensor, TensorType, bind::bind_types, weights::Weights};
use std::{collections::HashMap, sync::Arc};

/// Gives the contents of a weight by its fully qualified name.
pub type WeightSource<'a> = &'a dyn Fn(&str) -> Result<Tensor, RuntimeError>;

/// What a device does for an [`Executable`]. Inputs are checked before they get here, and `bindings` holds every symbol of the plan.
pub trait Backend: Send + Sync {
    /// The plan that was loaded.
    fn plan(&self) -> &Plan;

    /// Where it runs, for messages and reports.
    fn device_name(&self) -> String;

    /// How many kernels one run launches.
    fn kernels(&self) -> usize;

    /// Runs the plan: dense host tensors in, every output of the plan as a dense host tensor.
    fn run(&self, inputs: &[Tensor], bindings: &Bindings) -> Result<Vec<Tensor>, RuntimeError>;

    /// Puts inputs where the device reads them, so that runs can be timed without the transfer.
    fn prepare<'a>(&'a self, inputs: &[Tensor], bindings: &Bindings) -> Result<Box<dyn Timed + 'a>, RuntimeError>;

    /// Where values lie during a run.
    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError>;

    /// What it does with memory and streams of the caller's; `None` for the host, which has neither.
    fn on_device(&self) -> Option<&dyn OnDevice>;
}

/// What a device does with tensors in its memory. See the methods of the same names of [`Executable`].
#[allow(missing_docs)]
pub trait OnDevice {
    /// `bind` is called where these dims were not seen lately, and fails where they do not fit.
    fn run_on(
        &self,
        stream: Stream,
        inputs: &[DeviceTensor],
        results: &[DeviceTensor],
        bind: &dyn Fn() -> Result<Bindings, RuntimeError>,
    ) -> Result<(), RuntimeError>;
    fn wait(&self, stream: Stream) -> Result<(), RuntimeError>;
    fn forget(&self, stream: Stream);
    fn results(&self, bindings: &Bindings) -> Result<Results, RuntimeError>;
    fn empty(&self, dtype: DType, shape: &[usize]) -> Result<DeviceTensor, RuntimeError>;
    fn to_device(&self, tensor: &Tensor) -> Result<DeviceTensor, RuntimeError>;
    fn to_host(&self, tensor: &DeviceTensor) -> Result<Tensor, RuntimeError>;
}

/// A plan with its inputs in place, to be run again and again under a clock.
pub trait Timed {
    /// Runs the plan once and measures it; caches that a real caller would find cold are flushed first.
    fn time_run(&mut self) -> Result<RunTime, RuntimeError>;

    /// Runs the plan once and measures each step by itself, in the order of the plan; these need not add up to a whole run.
    fn time_steps(&mut self) -> Result<Vec<StepTime>, RuntimeError>;

    /// Runs the plan once and says when each kernel ran. The clock stands between kernels, so that they are further apart than in a plain run.
    fn time_kernels(&mut self) -> Result<Vec<KernelTime>, RuntimeError>;

    /// The outputs of the latest run, as dense host tensors.
    fn outputs(&mut self) -> Result<Vec<Tensor>, RuntimeError>;

    /// Bytes of device memory that intermediate values take: `(peak of the arena, sum without reuse)`.
    fn memory(&self) -> (u64, u64);
}

/// The time of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunTime {
    /// From the start of the first kernel to the end of the last, seconds.
    pub seconds: f64,
    /// What the host spends on issuing the run, seconds; kernels that run on the host are not counted.
    pub host_seconds: f64,
}

/// The time of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// Position in [`Plan::steps`].
    pub step: usize,
    /// Name of the step.
    pub name: Arc<str>,
    /// Seconds on the device.
    pub seconds: f64,
}

/// When one kernel ran.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Position in [`Plan::steps`] of the step it belongs to.
    pub step: usize,
    /// The kernel's name.
    pub name: Arc<str>,
    /// Its start, seconds after the start of the run.
    pub start: f64,
    /// Seconds on the device.
    pub seconds: f64,
}

/// The weights that a plan reads, each checked to be as the plan wants it.
pub(crate) fn checked_source<'a>(plan: &'a Plan, weights: &'a Weights) -> impl Fn(&str) -> Result<Tensor, RuntimeError> + 'a {
    let weight = |buffer: &'a Buffer| match &buffer.source {
        Source::Weight(path) => Some((&**path, (buffer.dtype, &buffer.numel))),
        _ => None,
    };
    let expected: HashMap<&str, (DType, &Dim)> = plan.buffers.iter().filter_map(weight).collect();
    move |path| {
        let tensor = weights.get(path)?;
        match expected.get(path) {
            Some(&(dtype, numel)) if tensor.dtype() != dtype || !numel.is(tensor.numel() as i64) => {
                let (want, found) = (format!("{dtype} with {numel} elements"), tensor.ty().to_string());
                Err(RuntimeError::WeightType { name: path.into(), want, found })
            }
            _ => Ok(tensor),
        }
    }
}

/// A plan with its weights on a device, ready to run.
///
/// It is `Send` and `Sync`: threads may share it, and several may live on one device or on several. The rules:
/// - [`run`](Executable::run) takes and gives host tensors, waits for the result, and may be called by any number of threads at once; each
///   call has intermediate memory of its own, kept for the next call.
/// - [`run_on`](Executable::run_on) takes and writes memory of the caller's on a stream of the caller's and does not wait. Runs on one stream
///   follow each other and share intermediate memory; runs on different streams may overlap. Threads that share a stream take turns.
/// - Dropping it waits for everything that it issued.
/// - After a kernel's fault every executable on that device gives an error, and so does loading another: the driver lets the process use the
///   device no more. Executables on other devices go on, and the model can be loaded in a new process.
pub struct Executable {
    backend: Box<dyn Backend>,
    signature: Vec<(Arc<str>, TensorType)>,
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executable({} on {})", self.plan().name, self.backend.device_name())
    }
}

impl Executable {
    /// Makes a plan ready on a device: weights in place, kernels compiled or taken from the cache.
    pub fn load(plan: Plan, weights: &Weights, device: &Device) -> Result<Executable, RuntimeError> {
        Executable::load_in_phases(plan, weights, device, &Phases::default())
    }

    /// [`load`](Executable::load), with its phases timed and told of.
    pub fn load_in_phases(plan: Plan, weights: &Weights, device: &Device, phases: &Phases) -> Result<Executable, RuntimeError> {
        Executable::load_selecting(plan, weights, device, (Selection::default(), phases))
    }

    /// The same with a say in which kernels a GPU runs; on the host there is nothing to choose, and measuring for it is an error.
    pub fn load_selecting(
        plan: Plan,
        weights: &Weights,
        device: &Device,
        (selection, phases): (Selection, &Phases),
    ) -> Result<Executable, RuntimeError> {
        let source = checked_source(&plan, weights);
        let backend: Box<dyn Backend> = match device {
            Device::Cpu if selection.tune => {
                let why = "tuning measures kernels on a GPU, and this is the host: load the plan on `cuda`, or do not tune";
                return Err(RuntimeError::Usage(why.into()));
            }
            Device::Cpu => Box::new(phases.time("weights", || CpuExecutable::load(plan.clone(), &source, None))?),
            Device::Cuda(ordinal) => Box::new(CudaExecutable::build_in_phases(&plan, &source, *ordinal, (selection, phases))?),
        };
        Ok(Executable::new(backend))
    }

    /// [`load`](Executable::load) on a CUDA device, in memory of the caller's: weights now, and intermediate values when a run needs them.
    pub fn load_in(
        plan: &Plan,
        weights: &Weights,
        ordinal: usize,
        allocator: Arc<dyn Allocator>,
    ) -> Result<Executable, RuntimeError> {
        let weights = |path: &str| Ok(weights.get(path)?);
        Ok(Executable::new(Box::new(CudaExecutable::build_in(plan, &weights, ordinal, allocator)?)))
    }

    /// An executable of an own backend.
    pub fn new(backend: Box<dyn Backend>) -> Executable {
        let signature = backend.plan().inputs.iter().map(|input| (input.name.clone(), input.ty.clone())).collect();
        Executable { backend, signature }
    }

    /// Runs the plan on dense host tensors in signature order; gives all outputs of the plan in signature order.
    ///
    /// Inputs of a wrong number, dtype or shape are errors that name the input.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        self.backend.run(inputs, &self.bind(inputs)?)
    }

    /// The values that these inputs give to the plan's symbols.
    pub fn bind(&self, inputs: &[Tensor]) -> Result<Bindings, RuntimeError> {
        self.bind_shapes(inputs.iter().map(|input| (input.dtype(), input.shape())))
    }

    fn bind_shapes<'a>(&self, inputs: impl Iterator<Item = (DType, &'a [usize])>) -> Result<Bindings, RuntimeError> {
        Ok(bind_types(&self.plan().symbols, &self.signature, &inputs.collect::<Vec<_>>())?)
    }

    /// Runs the plan on tensors in device memory, on a stream of the caller's: reads `inputs` in signature order where they are, writes
    /// `results`, of which [`results`](Executable::results) says how many there are and how large, and returns without waiting.
    ///
    /// Where dims and addresses are those of the run before on this stream, this is one replay of a CUDA graph; where addresses differ, the
    /// graph's arguments are updated or the kernels launched one by one; where dims differ, the launches for them are made, and kept for
    /// the next time. Nothing is asked of the driver and nothing allocated, but for dims that were not seen lately. A stream that is being
    /// captured may be given once a run with these dims was made on it.
    pub fn run_on(&self, stream: Stream, inputs: &[DeviceTensor], results: &[DeviceTensor]) -> Result<(), RuntimeError> {
        let bind = || self.bind_shapes(inputs.iter().map(|input| (input.dtype(), input.shape())));
        self.on_device()?.run_on(stream, inputs, results, &bind)
    }

    /// Waits for what was issued to a stream, and gives the error of a kernel that failed.
    pub fn wait(&self, stream: Stream) -> Result<(), RuntimeError> {
        self.on_device()?.wait(stream)
    }

    /// Waits for the device and frees what is kept for runs on a stream, which is then no longer used.
    pub fn forget(&self, stream: Stream) -> Result<(), RuntimeError> {
        self.on_device()?.forget(stream);
        Ok(())
    }

    /// What [`run_on`](Executable::run_on) writes for inputs of these dtypes and shapes.
    pub fn results(&self, inputs: &[DeviceTensor]) -> Result<Results, RuntimeError> {
        self.on_device()?.results(&self.bind_shapes(inputs.iter().map(|input| (input.dtype(), input.shape())))?)
    }

    /// A tensor in device memory with nothing in it yet, from the executable's allocator.
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Result<DeviceTensor, RuntimeError> {
        self.on_device()?.empty(dtype, shape)
    }

    /// A copy in device memory, from the executable's allocator.
    pub fn to_device(&self, tensor: &Tensor) -> Result<DeviceTensor, RuntimeError> {
        self.on_device()?.to_device(tensor)
    }

    /// A copy on the host, once everything issued to the device so far is done.
    pub fn to_host(&self, tensor: &DeviceTensor) -> Result<Tensor, RuntimeError> {
        self.on_device()?.to_host(tensor)
    }

    fn on_device(&self) -> Result<&dyn OnDevice, RuntimeError> {
        self.backend.on_device().ok_or_else(|| {
            let device = self.backend.device_name();
            RuntimeError::Usage(format!(
                "tensors in device memory need a device, and this executable is on {device}: load it on `cuda`"
            ))
        })
    }

    /// Where values lie during a run on these inputs.
    pub fn memory(&self, inputs: &[Tensor]) -> Result<MemoryReport, RuntimeError> {
        self.backend.memory(&self.bind(inputs)?)
    }

    /// Puts inputs in place, so that runs can be timed.
    pub fn prepare<'a>(&'a self, inputs: &[Tensor]) -> Result<Box<dyn Timed + 'a>, RuntimeError> {
        self.backend.prepare(inputs, &self.bind(inputs)?)
    }

    /// Runs once and measures each step by itself.
    pub fn profile(&self, inputs: &[Tensor]) -> Result<Vec<StepTime>, RuntimeError> {
        self.prepare(inputs)?.time_steps()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.backend.plan()
    }

    /// The device's side.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

//! A plan made ready on a device.

use crate::{Device, Phases, RuntimeError, cpu::CpuExecutable, cuda::CudaExecutable};
use eglu_codegen::{Buffer, Plan, Source};
use eglu_ir::{Bindings, DType, Dim, Tensor, TensorType, bind::bind, weights::Weights};
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

/// A plan with its weights on a device, ready to run. Shared by threads, each run is on its own memory.
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
        let source = checked_source(&plan, weights);
        let backend: Box<dyn Backend> = match device {
            Device::Cpu => Box::new(phases.time("weights", || CpuExecutable::load(plan.clone(), &source, None))?),
            Device::Cuda(ordinal) => Box::new(CudaExecutable::build_in_phases(&plan, &source, *ordinal, phases)?),
        };
        Ok(Executable::new(backend))
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
        Ok(bind(&self.plan().symbols, &self.signature, inputs)?)
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

//! A plan with its weights on a CUDA device.

use super::{
    CudaError, DeviceFacts,
    compile::{self, Cubin},
    context::{Context, DeviceMemory},
    functions::Functions,
    session::Session,
    stream::Stream,
    timed::CudaTimed,
};
use crate::{Backend, Phases, RuntimeError, Timed, WeightSource, memory::ALIGN};
use eglu_codegen::{
    Plan, Source,
    cuda::{CudaPlan, emit},
};
use eglu_ir::{Bindings, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Aids to finding faults, from the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debug {
    /// `EGLU_POISON=1`: fill the arena with NaN before each run, so that reading what was never written shows.
    pub(super) poison: bool,
    /// `EGLU_SYNC=1`: wait for each kernel, so that a fault names its step.
    pub(super) wait_for_each: bool,
}

/// What all runs share.
pub(super) struct Loaded {
    pub(super) plan: CudaPlan,
    pub(super) functions: Functions,
    /// The address of each buffer that holds a weight or constant.
    pub(super) resident: Vec<Option<u64>>,
    /// Keeps those addresses valid.
    _weights: DeviceMemory,
    pub(super) debug: Debug,
}

/// A plan ready on a device: kernels loaded, weights in place. Threads may share it; each run has a stream and an arena of its own.
pub struct CudaExecutable {
    pub(super) context: Arc<Context>,
    pub(super) loaded: Loaded,
    /// Sessions no run is using.
    idle: Mutex<Vec<Session>>,
}

impl CudaExecutable {
    /// Emits kernels for device `ordinal` and loads them with the weights.
    pub fn build(plan: &Plan, weights: WeightSource<'_>, ordinal: usize) -> Result<CudaExecutable, RuntimeError> {
        Self::build_in_phases(plan, weights, ordinal, &Phases::default())
    }

    /// [`CudaExecutable::build`], with its phases timed and told of.
    pub fn build_in_phases(
        plan: &Plan,
        weights: WeightSource<'_>,
        ordinal: usize,
        phases: &Phases,
    ) -> Result<CudaExecutable, RuntimeError> {
        let facts = phases.time("device", || DeviceFacts::of(ordinal))?;
        let plan = phases.time("emit", || emit(plan, facts.target()))?;
        Self::load_in_phases(plan, weights, ordinal, phases)
    }

    /// Compiles the plan's kernels for device `ordinal`, or takes them from the cache, and uploads the weights.
    pub fn load(plan: CudaPlan, weights: WeightSource<'_>, ordinal: usize) -> Result<CudaExecutable, RuntimeError> {
        Self::load_in_phases(plan, weights, ordinal, &Phases::default())
    }

    fn load_in_phases(
        plan: CudaPlan,
        weights: WeightSource<'_>,
        ordinal: usize,
        phases: &Phases,
    ) -> Result<CudaExecutable, RuntimeError> {
        let arch = DeviceFacts::of(ordinal)?.arch()?;
        let cubins = compile::compile_in_phases(&plan.modules, &arch, phases)?;
        let context = phases.time("context", || Context::open(ordinal))?;
        Self::with_cubins(context, plan, &cubins, weights, phases)
    }

    /// [`CudaExecutable::load`] with the plan's modules compiled already, in their order.
    pub fn with_kernels(
        plan: CudaPlan,
        cubins: &[Cubin],
        weights: WeightSource<'_>,
        ordinal: usize,
        phases: &Phases,
    ) -> Result<CudaExecutable, RuntimeError> {
        Self::with_cubins(phases.time("context", || Context::open(ordinal))?, plan, cubins, weights, phases)
    }

    /// [`CudaExecutable::with_kernels`] on any context.
    pub(super) fn with_cubins(
        context: Arc<Context>,
        plan: CudaPlan,
        cubins: &[Cubin],
        weights: WeightSource<'_>,
        phases: &Phases,
    ) -> Result<CudaExecutable, RuntimeError> {
        context.enter()?;
        let functions = phases.time("modules", || Functions::load(&context, &plan, cubins))?;
        let (memory, resident) = phases.time("weights", || upload_weights(&context, &plan.plan, weights))?;
        let set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
        let debug = Debug { poison: set("EGLU_POISON"), wait_for_each: set("EGLU_SYNC") };
        let loaded = Loaded { plan, functions, resident, _weights: memory, debug };
        Ok(CudaExecutable { context, loaded, idle: Mutex::default() })
    }

    /// The device's facts.
    pub fn facts(&self) -> &DeviceFacts {
        &self.context.facts
    }

    /// The plan with its launches.
    pub fn cuda_plan(&self) -> &CudaPlan {
        &self.loaded.plan
    }

    /// How often the driver was asked for facts so far, by anyone in this process. A run in steady state asks nothing.
    pub fn driver_queries(&self) -> u64 {
        self.context.driver.queries()
    }

    /// A session of one's own, with the context entered and the launches for `bindings` ready.
    pub(super) fn session(&self, bindings: &Bindings) -> Result<Session, CudaError> {
        self.context.enter()?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = idle.map_or_else(|| Session::new(&self.context), Ok)?;
        session.bind(&self.loaded, bindings)?;
        Ok(session)
    }

    /// Takes a session back for the next run.
    pub(super) fn give_back(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

impl Backend for CudaExecutable {
    fn plan(&self) -> &Plan {
        &self.loaded.plan.plan
    }

    fn device_name(&self) -> String {
        format!("{} (cuda:{})", self.facts().name, self.facts().ordinal)
    }

    fn kernels(&self) -> usize {
        self.loaded.plan.launches.len()
    }

    fn run(&self, inputs: &[Tensor], bindings: &Bindings) -> Result<Vec<Tensor>, RuntimeError> {
        let session = self.session(bindings)?;
        session.upload(&self.loaded, inputs)?;
        session.launch(&self.loaded)?;
        let outputs = session.download(&self.loaded, bindings)?;
        session.wait(&self.loaded)?;
        self.give_back(session);
        Ok(outputs)
    }

    fn prepare<'a>(&'a self, inputs: &[Tensor], bindings: &Bindings) -> Result<Box<dyn Timed + 'a>, RuntimeError> {
        Ok(Box::new(CudaTimed::new(self, inputs, bindings)?))
    }
}

/// Puts weights and constants into one allocation. Weights are read one after the other, from the mapped file where there is one.
fn upload_weights(
    context: &Arc<Context>,
    plan: &Plan,
    weights: WeightSource<'_>,
) -> Result<(DeviceMemory, Vec<Option<u64>>), RuntimeError> {
    let mut offsets = vec![None; plan.buffers.len()];
    let mut total = 0u64;
    for (id, buffer) in plan.buffers.iter().enumerate() {
        if matches!(buffer.source, Source::Weight(_) | Source::Constant(_)) {
            let dim = |error| CudaError::Dim { what: buffer.name.to_string(), error };
            let numel = buffer.numel.extent(&Bindings::new()).map_err(dim)?;
            let too_large = || CudaError::TooLarge { plan: plan.name.clone(), name: buffer.name.to_string() };
            let bytes = (numel as u64).checked_mul(buffer.dtype.size() as u64).ok_or_else(too_large)?;
            offsets[id] = Some(total);
            total = bytes.checked_next_multiple_of(ALIGN).and_then(|bytes| total.checked_add(bytes)).ok_or_else(too_large)?;
        }
    }
    let memory = context.allocate(total, &format!("the weights of `{}`", plan.name))?;
    let stream = Stream::new(context)?;
    for (buffer, offset) in plan.buffers.iter().zip(&mut offsets) {
        let Some(offset) = offset else { continue };
        *offset += memory.address();
        let tensor = match &buffer.source {
            Source::Weight(path) => weights(path)?,
            Source::Constant(tensor) => tensor.clone(),
            Source::Input(_) | Source::Step => continue,
        };
        let numel = buffer.numel.as_const().unwrap_or(-1);
        if tensor.dtype() != buffer.dtype || tensor.numel() as i64 != numel {
            return Err(RuntimeError::WeightType {
                name: buffer.name.clone(),
                want: format!("{numel} elements of {}", buffer.dtype),
                found: format!("{tensor:?}"),
            });
        }
        let failed = |code| context.driver.error(format!("copying weight `{}` to the device", buffer.name), code);
        // The tensor may be dropped next, and some systems read pageable memory without staging it.
        stream.upload(*offset, tensor.bytes()).and_then(|()| stream.wait()).map_err(failed)?;
    }
    Ok((memory, offsets))
}

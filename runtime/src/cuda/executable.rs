//! A plan with its weights on a CUDA device.

use super::{
    Allocator, CudaError, DeviceFacts, DriverCalls,
    allocator::Source,
    compile::{self, Cubin},
    context::{Context, DeviceMemory},
    functions::Functions,
    lanes::Lanes,
    place::Layout,
    session::Session,
    stream::Stream,
    timed::CudaTimed,
    tuning::{self, Selection},
    weights,
};
use crate::{Backend, OnDevice, Phases, RuntimeError, Timed, WeightSource, memory::MemoryReport};
use eglu_codegen::{
    Plan,
    cuda::{CudaPlan, emit, emit_with},
};
use eglu_ir::{Bindings, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Aids to finding faults, from the environment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Debug {
    /// `EGLU_POISON=1`: fill the arena with NaN before each run, so that reading what was never written shows.
    pub(super) poison: bool,
    /// `EGLU_SYNC=1`: wait for each kernel, so that a fault names its step.
    pub(super) wait_for_each: bool,
    /// Not `EGLU_REPLAY=0`: launches are made a graph where that pays.
    pub(super) replay: bool,
}

/// What all runs share.
pub(super) struct Loaded {
    pub(super) plan: CudaPlan,
    pub(super) functions: Functions,
    pub(super) layout: Layout,
    /// The address of each buffer that holds a weight or constant.
    pub(super) resident: Vec<Option<u64>>,
    /// Keeps those addresses valid.
    pub(super) weights: Arc<DeviceMemory>,
    /// Where arenas come from, as the weights did.
    pub(super) allocator: Source,
    pub(super) debug: Debug,
}

/// A plan ready on a device: kernels loaded, weights in place. Threads may share it; each run, and each stream of the caller's, has an arena
/// of its own.
pub struct CudaExecutable {
    pub(super) context: Arc<Context>,
    /// Sessions no run is using.
    idle: Mutex<Vec<Session>>,
    /// Sessions of the caller's streams.
    pub(super) lanes: Lanes,
    /// After the sessions, which use it until they are dropped.
    pub(super) loaded: Loaded,
}

impl CudaExecutable {
    /// Emits kernels for device `ordinal` and loads them with the weights.
    pub fn build(plan: &Plan, weights: WeightSource<'_>, ordinal: usize) -> Result<CudaExecutable, RuntimeError> {
        Self::build_in_phases(plan, weights, ordinal, (Selection::default(), &Phases::default()))
    }

    /// [`CudaExecutable::build`] with a say in which kernels are taken, and with its phases timed and told of.
    pub fn build_in_phases(
        plan: &Plan,
        weights: WeightSource<'_>,
        ordinal: usize,
        (selection, phases): (Selection, &Phases),
    ) -> Result<CudaExecutable, RuntimeError> {
        let facts = phases.time("device", || DeviceFacts::of(ordinal))?;
        let choices = tuning::choices(plan, weights, &facts, (selection, phases))?;
        let plan = phases.time("emit", || emit_with(plan, facts.target(), &choices))?;
        Self::load_in_phases(plan, weights, ordinal, phases)
    }

    /// [`CudaExecutable::build`] in memory of the caller's.
    pub fn build_in(
        plan: &Plan,
        weights: WeightSource<'_>,
        ordinal: usize,
        allocator: Arc<dyn Allocator>,
    ) -> Result<CudaExecutable, RuntimeError> {
        let facts = DeviceFacts::of(ordinal)?;
        let plan = emit(plan, facts.target())?;
        let cubins = compile::compile(&plan.modules, &facts.arch()?)?;
        let allocator = Source::Caller(allocator);
        Self::with_memory(Context::open(ordinal)?, plan, &cubins, weights, (allocator, &Phases::default()))
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
        Self::with_memory(context, plan, cubins, weights, (Source::Driver, phases))
    }

    pub(super) fn with_memory(
        context: Arc<Context>,
        plan: CudaPlan,
        cubins: &[Cubin],
        weights: WeightSource<'_>,
        (allocator, phases): (Source, &Phases),
    ) -> Result<CudaExecutable, RuntimeError> {
        context.enter()?;
        let functions = phases.time("modules", || Functions::load(&context, &plan, cubins))?;
        let (weights, resident) = phases.time("weights", || weights::upload(&context, &allocator, &plan.plan, weights))?;
        let set = |name, to| std::env::var_os(name).is_some_and(|value| value == to);
        let debug =
            Debug { poison: set("EGLU_POISON", "1"), wait_for_each: set("EGLU_SYNC", "1"), replay: !set("EGLU_REPLAY", "0") };
        let layout = Layout::of(&plan);
        let loaded = Loaded { plan, functions, layout, resident, weights: Arc::new(weights), allocator, debug };
        Ok(CudaExecutable { context, idle: Mutex::default(), lanes: Lanes::default(), loaded })
    }

    /// Other kernels for the same plan, over the same weights.
    pub(super) fn beside(&self, plan: CudaPlan, cubins: &[Cubin]) -> Result<CudaExecutable, RuntimeError> {
        self.context.enter()?;
        let functions = Functions::load(&self.context, &plan, cubins)?;
        let Loaded { resident, weights, allocator, debug, .. } = &self.loaded;
        let layout = Layout::of(&plan);
        let (resident, weights, allocator) = (resident.clone(), weights.clone(), allocator.clone());
        let loaded = Loaded { plan, functions, layout, resident, weights, allocator, debug: *debug };
        Ok(CudaExecutable { context: self.context.clone(), idle: Mutex::default(), lanes: Lanes::default(), loaded })
    }

    /// The device's facts.
    pub fn facts(&self) -> &DeviceFacts {
        &self.context.facts
    }

    /// The plan with its launches.
    pub fn cuda_plan(&self) -> &CudaPlan {
        &self.loaded.plan
    }

    /// What the driver was asked for and what was made and destroyed so far, by anyone in this process. A run in steady state adds nothing.
    pub fn driver_calls(&self) -> DriverCalls {
        self.context.driver.calls()
    }

    /// Bytes of the device's memory that nobody has taken. Asks the driver, which takes some microseconds.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.context.free().map(|(free, _)| free)
    }

    /// A session of one's own, with the context entered, and launches ready for these inputs.
    pub(super) fn session(&self, inputs: &[Tensor], bindings: &Bindings) -> Result<Session, RuntimeError> {
        self.context.enter()?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = match idle {
            Some(session) => session,
            None => Session::new(&self.context, &self.loaded, Stream::new(&self.context)?)?,
        };
        let extents = inputs.iter().flat_map(|input| input.shape().iter().copied());
        session.ready(&self.loaded, extents, &|| Ok(bindings.clone()))?;
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
        let mut session = self.session(inputs, bindings)?;
        session.upload(&self.loaded, inputs)?;
        session.issue(&self.loaded)?;
        let outputs = session.download(&self.loaded)?;
        self.give_back(session);
        Ok(outputs)
    }

    fn prepare<'a>(&'a self, inputs: &[Tensor], bindings: &Bindings) -> Result<Box<dyn Timed + 'a>, RuntimeError> {
        Ok(Box::new(CudaTimed::new(self, inputs, bindings)?))
    }

    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let (memory, bytes) = self.loaded.layout.place(&self.loaded.plan, bindings, false)?;
        let plan = &self.loaded.plan;
        let scratch = plan.scratch.iter().zip(&bytes[plan.plan.buffers.len()..]);
        let scratch = scratch.map(|(scratch, &bytes)| (scratch.name.as_str(), (scratch.step, scratch.last), bytes));
        Ok(MemoryReport::new(self.plan(), scratch, (&memory, &bytes), self.loaded.weights.bytes()))
    }

    fn on_device(&self) -> Option<&dyn OnDevice> {
        Some(self)
    }
}

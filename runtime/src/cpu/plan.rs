//! A plan on the host.

use super::{
    arena::Arena,
    call::{Call, Operand, Out},
    kernel::{Kernel, to_tensor},
    scratch::Scratch,
    view::{View, ViewError, extents},
};
use crate::{
    Backend, KernelTime, OnDevice, RunTime, RuntimeError, StepTime, Timed, WeightSource, memory,
    memory::{MemoryPlan, MemoryReport},
};
use eglu_codegen::{Arg, BufferId, Plan, Source, Step, TensorRef};
use eglu_ir::{Bindings, Tensor};
use rayon::ThreadPool;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// A plan with its weights, ready to run on the host.
pub struct CpuExecutable {
    plan: Plan,
    kernels: Vec<Kernel>,
    /// Contents of the weights and constants, by buffer.
    fixed: Vec<Option<Tensor>>,
    /// Arenas that no run uses at the moment.
    idle: Mutex<Vec<Arena>>,
    scratch: Scratch,
    pool: Option<Arc<ThreadPool>>,
}

impl CpuExecutable {
    /// Makes a plan ready. Runs use the threads of `pool`, or of rayon's global pool where none is given.
    pub fn load(plan: Plan, weights: WeightSource<'_>, pool: Option<Arc<ThreadPool>>) -> Result<CpuExecutable, RuntimeError> {
        let fixed = plan
            .buffers
            .iter()
            .map(|buffer| match &buffer.source {
                Source::Weight(path) => weights(path).map(Some),
                Source::Constant(tensor) => Ok(Some(tensor.clone())),
                Source::Input(_) | Source::Step => Ok(None),
            })
            .collect::<Result<_, _>>()?;
        let kernels = plan.steps.iter().map(Kernel::of).collect();
        Ok(CpuExecutable { plan, kernels, fixed, idle: Mutex::new(Vec::new()), scratch: Scratch::default(), pool })
    }

    fn arena(&self, bytes: u64) -> Result<Arena, RuntimeError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match idle.iter().position(|arena| arena.len() as u64 >= bytes) {
            Some(i) => Ok(idle.swap_remove(i)),
            None => Arena::new(bytes),
        }
    }

    fn retire(&self, arena: Arena) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(arena);
    }

    fn on_pool<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }
}

impl Backend for CpuExecutable {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn device_name(&self) -> String {
        "cpu".into()
    }

    fn kernels(&self) -> usize {
        self.plan.steps.len()
    }

    fn run(&self, inputs: &[Tensor], bindings: &Bindings) -> Result<Vec<Tensor>, RuntimeError> {
        let run = Run::new(self, inputs, bindings)?;
        self.on_pool(|| run.steps(|_, _| ()))?;
        run.outputs()
    }

    fn prepare<'a>(&'a self, inputs: &[Tensor], bindings: &Bindings) -> Result<Box<dyn Timed + 'a>, RuntimeError> {
        Ok(Box::new(Run::new(self, inputs, bindings)?))
    }

    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let (memory, bytes) = (memory::plan_steps(&self.plan, bindings)?, memory::sizes(&self.plan, bindings)?);
        let weights = self.fixed.iter().flatten().map(|tensor| tensor.bytes().len() as u64).sum();
        Ok(MemoryReport::new(&self.plan, [], (&memory, &bytes), weights))
    }

    fn on_device(&self) -> Option<&dyn OnDevice> {
        None
    }
}

/// One run: its inputs, sizes and memory.
struct Run<'a> {
    executable: &'a CpuExecutable,
    inputs: Vec<Tensor>,
    bindings: Bindings,
    memory: MemoryPlan,
    /// Bytes of each buffer.
    sizes: Vec<usize>,
    /// Taken on drop only.
    arena: Option<Arena>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            self.executable.retire(arena);
        }
    }
}

impl<'a> Run<'a> {
    fn new(executable: &'a CpuExecutable, inputs: &[Tensor], bindings: &Bindings) -> Result<Run<'a>, RuntimeError> {
        let plan = &executable.plan;
        let memory = memory::plan_steps(plan, bindings)?;
        let sizes = plan
            .buffers
            .iter()
            .map(|buffer| Ok(buffer.numel.extent(bindings)? * buffer.dtype.size()))
            .collect::<Result<_, RuntimeError>>()?;
        let arena = Some(executable.arena(memory.peak)?);
        Ok(Run { executable, inputs: inputs.to_vec(), bindings: bindings.clone(), memory, sizes, arena })
    }

    fn arena(&self) -> Result<&Arena, RuntimeError> {
        self.arena.as_ref().ok_or_else(|| RuntimeError::Usage("the run is over".into()))
    }

    /// A buffer's bytes, to read.
    ///
    /// # Safety
    /// While they are read, no step may write this buffer or one that shares its memory.
    unsafe fn read(&self, id: BufferId) -> Result<&[u8], RuntimeError> {
        if let Source::Input(position) = self.executable.plan.buffers[id].source {
            return Ok(self.inputs[position].bytes());
        }
        if let Some(tensor) = &self.executable.fixed[id] {
            return Ok(tensor.bytes());
        }
        let offset = self.memory.offsets[id].unwrap_or(0) as usize;
        // SAFETY: as the caller promises.
        Ok(unsafe { self.arena()?.read(offset, self.sizes[id]) })
    }

    /// A view of a buffer.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn view(&self, tensor: &TensorRef, step: &str, op: &'static str) -> Result<View<'_>, RuntimeError> {
        // SAFETY: as the caller promises.
        let bytes = unsafe { self.read(tensor.buffer) }?;
        View::new(tensor.dtype, &tensor.layout, &self.bindings, bytes).map_err(|e| match e {
            ViewError::Dim(e) => e.into(),
            other => RuntimeError::Step { step: step.into(), op, why: other.to_string() },
        })
    }

    /// Runs all steps; `done` is told each step's position and duration in seconds.
    fn steps(&self, mut done: impl FnMut(usize, f64)) -> Result<(), RuntimeError> {
        for (i, step) in self.executable.plan.steps.iter().enumerate() {
            let start = Instant::now();
            self.step(step, &self.executable.kernels[i])?;
            done(i, start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn step(&self, step: &Step, kernel: &Kernel) -> Result<(), RuntimeError> {
        let operands = step
            .inputs
            .iter()
            .map(|arg| match arg {
                // SAFETY: steps run one after the other, and the memory plan keeps a step's outputs apart from its inputs, as both are alive.
                Arg::Tensor(tensor) => Ok(Operand::Tensor(unsafe { self.view(tensor, &step.name, step.op.name()) }?)),
                Arg::Scalar(scalar) => Ok(Operand::Scalar(*scalar)),
                Arg::None => Ok(Operand::None),
            })
            .collect::<Result<_, RuntimeError>>()?;
        let outputs = step
            .outputs
            .iter()
            .map(|output| {
                let offset = self.memory.offsets[output.buffer].unwrap_or(0) as usize;
                // SAFETY: each output has a buffer of its own, alive at this step with all others that are used here.
                let bytes = unsafe { self.arena()?.write(offset, self.sizes[output.buffer]) };
                Ok(Out { dtype: output.dtype, shape: extents(&output.layout.shape, &self.bindings)?, bytes })
            })
            .collect::<Result<_, RuntimeError>>()?;
        kernel.run(&mut Call { step, operands, outputs, scratch: &self.executable.scratch }, &self.bindings)
    }

    fn outputs(&self) -> Result<Vec<Tensor>, RuntimeError> {
        let outputs = &self.executable.plan.outputs;
        // SAFETY: all steps have run, and outputs live to the end.
        outputs.iter().map(|out| to_tensor(&unsafe { self.view(&out.tensor, "output", "output") }?, "an output")).collect()
    }
}

impl Timed for Run<'_> {
    fn time_run(&mut self) -> Result<RunTime, RuntimeError> {
        let this = &*self;
        let start = Instant::now();
        let mut in_steps = 0.0;
        this.executable.on_pool(|| this.steps(|_, seconds| in_steps += seconds))?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(RunTime { seconds, host_seconds: seconds - in_steps })
    }

    fn time_steps(&mut self) -> Result<Vec<StepTime>, RuntimeError> {
        let this = &*self;
        let mut times = Vec::with_capacity(this.executable.plan.steps.len());
        this.executable.on_pool(|| {
            this.steps(|step, seconds| {
                times.push(StepTime { step, name: this.executable.plan.steps[step].name.clone(), seconds });
            })
        })?;
        Ok(times)
    }

    fn time_kernels(&mut self) -> Result<Vec<KernelTime>, RuntimeError> {
        let this = &*self;
        let mut times = Vec::with_capacity(this.executable.plan.steps.len());
        let begin = Instant::now();
        this.executable.on_pool(|| {
            this.steps(|step, seconds| {
                let name = this.executable.plan.steps[step].name.clone();
                times.push(KernelTime { step, name, start: (begin.elapsed().as_secs_f64() - seconds).max(0.0), seconds });
            })
        })?;
        Ok(times)
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, RuntimeError> {
        Run::outputs(self)
    }

    fn memory(&self) -> (u64, u64) {
        (self.memory.peak, self.memory.sum)
    }
}

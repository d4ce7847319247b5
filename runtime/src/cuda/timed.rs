//! Measuring runs with events.

use super::{CudaError, allocator::Source, context::DeviceMemory, executable::CudaExecutable, session::Session, stream::Event};
use crate::{KernelTime, RunTime, RuntimeError, StepTime, Timed};
use cudarc::driver::sys::CUresult;
use eglu_ir::{Bindings, Tensor};
use std::time::Instant;

/// A plan with its inputs on the device.
pub(super) struct CudaTimed<'a> {
    executable: &'a CudaExecutable,
    /// Always there until dropped.
    session: Option<Session>,
    /// Written before each run, so that the second-level cache holds nothing of the plan.
    flush: DeviceMemory,
    start: Event,
    end: Event,
    /// What the last run's launches took the host, seconds.
    host_seconds: f64,
}

impl<'a> CudaTimed<'a> {
    pub(super) fn new(
        executable: &'a CudaExecutable,
        inputs: &[Tensor],
        bindings: &Bindings,
    ) -> Result<CudaTimed<'a>, RuntimeError> {
        let mut session = executable.session(inputs, bindings)?;
        session.upload(&executable.loaded, inputs)?;
        session.wait(&executable.loaded)?;
        let context = &executable.context;
        // Twice the cache: half of it may be set aside for another partition's data.
        let flush = context.allocate(&Source::Driver, 2 * context.facts.l2_bytes, "flushing the cache")?;
        let (start, end) = (Event::new(context)?, Event::new(context)?);
        Ok(CudaTimed { executable, session: Some(session), flush, start, end, host_seconds: 0.0 })
    }

    fn session(&self) -> Result<&Session, CudaError> {
        self.session.as_ref().ok_or_else(|| gone(self.executable))
    }

    fn flush_cache(&self, session: &Session) -> Result<(), CudaError> {
        let filled = session.stream.fill(self.flush.address(), 0, self.flush.bytes());
        filled.map_err(|code| session.failure(&self.executable.loaded, "flushing the cache", None, code))
    }

    fn timing(&self, session: &Session) -> impl Fn(CUresult) -> CudaError {
        |code| session.failure(&self.executable.loaded, "timing a run", None, code)
    }
}

fn gone(executable: &CudaExecutable) -> CudaError {
    CudaError::Inconsistent { plan: executable.loaded.plan.plan.name.clone(), why: "the session is gone".into() }
}

/// Launches between two marks: the first of them, and their time after the first mark of the run, seconds.
struct Stretch {
    launch: usize,
    start: f64,
    seconds: f64,
}

impl CudaTimed<'_> {
    /// Runs once, with a mark on the stream wherever `parts` says of two launches of the plan that they are to be told apart.
    fn stretches(&self, parts: impl Fn(usize, usize) -> bool) -> Result<Vec<Stretch>, RuntimeError> {
        let (session, loaded) = (self.session()?, &self.executable.loaded);
        let context = &self.executable.context;
        context.enter()?;
        let bound = session.bound()?;
        // The host must stay ahead of the device, or the time between two events is the host's: keep the device busy while the queue fills.
        let pass_seconds = self.flush.bytes() as f64 / context.facts.profile().bandwidth;
        let passes = (3.0 * self.host_seconds / pass_seconds.max(1e-6)).ceil().clamp(1.0, 200.0);
        for _ in 0..passes as usize {
            self.flush_cache(session)?;
        }
        let mark = || {
            let event = Event::new(context)?;
            event.record(&session.stream).map_err(self.timing(session))?;
            Ok::<Event, CudaError>(event)
        };
        let mut marks = vec![mark()?];
        let mut firsts: Vec<usize> = vec![];
        for (i, call) in bound.calls.iter().enumerate() {
            let launch = bound.launch_of[i];
            match firsts.last() {
                None => firsts.push(launch),
                Some(&first) if parts(first, launch) => {
                    marks.push(mark()?);
                    firsts.push(launch);
                }
                Some(_) => {}
            }
            session.launch_one(loaded, bound, i, call)?;
        }
        marks.push(mark()?);
        session.wait(loaded)?;
        let (mut stretches, mut start) = (vec![], 0.0);
        for (&launch, pair) in firsts.iter().zip(marks.windows(2)) {
            let seconds = pair[1].seconds_since(&pair[0]).map_err(self.timing(session))?;
            stretches.push(Stretch { launch, start, seconds });
            start += seconds;
        }
        Ok(stretches)
    }
}

impl Timed for CudaTimed<'_> {
    fn time_run(&mut self) -> Result<RunTime, RuntimeError> {
        let executable = self.executable;
        let loaded = &executable.loaded;
        executable.context.enter()?;
        let session = self.session()?;
        self.flush_cache(session)?;
        self.start.record(&session.stream).map_err(self.timing(session))?;
        let session = self.session.as_mut().ok_or_else(|| gone(executable))?;
        let clock = Instant::now();
        session.issue(loaded)?;
        let host_seconds = clock.elapsed().as_secs_f64();
        let session = self.session()?;
        self.end.record(&session.stream).map_err(self.timing(session))?;
        session.wait(loaded)?;
        let seconds = self.end.seconds_since(&self.start).map_err(self.timing(session))?;
        self.host_seconds = host_seconds;
        Ok(RunTime { seconds, host_seconds })
    }

    fn time_steps(&mut self) -> Result<Vec<StepTime>, RuntimeError> {
        let plan = &self.executable.loaded.plan;
        let step = |launch: usize| plan.launches[launch].step;
        let name = |step: usize| plan.plan.steps.get(step).map_or_else(|| "?".into(), |step| step.name.clone());
        let stretches = self.stretches(|one, other| step(one) != step(other))?;
        let time = |s: Stretch| StepTime { step: step(s.launch), name: name(step(s.launch)), seconds: s.seconds };
        Ok(stretches.into_iter().map(time).collect())
    }

    fn time_kernels(&mut self) -> Result<Vec<KernelTime>, RuntimeError> {
        let launches = &self.executable.loaded.plan.launches;
        let time = |s: Stretch| {
            let launch = &launches[s.launch];
            KernelTime { step: launch.step, name: launch.entry.as_str().into(), start: s.start, seconds: s.seconds }
        };
        Ok(self.stretches(|_, _| true)?.into_iter().map(time).collect())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, RuntimeError> {
        self.executable.context.enter()?;
        let executable = self.executable;
        self.session.as_mut().ok_or_else(|| gone(executable))?.download(&executable.loaded)
    }

    fn memory(&self) -> (u64, u64) {
        self.session().and_then(Session::bound).map_or((0, 0), |bound| (bound.memory.peak, bound.memory.sum))
    }
}

impl Drop for CudaTimed<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take()
            && self.executable.context.enter().is_ok()
            && session.stream.wait().is_ok()
        {
            self.executable.give_back(session);
        }
    }
}

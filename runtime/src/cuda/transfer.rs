//! Inputs from the host and outputs to it, by way of pinned memory where they are small enough to be copied twice.

use super::{
    CudaError,
    executable::Loaded,
    gather::{Reading, gather},
    session::Session,
    staging::Pinned,
};
use crate::{RuntimeError, memory::ALIGN};
use eglu_codegen::{PlanOutput, Source};
use eglu_ir::Tensor;
use std::ops::Range;

/// Inputs and outputs of more bytes than this go straight: pinned memory is a scarce thing, and a second copy costs more than it saves.
const STAGED: usize = 16 << 20;

/// What poisoned memory holds: NaN in every float format but `f8e8m0`, and −1 or the largest integer.
const POISON: u8 = 0xff;

/// An output on its way to the host.
struct Arrival {
    reading: Reading,
    tensor: Tensor,
    /// The first element that is read, and where the elements from there on arrive in pinned memory; `None` for an empty view.
    staged: Option<(usize, Range<usize>)>,
}

impl Session {
    /// Puts the inputs in place, over poison if that is asked for. They may change when this returns.
    pub(super) fn upload(&mut self, loaded: &Loaded, inputs: &[Tensor]) -> Result<(), CudaError> {
        if loaded.debug.poison {
            self.fill_arena(loaded, POISON)?;
        }
        let total = inputs.iter().map(|input| room(input.bytes().len())).sum();
        let mut pinned = self.take_staging(total);
        let sent = self.send(loaded, inputs, pinned.as_mut().map(Pinned::bytes));
        self.staging = pinned.or(self.staging.take());
        sent
    }

    /// Issues the copies of all inputs, by way of `staged` where that is given.
    fn send(&self, loaded: &Loaded, inputs: &[Tensor], mut staged: Option<&mut [u8]>) -> Result<(), CudaError> {
        let mut at = 0;
        for (id, buffer) in loaded.plan.plan.buffers.iter().enumerate() {
            let (Source::Input(position), Some(to)) = (&buffer.source, self.address(loaded, id)) else { continue };
            let inconsistent = |why| CudaError::Inconsistent { plan: loaded.plan.plan.name.clone(), why };
            let Some(input) = inputs.get(*position) else {
                return Err(inconsistent(format!("input {position} (`{}`) was not given", buffer.name)));
            };
            let (want, bytes) = (self.bound()?.buffer_bytes[id], input.bytes());
            if want != bytes.len() as u64 {
                let (name, got) = (&buffer.name, bytes.len());
                return Err(inconsistent(format!("input {position} (`{name}`) has {got} bytes, and its shape wants {want}")));
            }
            let sent = match &mut staged {
                Some(staged) => {
                    let part = &mut staged[at..at + bytes.len()];
                    part.copy_from_slice(bytes);
                    at += room(bytes.len());
                    self.stream.upload(to, part)
                }
                None => self.stream.upload(to, bytes),
            };
            sent.map_err(|code| self.failure(loaded, &format!("copying input `{}` to the device", buffer.name), None, code))?;
        }
        Ok(())
    }

    /// Brings every output to the host, dense. Waits for the run.
    pub(super) fn download(&mut self, loaded: &Loaded) -> Result<Vec<Tensor>, RuntimeError> {
        let mut arrivals = vec![];
        let mut total = 0;
        for output in &loaded.plan.plan.outputs {
            let arrival = self.arrival(loaded, output, total)?;
            total += arrival.staged.as_ref().map_or(0, |(_, range)| room(range.len()));
            arrivals.push(arrival);
        }
        // Inputs that were staged may still be on their way: they share the memory.
        if self.staging.as_ref().is_some_and(|staging| staging.len() < total) {
            self.wait(loaded)?;
        }
        match self.take_staging(total) {
            Some(mut pinned) => {
                let received = self.receive(loaded, &mut arrivals, &mut pinned);
                // Before the memory is touched again or freed, every copy into it must be over.
                let waited = self.wait(loaded);
                received.and(waited)?;
                for arrival in &mut arrivals {
                    if let Some((first, range)) = arrival.staged.clone() {
                        arrival.fill(first, &pinned.bytes()[range]);
                    }
                }
                self.staging = Some(pinned);
            }
            None => {
                for (arrival, output) in arrivals.iter_mut().zip(&loaded.plan.plan.outputs) {
                    self.receive_straight(loaded, arrival, output)?;
                }
                self.wait(loaded)?;
            }
        }
        Ok(arrivals.into_iter().map(|arrival| arrival.tensor).collect())
    }

    /// The pinned memory, for `total` bytes; `None` where so much is not staged. No copy may be using what there is.
    fn take_staging(&mut self, total: usize) -> Option<Pinned> {
        if total > STAGED {
            return None;
        }
        let enough = self.staging.take_if(|staging| staging.len() >= total);
        enough.or_else(|| Pinned::new(&self.context, total.next_power_of_two()).ok())
    }

    fn arrival(&self, loaded: &Loaded, output: &PlanOutput, at: usize) -> Result<Arrival, RuntimeError> {
        let view = &output.tensor;
        let name = || loaded.plan.plan.buffers[view.buffer].name.to_string();
        let bindings = &self.bound()?.bindings;
        let reading = Reading::of(&view.layout, bindings).map_err(|error| CudaError::Dim { what: name(), error })?;
        let failed = |source| RuntimeError::Tensor { what: format!("output `{}`", name()), source };
        let tensor = Tensor::zeros(view.dtype, &reading.shape).map_err(failed)?;
        let staged = reading.span().map(|(first, count)| (first, at..at + count * view.dtype.size()));
        Ok(Arrival { reading, tensor, staged })
    }

    /// Where the first element that an output reads lies.
    fn start(&self, loaded: &Loaded, output: &PlanOutput, first: usize) -> Result<u64, CudaError> {
        let id = output.tensor.buffer;
        let start = loaded.resident[id].or_else(|| self.address(loaded, id)).ok_or_else(|| {
            let why = format!("output `{}` is never written", loaded.plan.plan.buffers[id].name);
            CudaError::Inconsistent { plan: loaded.plan.plan.name.clone(), why }
        })?;
        Ok(start + (first * output.tensor.dtype.size()) as u64)
    }

    /// Issues the copies of all outputs into pinned memory.
    fn receive(&self, loaded: &Loaded, arrivals: &mut [Arrival], pinned: &mut Pinned) -> Result<(), CudaError> {
        for (arrival, output) in arrivals.iter().zip(&loaded.plan.plan.outputs) {
            let Some((first, range)) = arrival.staged.clone() else { continue };
            let from = self.start(loaded, output, first)?;
            // SAFETY: the caller waits before it touches the pinned memory.
            unsafe { self.stream.download(&mut pinned.bytes()[range], from) }
                .map_err(|code| self.failure(loaded, &copying(loaded, output), None, code))?;
        }
        Ok(())
    }

    /// Copies one output without staging it, and waits.
    fn receive_straight(&self, loaded: &Loaded, arrival: &mut Arrival, output: &PlanOutput) -> Result<(), CudaError> {
        let Some((first, range)) = arrival.staged.clone() else { return Ok(()) };
        let from = self.start(loaded, output, first)?;
        let copy = |bytes: &mut [u8]| {
            // SAFETY: the bytes stay in place until the wait below, which comes before every return.
            let issued = unsafe { self.stream.download(bytes, from) };
            let waited = self.wait(loaded);
            issued.map_err(|code| self.failure(loaded, &copying(loaded, output), None, code))?;
            waited
        };
        if arrival.reading.is_dense() {
            return copy(arrival.tensor.bytes_mut());
        }
        let mut span = vec![0u8; range.len()];
        copy(&mut span)?;
        arrival.fill(first, &span);
        Ok(())
    }
}

impl Arrival {
    /// Makes the elements from the `first` on the tensor's.
    fn fill(&mut self, first: usize, span: &[u8]) {
        let size = self.tensor.dtype().size();
        match self.reading.is_dense() {
            true => self.tensor.bytes_mut().copy_from_slice(span),
            false => gather(&self.reading, first, size, span, self.tensor.bytes_mut()),
        }
    }
}

/// Bytes of pinned memory that so many take.
fn room(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN as usize)
}

fn copying(loaded: &Loaded, output: &PlanOutput) -> String {
    format!("copying output `{}` from the device", loaded.plan.plan.buffers[output.tensor.buffer].name)
}

//! Weights and constants on the device: one allocation, filled from the mapped file by way of pinned memory.

use super::{
    CudaError,
    allocator::Source as From,
    context::{Context, DeviceMemory},
    staging::Pinned,
    stream::{Event, Stream},
};
use crate::{RuntimeError, WeightSource, memory::ALIGN};
use cudarc::driver::sys::CUresult;
use eglu_codegen::{Plan, Source};
use eglu_ir::Bindings;
use rayon::prelude::*;
use std::sync::Arc;

/// Bytes of each of two pieces: while one travels, the other is filled.
const PIECE: usize = 16 << 20;

/// Less than this goes without pinned memory, whose allocation costs more than it saves.
const WORTH_PINNING: u64 = 4 << 20;

/// One thread reads the mapped file this far at a time; several together reach what a disk or the page cache gives.
const SHARE: usize = 1 << 20;

/// Puts weights and constants into one allocation, and says where each buffer lies. Weights are asked for one after the other.
pub(super) fn upload(
    context: &Arc<Context>,
    from: &From,
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
    let memory = context.allocate(from, total, &format!("the weights of `{}`", plan.name))?;
    let mut road = Road::new(context, total)?;
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
        road.send(*offset, tensor.bytes()).map_err(failed)?;
    }
    road.arrive().map_err(|code| context.driver.error("copying weights to the device", code))?;
    Ok((memory, offsets))
}

/// The way from the host to the device.
struct Road {
    stream: Stream,
    /// Filled in turns, each with the point at which its last copy is done; none where little travels or the system refuses to pin.
    pieces: Vec<(Pinned, Event)>,
    next: usize,
}

impl Road {
    fn new(context: &Arc<Context>, total: u64) -> Result<Road, CudaError> {
        let stream = Stream::new(context)?;
        let mut pieces = vec![];
        while total >= WORTH_PINNING && pieces.len() < 2 {
            match Pinned::new(context, PIECE) {
                Ok(pinned) => pieces.push((pinned, Event::new(context)?)),
                Err(code) => {
                    log::debug!("no pinned memory for weights: the driver says {}", context.driver.describe(code).0);
                    pieces.clear();
                    break;
                }
            }
        }
        Ok(Road { stream, pieces, next: 0 })
    }

    /// Copies bytes to the device; they may be dropped when this returns.
    fn send(&mut self, to: u64, bytes: &[u8]) -> Result<(), CUresult> {
        if self.pieces.is_empty() {
            // Some systems read pageable memory without staging it.
            return self.stream.upload(to, bytes).and_then(|()| self.stream.wait());
        }
        for (i, part) in bytes.chunks(PIECE).enumerate() {
            let (pinned, sent) = &mut self.pieces[self.next];
            // An event that was never recorded counts as reached.
            sent.wait()?;
            let staged = &mut pinned.bytes()[..part.len()];
            staged.par_chunks_mut(SHARE).zip(part.par_chunks(SHARE)).for_each(|(to, from)| to.copy_from_slice(from));
            self.stream.upload(to + (i * PIECE) as u64, staged)?;
            sent.record(&self.stream)?;
            self.next = 1 - self.next;
        }
        Ok(())
    }

    fn arrive(&self) -> Result<(), CUresult> {
        self.stream.wait()
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        // After an error copies may still read the pieces, which are freed next.
        let _ = self.stream.wait();
    }
}

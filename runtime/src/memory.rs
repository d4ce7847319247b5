//! One arena for all intermediate values: where each buffer lies, from when it is alive.
//!
//! Buffers are placed largest first, each in the smallest gap between the buffers that are alive with it
//! ("greedy by size": Pisarchyk & Lee 2020, *Efficient memory management for deep neural net inference*).

use eglu_codegen::{Plan, Source};
use eglu_ir::{Bindings, Dim, dim::DimError};

/// Every buffer starts at a multiple of this, in bytes: what `cuMemAlloc` guarantees and what vector loads and TMA want.
pub const ALIGN: u64 = 256;

/// Offsets of buffers in one arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Byte offset of each buffer; `None` for one that is never alive.
    pub offsets: Vec<Option<u64>>,
    /// Bytes of the arena.
    pub peak: u64,
    /// Bytes that the buffers would take without sharing, each rounded up to [`ALIGN`].
    pub sum: u64,
}

/// Places buffers of `bytes[i]` bytes, each alive from its first to its last step (both included), so that no two that are
/// alive at one step overlap. `None` marks buffers that need no place.
pub fn plan(lives: &[Option<(usize, usize)>], bytes: &[u64]) -> MemoryPlan {
    let size = |i: usize| bytes[i].next_multiple_of(ALIGN);
    let mut order: Vec<(usize, (usize, usize))> = (0..lives.len()).filter_map(|i| Some((i, lives[i]?))).collect();
    order.sort_by_key(|&(i, (first, _))| (std::cmp::Reverse(bytes[i]), first, i));
    let mut result = MemoryPlan { offsets: vec![None; lives.len()], peak: 0, sum: 0 };
    // Placed buffers as (offset, end, life), by ascending offset.
    let mut placed: Vec<(u64, u64, (usize, usize))> = Vec::with_capacity(order.len());
    for (i, life) in order {
        let offset = best_gap(&placed, life, size(i));
        result.offsets[i] = Some(offset);
        result.sum += size(i);
        result.peak = result.peak.max(offset + size(i));
        let at = placed.partition_point(|&(other, ..)| other <= offset);
        placed.insert(at, (offset, offset + size(i), life));
    }
    result
}

/// The start of the smallest gap of at least `size` bytes among the buffers alive with `life`, or the end of the last of them.
fn best_gap(placed: &[(u64, u64, (usize, usize))], life: (usize, usize), size: u64) -> u64 {
    let mut end = 0;
    let mut best: Option<(u64, u64)> = None;
    for &(start, stop, (first, last)) in placed {
        if last < life.0 || life.1 < first {
            continue;
        }
        let gap = start.saturating_sub(end);
        if gap >= size && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, end));
        }
        end = end.max(stop);
    }
    best.map_or(end, |(_, at)| at)
}

/// The arena of what a plan's steps write, under `bindings`; inputs, weights and constants get no place.
pub fn plan_steps(plan: &Plan, bindings: &Bindings) -> Result<MemoryPlan, DimError> {
    let mut lives = plan.lifetimes();
    let mut bytes = Vec::with_capacity(plan.buffers.len());
    for (buffer, life) in plan.buffers.iter().zip(&mut lives) {
        bytes.push(byte_len(&buffer.numel, buffer.dtype.size(), bindings)?);
        if buffer.source != Source::Step {
            *life = None;
        }
    }
    Ok(self::plan(&lives, &bytes))
}

fn byte_len(numel: &Dim, size: usize, bindings: &Bindings) -> Result<u64, DimError> {
    (numel.extent(bindings)? as u64)
        .checked_mul(size as u64)
        .filter(|&bytes| bytes <= isize::MAX as u64 / 2)
        .ok_or_else(|| DimError::Overflow(numel.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_needs_two_buffers() {
        let lives: Vec<_> = (0..6).map(|i| Some((i, i + 1))).collect();
        let plan = plan(&lives, &[1000; 6]);
        assert_eq!((plan.peak, plan.sum), (2048, 6144));
    }

    #[test]
    fn the_smallest_gap_is_taken() {
        // Two long buffers leave gaps of 1024 and 512 bytes once the short ones between them die; 300 bytes go to the smaller.
        let placed = [(0, 256, (0, 9)), (1280, 2048, (0, 9)), (2560, 3072, (0, 9))];
        assert_eq!(best_gap(&placed, (5, 6), 512), 2048);
        assert_eq!(best_gap(&placed, (5, 6), 768), 256);
        assert_eq!(best_gap(&placed, (5, 6), 2048), 3072);
    }

    proptest! {
        #[test]
        fn no_two_live_buffers_overlap(
            buffers in prop::collection::vec((0usize..40, 0usize..12, 0u64..5000, any::<bool>()), 0..60)
        ) {
            let lives: Vec<_> = buffers.iter().map(|&(first, len, _, used)| used.then_some((first, first + len))).collect();
            let bytes: Vec<u64> = buffers.iter().map(|b| b.2).collect();
            let plan = plan(&lives, &bytes);
            for i in 0..lives.len() {
                prop_assert_eq!(plan.offsets[i].is_some(), lives[i].is_some());
                let (Some(a), Some(life)) = (plan.offsets[i], lives[i]) else { continue };
                prop_assert!(a % ALIGN == 0 && a + bytes[i] <= plan.peak);
                for j in 0..i {
                    let (Some(b), Some(other)) = (plan.offsets[j], lives[j]) else { continue };
                    let together = life.0 <= other.1 && other.0 <= life.1;
                    let overlap = a < b + bytes[j] && b < a + bytes[i];
                    prop_assert!(!(together && overlap && bytes[i] > 0 && bytes[j] > 0), "{} and {}", i, j);
                }
            }
            prop_assert!(plan.peak <= plan.sum);
        }
    }
}

//! One arena for all intermediate values: where each buffer lies, from when it is alive.
//!
//! Buffers are placed largest first, each in the smallest gap between the buffers that are alive with it
//! ("greedy by size": Pisarchyk & Lee 2020, *Efficient memory management for deep neural net inference*).

mod report;

pub use report::{MemoryReport, Tenant};

use eglu_codegen::{Arg, BufferId, Plan, Source, Step};
use eglu_ir::{Bindings, Dim, Op, dim::DimError};

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

/// [`plan`], where each buffer `i` takes over the place of buffer `shares[i]`, or keeps its own where that is `i` itself. Who shares a
/// place has the same size.
pub fn plan_sharing(lives: &[Option<(usize, usize)>], bytes: &[u64], shares: &[BufferId]) -> MemoryPlan {
    let owner = |i: usize| match shares.get(i) {
        Some(&other) if other != i && lives[i].is_some() && lives[other].is_some() && bytes[other] == bytes[i] => other,
        _ => i,
    };
    // A buffer is only taken over by a later one, so that following the list ends.
    let root = |i: usize| std::iter::successors(Some(i), |&at| Some(owner(at)).filter(|&next| next != at)).last().unwrap_or(i);
    let roots: Vec<usize> = (0..lives.len()).map(root).collect();
    let mut joined: Vec<Option<(usize, usize)>> = vec![None; lives.len()];
    for (life, &root) in lives.iter().zip(&roots) {
        if let Some((first, last)) = *life {
            let (from, to) = joined[root].get_or_insert((first, last));
            (*from, *to) = ((*from).min(first), (*to).max(last));
        }
    }
    let mut result = plan(&joined, bytes);
    let own = result.offsets.clone();
    for (i, &root) in roots.iter().enumerate() {
        result.offsets[i] = lives[i].and(own[root]);
        if root != i && lives[i].is_some() {
            result.sum += bytes[i].next_multiple_of(ALIGN);
        }
    }
    result
}

/// For each buffer the one whose place it may take over: that of an operand which nobody needs any more, in an elementwise step that reads
/// each element of it where it writes. A buffer that takes over none stands for itself.
///
/// A step of several results takes over none: a kernel may write the first before it reads for the second.
pub fn in_place(plan: &Plan) -> Vec<BufferId> {
    let lives = plan.lifetimes();
    let mut shares: Vec<BufferId> = (0..plan.buffers.len()).collect();
    for (i, step) in plan.steps.iter().enumerate() {
        let [output] = step.outputs.as_slice() else { continue };
        let (to, elementwise) = (&plan.buffers[output.buffer], is_elementwise(&step.op));
        if !elementwise || to.source != Source::Step {
            continue;
        }
        let fits = |id: BufferId| {
            let from = &plan.buffers[id];
            let same_size = from.numel == to.numel && from.dtype.size() == to.dtype.size();
            let ends_here = from.source == Source::Step && lives[id].is_some_and(|(_, last)| last == i);
            same_size && ends_here && views_of(step, id).all(|view| view.layout == output.layout)
        };
        let taken = step.inputs.iter().filter_map(|arg| match arg {
            Arg::Tensor(tensor) => Some(tensor.buffer),
            _ => None,
        });
        shares[output.buffer] = { taken }.find(|&id| fits(id)).unwrap_or(output.buffer);
    }
    shares
}

/// True if a step reads what has the layout of its result element by element where it writes, such as what gradients are added to.
fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Pointwise(_) | Op::Cast(_) | Op::Map(_) | Op::Glu(_) | Op::ExpertOuter(_))
}

/// How a step reads a buffer.
fn views_of(step: &Step, id: BufferId) -> impl Iterator<Item = &eglu_codegen::TensorRef> {
    step.inputs.iter().filter_map(move |arg| match arg {
        Arg::Tensor(tensor) if tensor.buffer == id => Some(tensor),
        _ => None,
    })
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

/// Bytes of each buffer under `bindings`.
pub fn sizes(plan: &Plan, bindings: &Bindings) -> Result<Vec<u64>, DimError> {
    plan.buffers.iter().map(|buffer| byte_len(&buffer.numel, buffer.dtype.size(), bindings)).collect()
}

/// The arena of what a plan's steps write, under `bindings`; inputs, weights and constants get no place.
pub fn plan_steps(plan: &Plan, bindings: &Bindings) -> Result<MemoryPlan, DimError> {
    let (mut lives, bytes) = (plan.lifetimes(), sizes(plan, bindings)?);
    for (buffer, life) in plan.buffers.iter().zip(&mut lives) {
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

    #[test]
    fn a_result_takes_the_place_of_what_ends_with_it() {
        // 0 -> 1 -> 2 in place, beside 3 which lives throughout.
        let lives = [Some((0, 1)), Some((1, 2)), Some((2, 3)), Some((0, 3))];
        let shared = plan_sharing(&lives, &[1000, 1000, 1000, 500], &[0, 0, 1, 3]);
        assert_eq!((shared.peak, shared.sum), (1024 + 512, 3 * 1024 + 512));
        assert_eq!((shared.offsets[1], shared.offsets[2]), (shared.offsets[0], shared.offsets[0]));
        // One that has no place of its own can give none.
        let lent = plan_sharing(&[None, Some((1, 2))], &[1000, 1000], &[0, 0]);
        assert_eq!((lent.offsets[0], lent.offsets[1], lent.peak), (None, Some(0), 1024));
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

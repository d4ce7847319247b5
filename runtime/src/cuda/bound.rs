//! A plan under one choice of its dims: where everything lies, and each launch ready to go.

use super::{
    CudaError,
    context::Context,
    driver::Driver,
    executable::Loaded,
    maps::Map,
    place::Base,
    replay::{Recording, Replay},
    stream::Call,
};
use crate::memory::MemoryPlan;
use eglu_codegen::cuda::{CudaPlan, KernelArg, Memory};
use eglu_ir::{Bindings, Dim};
use std::{cell::Cell, ffi::c_void, sync::Arc};

/// Most blocks of a grid along x, y and z (CUDA C++ programming guide, technical specifications).
const MOST_BLOCKS: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];

/// Launches with all arguments in place. What changes between runs are the addresses of the arena and of what the caller lends.
pub(super) struct Bound {
    /// The values of the plan's symbols.
    pub(super) bindings: Bindings,
    /// The extents of all inputs, one after the other: what tells one choice of dims from another.
    pub(super) extents: Vec<usize>,
    /// Where buffers, then scratch, lie in the arena; sizes beside.
    pub(super) memory: MemoryPlan,
    /// Bytes of each buffer of the plan, then of each scratch.
    pub(super) buffer_bytes: Vec<u64>,
    /// Launches with at least one block, in order.
    pub(super) calls: Vec<Call>,
    /// The position of each call among the plan's launches.
    pub(super) launch_of: Vec<usize>,
    /// Every argument of every call; parameters point in here.
    values: Vec<Cell<u64>>,
    /// Tensor maps among the arguments; parameters point in here, too.
    maps: Vec<Map>,
    /// The addresses of `values` and `maps`; calls point in here.
    params: Vec<*mut c_void>,
    /// What holds an address relative to each base.
    patches: Vec<Vec<Patch>>,
    /// The addresses that `values` and `maps` are made for.
    bases: Vec<u64>,
    /// The launches as one graph, once there is one.
    replay: Replay,
}

/// An argument that follows a base.
struct Patch {
    call: usize,
    place: Place,
}

/// Where an argument is kept.
enum Place {
    Value(usize),
    Map(usize),
}

// SAFETY: the pointers lead into `values` and `params` of the same object, as into `maps`, whose heap blocks stay where they are when it moves.
unsafe impl Send for Bound {}

impl Bound {
    /// `counters` is the address of the session's counters; inputs and results are `lent` by the caller, or lie in the arena.
    pub(super) fn new(
        driver: &Driver,
        loaded: &Loaded,
        counters: u64,
        (bindings, extents): (Bindings, Vec<usize>),
        lent: bool,
    ) -> Result<Bound, CudaError> {
        let plan = &loaded.plan;
        let (memory, buffer_bytes) = loaded.layout.place(plan, &bindings, lent)?;
        let count = loaded.layout.bases(plan);
        let mut bound = Bound {
            bindings,
            extents,
            memory,
            buffer_bytes,
            calls: vec![],
            launch_of: vec![],
            values: vec![],
            maps: vec![],
            params: vec![],
            patches: (0..count).map(|_| vec![]).collect(),
            bases: vec![0; count],
            replay: Replay::default(),
        };
        let (mut starts, mut of_map) = (vec![], vec![]);
        for (i, launch) in plan.launches.iter().enumerate() {
            let Some(grid) = grid(plan, i, &bound.bindings)? else { continue };
            starts.push(of_map.len());
            for arg in &launch.args {
                of_map.push(matches!(arg, KernelArg::TensorMap(_)));
                bound.add(driver, loaded, (i, arg), counters, lent)?;
            }
            let (function, none) = (loaded.functions.of_launch[i], std::ptr::null_mut());
            let (block, shared_bytes, overlaps) = (launch.block, launch.shared_bytes, launch.overlaps);
            bound.calls.push(Call { function, grid, block, shared_bytes, overlaps, params: none });
            bound.launch_of.push(i);
        }
        let (mut values, mut maps) = (bound.values.iter(), bound.maps.iter());
        let param = |is_map| match is_map {
            true => maps.next().map(Map::as_ptr),
            false => values.next().map(|value| value.as_ptr().cast()),
        };
        bound.params = of_map.into_iter().filter_map(param).collect();
        for (call, start) in bound.calls.iter_mut().zip(starts) {
            // The end of `params` for a call without arguments at the end of the list: never read.
            call.params = bound.params.as_mut_ptr().wrapping_add(start);
        }
        Ok(bound)
    }

    /// Adds an argument of launch `i`.
    fn add(
        &mut self,
        driver: &Driver,
        loaded: &Loaded,
        (i, arg): (usize, &KernelArg),
        counters: u64,
        lent: bool,
    ) -> Result<(), CudaError> {
        let (plan, call) = (&loaded.plan, self.calls.len());
        let entry = &plan.launches[i].entry;
        let of = || format!("an argument of kernel `{entry}`");
        let find = |bound: &Bound, memory| {
            bound.address(loaded, counters, memory, lent).ok_or_else(|| CudaError::Inconsistent {
                plan: plan.plan.name.clone(),
                why: format!("kernel `{entry}` of step `{}` reads memory that is never alive", step_name(plan, i)),
            })
        };
        let (base, place) = match arg {
            KernelArg::TensorMap(map) => {
                let (address, base) = find(self, map.memory)?;
                let map = Map::new(map, address, |dim| eval(dim, &self.bindings, of))?;
                // What follows a base is encoded when its address is known.
                if base == Base::Fixed {
                    map.encode(driver, 0)?;
                }
                self.maps.push(map);
                (base, Place::Map(self.maps.len() - 1))
            }
            KernelArg::Int(dim) => {
                self.values.push(Cell::new(eval(dim, &self.bindings, of)? as u64));
                return Ok(());
            }
            KernelArg::Pointer { memory, offset } => {
                let offset = eval(offset, &self.bindings, of)? as u64;
                let (address, base) = find(self, *memory)?;
                self.values.push(Cell::new(address.wrapping_add(offset)));
                (base, Place::Value(self.values.len() - 1))
            }
        };
        if let Base::At(base) = base {
            self.patches[base].push(Patch { call, place });
        }
        Ok(())
    }

    /// Turns arguments to these addresses, one for each base. After an error the launches are of no more use.
    pub(super) fn rebase(&mut self, driver: &Driver, bases: &[u64]) -> Result<(), CudaError> {
        for (i, (&to, from)) in bases.iter().zip(&mut self.bases).enumerate() {
            if to == *from {
                continue;
            }
            for patch in &self.patches[i] {
                match patch.place {
                    Place::Value(at) => {
                        let value = &self.values[at];
                        value.set(value.get().wrapping_sub(*from).wrapping_add(to));
                    }
                    Place::Map(at) => self.maps[at].encode(driver, to)?,
                }
                self.replay.outdate(patch.call);
            }
            *from = to;
        }
        Ok(())
    }

    /// The graph to replay for this run, up to date; `None` where launching is as good or the only way.
    pub(super) fn replay(&mut self, context: &Arc<Context>) -> Option<&Recording> {
        self.replay.next(context, &self.calls)
    }

    /// The address of memory, and what it is relative to.
    fn address(&self, loaded: &Loaded, counters: u64, memory: Memory, lent: bool) -> Option<(u64, Base)> {
        let slot = match memory {
            Memory::Counters => return Some((counters, Base::Fixed)),
            Memory::Scratch(i) => loaded.plan.plan.buffers.len() + i,
            Memory::Buffer(id) => match (loaded.resident.get(id), loaded.layout.base(&loaded.plan, id, lent)) {
                (Some(Some(address)), _) => return Some((*address, Base::Fixed)),
                (_, Base::At(0)) => id,
                (_, base) => return Some((0, base)),
            },
        };
        Some((self.memory.offsets.get(slot).copied().flatten()?, Base::At(0)))
    }
}

/// The grid of a launch; `None` if it has no blocks.
fn grid(plan: &CudaPlan, i: usize, bindings: &Bindings) -> Result<Option<[u32; 3]>, CudaError> {
    let launch = &plan.launches[i];
    let mut grid = [0i64; 3];
    for (blocks, dim) in grid.iter_mut().zip(&launch.grid) {
        *blocks = eval(dim, bindings, || format!("the grid of kernel `{}`", launch.entry))?;
    }
    let refused = |why: &str| CudaError::Launch { entry: launch.entry.clone(), step: step_name(plan, i), grid, why: why.into() };
    if grid.iter().any(|&blocks| blocks < 0) {
        return Err(refused("a grid cannot be negative"));
    }
    if grid.contains(&0) {
        return Ok(None);
    }
    if grid.iter().zip(MOST_BLOCKS).any(|(&blocks, most)| blocks > most) {
        return Err(refused("CUDA takes at most 2147483647 × 65535 × 65535: choose smaller dims"));
    }
    Ok(Some(grid.map(|blocks| blocks as u32)))
}

/// The value of a dim that is (part of) `what`.
pub(super) fn eval(dim: &Dim, bindings: &Bindings, what: impl FnOnce() -> String) -> Result<i64, CudaError> {
    dim.eval(bindings).map_err(|error| CudaError::Dim { what: what(), error })
}

/// The name of the step that a launch is part of.
pub(super) fn step_name(plan: &CudaPlan, launch: usize) -> Arc<str> {
    let step = plan.launches.get(launch).and_then(|launch| plan.plan.steps.get(launch.step));
    step.map_or_else(|| "?".into(), |step| step.name.clone())
}

//! A plan under one choice of its dims: where everything lies, and each launch ready to go.

use super::{CudaError, driver::Driver, functions::Functions, maps::Map, stream::Call};
use crate::memory::{self, MemoryPlan};
use eglu_codegen::{
    Source,
    cuda::{CudaPlan, KernelArg, Memory},
};
use eglu_ir::{Bindings, Dim};
use std::{cell::Cell, ffi::c_void, sync::Arc};

/// Most blocks of a grid along x, y and z (CUDA C++ programming guide, technical specifications).
const MOST_BLOCKS: [i64; 3] = [i32::MAX as i64, 65_535, 65_535];

/// Launches with all arguments in place. What changes between runs is the arena's address alone.
pub(super) struct Bound {
    /// The values of the plan's symbols, in their order.
    pub(super) key: Vec<i64>,
    /// Where buffers, then scratch, lie in the arena; sizes beside.
    pub(super) memory: MemoryPlan,
    /// Bytes of each buffer of the plan.
    pub(super) buffer_bytes: Vec<u64>,
    /// Launches with at least one block, in order.
    pub(super) calls: Vec<Call>,
    /// The position of each call among the plan's launches.
    pub(super) launch_of: Vec<usize>,
    /// Every argument of every call; parameters point in here.
    values: Vec<Cell<u64>>,
    /// What of `values` is an address in the arena.
    in_arena: Vec<usize>,
    /// Tensor maps among the arguments; parameters point in here, too.
    maps: Vec<Map>,
    /// The addresses of `values` and `maps`; calls point in here.
    params: Vec<*mut c_void>,
    /// The arena's address that `values` are made for.
    base: u64,
}

// SAFETY: the pointers lead into `values` and `params` of the same object, as into `maps`, whose heap blocks stay where they are when it moves.
unsafe impl Send for Bound {}

impl Bound {
    /// `resident` has the address of each buffer that is not in the arena, `counters` is that of the session's counters.
    pub(super) fn new(
        driver: &Driver,
        plan: &CudaPlan,
        functions: &Functions,
        resident: &[Option<u64>],
        counters: u64,
        bindings: &Bindings,
    ) -> Result<Bound, CudaError> {
        let key = key(plan, bindings);
        let (memory, buffer_bytes) = place(plan, bindings)?;
        let mut bound = Bound {
            key,
            memory,
            buffer_bytes,
            calls: vec![],
            launch_of: vec![],
            values: vec![],
            in_arena: vec![],
            maps: vec![],
            params: vec![],
            base: 0,
        };
        let (mut starts, mut of_map) = (vec![], vec![]);
        for (i, launch) in plan.launches.iter().enumerate() {
            let grid = grid(plan, i, bindings)?;
            let Some(grid) = grid else { continue };
            starts.push(of_map.len());
            for arg in &launch.args {
                let of = || format!("an argument of kernel `{}`", launch.entry);
                let missing = || CudaError::Inconsistent {
                    plan: plan.plan.name.clone(),
                    why: format!("kernel `{}` of step `{}` reads memory that is never alive", launch.entry, step_name(plan, i)),
                };
                of_map.push(matches!(arg, KernelArg::TensorMap(_)));
                match arg {
                    KernelArg::TensorMap(map) => {
                        let place = bound.address(plan, resident, counters, map.memory).ok_or_else(missing)?;
                        let map = Map::new(map, place, |dim| eval(dim, bindings, of))?;
                        // What lies in the arena is encoded when its address is known.
                        if !place.1 {
                            map.encode(driver, 0)?;
                        }
                        bound.maps.push(map);
                    }
                    KernelArg::Int(dim) => bound.values.push(Cell::new(eval(dim, bindings, of)? as u64)),
                    KernelArg::Pointer { memory, offset } => {
                        let offset = eval(offset, bindings, of)? as u64;
                        let (address, in_arena) = bound.address(plan, resident, counters, *memory).ok_or_else(missing)?;
                        if in_arena {
                            bound.in_arena.push(bound.values.len());
                        }
                        bound.values.push(Cell::new(address.wrapping_add(offset)));
                    }
                }
            }
            let (function, none) = (functions.of_launch[i], std::ptr::null_mut());
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

    /// Turns all arena addresses to an arena that starts at `base`.
    pub(super) fn rebase(&mut self, driver: &Driver, base: u64) -> Result<(), CudaError> {
        if base != self.base {
            for &i in &self.in_arena {
                let value = &self.values[i];
                value.set(value.get().wrapping_sub(self.base).wrapping_add(base));
            }
            self.base = base;
            self.maps.iter().filter(|map| map.in_arena).try_for_each(|map| map.encode(driver, base))?;
        }
        Ok(())
    }

    /// The address of memory; relative to the arena's start where the second part says so.
    fn address(&self, plan: &CudaPlan, resident: &[Option<u64>], counters: u64, memory: Memory) -> Option<(u64, bool)> {
        let slot = match memory {
            Memory::Buffer(id) => match resident.get(id) {
                Some(Some(address)) => return Some((*address, false)),
                _ => id,
            },
            Memory::Scratch(i) => plan.plan.buffers.len() + i,
            Memory::Counters => return Some((counters, false)),
        };
        Some((self.memory.offsets.get(slot).copied().flatten()?, true))
    }
}

/// The values of the plan's symbols, in their order: what tells one choice of dims from another.
pub(super) fn key(plan: &CudaPlan, bindings: &Bindings) -> Vec<i64> {
    plan.plan.symbols.keys().map(|symbol| bindings.get(symbol).copied().unwrap_or(0)).collect()
}

/// Places inputs, intermediate values and scratch in one arena.
fn place(plan: &CudaPlan, bindings: &Bindings) -> Result<(MemoryPlan, Vec<u64>), CudaError> {
    let mut lives = plan.plan.lifetimes();
    let mut bytes = vec![];
    for (buffer, life) in plan.plan.buffers.iter().zip(&mut lives) {
        let numel = eval(&buffer.numel, bindings, || buffer.name.to_string())?;
        bytes.push(size(plan, &buffer.name, numel, buffer.dtype.size() as i64)?);
        match buffer.source {
            Source::Step => {}
            // To the end, so that the same inputs can be run again.
            Source::Input(_) => *life = life.map(|_| (0, plan.plan.steps.len())),
            Source::Weight(_) | Source::Constant(_) => *life = None,
        }
    }
    let buffer_bytes = bytes.clone();
    for scratch in &plan.scratch {
        bytes.push(size(plan, &scratch.name, eval(&scratch.bytes, bindings, || scratch.name.clone())?, 1)?);
        lives.push(Some((scratch.step, scratch.last)));
    }
    Ok((memory::plan(&lives, &bytes), buffer_bytes))
}

fn size(plan: &CudaPlan, name: &str, count: i64, each: i64) -> Result<u64, CudaError> {
    let bytes = count.checked_mul(each).filter(|bytes| (0..1 << 48).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| CudaError::TooLarge { plan: plan.plan.name.clone(), name: name.into() })
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

fn eval(dim: &Dim, bindings: &Bindings, what: impl FnOnce() -> String) -> Result<i64, CudaError> {
    dim.eval(bindings).map_err(|error| CudaError::Dim { what: what(), error })
}

/// The name of the step that a launch is part of.
pub(super) fn step_name(plan: &CudaPlan, launch: usize) -> Arc<str> {
    let step = plan.launches.get(launch).and_then(|launch| plan.plan.steps.get(launch.step));
    step.map_or_else(|| "?".into(), |step| step.name.clone())
}

//! Which way a mixture-of-experts block runs at how many tokens: measured on the device, and remembered in the folder of compiled kernels.
//!
//! A measurement is an entry like a kernel's: named by everything that decides it (device, compiler, shape, schedule), written whole or not at all,
//! and subject to the folder's bound. So processes need not ask each other: whoever measures last is remembered.

use super::{
    DeviceFacts,
    cache::{self, Cache, Key},
    compile,
    context::Context,
    executable::CudaExecutable,
    nvrtc::Nvrtc,
};
use crate::{
    Backend, Phases, RuntimeError, Timed, WeightSource,
    inputs::{self, Routing, Spec},
};
use eglu_codegen::{
    Plan,
    cuda::{BlockShape, BlockWay, Choices, Chosen, Schedule, TOKENS, block_ways, blocks, emit_with},
};
use eglu_ir::{Bindings, Tensor};
use std::collections::BTreeMap;

/// How kernels are chosen where several compute the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// How many launches mixture-of-experts blocks take.
    pub schedule: Schedule,
    /// Measure what was not measured on this device before; what was is remembered in any case.
    pub tune: bool,
}

/// Numbers of tokens at which ways are measured; each stands for those above the one before.
const SIZES: [i64; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// Runs of each way at each size, in turns, and those before that are not counted.
const ROUNDS: usize = 9;
const WARM_UP: usize = 2;
/// Another way than the usual one must be this much faster: less is noise.
const WORTH: f64 = 0.98;

/// The choices for the blocks of a plan on a device: those remembered, and with [`Selection::tune`] those measured now, as the phase `tune`.
pub fn choices(
    plan: &Plan,
    weights: WeightSource<'_>,
    facts: &DeviceFacts,
    (selection, phases): (Selection, &Phases),
) -> Result<Choices, RuntimeError> {
    let mut choices = Choices { schedule: selection.schedule, blocks: BTreeMap::new() };
    let blocks = blocks(plan);
    if blocks.is_empty() {
        return Ok(choices);
    }
    let cache = Cache::from_env(&|name| std::env::var_os(name));
    let compiler = Nvrtc::open().map_or_else(|_| String::new(), |nvrtc| nvrtc.identity().to_owned());
    let mut unknown = vec![];
    for block in blocks {
        let key = key(&block, facts, &compiler, selection.schedule);
        match read(&cache, &key) {
            Some(chosen) => drop(choices.blocks.insert(block.key, chosen)),
            None => unknown.push((key, block)),
        }
    }
    if selection.tune && !unknown.is_empty() {
        let count = unknown.len();
        phases.time_noting("tune", || {
            let measured = unknown.into_iter().try_for_each(|(key, block)| {
                let chosen = measure(&block, weights, facts, (selection.schedule, phases))?;
                write(&cache, &key, &chosen);
                choices.blocks.insert(block.key, chosen);
                Ok::<(), RuntimeError>(())
            });
            (measured, format!("{count} blocks measured"))
        })?;
        cache.tidy();
    }
    Ok(choices)
}

/// Names a measurement.
fn key(block: &BlockShape, facts: &DeviceFacts, compiler: &str, schedule: Schedule) -> Key {
    let tokens = block.tokens.map_or_else(|| TOKENS.to_owned(), |tokens| tokens.to_string());
    let version = concat!("eglu ", env!("CARGO_PKG_VERSION"), ", measured ways of blocks, 1");
    // The same chip with fewer multiprocessors or less bandwidth is another device.
    let device = format!("{} {} {} {}", facts.name, facts.multiprocessors, facts.memory_bus_bits, facts.memory_clock_hz);
    cache::key(&[version, &device, compiler, &schedule.to_string(), &block.key, &tokens])
}

fn read(cache: &Cache, key: &Key) -> Option<Vec<Chosen>> {
    let (text, _) = cache.read(key)?;
    serde_json::from_str(&text).ok()
}

fn write(cache: &Cache, key: &Key, chosen: &[Chosen]) {
    if let Ok(text) = serde_json::to_string(chosen) {
        cache.write(key, &text, &[]);
    }
}

/// Measures every way of a block at every size that the device has room for.
fn measure(
    block: &BlockShape,
    weights: WeightSource<'_>,
    facts: &DeviceFacts,
    (schedule, phases): (Schedule, &Phases),
) -> Result<Vec<Chosen>, RuntimeError> {
    let sizes = block.tokens.map_or_else(|| SIZES.to_vec(), |tokens| vec![tokens]);
    let ways: Vec<Vec<BlockWay>> = sizes.iter().map(|&tokens| block_ways(block, facts.target(), schedule, tokens)).collect();
    let mut names: Vec<&BlockWay> = vec![];
    ways.iter().flatten().for_each(|way| {
        if !names.contains(&way) {
            names.push(way);
        }
    });
    let executables = load(block, weights, facts, (schedule, &names))?;
    let total: usize = ways.iter().map(Vec::len).sum();
    let (mut done, mut fastest) = (0, vec![]);
    for (&tokens, ways) in sizes.iter().zip(&ways) {
        let of_size = ways.iter().filter_map(|way| names.iter().position(|other| *other == way)).map(|at| &executables[at]);
        match times(block, &of_size.collect::<Vec<_>>(), tokens) {
            Ok(times) => fastest.extend(choose(&times).map(|at| (tokens, ways[at].name.clone()))),
            // More tokens take more memory.
            Err(RuntimeError::OutOfMemory { .. }) if !fastest.is_empty() => break,
            Err(error) => return Err(error),
        }
        done += ways.len();
        phases.tell("tune", done, total);
    }
    Ok(merged(&fastest))
}

/// The plan of the block by itself in each of these ways, over one copy of the weights.
fn load(
    block: &BlockShape,
    weights: WeightSource<'_>,
    facts: &DeviceFacts,
    (schedule, ways): (Schedule, &[&BlockWay]),
) -> Result<Vec<CudaExecutable>, RuntimeError> {
    let anything = ways.iter().find(|way| way.most.is_none());
    let mut plans = vec![];
    for way in ways {
        let mut chosen = vec![Chosen { up_to: way.most, way: way.name.clone() }];
        if let (Some(_), Some(rest)) = (way.most, anything) {
            chosen.push(Chosen { up_to: None, way: rest.name.clone() });
        }
        let blocks = [(block.key.clone(), chosen)].into_iter().collect();
        plans.push(emit_with(&block.plan, facts.target(), &Choices { schedule, blocks })?);
    }
    // All at once: they are compiled in parallel.
    let modules: Vec<_> = plans.iter().flat_map(|plan| plan.modules.iter().cloned()).collect();
    let cubins = compile::compile(&modules, &facts.arch()?)?;
    let (context, mut rest) = (Context::open(facts.ordinal)?, cubins.as_slice());
    let mut executables: Vec<CudaExecutable> = vec![];
    for plan in plans {
        let (own, others) = rest.split_at(plan.modules.len());
        rest = others;
        executables.push(match executables.first() {
            Some(first) => first.beside(plan, own)?,
            None => CudaExecutable::with_cubins(context.clone(), plan, own, weights, &Phases::default())?,
        });
    }
    Ok(executables)
}

/// The median time of each, seconds, at so many tokens.
fn times(block: &BlockShape, executables: &[&CudaExecutable], tokens: i64) -> Result<Vec<f64>, RuntimeError> {
    let bindings: Bindings = [(TOKENS.into(), tokens)].into_iter().collect();
    let inputs = random(block, &bindings)?;
    let mut timed: Vec<Box<dyn Timed + '_>> =
        executables.iter().map(|executable| executable.prepare(&inputs, &bindings)).collect::<Result<_, _>>()?;
    let mut times = vec![vec![]; timed.len()];
    for round in 0..WARM_UP + ROUNDS {
        for (timed, times) in timed.iter_mut().zip(&mut times) {
            let seconds = timed.time_run()?.seconds;
            if round >= WARM_UP {
                times.push(seconds);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

/// Rows, distinct experts for each of them drawn evenly, and scores.
fn random(block: &BlockShape, bindings: &Bindings) -> Result<Vec<Tensor>, RuntimeError> {
    let specs = [(0, Spec::Uniform(-1.0, 1.0)), (1, Spec::TopK(block.experts)), (2, Spec::Uniform(0.0, 1.0))];
    inputs::generate(&block.plan, bindings, &specs.into_iter().collect(), Routing::Uniform, 0)
        .map_err(|error| RuntimeError::Usage(format!("inputs to measure `{}` with cannot be drawn: {error}", block.plan.name)))
}

/// The fastest of the times, of which the first is the usual way's.
fn choose(times: &[f64]) -> Option<usize> {
    let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b]))?;
    Some(if times[best] < times[0] * WORTH { best } else { 0 })
}

/// Neighbours that are alike as one; the last has no end.
fn merged(fastest: &[(i64, String)]) -> Vec<Chosen> {
    let mut chosen: Vec<Chosen> = vec![];
    for (tokens, way) in fastest {
        match chosen.last_mut() {
            Some(last) if last.way == *way => last.up_to = Some(*tokens),
            _ => chosen.push(Chosen { up_to: Some(*tokens), way: way.clone() }),
        }
    }
    if let Some(last) = chosen.last_mut() {
        last.up_to = None;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(up_to: Option<i64>, way: &str) -> Chosen {
        Chosen { up_to, way: way.into() }
    }

    #[test]
    fn neighbours_that_are_alike_are_one_and_the_last_has_no_end() {
        let fastest = [(1, "a"), (2, "a"), (4, "b"), (8, "a")].map(|(tokens, way)| (tokens, way.to_string()));
        assert_eq!(merged(&fastest), [chosen(Some(2), "a"), chosen(Some(4), "b"), chosen(None, "a")]);
    }

    #[test]
    fn the_usual_way_stays_unless_another_is_clearly_faster() {
        assert_eq!([&[1.0, 0.99][..], &[1.0, 0.5, 0.4], &[1.0]].map(choose), [Some(0), Some(2), Some(0)]);
    }

    #[test]
    fn what_was_measured_is_remembered_by_device_compiler_and_schedule() {
        let folder = std::env::temp_dir().join(format!("eglu-tuning-{}", std::process::id()));
        let cache = Cache::from_env(&|name| (name == "EGLU_CACHE_DIR").then(|| folder.clone().into_os_string()));
        let ways = vec![chosen(Some(16), "one"), chosen(None, "two")];
        let name = |device: &str, schedule| cache::key(&[device, schedule]);
        write(&cache, &name("H200", "auto"), &ways);
        assert_eq!(read(&cache, &name("H200", "auto")), Some(ways));
        assert_eq!(read(&cache, &name("H200", "split")), None);
        assert_eq!(read(&cache, &name("H100", "auto")), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

//! Ten thousand runs of random dims through one executable of a mixture of experts leave nothing behind, on the host and on a GPU.

use eglu::{
    Device, Executable, Pipeline, Tensor,
    runtime::{
        cuda::{CudaExecutable, probe},
        inputs::{Routing, generate},
    },
};
use eglu_tests::{load, plan};

const ARCHIVE: &str = "mixtral-grouped_mm.experts";

/// Sizes to choose from; more than an executable keeps ready.
const SIZES: i64 = 61;

/// The least size that the archive takes.
const LEAST: i64 = 2;

/// Bytes that measuring itself, and pools that had not met their largest size yet, may add.
const SLACK: i64 = 4 << 20;

/// The memory of this process on the host, bytes; the pages of a system that says nothing of it do not grow.
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<i64>().ok()).unwrap_or(0) * 4096
}

fn run_many(device: Device, runs: usize) {
    let profile = if device == Device::Cpu { "cpu" } else { "h200" };
    let (plan, weights) = (plan(ARCHIVE, &Pipeline::standard(), profile), load(ARCHIVE).weights);
    // Another executable on the same device is asked, for the one that runs is behind a trait that knows hosts, too.
    let gauge = match device {
        Device::Cpu => None,
        Device::Cuda(ordinal) => Some(CudaExecutable::build(&plan, &|path| Ok(weights.get(path)?), ordinal).unwrap()),
    };
    let free = || gauge.as_ref().map_or(0, |gauge| gauge.free_bytes().unwrap() as i64);
    let symbols: Vec<_> = plan.symbols.keys().cloned().collect();
    let executable = Executable::load(plan, &weights, &device).unwrap();
    let inputs: Vec<Vec<Tensor>> = (LEAST..LEAST + SIZES)
        .map(|size| {
            let bindings = symbols.iter().map(|name| (name.clone(), size)).collect();
            generate(executable.plan(), &bindings, &Default::default(), Routing::Uniform, 7).unwrap()
        })
        .collect();
    let right: Vec<Vec<Tensor>> = inputs.iter().map(|inputs| executable.run(inputs).unwrap()).collect();
    // A linear congruential generator (Knuth's MMIX): the same dims in every run of the test, some of them twice in a row.
    let mut state = 1u64;
    let mut run = |times: usize| {
        for _ in 0..times {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % inputs.len();
            assert!(executable.run(&inputs[at]).unwrap() == right[at], "other bits for {} tokens", at as i64 + LEAST);
        }
    };
    run(runs / 10);
    let before = (resident(), free());
    run(runs);
    let (host, lost) = (resident() - before.0, before.1 - free());
    eprintln!("{device}: {runs} runs of {SIZES} sizes: {host} bytes more on the host, {lost} on the device");
    assert!(host < SLACK && lost <= 0, "{host} bytes more on the host, {lost} on the device");
}

#[test]
fn on_the_host() {
    // What is compiled without optimisation is thirty times slower.
    run_many(Device::Cpu, if cfg!(debug_assertions) { 1_000 } else { 10_000 });
}

#[test]
fn on_a_gpu() {
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(probe.usable() || !required, "EGLU_REQUIRE_GPU is set, but:\n{probe}");
    match probe.usable() {
        true => run_many(Device::Cuda(0), 10_000),
        false => eprintln!("skipped:\n{probe}"),
    }
}

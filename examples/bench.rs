//! Times runs of a model on tensors in device memory: what the host spends on one, and how long it takes from start to end.
//!
//!     cargo run --release --example bench -- MODEL.pt2 [TOKENS] [DEVICE]
//!
//! `EGLU_REPLAY=0` shows what launching each kernel by itself costs in place of replaying a CUDA graph.

use eglu::{Device, DeviceTensor, Executable, Graph, Stream, compile, ir::weights::Weights, runtime::inputs};
use std::{error::Error, time::Instant};

/// Runs between two waits: the device's queue never fills, so that the host is never held up.
const BATCH: usize = 20;

/// The middle value, in microseconds, and the least.
fn median(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (1e6 * seconds[seconds.len() / 2], 1e6 * seconds[0])
}

/// Host times of runs that read each of `inputs` in turn.
fn host_times(
    executable: &Executable,
    inputs: &[Vec<DeviceTensor>],
    results: &[DeviceTensor],
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut seconds = Vec::new();
    for round in 0..101 {
        for i in 0..BATCH {
            let clock = Instant::now();
            executable.run_on(Stream::DEFAULT, &inputs[i % inputs.len()], results)?;
            // The first round warms up.
            seconds.extend((round > 0).then(|| clock.elapsed().as_secs_f64()));
        }
        executable.wait(Stream::DEFAULT)?;
    }
    Ok(seconds)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("give a .pt2 archive or a .json graph")?;
    let tokens = arguments.next().map(|text| text.parse()).transpose()?;
    let device: Device = arguments.next().unwrap_or_else(|| "cuda".into()).parse()?;

    let mut model = Graph::import(&path)?;
    if !model.weights.missing(&model.graph).is_empty() {
        model.weights = Weights::random(&model.graph, 0)?;
    }
    let plan = compile(model.graph, &device.profile()?)?;
    let sizes = inputs::sizes(&plan, tokens, &[])?;
    let tensors = inputs::generate(&plan, &sizes, &Default::default(), inputs::Routing::Uniform, 0)?;
    let executable = Executable::load(plan, &model.weights, &device)?;

    let upload = || tensors.iter().map(|tensor| executable.to_device(tensor)).collect::<Result<Vec<_>, _>>();
    let places = [upload()?, upload()?];
    let blocks = executable.results(&places[0])?.blocks;
    let results: Vec<_> =
        blocks.iter().map(|&bytes| executable.empty(eglu::DType::U8, &[bytes as usize])).collect::<Result<_, _>>()?;

    let (same, same_least) = median(host_times(&executable, &places[..1], &results)?);
    let (moving, _) = median(host_times(&executable, &places, &results)?);
    let clock = Instant::now();
    (0..BATCH).try_for_each(|_| executable.run_on(Stream::DEFAULT, &places[0], &results))?;
    executable.wait(Stream::DEFAULT)?;
    let whole = 1e6 * clock.elapsed().as_secs_f64() / BATCH as f64;
    println!(
        "{}: {} kernels, host {same:.2} us (least {same_least:.2}), {moving:.2} us where inputs move, {whole:.2} us from run to run",
        executable.plan().name,
        executable.backend().kernels(),
    );
    Ok(())
}

//! From the archive to the first result in a process that has the device open: with an empty folder of kernels, then from that folder.
//!
//! No time decides a test: it tells them (`--nocapture`), and checks what the times depend on, that the second start compiles nothing.

use crate::device::is_missing;
use eglu::{
    Device, Executable, Graph, Options, Pipeline, Tensor,
    compare::compare_all,
    ir::text::parse,
    lower,
    runtime::{Phases, Start},
};
use eglu_tests::{fixture, inputs, reference};
use std::{env, path::Path, process::Command, time::Instant};

const BLOCKS: [&str; 4] =
    ["llama.block.bf16", "mixtral-grouped_mm.block", "mixtral-grouped_mm.block.bf16", "mixtral-batched_mm.block"];

/// What the child processes of the test below are told: the archive to start.
const CHILD: &str = "EGLU_TEST_START";

#[test]
fn the_second_process_takes_every_kernel_from_disk() {
    if is_missing() {
        return;
    }
    if let Ok(block) = env::var(CHILD) {
        return start(&block);
    }
    for block in BLOCKS {
        let cache = tempfile::tempdir().unwrap();
        let [cold, warm, _] = ["cold", "disk", "disk"].map(|which| child(block, which, cache.path()));
        assert!(!cold.contains(" 0 of them compiled"), "{cold}");
        assert!(warm.contains(" 0 of them compiled"), "{warm}");
    }
}

/// A start in a process of its own; what it told.
fn child(block: &str, which: &str, cache: &Path) -> String {
    let child = Command::new(env::current_exe().unwrap())
        .args(["starts::the_second_process_takes_every_kernel_from_disk", "--exact", "--nocapture"])
        .env(CHILD, block)
        .env("EGLU_CACHE_DIR", cache)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{block}: {told}");
    let line = told.lines().find_map(|line| line.strip_prefix("start: ")).unwrap_or_else(|| panic!("{block}: {told}"));
    eprintln!("{which:5} {line}");
    line.to_owned()
}

/// Opens the device, then takes a block from its archive to a result.
fn start(block: &str) {
    let opened = Instant::now();
    open();
    let opening = opened.elapsed();
    let inputs = inputs(&reference(block, "io"));

    let (clock, phases) = (Instant::now(), Phases::default());
    let (executable, outputs) = first_result(block, &inputs, &phases);
    let total = clock.elapsed();

    for difference in compare_all(&outputs, &reference(block, "io")).unwrap() {
        assert!(difference.within, "{difference:?}");
    }
    let phases = phases.list();
    let each = phases.iter().map(|phase| format!("{} {:.1}", phase.name, 1e3 * phase.seconds)).collect::<Vec<_>>().join(", ");
    let note = phases.iter().find(|phase| phase.name == "compile").map_or("", |phase| &phase.note);
    eprintln!(
        "start: {block}, {} kernels: {:.1} ms (sum of phases {:.1}: {each}; {note}); the device was opened before in {:.1} ms",
        executable.backend().kernels(),
        1e3 * total.as_secs_f64(),
        1e3 * Start::of(&phases).total(),
        1e3 * opening.as_secs_f64(),
    );
}

/// A plan of no kernels opens the device.
fn open() {
    let graph = parse("graph \"nothing\"\n%x: f32[4] = input\noutput %x\n").unwrap();
    let plan = lower(&graph).unwrap();
    let executable = Executable::load(plan, &Default::default(), &Device::Cuda(0)).unwrap();
    executable.run(&[Tensor::from_slice(eglu::DType::F32, &[4], &[0.0f32; 4]).unwrap()]).unwrap();
}

fn first_result(block: &str, inputs: &[Tensor], phases: &Phases) -> (Executable, Vec<Tensor>) {
    let model = phases.time("import", || Graph::import(fixture(&format!("{block}.pt2")))).unwrap();
    let options = Options::new(Device::Cuda(0).profile().unwrap());
    let optimized = phases.time("passes", || Pipeline::standard().run_with(model.graph, &options)).unwrap();
    let plan = phases.time("plan", || lower(&optimized.graph)).unwrap();
    let executable = Executable::load_in_phases(plan, &model.weights, &Device::Cuda(0), phases).unwrap();
    let outputs = phases.time("first run", || executable.run(inputs)).unwrap();
    (executable, outputs)
}

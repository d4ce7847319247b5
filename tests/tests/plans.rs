//! Plans of the fixtures: PyTorch's results from one executable at every size, on the CPU and, where there is one, on a GPU.

use eglu::{Device, Executable, Pipeline, compare::compare_all, runtime::cuda::probe};
use eglu_tests::{FIXTURES, inputs, load, plan, reference};

fn run_all(device: Device, profile: &str, pipeline: &Pipeline) {
    for (name, endings) in FIXTURES {
        let model = load(name);
        let executable = Executable::load(plan(name, pipeline, profile), &model.weights, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        for ending in *endings {
            let io = reference(name, ending);
            // Twice, so that state left by a run would show.
            for _ in 0..2 {
                let outputs = executable.run(&inputs(&io)).unwrap_or_else(|error| panic!("{name}.{ending}: {error}"));
                for difference in compare_all(&outputs, &io).unwrap() {
                    assert!(difference.within, "{name}.{ending} on {device}: {difference:?}");
                }
            }
        }
    }
}

#[test]
fn one_fused_plan_serves_every_size_on_the_cpu() {
    run_all(Device::Cpu, "cpu", &Pipeline::standard());
}

#[test]
fn one_unfused_plan_serves_every_size_on_the_cpu() {
    run_all(Device::Cpu, "cpu", &Pipeline::unfused());
}

#[test]
fn plans_run_on_a_gpu() {
    let probe = probe();
    if !probe.usable() {
        eprintln!("skipped: {}", probe.problems().join("; "));
        return;
    }
    run_all(Device::Cuda(0), "h200", &Pipeline::standard());
    run_all(Device::Cuda(0), "h200", &Pipeline::unfused());
}

#[test]
fn threads_share_an_executable() {
    let name = "mixtral-grouped_mm.dyn";
    let model = load(name);
    let executable = Executable::load(plan(name, &Pipeline::standard(), "cpu"), &model.weights, &Device::Cpu).unwrap();
    let (executable, [one, two]) = (&executable, ["io", "io2"].map(|ending| reference(name, ending)));
    std::thread::scope(|scope| {
        for io in [&one, &two, &one, &two] {
            scope.spawn(move || {
                let outputs = executable.run(&inputs(io)).unwrap();
                assert!(compare_all(&outputs, io).unwrap().iter().all(|difference| difference.within));
            });
        }
    });
}

//! Plans of the fixtures: PyTorch's results from one executable at every size, on the CPU.

use eglu::{Device, Executable, Pipeline, compare::compare_all};
use eglu_tests::{FIXTURES, inputs, load, plan, reference};

fn run_all(pipeline: &Pipeline) {
    for (name, endings) in FIXTURES {
        let model = load(name);
        let executable = Executable::load(plan(name, pipeline, "cpu"), &model.weights, &Device::Cpu)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for ending in *endings {
            let io = reference(name, ending);
            // Twice, so that state left by a run would show.
            for _ in 0..2 {
                let outputs = executable.run(&inputs(&io)).unwrap_or_else(|error| panic!("{name}.{ending}: {error}"));
                for difference in compare_all(&outputs, &io).unwrap() {
                    assert!(difference.within, "{name}.{ending}: {difference:?}");
                }
            }
        }
    }
}

#[test]
fn one_fused_plan_serves_every_size_on_the_cpu() {
    run_all(&Pipeline::standard());
}

#[test]
fn one_unfused_plan_serves_every_size_on_the_cpu() {
    run_all(&Pipeline::unfused());
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

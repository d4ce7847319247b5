//! Running kernels on a real device. Without one the tests skip; `EGLU_REQUIRE_GPU=1` makes that a failure.

mod lent;
mod plan;

use eglu_ir::Dim;
use eglu_runtime::{
    Backend, Executable,
    cuda::{CudaExecutable, DeviceFacts},
};
use plan::{WIDTH, check, input, plan, turn, weight};

#[test]
fn runs_and_times_a_plan_without_asking_the_driver() {
    let Some(_turn) = turn() else { return };
    let cuda = CudaExecutable::load(plan(), &weight, 0).unwrap();
    let facts = DeviceFacts::of(0).unwrap();
    eprintln!("{facts:?}\n{:?}", facts.profile());
    for rows in [1, 7, 4096] {
        let bindings = [("rows".into(), rows as i64)].into_iter().collect();
        check(rows, &cuda.run(&[input(rows)], &bindings).unwrap()[0]);
    }
    let bindings = [("rows".into(), 7)].into_iter().collect();
    // These dims came once; the second time makes their graph.
    check(7, &cuda.run(&[input(7)], &bindings).unwrap()[0]);
    let calls = cuda.driver_calls();
    for _ in 0..10 {
        check(7, &cuda.run(&[input(7)], &bindings).unwrap()[0]);
    }
    assert_eq!(cuda.driver_calls(), calls, "a steady run asks nothing and makes nothing");
    let executable = Executable::new(Box::new(cuda));
    let rows = 1 << 15;
    let mut timed = executable.prepare(&[input(rows)]).unwrap();
    let mut runs: Vec<f64> = (0..20).map(|_| timed.time_run().unwrap().seconds).collect();
    runs.sort_by(f64::total_cmp);
    let host = timed.time_run().unwrap().host_seconds;
    let steps = timed.time_steps().unwrap();
    // Each of the three launches reads and writes the matrix once.
    let bytes = 6.0 * rows as f64 * WIDTH as f64 * 4.0;
    eprintln!(
        "median {:.1} us, host {:.1} us, {:.2} TB/s, steps {steps:?}",
        runs[10] * 1e6,
        host * 1e6,
        bytes / runs[10] * 1e-12
    );
    assert!(runs[10] * facts.profile().bandwidth > 0.8 * bytes, "faster than memory: {} s", runs[10]);
    assert_eq!(steps.len(), 2);
    let sum: f64 = steps.iter().map(|step| step.seconds).sum();
    assert!((0.5..2.0).contains(&(sum / runs[10])), "steps take {sum} s, a run {} s", runs[10]);
    check(rows, &timed.outputs().unwrap()[0]);
}

#[test]
fn memory_that_is_not_there_is_an_error_and_the_program_goes_on() {
    let Some(_turn) = turn() else { return };
    let mut large = plan();
    large.scratch[0].bytes = large.scratch[0].bytes.clone() * Dim::from(1 << 20);
    let cuda = CudaExecutable::load(large, &weight, 0).unwrap();
    let bindings = [("rows".into(), 4096)].into_iter().collect();
    let error = cuda.run(&[input(4096)], &bindings).unwrap_err().to_string();
    assert!(error.contains("bytes of device memory") && error.contains("free"), "{error}");
    let cuda = CudaExecutable::load(plan(), &weight, 0).unwrap();
    check(4096, &cuda.run(&[input(4096)], &bindings).unwrap()[0]);
}

/// A fault ends the context for the whole process, so this runs in one of its own.
#[test]
fn a_fault_is_an_error_that_names_the_step() {
    let Some(_turn) = turn() else { return };
    const CHILD: &str = "EGLU_TEST_FAULT";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["a_fault_is_an_error_that_names_the_step", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .env("EGLU_SYNC", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let mut stray = plan();
    stray.launches[1].entry = "stray".into();
    stray.launches[1].args.remove(1);
    let cuda = CudaExecutable::load(stray, &weight, 0).unwrap();
    let error = cuda.run(&[input(4)], &[("rows".into(), 4)].into_iter().collect()).unwrap_err().to_string();
    assert!(error.contains("it belongs to step `twice`"), "{error}");
}

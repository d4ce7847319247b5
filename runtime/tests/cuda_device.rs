//! Running kernels on a real device. Without one the tests skip; `EGLU_REQUIRE_GPU=1` makes that a failure.

use eglu_codegen::{
    Arg, Buffer, Plan, PlanInput, PlanOutput, Source, Step,
    cuda::{CudaPlan, KernelArg, Launch, Memory, Module, Scratch},
};
use eglu_ir::{DType, Dim, Op, OutputKind, Program, Shape, SymbolRange, Tensor, TensorType, ops::Map};
use eglu_runtime::{
    Backend, Executable, RuntimeError,
    cuda::{CudaExecutable, DeviceFacts, probe},
};
use std::sync::Arc;

const WIDTH: i64 = 1024;

/// Adds a weight, row by row, by way of 96 KB of dynamic shared memory; then doubles what it left in scratch.
const SOURCE: &str = r#"
extern "C" __global__ void add(float *y, const float *x, const float *w, long long rows) {
    extern __shared__ float staged[];
    long long row = blockIdx.x;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) staged[i + 20480] = w[i];
    __syncthreads();
    if (row < rows)
        for (int i = threadIdx.x; i < 1024; i += blockDim.x) y[row * 1024 + i] = x[row * 1024 + i] + staged[(i ^ 32) + 20480];
}
extern "C" __global__ void twice(float *z, const float *y, long long rows) {
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) z[blockIdx.x * 1024ll + i] = 2.f * y[blockIdx.x * 1024ll + i];
}
extern "C" __global__ void stray(float *z, long long rows) { *(volatile float *)((char *)z + (1ll << 46)) = 1.f; }
"#;

fn has_device() -> bool {
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(probe.usable() || !required, "EGLU_REQUIRE_GPU is set, but:\n{probe}");
    if !probe.usable() {
        eprintln!("skipped:\n{probe}");
    }
    probe.usable()
}

fn plan() -> CudaPlan {
    let rows = Dim::symbol("rows");
    let matrix: Shape = [rows.clone(), WIDTH.into()].into_iter().collect();
    let numel = rows.clone() * WIDTH.into();
    let buffer = |name: &str, numel: &Dim, source| Buffer { name: name.into(), dtype: DType::F32, numel: numel.clone(), source };
    let view = |id| Buffer::view(id, DType::F32, matrix.clone());
    let op: Op = Map { program: Arc::new(Program::identity(DType::F32, DType::F32)) }.into();
    let step = |name: &str, input, output| Step {
        name: name.into(),
        op: op.clone(),
        inputs: vec![Arg::Tensor(view(input))],
        outputs: vec![view(output)],
        origins: vec![],
    };
    let mut last = view(3);
    last.layout = last.layout.permute(&[1, 0]);
    let plan = Plan {
        name: "hand-written".into(),
        symbols: [("rows".into(), SymbolRange { min: 1, max: None })].into_iter().collect(),
        buffers: vec![
            buffer("x", &numel, Source::Input(0)),
            buffer("w", &WIDTH.into(), Source::Weight("w".into())),
            buffer("y", &numel, Source::Step),
            buffer("z", &numel, Source::Step),
        ],
        steps: vec![step("add", 0, 2), step("twice", 2, 3)],
        inputs: vec![PlanInput { name: "x".into(), ty: TensorType { dtype: DType::F32, shape: matrix.clone() }, buffer: 0 }],
        outputs: vec![PlanOutput { tensor: last, kind: OutputKind::User }],
    };
    let launch = |step, entry: &str, memory: &[Memory], shared_bytes| Launch {
        step,
        module: 0,
        entry: entry.into(),
        grid: [rows.clone(), 1.into(), 1.into()],
        block: [256, 1, 1],
        shared_bytes,
        overlaps: false,
        args: memory
            .iter()
            .map(|&memory| KernelArg::Pointer { memory, offset: 0.into() })
            .chain([KernelArg::Int(rows.clone())])
            .collect(),
    };
    let scratch = Memory::Scratch(0);
    CudaPlan {
        launches: vec![
            launch(0, "add", &[Memory::Buffer(2), Memory::Buffer(0), Memory::Buffer(1)], 96 << 10),
            launch(1, "twice", &[scratch, Memory::Buffer(2)], 0),
            launch(1, "twice", &[Memory::Buffer(3), scratch], 0),
        ],
        plan,
        scratch: vec![Scratch { name: "half-way".into(), bytes: numel * 4.into(), step: 1, last: 1 }],
        modules: vec![Module { name: "hand_written".into(), source: SOURCE.into() }],
    }
}

fn weight(_: &str) -> Result<Tensor, RuntimeError> {
    let data: Vec<f32> = (0..WIDTH).map(|i| i as f32).collect();
    Ok(Tensor::from_slice(DType::F32, &[WIDTH as usize], &data).expect("a small tensor"))
}

fn input(rows: usize) -> Tensor {
    let data: Vec<f32> = (0..rows * WIDTH as usize).map(|i| (i % 977) as f32).collect();
    Tensor::from_slice(DType::F32, &[rows, WIDTH as usize], &data).expect("a small tensor")
}

fn check(rows: usize, output: &Tensor) {
    assert_eq!(output.shape(), [WIDTH as usize, rows]);
    let z = output.as_slice::<f32>();
    for row in 0..rows {
        for column in 0..WIDTH as usize {
            let want = 4.0 * (((row * WIDTH as usize + column) % 977) as f32 + (column ^ 32) as f32);
            assert_eq!(z[column * rows + row], want, "row {row} column {column} of {rows} rows");
        }
    }
}

#[test]
fn runs_and_times_a_plan_without_asking_the_driver() {
    if !has_device() {
        return;
    }
    let cuda = CudaExecutable::load(plan(), &weight, 0).unwrap();
    let facts = DeviceFacts::of(0).unwrap();
    eprintln!("{facts:?}\n{:?}", facts.profile());
    for rows in [1, 7, 4096] {
        let bindings = [("rows".into(), rows as i64)].into_iter().collect();
        check(rows, &cuda.run(&[input(rows)], &bindings).unwrap()[0]);
    }
    let queries = cuda.driver_queries();
    let bindings = [("rows".into(), 7)].into_iter().collect();
    for _ in 0..10 {
        check(7, &cuda.run(&[input(7)], &bindings).unwrap()[0]);
    }
    assert_eq!(cuda.driver_queries(), queries, "a steady run asks nothing");
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
    if !has_device() {
        return;
    }
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
    if !has_device() {
        return;
    }
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

//! A plan written by hand, and what it computes.

use eglu_codegen::{
    Arg, Buffer, Plan, PlanInput, PlanOutput, Source, Step,
    cuda::{CudaPlan, KernelArg, Launch, Memory, Module, Scratch},
};
use eglu_ir::{DType, Dim, Op, OutputKind, Program, Shape, SymbolRange, Tensor, TensorType, ops::Map};
use eglu_runtime::{RuntimeError, cuda::probe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub const WIDTH: i64 = 1024;

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

/// The device, for one test at a time, as they count what the driver is asked; `None` where there is none.
pub fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(probe.usable() || !required, "EGLU_REQUIRE_GPU is set, but:\n{probe}");
    if !probe.usable() {
        eprintln!("skipped:\n{probe}");
        return None;
    }
    // A test that failed leaves nothing that the next could trip over.
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

pub fn plan() -> CudaPlan {
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

pub fn weight(_: &str) -> Result<Tensor, RuntimeError> {
    let data: Vec<f32> = (0..WIDTH).map(|i| i as f32).collect();
    Ok(Tensor::from_slice(DType::F32, &[WIDTH as usize], &data).expect("a small tensor"))
}

pub fn input(rows: usize) -> Tensor {
    let data: Vec<f32> = (0..rows * WIDTH as usize).map(|i| (i % 977) as f32).collect();
    Tensor::from_slice(DType::F32, &[rows, WIDTH as usize], &data).expect("a small tensor")
}

pub fn check(rows: usize, output: &Tensor) {
    assert_eq!(output.shape(), [WIDTH as usize, rows]);
    let z = output.as_slice::<f32>();
    for row in 0..rows {
        for column in 0..WIDTH as usize {
            let want = 4.0 * (((row * WIDTH as usize + column) % 977) as f32 + (column ^ 32) as f32);
            assert_eq!(z[column * rows + row], want, "row {row} column {column} of {rows} rows");
        }
    }
}

/// [`plan`] with its last launch made `more` times more, which changes nothing but their number.
pub fn longer(more: usize) -> CudaPlan {
    let mut plan = plan();
    let last = plan.launches[2].clone();
    plan.launches.extend(std::iter::repeat_n(last, more));
    plan
}

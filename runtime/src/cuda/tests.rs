//! Loading and running a plan, on the model of the driver.

mod faults;
mod lent;
mod steady;

use super::{
    CudaError,
    compile::Cubin,
    executable::CudaExecutable,
    fake::{Fake, Params},
};
use crate::{Backend, DeviceTensor, Executable, Fault, RuntimeError};
use cudarc::driver::sys::CUresult;
use eglu_codegen::{
    Arg, Buffer, Plan, PlanInput, PlanOutput, Source, Step,
    cuda::{CudaPlan, KernelArg, Launch, Memory, Module, Scratch},
};
use eglu_ir::{Bindings, DType, Dim, Op, OutputKind, Program, Shape, SymbolRange, Tensor, TensorType, ops::Map};
use std::sync::Arc;

const COLUMNS: i64 = 4;

fn s0() -> Dim {
    Dim::symbol("s0")
}

fn shape(dims: &[Dim]) -> Shape {
    dims.iter().cloned().collect()
}

/// `y = x + w` for x of [s0, 4] and w of [4]; `z = 2 y` by way of scratch. Outputs: z transposed, rows of y but the first, and w.
fn plan() -> CudaPlan {
    let matrix = shape(&[s0(), COLUMNS.into()]);
    let numel = s0() * COLUMNS.into();
    let buffer = |name: &str, numel: &Dim, source| Buffer { name: name.into(), dtype: DType::F32, numel: numel.clone(), source };
    let view = |id| Buffer::view(id, DType::F32, matrix.clone());
    let op: Op = Map { program: Arc::new(Program::identity(DType::F32, DType::F32)) }.into();
    let step = |name: &str, inputs: Vec<usize>, output| Step {
        name: name.into(),
        op: op.clone(),
        inputs: inputs.into_iter().map(|id| Arg::Tensor(view(id))).collect(),
        outputs: vec![view(output)],
        origins: vec![],
    };
    let output = |tensor| PlanOutput { tensor, kind: OutputKind::User };
    let mut rest = view(2);
    rest.layout = rest.layout.slice(0, &1.into(), &s0(), 1);
    let mut transposed = view(3);
    transposed.layout = transposed.layout.permute(&[1, 0]);
    let weight = Buffer::view(1, DType::F32, shape(&[COLUMNS.into()]));
    let plan = Plan {
        name: "toy".into(),
        symbols: [("s0".into(), SymbolRange { min: 0, max: None })].into_iter().collect(),
        buffers: vec![
            buffer("x", &numel, Source::Input(0)),
            buffer("w", &COLUMNS.into(), Source::Weight("layer.w".into())),
            buffer("y", &numel, Source::Step),
            buffer("z", &numel, Source::Step),
        ],
        steps: vec![step("add_1", vec![0, 1], 2), step("double_1", vec![2], 3)],
        inputs: vec![PlanInput { name: "x".into(), ty: TensorType { dtype: DType::F32, shape: matrix.clone() }, buffer: 0 }],
        outputs: vec![output(transposed), output(rest), output(weight)],
    };
    let pointer = |memory| KernelArg::Pointer { memory, offset: 0.into() };
    let launch = |step, entry: &str, memory: Vec<Memory>, shared_bytes| Launch {
        step,
        module: 0,
        entry: entry.into(),
        grid: [s0(), 1.into(), 1.into()],
        block: [32, 1, 1],
        shared_bytes,
        overlaps: step > 0,
        args: memory.into_iter().map(pointer).chain([KernelArg::Int(numel.clone())]).collect(),
    };
    let (x, w, y, z) = (Memory::Buffer(0), Memory::Buffer(1), Memory::Buffer(2), Memory::Buffer(3));
    CudaPlan {
        launches: vec![
            launch(0, "add", vec![y, x, w], 0),
            launch(1, "copy", vec![Memory::Scratch(0), y], 64 << 10),
            launch(1, "double", vec![z, Memory::Scratch(0)], 0),
        ],
        plan,
        scratch: vec![Scratch { name: "copy of y".into(), bytes: numel * 4.into(), step: 1, last: 1 }],
        modules: vec![Module { name: "toy".into(), source: String::new() }],
    }
}

fn device(total: usize) -> Fake {
    let add = |p: &Params| {
        let n = p.int(3);
        let (y, x, w) = (p.floats(0, n), p.floats(1, n), p.floats(2, 4));
        (0..n).for_each(|i| y[i] = x[i] + w[i % 4]);
    };
    let copy = |p: &Params| p.floats(0, p.int(2)).copy_from_slice(p.floats(1, p.int(2)));
    let double = |p: &Params| p.floats(0, p.int(2)).iter_mut().zip(p.floats(1, p.int(2))).for_each(|(z, y)| *z = 2.0 * *y);
    let (three, four): (&[usize], &[usize]) = (&[8; 3], &[8; 4]);
    Fake::new(total, vec![("add", four, Box::new(add)), ("copy", three, Box::new(copy)), ("double", three, Box::new(double))])
}

fn weight(name: &str) -> Result<Tensor, RuntimeError> {
    assert_eq!(name, "layer.w");
    Ok(Tensor::from_slice(DType::F32, &[4], &[10f32, 20.0, 30.0, 40.0]).unwrap())
}

fn load_plan(fake: &Fake, plan: CudaPlan) -> Result<CudaExecutable, RuntimeError> {
    let cubin = Cubin { image: Arc::new([]), log: "".into() };
    CudaExecutable::with_cubins(fake.context(), plan, &[cubin], &weight, &crate::Phases::default())
}

fn load(fake: &Fake) -> CudaExecutable {
    load_plan(fake, plan()).unwrap()
}

fn x(rows: usize) -> (Tensor, Bindings) {
    let data: Vec<f32> = (0..rows * 4).map(|i| i as f32).collect();
    (Tensor::from_slice(DType::F32, &[rows, 4], &data).unwrap(), Bindings::from([("s0".into(), rows as i64)]))
}

fn check(rows: usize, outputs: &[Tensor]) {
    let y = |i: usize| i as f32 + [10.0, 20.0, 30.0, 40.0][i % 4];
    let z: Vec<f32> = (0..rows * 4).map(|at| 2.0 * y(at % rows.max(1) * 4 + at / rows.max(1))).collect();
    assert_eq!((outputs[0].shape(), outputs[0].as_slice::<f32>()), ([4, rows].as_slice(), z.as_slice()));
    let rest: Vec<f32> = (4..(rows * 4).max(4)).map(y).collect();
    assert_eq!(outputs[1].as_slice::<f32>(), rest);
    assert_eq!(outputs[2].as_slice::<f32>(), [10.0, 20.0, 30.0, 40.0]);
}

#[test]
fn runs_every_size_through_one_plan() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    for rows in [3, 1, 50, 3, 7] {
        let (x, bindings) = x(rows);
        check(rows, &executable.run(&[x], &bindings).unwrap());
    }
    assert_eq!(fake.state().launched[..3], ["add", "copy", "double"]);
    assert_eq!(fake.state().shared.get("copy"), Some(&(64 << 10)), "more than 48 KB must be asked for");
    assert_eq!(executable.kernels(), 3);
}

#[test]
fn an_empty_grid_is_not_launched() {
    let mut plan = plan();
    // The view without its first row has no such row to leave out.
    plan.plan.outputs.remove(1);
    let fake = device(1 << 20);
    let (x, bindings) = x(0);
    let outputs = load_plan(&fake, plan).unwrap().run(&[x], &bindings).unwrap();
    assert_eq!(outputs[0].shape(), [4, 0]);
    assert!(fake.state().launched.is_empty());
}

#[test]
fn everything_is_freed() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    let (x, bindings) = x(9);
    executable.run(std::slice::from_ref(&x), &bindings).unwrap();
    let mut timed = executable.prepare(&[x], &bindings).unwrap();
    timed.time_steps().unwrap();
    drop(timed);
    drop(executable);
    assert_eq!(fake.state().holds(), ((0, 0), 0));
}

#[test]
fn memory_that_is_not_there_is_an_error_with_sizes() {
    // A session's counters take 256 KiB.
    let fake = device(266_240);
    let executable = load(&fake);
    let (large, bindings) = x(1000);
    let error = executable.run(&[large], &bindings).unwrap_err();
    assert_eq!(error.fault(), Fault::Environment);
    let text = error.to_string();
    for part in ["`toy`", "bytes of device memory", "of 266240 are free"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (small, bindings) = x(3);
    check(3, &executable.run(&[small], &bindings).unwrap());
    let tiny = device(16);
    let error = load_plan(&tiny, plan()).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("the weights of `toy`"), "{error}");
}

#[test]
fn a_fault_names_the_last_step() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    fake.state().fault = Some((2, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    let (x, bindings) = x(3);
    let error = executable.run(std::slice::from_ref(&x), &bindings).unwrap_err();
    assert!(matches!(&error, RuntimeError::Cuda(CudaError::Fault { .. })), "{error}");
    assert!(error.to_string().contains("`double_1`") && error.to_string().contains("EGLU_SYNC"), "{error}");
    fake.state().fault = None;
    let mut careful = load(&fake);
    careful.loaded.debug.wait_for_each = true;
    fake.state().launched.clear();
    fake.state().fault = Some((1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    let error = careful.run(&[x], &bindings).unwrap_err().to_string();
    assert!(error.contains("it belongs to step `add_1`"), "{error}");
}

#[test]
fn poison_covers_what_no_step_writes() {
    let mut plan = plan();
    plan.launches.truncate(1);
    let fake = device(1 << 20);
    let mut executable = load_plan(&fake, plan).unwrap();
    executable.loaded.debug.poison = true;
    let (x, bindings) = x(3);
    let outputs = executable.run(&[x], &bindings).unwrap();
    assert!(outputs[0].as_slice::<f32>().iter().all(|z| z.is_nan()), "z was never written");
    assert!(outputs[1].as_slice::<f32>().iter().all(|y| y.is_finite()), "y was");
}

#[test]
fn times_runs_and_steps() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    let (x, bindings) = x(5);
    let mut timed = executable.prepare(&[x], &bindings).unwrap();
    assert_eq!(timed.time_run().unwrap().seconds, 2e-3);
    let steps = timed.time_steps().unwrap();
    assert_eq!(steps.iter().map(|step| (step.step, &*step.name)).collect::<Vec<_>>(), [(0, "add_1"), (1, "double_1")]);
    let kernels = timed.time_kernels().unwrap();
    assert_eq!(kernels.iter().map(|kernel| kernel.step).collect::<Vec<_>>(), [0, 1, 1]);
    assert!(kernels.iter().map(|kernel| kernel.start).eq([0.0, 2e-3, 4e-3]), "{kernels:?}");
    assert!(kernels.iter().all(|kernel| kernel.seconds == 2e-3 && !kernel.name.is_empty()));
    check(5, &timed.outputs().unwrap());
    let (peak, sum) = timed.memory();
    assert!(peak > 0 && peak <= sum);
}

#[test]
fn inputs_weights_and_launches_that_do_not_fit_are_errors() {
    let fake = device(1 << 20);
    let executable = load(&fake);
    let ((three, _), (_, four)) = (x(3), x(4));
    for inputs in [vec![], vec![three]] {
        let error = executable.run(&inputs, &four).unwrap_err().to_string();
        assert!(error.contains("`x`"), "{error}");
    }
    let mut huge = plan();
    huge.launches[0].grid = [1.into(), s0(), 1.into()];
    let (many, bindings) = x(70_000);
    let error = load_plan(&device(16 << 20), huge).unwrap().run(&[many], &bindings).unwrap_err().to_string();
    assert!(error.contains("`add`") && error.contains("70000"), "{error}");
    let cubin = Cubin { image: Arc::new([]), log: "".into() };
    let wrong = |_: &str| Ok(Tensor::from_slice(DType::F32, &[3], &[0f32; 3]).unwrap());
    let error = CudaExecutable::with_cubins(fake.context(), plan(), &[cubin], &wrong, &crate::Phases::default()).err();
    assert!(matches!(error, Some(RuntimeError::WeightType { .. })));
    let mut unknown = plan();
    unknown.launches[0].entry = "absent".into();
    let error = load_plan(&fake, unknown).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("`absent`"), "{error}");
}

#[test]
fn threads_share_an_executable() {
    let fake = device(4 << 20);
    let executable = load(&fake);
    std::thread::scope(|scope| {
        for rows in 2..6 {
            let executable = &executable;
            scope.spawn(move || {
                for _ in 0..20 {
                    let (x, bindings) = x(rows);
                    check(rows, &executable.run(&[x], &bindings).unwrap());
                }
            });
        }
    });
}

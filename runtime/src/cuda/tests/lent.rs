//! Runs on tensors, streams and memory of the caller's.

use super::{steady::longer, *};
use crate::{OutputPlace, Stream, cuda::Allocator};
use std::sync::Mutex;

/// An executable, an input of so many rows on its device, and memory for the results.
fn lent(fake: &Fake, plan: CudaPlan, rows: usize) -> (Executable, DeviceTensor, Vec<DeviceTensor>) {
    let executable = Executable::new(Box::new(load_plan(fake, plan).unwrap()));
    let input = executable.to_device(&x(rows).0).unwrap();
    let results = blocks(&executable, &input);
    (executable, input, results)
}

fn blocks(executable: &Executable, input: &DeviceTensor) -> Vec<DeviceTensor> {
    let results = executable.results(std::slice::from_ref(input)).unwrap();
    results.blocks.iter().map(|&bytes| executable.empty(DType::F32, &[bytes as usize / 4]).unwrap()).collect()
}

/// The outputs of a run, gathered from where they lie.
fn outputs(executable: &Executable, input: &DeviceTensor, results: &[DeviceTensor]) -> Vec<Tensor> {
    let views = executable.results(std::slice::from_ref(input)).unwrap().outputs;
    let gather = |view: &crate::OutputView| {
        let memory = match view.place {
            OutputPlace::Block(i) => executable.to_host(&results[i]).unwrap(),
            OutputPlace::Resident(address) => {
                // SAFETY: the weight, of four elements.
                executable.to_host(&unsafe { DeviceTensor::borrow(DType::F32, &[4], address) }).unwrap()
            }
            OutputPlace::Input(_) => executable.to_host(input).unwrap(),
        };
        let at = |i: usize| match view.shape.as_slice() {
            [_] => i as i64 * view.strides[0],
            [_, columns] => (i / columns) as i64 * view.strides[0] + (i % columns) as i64 * view.strides[1],
            _ => unreachable!("the toy's outputs"),
        };
        let count: usize = view.shape.iter().product();
        let data: Vec<f32> = (0..count).map(|i| memory.as_slice::<f32>()[(view.offset + at(i)) as usize]).collect();
        Tensor::from_slice(DType::F32, &view.shape, &data).unwrap()
    };
    views.iter().map(gather).collect()
}

#[test]
fn results_are_written_where_the_caller_says() {
    let fake = device(1 << 20);
    for rows in [3, 1, 8] {
        let (executable, input, results) = lent(&fake, plan(), rows);
        let copies = fake.state().memory_copies();
        executable.run_on(fake.stream(1), std::slice::from_ref(&input), &results).unwrap();
        assert_eq!(fake.state().memory_copies(), copies, "nothing is copied");
        check(rows, &outputs(&executable, &input, &results));
        let described = executable.results(&[input]).unwrap();
        let places: Vec<_> = described.outputs.iter().map(|output| (output.place, output.is_plain())).collect();
        assert_eq!(places[..2], [(OutputPlace::Block(0), rows == 1), (OutputPlace::Block(1), false)]);
        assert!(matches!(places[2], (OutputPlace::Resident(_), true)));
        assert_eq!(described.blocks, [rows as u64 * 16, rows as u64 * 16]);
    }
}

#[test]
fn moved_inputs_update_the_graph_and_changed_dims_have_their_own() {
    let fake = device(1 << 20);
    let (executable, three, results) = lent(&fake, longer(8), 3);
    let (moved, five) = (executable.to_device(&x(3).0).unwrap(), executable.to_device(&x(5).0).unwrap());
    let results_of_five = blocks(&executable, &five);
    let run = |input: &DeviceTensor, results: &[DeviceTensor], rows| {
        executable.run_on(fake.stream(1), std::slice::from_ref(input), results).unwrap();
        check(rows, &outputs(&executable, input, results));
        fake.state().graphs
    };
    run(&three, &results, 3);
    assert_eq!(run(&three, &results, 3), [1, 1, 0]);
    assert_eq!(run(&moved, &results, 3), [1, 2, 1], "one kernel reads the input");
    run(&five, &results_of_five, 5);
    assert_eq!(run(&five, &results_of_five, 5), [2, 3, 1]);
    assert_eq!(run(&moved, &results, 3), [2, 4, 1], "the first graph is still there");
    let elsewhere = blocks(&executable, &moved);
    assert_eq!(run(&moved, &elsewhere, 3), [2, 5, 12], "every kernel has a result among its arguments");
}

#[test]
fn streams_and_threads_have_memory_of_their_own() {
    let fake = device(4 << 20);
    let executables = [lent(&fake, longer(4), 3).0, lent(&fake, longer(1), 3).0];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (executable, fake) = (&executables[thread / 3], &fake);
            scope.spawn(move || {
                let input = executable.to_device(&x(3 + thread).0).unwrap();
                let results = blocks(executable, &input);
                for round in 0..20 {
                    // The last two share a stream, and each has an executable of its own.
                    executable.run_on(fake.stream(1 + thread.min(2)), std::slice::from_ref(&input), &results).unwrap();
                    if round % 5 == 0 {
                        check(3 + thread, &outputs(executable, &input, &results));
                    }
                }
            });
        }
    });
    let used = fake.state().usage().0;
    executables[0].forget(fake.stream(1)).unwrap();
    assert!(fake.state().usage().0 < used, "a forgotten stream's memory is freed");
}

#[test]
fn devices_are_told_apart() {
    let fake = device(1 << 20);
    let cubin = Cubin { image: Arc::new([]), log: "".into() };
    let on = |ordinal| {
        let context = fake.context_of(ordinal);
        CudaExecutable::with_cubins(context, plan(), std::slice::from_ref(&cubin), &weight, &crate::Phases::default()).unwrap()
    };
    let (first, second) = (on(0), on(1));
    let (x, bindings) = x(3);
    for executable in [&first, &second, &first] {
        check(3, &executable.run(std::slice::from_ref(&x), &bindings).unwrap());
    }
    assert_eq!(fake.state().launched_on, [0, 0, 0, 1, 1, 1, 0, 0, 0]);
    assert_eq!((first.facts().ordinal, second.facts().ordinal), (0, 1));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let fake = device(1 << 20);
    let (executable, input, results) = lent(&fake, plan(), 3);
    let refusal = |inputs: &[DeviceTensor], results: &[DeviceTensor]| {
        executable.run_on(Stream::DEFAULT, inputs, results).unwrap_err().to_string()
    };
    // SAFETY: refused before anything is issued.
    let borrow = |dtype, shape: &[usize], address| unsafe { DeviceTensor::borrow(dtype, shape, address) };
    let odd = borrow(DType::F32, &[3, 4], input.address() + 4);
    assert!(refusal(&[odd], &results).contains("input 0 (`x`) must lie at a multiple of 16 bytes"));
    assert!(refusal(&[borrow(DType::F16, &[3, 4], 16)], &results).contains("input `x` must be f32[s0, 4], not f16[3, 4]"));
    assert!(refusal(&[borrow(DType::F32, &[3, 5], 16)], &results).contains("`x`"));
    assert!(refusal(&[], &results).contains("takes 1 inputs"));
    let text = refusal(std::slice::from_ref(&input), &results[..1]);
    assert!(text.contains("1 blocks of memory for results are given, and a run writes 2"), "{text}");
    let short = [results[0].clone(), borrow(DType::F32, &[2, 4], results[1].address())];
    let text = refusal(std::slice::from_ref(&input), &short);
    assert!(text.contains("block 1 (`y`) for results has 32 bytes, and 48 are written"), "{text}");
    executable.run_on(Stream::DEFAULT, std::slice::from_ref(&input), &results).unwrap();
    check(3, &outputs(&executable, &input, &results));
}

/// Host memory as a device's, with what is lent and not given back.
#[derive(Default)]
struct Pool(Mutex<Vec<(u64, Vec<u128>)>>);

impl Allocator for Pool {
    fn allocate(&self, _: usize, bytes: u64) -> Option<u64> {
        let block = vec![0u128; (bytes as usize).div_ceil(16)];
        let address = block.as_ptr() as u64;
        (bytes < 1 << 19).then(|| self.0.lock().unwrap().push((address, block)))?;
        Some(address)
    }

    unsafe fn free(&self, _: usize, address: u64, bytes: u64) {
        let mut lent = self.0.lock().unwrap();
        let at = lent.iter().position(|(start, block)| *start == address && block.len() == (bytes as usize).div_ceil(16));
        lent.remove(at.unwrap());
    }
}

#[test]
fn memory_comes_from_the_callers_allocator() {
    let (fake, pool) = (device(0), Arc::new(Pool::default()));
    fake.state().foreign = true;
    let cubin = Cubin { image: Arc::new([]), log: "".into() };
    let from = crate::cuda::allocator::Source::Caller(pool.clone());
    let executable =
        CudaExecutable::with_memory(fake.context(), plan(), &[cubin], &weight, (from, &crate::Phases::default())).unwrap();
    let (small, bindings) = x(3);
    check(3, &executable.run(&[small], &bindings).unwrap());
    assert_eq!(pool.0.lock().unwrap().len(), 3, "weights, counters, arena");
    assert_eq!(fake.state().usage().0, 0, "nothing is the driver's");
    let (large, bindings) = x(50_000);
    let error = executable.run(&[large], &bindings).unwrap_err().to_string();
    assert!(error.contains("the intermediate values of `toy`"), "{error}");
    drop(executable);
    assert!(pool.0.lock().unwrap().is_empty(), "all is given back");
}

#[test]
fn after_a_fault_everything_on_the_device_says_so_and_other_devices_go_on() {
    let fake = device(1 << 20);
    let (context, other) = (fake.context(), fake.context_of(1));
    let cubin = Cubin { image: Arc::new([]), log: "".into() };
    let load = |context: &Arc<crate::cuda::context::Context>| {
        CudaExecutable::with_cubins(context.clone(), plan(), std::slice::from_ref(&cubin), &weight, &crate::Phases::default())
    };
    let (broken, beside, elsewhere) = (load(&context).unwrap(), load(&context).unwrap(), load(&other).unwrap());
    let (x, bindings) = x(3);
    beside.run(std::slice::from_ref(&x), &bindings).unwrap();
    fake.state().fault = Some((0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
    let error = broken.run(std::slice::from_ref(&x), &bindings).unwrap_err().to_string();
    assert!(error.contains("load the model in a new one"), "{error}");
    fake.state().fault = None;
    for executable in [&broken, &beside] {
        let error = executable.run(std::slice::from_ref(&x), &bindings).unwrap_err();
        assert!(matches!(error, RuntimeError::Cuda(CudaError::Lost { ordinal: 0 })), "{error}");
    }
    assert!(matches!(load(&context).err(), Some(RuntimeError::Cuda(CudaError::Lost { .. }))));
    let before = fake.state().usage();
    drop((broken, beside));
    assert_eq!(fake.state().usage(), before, "the driver is not asked to free what went with the context");
    check(3, &elsewhere.run(&[x], &bindings).unwrap());
}

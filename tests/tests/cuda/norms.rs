//! Passes over lines, forward and backward: their kernels compile for every length without spills, and compute what PyTorch and the CPU do.

use super::{device, nvrtc};
use eglu::{
    Device, Executable, Pipeline,
    codegen::cuda::{Module, Target, emit},
    compare::{compare, compare_all},
    ir::{Bindings, DType, Tensor, Weights},
    runtime::{
        cuda::compile,
        inputs::{Routing, generate},
    },
};
use eglu_tests::{
    inputs,
    norms::{Case, cases, planned},
};

/// Cases whose kernels differ: one and two passes, one and several tensors kept, values picked and placed, totals.
const DIFFERENT: [&str; 9] = [
    "bwd.ce.f32",
    "bwd.layer_norm.f32",
    "bwd.log_softmax.f32",
    "bwd.rms_norm.bf16",
    "bwd.softmax.bf16",
    "fwd.ce_mean.f32",
    "fwd.ce_smooth.bf16",
    "fwd.var_mean.f32",
    "joint.ce_float.bf16",
];

/// Bytes that one form for short lines off their groups (sm_80, a loss with its gradient) keeps in memory: two registers.
const SPILLED: u32 = 8;

/// Lines, and elements of each: threads, warps, blocks and clusters of them; aligned and not.
const SIZES: [[usize; 2]; 6] = [[300, 8], [70, 250], [40, 1000], [33, 4096], [9, 20000], [150, 131_072]];

#[test]
fn kernels_of_every_length_compile_without_spills() {
    if nvrtc::is_missing() {
        return;
    }
    for (arch, name) in [(80, "sm_80"), (90, "sm_90a")] {
        let mut modules: Vec<Module> = vec![];
        for case in cases().iter().filter(|case| DIFFERENT.contains(&case.name.as_str())) {
            for sizes in SIZES {
                let (plan, _) = planned(case.resized(sizes), &Pipeline::standard(), "h200");
                let emitted = emit(&plan, Target { arch }).unwrap_or_else(|error| panic!("{} {name}: {error}", case.name));
                let chains = emitted.modules.into_iter().filter(|module| module.name.contains("reduce_chain"));
                for module in chains {
                    if !modules.iter().any(|other| other.source == module.source) {
                        modules.push(module);
                    }
                }
            }
        }
        let cubins = compile(&modules, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let kernels =
            modules.iter().zip(&cubins).flat_map(|(module, cubin)| cubin.uses().into_iter().map(move |kernel| (module, kernel)));
        let spills: Vec<String> = kernels
            .filter(|(_, kernel)| kernel.spill_bytes > SPILLED)
            .map(|(module, kernel)| format!("{} spills {} bytes:\n{}", kernel.entry, kernel.spill_bytes, module.source))
            .collect();
        eprintln!("{name}: {} kernels", modules.len());
        assert!(spills.is_empty(), "{name}: {} spill, the first:\n{}", spills.len(), spills[0]);
    }
}

#[test]
fn a_device_gives_what_pytorch_did() {
    if device::is_missing() {
        return;
    }
    for case in cases().iter().filter(|case| case.name.ends_with("f32") && !case.name.contains("dec.")) {
        let (plan, _) = planned(case.graph(), &Pipeline::standard(), "h200");
        let executable = Executable::load(plan, &Weights::default(), &Device::Cuda(0));
        let outputs = executable.and_then(|executable| executable.run(&inputs(&case.tensors)));
        let outputs = outputs.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for difference in compare_all(&outputs, &case.tensors).unwrap() {
            assert!(difference.within, "{}: {difference:?}", case.name);
        }
    }
}

/// Targets within the classes, now and then one that is ignored.
fn targets([lines, classes]: [usize; 2]) -> Tensor {
    let target = |i: usize| if i % 5 == 3 { -100 } else { (i * 7919 % classes) as i64 };
    Tensor::from_slice(DType::I64, &[lines], &(0..lines).map(target).collect::<Vec<_>>()).expect("as many as lines")
}

#[test]
fn lines_of_every_length_agree_with_the_cpu_in_every_run() {
    if device::is_missing() {
        return;
    }
    let cases = cases();
    std::thread::scope(|scope| {
        for case in cases.iter().filter(|case| DIFFERENT.contains(&case.name.as_str())) {
            scope.spawn(|| SIZES.into_iter().for_each(|sizes| agrees(case, sizes)));
        }
    });
}

/// Compares two runs on a device with one on the CPU.
fn agrees(case: &Case, sizes: [usize; 2]) {
    let (plan, _) = planned(case.resized(sizes), &Pipeline::standard(), "h200");
    let inputs = generate(&plan, &Bindings::default(), &Default::default(), Routing::Uniform, 1);
    let mut inputs = inputs.unwrap_or_else(|error| panic!("{}: {error}", case.name));
    inputs.iter_mut().filter(|input| input.dtype() == DType::I64).for_each(|input| *input = targets(sizes));
    let run = |device| {
        let executable = Executable::load(plan.clone(), &Weights::default(), &device);
        let runs = executable.and_then(|executable| Ok([executable.run(&inputs)?, executable.run(&inputs)?]));
        runs.unwrap_or_else(|error| panic!("{} {sizes:?}: {error}", case.name))
    };
    let ([cuda, again], [cpu, _]) = (run(Device::Cuda(0)), run(Device::Cpu));
    for (i, ((cuda, again), cpu)) in cuda.iter().zip(&again).zip(&cpu).enumerate() {
        assert_eq!(cuda.bytes(), again.bytes(), "{} {sizes:?}: output {i} differs from run to run", case.name);
        let what = format!("{} {sizes:?}, output {i}", case.name);
        let difference = compare(&what, cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
        assert!(difference.within, "{difference:?}");
    }
}

//! Plans on a device, against PyTorch's results and the CPU backend.

use crate::device::is_missing;
use eglu::{
    Device, Executable, Pipeline, Plan, Tensor,
    codegen::PlanOutput,
    compare::{compare, compare_all},
    ir::{OutputKind, weights::Weights},
};
use eglu_tests::{FIXTURES, inputs, load, plan, reference};

macro_rules! archives {
    ($($name:ident: $archive:literal;)+) => {
        $(mod $name {
            #[test]
            fn fused() {
                super::check($archive, &super::Pipeline::standard());
            }

            #[test]
            fn unfused() {
                super::check($archive, &super::Pipeline::unfused());
            }
        })+

        #[test]
        fn every_archive_is_run() {
            let run = [$($archive),+];
            let left_out: Vec<_> = FIXTURES.iter().filter(|fixture| !run.contains(&fixture.0)).collect();
            assert!(left_out.is_empty(), "{left_out:?}");
        }
    };
}

archives! {
    llama_block: "llama.block";
    llama_block_bf16: "llama.block.bf16";
    llama_dyn: "llama.dyn";
    llama_lm: "llama.lm";
    mixtral_batched_block: "mixtral-batched_mm.block";
    mixtral_batched_dyn: "mixtral-batched_mm.dyn";
    mixtral_batched_lm: "mixtral-batched_mm.lm";
    mixtral_grouped_block: "mixtral-grouped_mm.block";
    mixtral_grouped_block_bf16: "mixtral-grouped_mm.block.bf16";
    mixtral_grouped_dyn: "mixtral-grouped_mm.dyn";
    mixtral_grouped_experts: "mixtral-grouped_mm.experts";
    mixtral_grouped_lm: "mixtral-grouped_mm.lm";
    qwen3_moe_batched_joint: "qwen3_moe-batched_mm.joint";
    qwen3_moe_grouped_joint_bf16: "qwen3_moe-grouped_mm.joint.bf16";
}

/// Runs one archive on device 0 and compares with PyTorch's results; where they differ, names the first step that differs from the CPU's.
fn check(archive: &str, pipeline: &Pipeline) {
    if is_missing() {
        return;
    }
    let weights = load(archive).weights;
    let plan = plan(archive, pipeline, "h200");
    let cuda = Executable::load(plan.clone(), &weights, &Device::Cuda(0)).unwrap_or_else(|error| panic!("{error}"));
    let (_, endings) = FIXTURES.iter().find(|fixture| fixture.0 == archive).expect("a fixture");
    for ending in *endings {
        let io = reference(archive, ending);
        let inputs = inputs(&io);
        let outputs = cuda.run(&inputs).unwrap_or_else(|error| panic!("{error}"));
        for difference in compare_all(&outputs, &io).unwrap_or_else(|error| panic!("{error}")) {
            assert!(difference.within, "{difference:?}\n{}", first_difference(&plan, &weights, &inputs));
        }
        let again = cuda.run(&inputs).unwrap_or_else(|error| panic!("{error}"));
        assert!(again == outputs, "a second run gives other bits");
    }
    eprintln!("{archive}: {} kernels", cuda.backend().kernels());
}

/// Runs a plan with every step's results among its outputs, on both backends.
fn first_difference(plan: &Plan, weights: &Weights, inputs: &[Tensor]) -> String {
    let mut plan = plan.clone();
    let steps = plan.steps.iter().flat_map(|step| step.outputs.iter().map(move |output| (step, output)));
    let (names, outputs): (Vec<String>, Vec<PlanOutput>) = steps
        .map(|(step, output)| {
            let name = format!("step `{}` ({}) of {}", step.name, step.op.name(), output.ty());
            (name, PlanOutput { tensor: output.clone(), kind: OutputKind::User })
        })
        .unzip();
    plan.outputs = outputs;
    let run = |device| Executable::load(plan.clone(), weights, &device).and_then(|executable| executable.run(inputs));
    let [cuda, cpu] = [Device::Cuda(0), Device::Cpu].map(|device| run(device).unwrap_or_else(|error| panic!("{error}")));
    let different = names.iter().zip(cuda.iter().zip(&cpu)).filter_map(|(name, (cuda, cpu))| {
        let difference = compare(name, cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
        (!difference.within).then(|| format!("{difference:?}"))
    });
    let different: Vec<String> = different.take(3).collect();
    if different.is_empty() { "no step differs from the CPU's".into() } else { different.join("\n") }
}

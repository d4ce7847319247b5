//! Plans on a device, against PyTorch's results and the CPU backend.

use crate::fixture::{Form, plan, references};
use eglu_codegen::{Plan, PlanOutput};
use eglu_ir::{OutputKind, Tensor, weights::Weights};
use eglu_runtime::{
    Executable,
    compare::compare,
    cpu::CpuExecutable,
    cuda::{CudaExecutable, DeviceFacts, probe},
};

macro_rules! archives {
    ($($name:ident: $archive:literal;)+) => {
        $(mod $name {
            #[test]
            fn fused() {
                super::check($archive, super::Form::Fused);
            }

            #[test]
            fn unfused() {
                super::check($archive, super::Form::Unfused);
            }
        })+

        #[test]
        fn every_archive_is_run() {
            let run = [$($archive),+];
            let left_out: Vec<_> = crate::fixture::ARCHIVES.iter().filter(|a| !run.contains(a) && !references(a).is_empty()).collect();
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
}

/// Runs one archive on device 0 and compares with PyTorch's results; where they differ, names the first step that differs from the CPU's.
fn check(archive: &str, form: Form) {
    let probe = probe();
    let required = std::env::var_os("EGLU_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(probe.usable() || !required, "EGLU_REQUIRE_GPU is set, but:\n{probe}");
    if !probe.usable() {
        eprintln!("skipped:\n{probe}");
        return;
    }
    let profile = DeviceFacts::of(0).unwrap().profile();
    let (plan, weights) = plan(archive, form, &profile);
    let cuda = on_cuda(&plan, &weights);
    for (inputs, wanted) in references(archive) {
        let outputs = cuda.run(&inputs).unwrap_or_else(|error| panic!("{error}"));
        let kinds = plan.outputs.iter().map(|output| &output.kind);
        let users: Vec<&Tensor> = outputs
            .iter()
            .zip(kinds)
            .filter(|(_, kind)| !matches!(kind, OutputKind::Mutation(_)))
            .map(|(tensor, _)| tensor)
            .collect();
        assert_eq!(users.len(), wanted.len());
        for (i, (got, want)) in users.iter().zip(&wanted).enumerate() {
            let difference = compare(&format!("output.{i}"), got, want).unwrap_or_else(|error| panic!("{error}"));
            assert!(difference.within, "{difference:?}\n{}", first_difference(&plan, &weights, &inputs));
        }
        let again = cuda.run(&inputs).unwrap_or_else(|error| panic!("{error}"));
        assert!(again == outputs, "a second run gives other bits");
    }
    eprintln!("{archive} {form:?}: {} kernels", cuda.backend().kernels());
}

fn on_cuda(plan: &Plan, weights: &Weights) -> Executable {
    let source = |name: &str| Ok(weights.get(name).unwrap_or_else(|error| panic!("{error}")));
    Executable::new(Box::new(CudaExecutable::build(plan, &source, 0).unwrap_or_else(|error| panic!("{error}"))))
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
    let cuda = on_cuda(&plan, weights).run(inputs).unwrap_or_else(|error| panic!("{error}"));
    let source = |name: &str| Ok(weights.get(name).unwrap_or_else(|error| panic!("{error}")));
    let cpu = CpuExecutable::load(plan, &source, None).map(|cpu| Executable::new(Box::new(cpu))).and_then(|cpu| cpu.run(inputs));
    let cpu = cpu.unwrap_or_else(|error| panic!("{error}"));
    let different = names.iter().zip(cuda.iter().zip(&cpu)).filter_map(|(name, (cuda, cpu))| {
        let difference = compare(name, cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
        (!difference.within).then(|| format!("{difference:?}"))
    });
    let different: Vec<String> = different.take(3).collect();
    if different.is_empty() { "no step differs from the CPU's".into() } else { different.join("\n") }
}

//! Exported graphs on the CPU backend against what PyTorch computed.

use eglu_codegen::lower;
use eglu_ir::{OutputKind, Tensor, import::import, reference::read_tensors};
use eglu_runtime::{Device, Executable, compare::compare_all};
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// Runs an archive on the inputs of each reference file and compares its user outputs.
fn check(model: &str, references: &[&str]) {
    let imported = import(&fixture(&format!("{model}.pt2"))).unwrap_or_else(|e| panic!("{model}: {e}"));
    let plan = lower(&imported.graph).unwrap_or_else(|e| panic!("{model}: {e}"));
    let executable = Executable::load(plan, &imported.weights, &Device::Cpu).unwrap_or_else(|e| panic!("{model}: {e}"));
    for reference in references {
        let tensors = read_tensors(&fixture(reference)).unwrap_or_else(|e| panic!("{reference}: {e}"));
        let inputs: Vec<Tensor> = (0..executable.plan().inputs.len()).map(|i| tensors[&format!("input.{i}")].clone()).collect();
        let outputs = executable.run(&inputs).unwrap_or_else(|e| panic!("{reference}: {e}"));
        let kinds = executable.plan().outputs.iter().map(|output| &output.kind);
        let user: Vec<Tensor> =
            outputs.into_iter().zip(kinds).filter(|(_, kind)| !matches!(kind, OutputKind::Mutation(_))).map(|(t, _)| t).collect();
        for difference in compare_all(&user, &tensors).unwrap_or_else(|e| panic!("{reference}: {e}")) {
            assert!(difference.within, "{reference}: {difference:?}");
        }
    }
}

macro_rules! archives {
    ($($test:ident: $model:literal $(, $reference:literal)+;)+) => {
        $(#[test]
        fn $test() {
            check($model, &[$($reference),+]);
        })+
    };
}

archives! {
    mixtral_grouped: "mixtral-grouped_mm.block", "mixtral-grouped_mm.block.io.safetensors";
    mixtral_grouped_bf16: "mixtral-grouped_mm.block.bf16", "mixtral-grouped_mm.block.bf16.io.safetensors";
    mixtral_grouped_model: "mixtral-grouped_mm.lm", "mixtral-grouped_mm.lm.io.safetensors";
    mixtral_grouped_dynamic: "mixtral-grouped_mm.dyn", "mixtral-grouped_mm.dyn.io.safetensors", "mixtral-grouped_mm.dyn.io2.safetensors";
    mixtral_experts: "mixtral-grouped_mm.experts", "mixtral-grouped_mm.experts.io.safetensors", "mixtral-grouped_mm.experts.io2.safetensors";
    mixtral_batched: "mixtral-batched_mm.block", "mixtral-batched_mm.block.io.safetensors";
    mixtral_batched_model: "mixtral-batched_mm.lm", "mixtral-batched_mm.lm.io.safetensors";
    mixtral_batched_dynamic: "mixtral-batched_mm.dyn", "mixtral-batched_mm.dyn.io.safetensors", "mixtral-batched_mm.dyn.io2.safetensors";
    llama: "llama.block", "llama.block.io.safetensors";
    llama_bf16: "llama.block.bf16", "llama.block.bf16.io.safetensors";
    llama_model: "llama.lm", "llama.lm.io.safetensors";
    llama_dynamic: "llama.dyn", "llama.dyn.io.safetensors", "llama.dyn.io2.safetensors";
}

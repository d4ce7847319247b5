//! Imported joint graphs: their forward part, differentiated here, gives PyTorch's gradients, and fuses to the same kernels.

use eglu_ir::{
    DType, Graph, OutputKind, Tensor,
    eval::eval_graph,
    import::{Imported, import},
    profile::H200,
    reference::read_tensors,
};
use eglu_passes::{Gradients, Optimized, Options, Pipeline, autodiff::PARAMETERS, certify::relative_error, cost};
use std::{collections::BTreeMap, path::PathBuf};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures")).join(name)
}

pub fn load(name: &str) -> Imported {
    import(&fixture(&format!("{name}.pt2"))).expect("the fixture imports")
}

/// The graph without its gradients: what it computes for the user.
fn forward(joint: &Graph) -> Graph {
    let text = eglu_ir::text::print(joint);
    let kept = text.lines().filter(|line| !(line.starts_with("output ") && line.contains(" gradient ")));
    let mut graph = eglu_ir::text::parse(&kept.map(|line| format!("{line}\n")).collect::<String>()).expect("the text parses");
    graph.remove_dead();
    graph
}

fn options() -> Options {
    let gradients = Gradients { by: vec![PARAMETERS.into()], ..Gradients::default() };
    Options { gradients, ..Options::new(H200) }
}

/// How often each op that launches a kernel occurs.
fn kernels(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut kernels = BTreeMap::new();
    for op in graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| cost::launches(op)) {
        *kernels.entry(op.name()).or_insert(0) += 1;
    }
    kernels
}

fn agrees(name: &str, imported: &Imported, Optimized { graph, .. }: &Optimized) {
    let tensors = read_tensors(&fixture(&format!("{name}.io.safetensors"))).expect("the reference tensors load");
    let all = |kind: &str| -> Vec<Tensor> { (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect() };
    let results = eval_graph(graph, &|path| imported.weights.get(path).ok(), &all("input")).expect("the graph evaluates");
    let wanted = all("output");
    assert_eq!(results.len(), wanted.len(), "{name}");
    for ((got, want), output) in results.iter().zip(&wanted).zip(graph.outputs()) {
        let tolerance = if want.dtype() == DType::Bf16 { 2e-2 } else { 1e-5 };
        let error = relative_error(got, want).expect("equal shapes");
        assert!(error < tolerance, "{name}: {:?} differs by {error}", output.kind);
    }
}

#[test]
fn gradients_are_pytorchs_and_the_kernels_those_of_its_joint_graph() {
    for name in ["qwen3_moe-batched_mm.joint", "qwen3_moe-grouped_mm.joint.bf16"] {
        let imported = load(name);
        let forward = forward(&imported.graph);
        let fused = Pipeline::standard().differentiated().run_with(forward.clone(), &options()).expect("the pipeline runs");
        let gradients = |graph: &Graph| graph.outputs().iter().map(|output| output.kind.clone()).collect::<Vec<OutputKind>>();
        assert_eq!(gradients(&fused.graph), gradients(&imported.graph));
        agrees(name, &imported, &fused);
        let plain = Pipeline::unfused().differentiated().run_with(forward, &options()).expect("the pipeline runs");
        agrees(name, &imported, &plain);

        let pytorchs = Pipeline::standard().run_with(imported.graph.clone(), &Options::new(H200)).expect("the pipeline runs");
        // Whether a sum of two gradients ends one kernel or the other is a tie; how many there are is not.
        let (ours, theirs) = (kernels(&fused.graph), kernels(&pytorchs.graph));
        assert_eq!(ours.values().sum::<usize>(), theirs.values().sum::<usize>(), "{name}: {ours:?}, {theirs:?}");
        for op in ["route", "expert_contract", "expert_matmul", "expert_outer", "combine"] {
            assert_eq!(ours.get(op), theirs.get(op), "{name}: {op}");
        }
    }
}

/// Training graphs of blocks that were exported for inference: the products by expert of the fused vocabulary, once each.
#[test]
fn blocks_of_every_dress_reach_one_backward() {
    let fused = |name: &str| {
        let graph = load(name).graph;
        kernels(&Pipeline::standard().differentiated().run_with(graph, &Options::new(H200)).expect("the pipeline runs").graph)
    };
    let grouped = fused("mixtral-grouped_mm.block");
    assert_eq!(grouped, fused("mixtral-batched_mm.block"));
    // Forward: gate and up with the gating, down. Backward: down with the gating's derivative, gate and up; the gradients of two weights.
    assert_eq!([grouped["expert_contract"], grouped["expert_matmul"], grouped["expert_outer"]], [2, 2, 2]);
    assert!(!grouped.contains_key("matmul") || grouped["matmul"] <= 2, "the router's alone: {grouped:?}");
}

//! Exported models through the pipelines: PyTorch's results, the same kernels for both dresses, and what the report says.

use eglu_ir::{
    DType, Graph, OutputKind, Tensor,
    eval::eval_graph,
    import::{Imported, import},
    profile::H200,
    reference::read_tensors,
};
use eglu_passes::{Optimized, Options, Pipeline, certify, certify::relative_error, cost, explain, report::Kind};
use std::{collections::BTreeMap, path::PathBuf};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures")).join(name)
}

fn load(name: &str) -> Imported {
    import(&fixture(&format!("{name}.pt2"))).expect("the fixture imports")
}

fn optimized(graph: &Graph) -> Optimized {
    Pipeline::standard().run_with(graph.clone(), &Options::new(H200)).expect("the pipeline runs")
}

/// How often each op that launches a kernel occurs.
fn kernels(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut kernels = BTreeMap::new();
    for op in graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| cost::launches(op)) {
        *kernels.entry(op.name()).or_insert(0) += 1;
    }
    kernels
}

fn count(optimized: &Optimized, kind: Kind) -> usize {
    optimized.report.sites.iter().filter(|site| site.kind == kind).count()
}

/// Compares a graph's user outputs with PyTorch's on each file of reference tensors there is.
fn agrees(name: &str, imported: &Imported, graph: &Graph) {
    let weights = |path: &str| imported.weights.get(path).ok();
    let mut compared = 0;
    for reference in ["io", "io2"].map(|io| fixture(&format!("{name}.{io}.safetensors"))).into_iter().filter(|path| path.exists())
    {
        let tensors = read_tensors(&reference).expect("the reference tensors load");
        let all = |kind: &str| -> Vec<Tensor> { (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect() };
        let results = eval_graph(graph, &weights, &all("input")).expect("the graph evaluates");
        let user = results.iter().zip(graph.outputs()).filter(|(_, output)| !matches!(output.kind, OutputKind::Mutation(_)));
        let wanted = all("output");
        assert_eq!(user.clone().count(), wanted.len());
        for ((got, _), want) in user.zip(&wanted) {
            let tolerance = if want.dtype() == DType::Bf16 { 2e-2 } else { 1e-5 };
            let error = relative_error(got, want).expect("equal shapes");
            assert!(error < tolerance, "{name}: {error}");
            compared += 1;
        }
    }
    assert!(compared > 0, "{name} has no reference tensors");
}

#[test]
fn every_pipeline_gives_pytorchs_results() {
    for name in [
        "llama.block",
        "llama.block.bf16",
        "llama.lm",
        "llama.dyn",
        "mixtral-batched_mm.block",
        "mixtral-batched_mm.lm",
        "mixtral-batched_mm.dyn",
        "mixtral-grouped_mm.block",
        "mixtral-grouped_mm.block.bf16",
        "mixtral-grouped_mm.lm",
        "mixtral-grouped_mm.dyn",
        "mixtral-grouped_mm.experts",
        "qwen3_moe-batched_mm.joint",
        "qwen3_moe-grouped_mm.joint.bf16",
    ] {
        let imported = load(name);
        agrees(name, &imported, &optimized(&imported.graph).graph);
        let unfused = Pipeline::unfused().run_with(imported.graph.clone(), &Options::new(H200)).expect("the pipeline runs");
        agrees(name, &imported, &unfused.graph);
        assert!(kernels(&unfused.graph).values().sum::<usize>() > kernels(&optimized(&imported.graph).graph).values().sum());
    }
}

#[test]
fn both_dresses_of_mixtral_become_the_same_kernels() {
    for (size, blocks) in [("block", 1), ("lm", 2), ("dyn", 2)] {
        let [grouped, batched] =
            ["grouped", "batched"].map(|dress| optimized(&load(&format!("mixtral-{dress}_mm.{size}")).graph));
        assert_eq!(kernels(&grouped.graph), kernels(&batched.graph), "{size}");
        for optimized in [&grouped, &batched] {
            assert_eq!((count(optimized, Kind::Moe), count(optimized, Kind::Route)), (blocks, blocks), "{size}");
            assert!(optimized.report.stops.is_empty(), "{:?}", optimized.report.stops);
        }
    }
}

/// What is left of a dispatch, and of products that rules should have named.
const DISPATCH: [&str; 8] = ["sort", "index", "cat", "grouped_mm", "inverse_permutation", "histc", "cumsum", "gather"];

#[test]
fn both_dresses_of_a_backward_graph_become_the_same_kernels() {
    let dresses = ["qwen3_moe-batched_mm.joint", "qwen3_moe-grouped_mm.joint.bf16"];
    let [batched, grouped] = dresses.map(|name| optimized(&load(name).graph));
    // The one computes in f32, the other rounds: casts differ, on their own or behind a product.
    let named = |optimized: &Optimized| {
        let mut found = kernels(&optimized.graph);
        let contracts = found.remove("contract").unwrap_or(0);
        *found.entry("matmul").or_insert(0) += contracts;
        found.retain(|op, _| !["cast", "map"].contains(op));
        found
    };
    assert_eq!(named(&batched), named(&grouped));
    for optimized in [&batched, &grouped] {
        let found = kernels(&optimized.graph);
        assert_eq!(DISPATCH.map(|op| found.get(op).copied().unwrap_or(0)), [0; 8], "{found:?}");
        // Forward: gate and up with the gating, down. Backward: the gating's gradient behind a product, the rows' gradient, two weights'.
        assert_eq!(["expert_contract", "expert_matmul", "expert_outer"].map(|op| found[op]), [2, 2, 2], "{found:?}");
        assert!(optimized.report.stops.is_empty(), "{:?}", optimized.report.stops);
    }
}

#[test]
fn a_block_is_a_router_and_a_mixture_behind_one_matmul() {
    let block = optimized(&load("mixtral-grouped_mm.block").graph);
    assert_eq!(kernels(&block.graph), BTreeMap::from([("matmul", 1), ("moe", 1), ("route", 1)]));
    let site = block.report.sites.iter().find(|site| site.kind == Kind::Moe).expect("a mixture");
    assert!(site.nodes.iter().any(|node| &**node == "histc") && site.saves.launches > 10, "{site:?}");
}

#[test]
fn llamas_mlp_is_one_gated_unit_in_each_layer() {
    assert_eq!(count(&optimized(&load("llama.block").graph), Kind::Glu), 1);
    assert_eq!(count(&optimized(&load("llama.lm").graph), Kind::Glu), 2);
}

#[test]
fn explaining_a_node_names_its_kernel_and_the_rules_that_led_there() {
    let block = optimized(&load("mixtral-grouped_mm.block").graph);
    let text = explain(&block, "histc").expect("there was such a node");
    for part in ["ended in `moe`", "grouped-by-expert", "mixture-of-experts"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert_eq!(explain(&block, "nonsense"), None);
}

/// Ids are drawn within what they index, sizes within range, so that dynamic graphs and bare experts have a value.
#[test]
fn certification_draws_inputs_that_models_accept() {
    for name in ["mixtral-grouped_mm.experts", "mixtral-batched_mm.dyn", "llama.dyn"] {
        let imported = load(name);
        let optimized = optimized(&imported.graph);
        let certificate = certify(&imported.graph, &optimized.graph, &|path| imported.weights.get(path).ok(), 5)
            .expect("both graphs have a value");
        assert!(certificate.max_error() < 1e-5, "{name}: {certificate:?}");
        assert!(certificate.nodes.iter().all(|node| node.error < 1e-4), "{name}: {:?}", certificate.nodes);
    }
}

#[test]
fn the_report_has_the_fields_that_scripts_read() {
    let block = optimized(&load("mixtral-batched_mm.block").graph);
    let json = serde_json::to_value(&block.report).expect("the report serialises");
    let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
    for key in ["nodes_before", "nodes_after", "kernels", "sites", "refused", "stops", "time_ms"] {
        assert!(keys.iter().any(|k| *k == key), "{key} is not among {keys:?}");
    }
    assert!(json["time_ms"].as_object().expect("an object").values().all(serde_json::Value::is_number));
    assert!(json["sites"].as_array().expect("a list").iter().all(|site| site["saves"]["bytes"].is_u64()));
}

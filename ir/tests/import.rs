//! The archives of `fixtures/` import, and give PyTorch's results under the reference evaluator.

use eglu_ir::{
    DType, Graph, NodeKind, OutputKind, Tensor,
    eval::eval_graph,
    import::{Imported, import, reference},
    json, text, verify,
};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn files(suffix: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(fixtures()).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(suffix));
    files.sort();
    files
}

fn load(path: &Path) -> Imported {
    import(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_archive_imports_to_a_sound_graph_that_survives_writing() {
    let archives = files(".pt2");
    assert!(archives.len() >= 14, "only {} archives", archives.len());
    for path in archives {
        let graph = load(&path).graph;
        verify::verify(&graph).unwrap();
        let written = json::to_json(&graph).unwrap();
        assert_eq!(json::to_json(&json::from_json(&written).unwrap()).unwrap(), written, "{}", path.display());
        let printed = text::print(&graph);
        assert_eq!(text::print(&text::parse(&printed).unwrap()), printed, "{}", path.display());
    }
}

#[test]
fn imports_repeat_exactly() {
    let path = fixtures().join("mixtral-grouped_mm.block.pt2");
    let [first, second] = [load(&path), load(&path)].map(|imported| json::to_json(&imported.graph).unwrap());
    assert_eq!(first, second);
}

#[test]
fn nodes_keep_the_names_that_users_know() {
    let graph = load(&fixtures().join("mixtral-grouped_mm.block.pt2")).graph;
    for name in ["linear", "softmax", "x", "p_m_experts_gate_up_proj"] {
        assert!(graph.find(name).is_some(), "{name}");
    }
    // Helper nodes stand for the node they were made for.
    for id in graph.node_ids() {
        let node = graph.node(id);
        assert!(node.origins.iter().all(|origin| !origin.contains('.')), "{} stands for {:?}", node.name, node.origins);
    }
}

#[test]
fn a_structure_only_archive_lacks_all_its_weights() {
    let Imported { graph, weights, .. } = load(&fixtures().join("mixtral-8x7b-grouped_mm.pt2"));
    let all = graph.node_ids().filter(|&id| matches!(graph.node(id).kind, NodeKind::Weight(_))).count();
    assert_eq!(weights.missing(&graph).len(), all);
    assert_eq!(weights.bytes(), 0);
}

/// ‖out − ref‖ / ‖ref‖, infinite where one is not finite and the other differs.
fn error(out: &[f64], reference: &[f64]) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for (x, y) in out.iter().zip(reference) {
        if x != y && !(x.is_nan() && y.is_nan()) {
            difference += (x - y) * (x - y);
        }
        size += if y.is_finite() { y * y } else { 0.0 };
    }
    if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().iter().map(|&x| f64::from(x)).collect(),
        DType::Bf16 => tensor.as_slice::<half::bf16>().iter().map(|x| x.to_f64()).collect(),
        other => panic!("no fixture returns {other}"),
    }
}

/// The user inputs of a graph among reference tensors.
fn inputs(graph: &Graph, tensors: &IndexMap<String, Tensor>) -> Vec<Tensor> {
    (0..graph.inputs().len()).map(|i| tensors[&format!("input.{i}")].clone()).collect()
}

#[test]
fn results_are_those_of_pytorch() {
    let references: Vec<PathBuf> = [".io.safetensors", ".io2.safetensors"].into_iter().flat_map(files).collect();
    assert!(references.len() >= 16, "only {} references", references.len());
    for io in references {
        let name = io.file_name().unwrap().to_string_lossy().into_owned();
        let stem = name.split(".io").next().unwrap();
        let Imported { graph, weights, .. } = load(&fixtures().join(format!("{stem}.pt2")));
        let tensors = reference::read_tensors(&io).unwrap();
        let results = eval_graph(&graph, &|path| weights.get(path).ok(), &inputs(&graph, &tensors)).unwrap();
        let user = graph.outputs().iter().zip(&results).filter(|(output, _)| output.kind == OutputKind::User);
        for (i, (_, result)) in user.enumerate() {
            let wanted = &tensors[&format!("output.{i}")];
            assert_eq!((result.dtype(), result.shape()), (wanted.dtype(), wanted.shape()), "{name} output.{i}");
            let tolerance = if result.dtype() == DType::Bf16 { 2e-2 } else { 1e-5 };
            let error = error(&floats(result), &floats(wanted));
            assert!(error <= tolerance, "{name} output.{i}: {error:e}");
        }
    }
}

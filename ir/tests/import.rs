//! What imports of real archives keep: names, order, and what is missing. That they compute PyTorch's results, `fixtures.rs` checks.

use eglu_ir::{
    NodeKind,
    import::{ImportError, Imported, import},
    json,
};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn load(path: &Path) -> Imported {
    import(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
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

#[test]
fn own_json_imports_as_the_graph_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.json");
    let written = json::to_json(&load(&fixtures().join("llama.dyn.pt2")).graph).unwrap();
    std::fs::write(&path, &written).unwrap();
    let Imported { graph, weights, .. } = load(&path);
    assert_eq!(json::to_json(&graph).unwrap(), written);
    assert!(weights.missing(&graph).len() > 10);
    std::fs::write(&path, &written[..written.len() / 2]).unwrap();
    assert!(matches!(import(&path), Err(ImportError::OwnJson { .. })));
}

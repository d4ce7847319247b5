//! Exported models: what they become, and that it is still what PyTorch computes.

use crate::fusing::{count, text};
use eglu_ir::{
    Graph, Tensor,
    eval::{EvalOperand, eval_graph, eval_op},
    import::{Imported, import},
    ops::Cast,
    profile::H200,
    reference::read_tensors,
};
use eglu_passes::egraph::{EgraphReport, saturate};
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures")).join(name)
}

fn load(name: &str) -> (Imported, Graph, EgraphReport) {
    let imported = import(&fixture(&format!("{name}.pt2"))).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (fused, report) = saturate(&imported.graph, &H200).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(report.stops, [], "{name}");
    (imported, fused, report)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    let cast = Cast { dtype: eglu_ir::DType::F32 }.into();
    let wide = eval_op(&cast, &[EvalOperand::Tensor(tensor)], &Default::default()).unwrap().remove(0);
    wide.bytes().chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The largest error against PyTorch's outputs, relative to the largest element.
fn error(name: &str, imported: &Imported, graph: &Graph) -> f32 {
    let tensors = read_tensors(&fixture(&format!("{name}.io.safetensors"))).unwrap();
    let all = |kind: &str| -> Vec<Tensor> { (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect() };
    let found = eval_graph(graph, &|path| imported.weights.get(path).ok(), &all("input")).unwrap();
    let (mut worst, wanted) = (0f32, all("output"));
    assert!(!wanted.is_empty());
    for (want, got) in wanted.iter().zip(&found) {
        let (want, got) = (floats(want), floats(got));
        assert_eq!(want.len(), got.len());
        let scale = want.iter().fold(0f32, |max, x| max.max(x.abs()));
        worst = want.iter().zip(&got).fold(worst, |max, (a, b)| max.max((a - b).abs() / scale));
    }
    worst
}

#[test]
fn models_reach_their_fused_nodes() {
    for (name, moe, dense, norms) in [
        ("mixtral-grouped_mm.block", 1, 0, 0),
        ("mixtral-grouped_mm.block.bf16", 1, 0, 0),
        ("mixtral-batched_mm.block", 1, 0, 0),
        ("mixtral-grouped_mm.experts", 1, 0, 0),
        ("mixtral-grouped_mm.lm", 2, 0, 5),
        ("mixtral-grouped_mm.dyn", 2, 0, 5),
        ("mixtral-batched_mm.lm", 2, 0, 5),
        ("mixtral-batched_mm.dyn", 2, 0, 5),
        ("llama.block", 0, 1, 0),
        ("llama.block.bf16", 0, 1, 0),
        ("llama.lm", 0, 2, 5),
        ("llama.dyn", 0, 2, 5),
    ] {
        let (imported, fused, _) = load(name);
        assert_eq!((count(&fused, "moe"), count(&fused, "dense_glu"), count(&fused, "rms_norm")), (moe, dense, norms), "{name}");
        let routers = if name.ends_with("experts") { 0 } else { moe };
        assert_eq!(count(&fused, "route"), routers, "{name}");
        let tolerance = if name.ends_with("bf16") { 2e-2 } else { 2e-5 };
        let error = error(name, &imported, &fused);
        assert!(error < tolerance, "{name} differs from PyTorch by {error}");
    }
}

#[test]
fn both_dresses_of_a_model_become_the_same() {
    for kind in ["block", "lm", "dyn"] {
        let [grouped, batched] = ["grouped", "batched"].map(|dress| load(&format!("mixtral-{dress}_mm.{kind}")).1);
        assert_eq!(text(&grouped), text(&batched), "{kind}");
    }
}

#[test]
fn real_sizes_fuse() {
    for name in ["mixtral-8x7b-grouped_mm", "mixtral-mid-grouped_mm", "mixtral-8x7b-experts"] {
        let (_, fused, report) = load(name);
        assert_eq!(count(&fused, "moe"), 1, "{name}");
        let (before, after) = report.price;
        assert!(after.seconds < before.seconds && after.launches < before.launches && after.bytes < before.bytes, "{name}");
    }
}

#[test]
fn results_are_the_same_every_time() {
    let (_, first, one) = load("mixtral-grouped_mm.lm");
    let (_, second, two) = load("mixtral-grouped_mm.lm");
    assert_eq!(text(&first), text(&second));
    let names = |graph: &Graph| graph.node_ids().map(|id| graph.node(id).name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), names(&second));
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
}

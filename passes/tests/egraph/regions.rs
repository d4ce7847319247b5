//! Models are cut into regions, equal ones solved once.

use crate::{
    blocks::{Dress, MIXTRAL, Variant, block, stack},
    fusing::{count, text},
    soundness::random,
};
use eglu_ir::{DType, Graph, OutputKind, TensorType, eval::eval_graph, ops::Iota, profile::H200};
use eglu_passes::egraph::{
    Limits,
    rule::{Numerics, rule},
    rules, saturate, saturate_with,
};

#[test]
fn equal_layers_are_solved_once() {
    for dress in [Dress::Grouped, Dress::Batched] {
        let (fused, report) = saturate(&stack(Variant { dress, ..MIXTRAL }, 40, false), &H200).unwrap();
        assert_eq!((count(&fused, "moe"), count(&fused, "route"), count(&fused, "rms_norm")), (40, 40, 40));
        assert!(report.regions >= 20 && report.cached >= report.regions - 4, "{} of {}", report.cached, report.regions);
        let sites = report.sites.iter().filter(|site| site.op == "moe");
        let silus = sites.map(|site| site.origins.iter().filter(|name| name.starts_with("silu")).count());
        assert_eq!(silus.collect::<Vec<_>>(), vec![1; 40], "each block stands for its own layer");
    }
}

#[test]
fn index_maps_shared_by_layers_are_seen_by_each() {
    let (fused, _) = saturate(&stack(Variant { dress: Dress::Batched, ..MIXTRAL }, 12, true), &H200).unwrap();
    assert_eq!(count(&fused, "moe"), 12);
}

#[test]
fn stitched_layers_compute_the_same() {
    let graph = stack(MIXTRAL, 3, true);
    let (fused, _) = saturate(&graph, &H200).unwrap();
    let inputs: Vec<_> = graph.inputs().iter().map(|&id| random(&graph, id.into(), 5, 1)).collect();
    let weight = |path: &str| graph.find(path).map(|id| random(&graph, id.into(), 5, 1));
    let run = |g: &Graph| eval_graph(g, &weight, &inputs).unwrap().remove(0);
    let floats =
        |g: &Graph| run(g).bytes().chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>();
    let (before, after) = (floats(&graph), floats(&fused));
    assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-4), "{before:?} {after:?}");
}

#[test]
fn graphs_without_calls_stay() {
    let mut graph = Graph::new("empty");
    let x = graph.add_input("x", TensorType::fixed(DType::F32, &[2]));
    let w = graph.add_weight("w", "w", TensorType::fixed(DType::F32, &[2]));
    let iota = graph.add_call("iota", Iota { len: 3.into(), start: 0, step: 1, dtype: DType::I64 }.into(), []).unwrap();
    for value in [x, w, iota.into()] {
        graph.add_output(value, OutputKind::User);
    }
    let (same, report) = saturate(&graph, &H200).unwrap();
    assert_eq!(same.len(), 3);
    assert_eq!(same.outputs().len(), 3);
    assert!(report.fired.is_empty());
}

#[test]
fn a_region_that_fails_stays_as_it_was() {
    let graph = stack(MIXTRAL, 3, true);
    let ill_typed = rule("ill-typed", Numerics::Exact, "wrong").from("(silu ?x)").becomes("(cast ?x dtype:f64)").unwrap();
    let (same, report) = saturate_with(&graph, &H200, &[ill_typed], Limits::default()).unwrap();
    let ops = |graph: &Graph| {
        let mut ops: Vec<String> = text(graph).iter().map(|line| line.split('(').next().unwrap_or_default().into()).collect();
        ops.sort_unstable();
        ops
    };
    assert_eq!(ops(&same), ops(&graph));
    assert!(!report.stops.is_empty() && report.stops.len() <= report.regions);
    let why = &report.stops[0].why;
    assert!(why.starts_with("left as it was: ") && why.contains("f64") && why.contains("ill-typed"), "{why}");
    assert!(report.fired.is_empty());
}

#[test]
fn limits_are_reported_and_leave_a_valid_graph() {
    let graph = block(MIXTRAL);
    let (partly, report) = saturate_with(&graph, &H200, rules::all().unwrap(), Limits { rounds: 2, nodes: 50_000 }).unwrap();
    assert_eq!(report.stops.len(), 1);
    assert!(report.stops[0].why.contains("2 rounds"), "{:?}", report.stops);
    assert_eq!(partly.outputs().len(), 1);
    let (_, report) = saturate_with(&graph, &H200, rules::all().unwrap(), Limits { rounds: 100, nodes: 10 }).unwrap();
    assert!(report.stops[0].why.contains("e-nodes"));
}

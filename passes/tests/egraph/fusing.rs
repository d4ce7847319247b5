//! Every dress of a block becomes the same few nodes.

use crate::{
    blocks::{Dress, MIXTRAL, Sizes, Variant, block, dense, experts_only},
    routers::{ROUTERS, routed},
    single::graphs,
};
use eglu_ir::{
    DType, Graph, NodeKind, Operand,
    ops::Pointwise,
    profile::{CPU, H200},
};
use eglu_passes::egraph::{EgraphReport, saturate};

fn fused(graph: &Graph) -> (Graph, EgraphReport) {
    let (fused, report) = saturate(graph, &H200).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.stops, [], "every region saturates");
    (fused, report)
}

/// One line for each node, in order, without names of calls: what is computed, not what it is called.
pub fn text(graph: &Graph) -> Vec<String> {
    let order = graph.topological().unwrap();
    let live: std::collections::HashSet<_> = {
        let mut live = std::collections::HashSet::new();
        let mut stack: Vec<_> = graph.outputs().iter().map(|output| output.value.node).collect();
        while let Some(id) = stack.pop() {
            if live.insert(id) {
                stack.extend(graph.node(id).operands.iter().filter_map(|o| o.value()).map(|v| v.node));
            }
        }
        live
    };
    let mut names = std::collections::HashMap::new();
    let mut lines = Vec::new();
    for id in order.into_iter().filter(|id| live.contains(id)) {
        let node = graph.node(id);
        let NodeKind::Call(op) = &node.kind else {
            names.insert(id, node.name.to_string());
            continue;
        };
        names.insert(id, format!("v{}", lines.len()));
        let operands: Vec<String> = node
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => format!("{}.{}", names[&value.node], value.index),
                other => format!("{other:?}"),
            })
            .collect();
        lines.push(format!("{}({}) {:?}", op.name(), operands.join(", "), op.attrs()));
    }
    lines
}

pub fn count(graph: &Graph, op: &str) -> usize {
    text(graph).iter().filter(|line| line.starts_with(&format!("{op}("))).count()
}

fn ops(graph: &Graph) -> Vec<String> {
    text(graph).iter().filter_map(|line| line.split_once('(').map(|(op, _)| op.to_string())).collect()
}

#[test]
fn both_dresses_become_the_same_block() {
    for gpt_oss in [false, true] {
        for dtype in [DType::F32, DType::Bf16] {
            let variant = Variant { gpt_oss, dtype, ..MIXTRAL };
            let (grouped, report) = fused(&block(variant));
            let (batched, _) = fused(&block(Variant { dress: Dress::Batched, ..variant }));
            assert_eq!(text(&grouped), text(&batched), "{variant:?}");
            assert_eq!(count(&grouped, "moe"), 1, "{:#?}\n{:#?}", text(&grouped), report.refused);
            assert_eq!(count(&grouped, "route"), 1, "{:#?}\n{:#?}", text(&grouped), report.refused);
            let left: Vec<String> = ops(&grouped);
            let views = ["reshape", "permute", "slice"];
            let kernels: Vec<&String> = left.iter().filter(|op| !views.contains(&op.as_str())).collect();
            assert_eq!(kernels, ["matmul", "route", "moe"], "{:#?}", text(&grouped));
            assert_eq!(report.assumptions, []);
        }
    }
}

#[test]
fn choice_does_not_depend_on_the_device() {
    let (fused, _) = saturate(&block(MIXTRAL), &CPU).unwrap();
    assert_eq!(count(&fused, "moe"), 1);
}

#[test]
fn origins_name_what_was_replaced() {
    let graph = block(MIXTRAL);
    let (fused, report) = fused(&graph);
    let moe = fused.node_ids().find(|&id| fused.node(id).op().is_some_and(|op| op.name() == "moe")).unwrap();
    let origins: Vec<&str> = fused.node(moe).origins.iter().map(|name| &**name).collect();
    for name in ["grouped_mm", "grouped_mm_1", "silu", "sort", "histc", "reduce_1"] {
        assert!(origins.contains(&name), "{name} in {origins:?}");
    }
    assert!(!origins.contains(&"matmul"), "the router's logits stay: {origins:?}");
    assert!(fused.find("matmul").is_some());
    assert!(report.sites.iter().any(|site| site.op == "moe" && site.origins.contains(&"silu".to_string())));
    assert!(report.fired.iter().any(|fired| fired.rule == "mixture-of-experts"));
}

#[test]
fn experts_of_ids_given_from_outside_rest_on_an_assumption() {
    let (fused, report) = fused(&experts_only(MIXTRAL));
    assert_eq!(count(&fused, "moe"), 1, "{:#?}\n{:#?}", text(&fused), report.refused);
    assert_eq!(count(&fused, "where"), 0, "masks are absorbed");
    assert_eq!(report.assumptions.len(), 1);
    assert!(report.assumptions[0].claim.contains("(input ids)"), "{:?}", report.assumptions);
}

#[test]
fn dense_layers_become_one_unit() {
    for act in [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid] {
        for (one_weight, biased) in [(false, false), (false, true), (true, false), (true, true)] {
            let (fused, report) = fused(&dense(DType::Bf16, act, one_weight, biased));
            assert_eq!(count(&fused, "dense_glu"), 1, "{act:?} {one_weight} {biased} {:#?} {:#?}", text(&fused), report.refused);
            assert_eq!(count(&fused, "matmul"), 1);
        }
    }
}

#[test]
fn experts_of_any_activation_behind_any_router_are_one_block() {
    for router in ROUTERS {
        let (fused, report) = fused(&routed(Sizes { e: 6, ..MIXTRAL.sizes }, router));
        let left = ops(&fused);
        let kernels: Vec<&String> = left.iter().filter(|op| !["reshape", "permute", "slice"].contains(&op.as_str())).collect();
        assert_eq!(kernels, ["matmul", "route", "moe"], "{router:?} {:#?}\n{:#?}", text(&fused), report.refused);
    }
}

#[test]
fn norms_and_softmax_by_parts_are_one_kernel_each() {
    for (name, op) in
        [("layer-norm", "layer_norm"), ("norm-by-root", "rms_norm"), ("softmax-by-parts", "softmax"), ("columns", "dense_glu")]
    {
        let graphs: Vec<Graph> = graphs(8, MIXTRAL.sizes).into_iter().filter(|graph| graph.name == name).collect();
        assert!(!graphs.is_empty(), "{name}");
        for graph in graphs {
            let (fused, report) = fused(&graph);
            let left: Vec<String> = ops(&fused);
            let kernels: Vec<&String> = left.iter().filter(|op| !["permute", "slice"].contains(&op.as_str())).collect();
            assert_eq!(kernels, [op], "{:#?}\n{:#?}", text(&fused), report.refused);
        }
    }
}

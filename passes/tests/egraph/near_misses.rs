//! Graphs that nearly match: refused with a reason, or kept apart, and never computed wrongly.

use crate::{
    blocks::{Dress, MIXTRAL, Order, Sizes, Variant, block, experts_only},
    build::{Builder, float, int},
    fusing::{count, text},
    routers::{DEEPSEEK, Router, routed},
    single::silu_by_parts,
    soundness::random,
};
use eglu_ir::{DType, Graph, Tensor, eval::eval_graph, ops::Pointwise, profile::H200};
use eglu_passes::egraph::{EgraphReport, saturate};

/// Rewrites, and checks that the result still computes the same.
fn rewritten(graph: &Graph, ids: i64) -> (Graph, EgraphReport) {
    let (fused, report) = saturate(graph, &H200).unwrap();
    let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(graph, id.into(), 11, ids)).collect();
    let run = |g: &Graph| {
        let weights = |path: &str| graph.find(path).map(|id| random(graph, id.into(), 11, ids));
        eval_graph(g, &weights, &inputs).map(|mut outputs| outputs.remove(0))
    };
    let (before, after) = (run(graph).unwrap(), run(&fused).unwrap());
    let floats = |t: &Tensor| t.bytes().chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>();
    let (before, after) = (floats(&before), floats(&after));
    let scale = before.iter().fold(0f32, |max, x| max.max(x.abs()));
    assert_eq!(before.len(), after.len());
    assert!(before.iter().zip(&after).all(|(a, b)| (a - b).abs() <= 2e-5 * scale), "{} computes something else", graph.name);
    (fused, report)
}

/// The block does not fuse, and the report says which condition of which rule refused.
fn refuses(variant: Variant, rule: &str, condition: &str, why: &str) {
    let (fused, report) = rewritten(&block(variant), 1);
    assert_eq!(count(&fused, "moe"), 0, "{variant:?}\n{:#?}", text(&fused));
    let found = report.refused.iter().find(|miss| miss.rule == rule && miss.condition == condition);
    let found = found.unwrap_or_else(|| panic!("no refusal of {rule} by {condition} in {:#?}", report.refused));
    assert!(found.why.contains(why), "{found:?}");
}

#[test]
fn histogram_of_another_range() {
    let variant = Variant { counted_more: 1, ..MIXTRAL };
    refuses(variant, "grouped-by-expert", "one-bin-each", "4 bins over 0..4, but there are 4 experts");
}

#[test]
fn rows_divided_by_another_number() {
    refuses(
        Variant { divided_more: 2, ..MIXTRAL },
        "mixture-of-experts",
        "rows-by-token",
        "position / 4, but each token has 2 weights",
    );
    let batched = Variant { divided_more: 2, dress: Dress::Batched, ..MIXTRAL };
    refuses(batched, "mixture-of-experts", "rows-by-token", "position / 4, but each token has 2 weights");
}

#[test]
fn asymmetric_limits() {
    let variant = Variant { gpt_oss: true, lower: -5.0, ..MIXTRAL };
    refuses(variant, "clamped-swish-gated", "symmetric-limits", "-5..7");
}

#[test]
fn ids_that_may_be_negative() {
    let variant = Variant { shift: 1, masked_more: 0, ..MIXTRAL };
    let (fused, report) = saturate(&block(variant), &H200).unwrap();
    assert_eq!(count(&fused, "expert_matmul") + count(&fused, "moe"), 0);
    assert!(report.refused.iter().any(|miss| miss.condition == "ids-not-negative" && miss.why.contains("-1 to 2")));
    assert_eq!(report.assumptions, []);
}

#[test]
fn the_permutation_in_place_of_its_inverse() {
    let (fused, report) = rewritten(&block(Variant { undo_by_itself: true, ..MIXTRAL }), 1);
    assert_eq!(count(&fused, "moe"), 0);
    assert!(report.stuck.iter().any(|stuck| stuck.op == "reshape"), "{:?}", report.stuck);
}

#[test]
fn weights_left_unsorted() {
    let (fused, report) = rewritten(&block(Variant { weights_unsorted: true, ..MIXTRAL }), 1);
    assert_eq!(count(&fused, "moe"), 0);
    let stuck = report.stuck.iter().find(|stuck| stuck.op == "mul");
    let stuck = stuck.unwrap_or_else(|| panic!("nothing is stuck at the product in {:?}", report.stuck));
    assert!(stuck.why.contains("not permuted in the same way") && stuck.condition == "same-permutation", "{stuck:?}");
    let named = report.refused.iter().find(|miss| miss.rule == "weighted-sum" && miss.condition == "weights-permuted-alike");
    assert!(named.is_some_and(|miss| miss.why.contains("their weights are not")), "{:#?}", report.refused);
}

#[test]
fn a_histogram_too_wide_for_f32() {
    let variant = Variant { sizes: Sizes { t: 4, k: 2, e: 5000, h: 2, i: 2 }, ..MIXTRAL };
    refuses(variant, "grouped-by-expert", "experts-few", "5000 experts, but histc in f32 counts exactly only up to 4096");
}

#[test]
fn rows_in_another_order() {
    let given = Variant { order: Order::Given, ..MIXTRAL };
    refuses(given, "grouped-by-expert", "rows-sorted-by-expert", "not known to be a permutation");
    let others = Variant { order: Order::Others, ..MIXTRAL };
    refuses(others, "grouped-by-expert", "rows-sorted-by-expert", "sorted by other ids");
}

#[test]
fn masks_that_drop_a_real_expert() {
    let (fused, report) = rewritten(&experts_only(Variant { masked_more: 1, ..MIXTRAL }), 4);
    assert_eq!(count(&fused, "moe"), 0);
    let refused = |rule: &str| report.refused.iter().any(|miss| miss.rule == rule && miss.condition == "mask-of-no-expert");
    assert!(refused("dropped-rows-read") && refused("dropped-rows-zeroed"), "{:#?}", report.refused);
    let unbounded = report.refused.iter().find(|miss| miss.condition == "mask-of-no-expert");
    assert!(unbounded.is_some_and(|miss| miss.why.ends_with("ids may exceed 2: no bound known")), "{unbounded:?}");
}

#[test]
fn swapped_halves_are_another_block() {
    let (plain, _) = rewritten(&block(MIXTRAL), 1);
    let (swapped, _) = rewritten(&block(Variant { swapped: true, ..MIXTRAL }), 1);
    assert_eq!((count(&plain, "moe"), count(&swapped, "moe")), (1, 1));
    assert_ne!(text(&plain), text(&swapped));
}

#[test]
fn a_gate_that_is_read_elsewhere_is_not_computed_twice() {
    let mut b = Builder::new("shared");
    let x = b.input("x", DType::Bf16, &[4096, 2048]);
    let (wg, wu) = (b.weight("wg", DType::Bf16, &[8192, 2048]), b.weight("wu", DType::Bf16, &[8192, 2048]));
    let (gate, up) = (b.linear(x, wg), b.linear(x, wu));
    let act = b.unary(Pointwise::Silu, gate);
    let out = b.mul(act, up);
    b.output(out);
    let (alone, _) = saturate(&b.graph, &H200).unwrap();
    assert_eq!((count(&alone, "dense_glu"), count(&alone, "matmul")), (1, 0));
    b.output(gate);
    let (shared, report) = saturate(&b.graph, &H200).unwrap();
    assert_eq!((count(&shared, "dense_glu"), count(&shared, "matmul")), (0, 2), "{:#?}", text(&shared));
    let why = |report: &EgraphReport| {
        let miss = report.refused.iter().find(|miss| miss.rule == "dense-gated-unit");
        miss.map(|miss| (miss.condition.clone(), miss.why.clone())).unwrap_or_default()
    };
    let twice = "so fusing would compute it twice";
    assert_eq!(why(&report), ("pays-on-the-device".into(), format!("`matmul` is needed outside too, {twice}")));
    let read = b.unary(Pointwise::Relu, gate);
    b.output(read);
    let (_, report) = saturate(&b.graph, &H200).unwrap();
    assert_eq!(why(&report).1, format!("`matmul` is used by node `relu` too, {twice}"));
}

#[test]
fn gate_and_up_of_different_rows() {
    let mut b = Builder::new("rows");
    let (x, y) = (b.input("x", DType::F32, &[4, 8]), b.input("y", DType::F32, &[4, 8]));
    let (wg, wu) = (b.weight("wg", DType::F32, &[6, 8]), b.weight("wu", DType::F32, &[6, 8]));
    let (gate, up) = (b.linear(x, wg), b.linear(y, wu));
    let gate = b.unary(Pointwise::Silu, gate);
    let out = b.mul(gate, up);
    b.output(out);
    assert_eq!(count(&rewritten(&b.graph, 1).0, "dense_glu"), 0);
}

#[test]
fn a_square_is_no_gated_unit_of_two_layers() {
    let mut b = Builder::new("square");
    let x = b.input("x", DType::F32, &[4, 8]);
    let w = b.weight("w", DType::F32, &[6, 8]);
    let y = b.linear(x, w);
    let act = b.unary(Pointwise::Relu, y);
    let out = b.mul(act, act);
    b.output(out);
    assert_eq!(count(&rewritten(&b.graph, 1).0, "dense_glu"), 0);
}

#[test]
fn norms_of_other_means() {
    let mut b = Builder::new("norm");
    let x = b.input("x", DType::F32, &[4, 8]);
    let square = b.mul(x, x);
    let mean = b.mean(square, 0, DType::F32);
    let shifted = b.add(mean, int(1));
    let scale = b.unary(Pointwise::Rsqrt, shifted);
    let out = b.mul(x, scale);
    b.output(out);
    let (fused, report) = rewritten(&b.graph, 1);
    assert_eq!(count(&fused, "rms_norm"), 0);
    assert!(report.refused.iter().any(|miss| miss.rule == "rms-norm-of-product" && miss.condition == "last-dim"));
}

#[test]
fn a_rounded_sigmoid_is_no_silu() {
    let run = |graph: &Graph| {
        let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(graph, id.into(), 3, 1)).collect();
        eval_graph(graph, &|_| None, &inputs).unwrap().remove(0)
    };
    for mirrored in [false, true] {
        let narrow = silu_by_parts(6, DType::Bf16, mirrored);
        let (fused, _) = saturate(&narrow, &H200).unwrap();
        assert_eq!(count(&fused, "silu"), 0, "silu rounds once, its parts twice");
        assert_eq!(run(&narrow).bytes(), run(&fused).bytes(), "every rounding is kept");
        assert_eq!(count(&saturate(&silu_by_parts(6, DType::F32, mirrored), &H200).unwrap().0, "silu"), 1);
    }
}

/// The block fuses behind a router that does not, and the report says why.
fn routes_apart(router: Router, why: &str) {
    let sizes = Sizes { e: 6, ..MIXTRAL.sizes };
    let (fused, report) = rewritten(&routed(sizes, router), 1);
    assert_eq!((count(&fused, "moe"), count(&fused, "topk") > 0), (1, true), "{:#?}", text(&fused));
    let miss = report.refused.iter().find(|miss| miss.rule == "router" && miss.condition == "routed-by-scores");
    assert_eq!(miss.map(|miss| miss.why.as_str()), Some(why), "{:#?}", report.refused);
}

#[test]
fn routers_of_another_kind() {
    let inverted = Router { inverted: true, ..DEEPSEEK };
    routes_apart(inverted, "the experts of the chosen groups are masked, not the others");
    let (fused, report) = rewritten(&routed(Sizes { e: 6, ..MIXTRAL.sizes }, Router { foreign: true, ..DEEPSEEK }), 1);
    assert_eq!((count(&fused, "moe"), count(&fused, "route")), (1, 1));
    let why = "the weights are more than scores of the chosen experts, perhaps divided by their sum and scaled";
    assert!(report.refused.iter().any(|miss| miss.rule == "router" && miss.why == why), "{:#?}", report.refused);
}

#[test]
fn a_clamped_unit_whose_gate_and_up_are_swapped() {
    let mut b = Builder::new("swapped");
    let (g, u) = (b.input("g", DType::F32, &[4, 6]), b.input("u", DType::F32, &[4, 6]));
    let gate = b.clamp(g, Some(float(-7.0)), float(7.0));
    let up = b.clamp(u, None, float(7.0));
    let scaled = b.mul(gate, float(1.702));
    let sigmoid = b.unary(Pointwise::Sigmoid, scaled);
    let swish = b.mul(gate, sigmoid);
    let up = b.add(up, int(1));
    let out = b.mul(up, swish);
    b.output(out);
    let (fused, report) = rewritten(&b.graph, 1);
    assert_eq!(count(&fused, "glu"), 0);
    let miss = report.refused.iter().find(|miss| miss.rule == "clamped-swish-gated" && miss.condition == "gate-and-up");
    assert!(miss.is_some_and(|miss| miss.why.starts_with("gate and up are swapped")), "{:#?}", report.refused);
}

//! Every term of every class has the same value.

use crate::{
    backward,
    blocks::{Dress, MIXTRAL, Sizes, Variant, block, dense, experts_only},
    single,
};
use eglu_ir::{
    Bindings, DType, Graph, Tensor, Value,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::{Cast, Pointwise},
    profile::H200,
};
use eglu_passes::certify::relative_error;
use eglu_passes::egraph::{
    rule::{Numerics, Rule, rule},
    rules,
    soundness::{Checked, check, costliest},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Repeatable numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A value for an input or weight: noise, and ids from 0 to `ids` for integers.
pub fn random(graph: &Graph, value: Value, seed: u64, ids: i64) -> Tensor {
    let ty = graph.ty(value);
    let shape = ty.concrete(&Bindings::new()).unwrap();
    let mut noise = Noise(seed ^ (value.node.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (0..4).for_each(|_| {
        noise.next();
    });
    let count = shape.iter().product();
    if ty.dtype.is_int() {
        let ids: Vec<i64> = (0..count).map(|_| ((noise.next() + 1.0) / 2.0 * ids as f64) as i64).collect();
        return Tensor::from_slice(ty.dtype, &shape, &ids).unwrap();
    }
    let numbers: Vec<f64> = (0..count).map(|_| noise.next()).collect();
    let wide = Tensor::from_slice(DType::F64, &shape, &numbers).unwrap();
    eval_op(&Cast { dtype: ty.dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).unwrap().remove(0)
}

/// What a dtype may differ by. A rule may leave out roundings to 16 bits, which f32 values computed from such values then show too.
fn tolerance(dtype: DType, rounds: bool) -> f64 {
    match dtype {
        DType::F32 if !rounds => 2e-5,
        DType::F32 | DType::Bf16 => 3e-2,
        _ => 0.0,
    }
}

pub fn checked(graph: &Graph, table: &[Rule], seed: u64, ids: i64) -> Checked {
    let rounds = graph.node_ids().any(|id| graph.node(id).outputs.iter().any(|ty| ty.dtype == DType::Bf16));
    let value = |value| random(graph, value, seed, ids);
    check(graph, table, &Bindings::new(), &value, &|dtype| tolerance(dtype, rounds)).unwrap()
}

fn sound(graph: &Graph, seed: u64, ids: i64) -> Checked {
    let found = checked(graph, rules::all().unwrap(), seed, ids);
    assert_eq!(found.differences, Vec::<String>::new(), "{}", graph.name);
    assert!(found.terms > graph.len() / 2);
    found
}

/// Random instances of each rule; fewer without optimisation, where they would take minutes.
const CASES: u32 = if cfg!(debug_assertions) { 32 } else { 256 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn blocks_of_any_size(
        t in 1i64..5, k in 1i64..4, extra in 0i64..4, h in 1i64..7, i in 1i64..6, seed: u64,
        batched: bool, gpt_oss: bool, swapped: bool,
    ) {
        let dress = if batched { Dress::Batched } else { Dress::Grouped };
        let sizes = Sizes { t: 2 * t, k, e: k + extra, h, i };
        let found = sound(&block(Variant { dress, gpt_oss, swapped, sizes, ..MIXTRAL }), seed, 1);
        prop_assert_eq!(found.skipped, Vec::<String>::new());
        prop_assert!(found.fired.iter().any(|name| name.starts_with("mixture-of")), "{:?}", found.fired);
    }

    #[test]
    fn blocks_in_bf16(seed: u64, batched: bool, gpt_oss: bool) {
        let dress = if batched { Dress::Batched } else { Dress::Grouped };
        let found = sound(&block(Variant { dress, gpt_oss, dtype: DType::Bf16, ..MIXTRAL }), seed, 1);
        prop_assert_eq!(found.skipped, Vec::<String>::new());
    }

    #[test]
    fn experts_with_ids_past_the_last(seed: u64, gpt_oss: bool) {
        let variant = Variant { gpt_oss, ..MIXTRAL };
        sound(&experts_only(variant), seed, variant.sizes.e + 2);
    }

    #[test]
    fn dense_layers_of_any_kind(seed: u64, act in 0..ACTIVATIONS.len(), one_weight: bool, biased: bool, narrow: bool) {
        let dtype = if narrow { DType::Bf16 } else { DType::F32 };
        let found = sound(&dense(dtype, ACTIVATIONS[act], one_weight, biased), seed, 1);
        prop_assert_eq!(found.skipped, Vec::<String>::new());
    }

    #[test]
    fn half_biased_layers(rows in 1i64..8, seed: u64, gate: bool) {
        prop_assert_eq!(sound(&single::half_biased(rows, gate), seed, 1).skipped, Vec::<String>::new());
    }

    #[test]
    fn single_rules_on_any_rows(
        rows in 1i64..8, t in 1i64..5, k in 1i64..4, extra in 0i64..3, h in 1i64..5, i in 1i64..5, seed: u64,
    ) {
        let sizes = Sizes { t: 2 * t, k, e: k + extra, h, i };
        for graph in single::graphs(rows, sizes) {
            prop_assert_eq!(sound(&graph, seed, 4).skipped, Vec::<String>::new(), "{}", graph.name);
        }
    }

    #[test]
    fn backward_rules_on_any_rows(
        rows in 1i64..8, t in 1i64..5, k in 1i64..4, extra in 0i64..3, h in 1i64..5, seed: u64,
    ) {
        let sizes = Sizes { t, k, e: k + extra, h, i: 1 };
        for graph in backward::graphs(rows, sizes) {
            prop_assert_eq!(sound(&graph, seed, 4).skipped, Vec::<String>::new(), "{}", graph.name);
        }
    }
}

const ACTIVATIONS: [Pointwise; 5] =
    [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid];

/// Every graph that the rules are tried on.
pub fn corpus() -> Vec<Graph> {
    let mut graphs = Vec::new();
    for dress in [Dress::Grouped, Dress::Batched] {
        for gpt_oss in [false, true] {
            for dtype in [DType::F32, DType::Bf16] {
                let variant = Variant { dress, gpt_oss, dtype, ..MIXTRAL };
                graphs.extend([block(variant), experts_only(variant)]);
            }
        }
    }
    for (one_weight, biased) in [(false, false), (false, true), (true, true)] {
        let kinds = [Pointwise::GeluTanh, Pointwise::GeluErf];
        graphs.extend(kinds.map(|act| dense(DType::F32, act, one_weight, biased)));
    }
    graphs.extend([true, false].map(|gate| single::half_biased(6, gate)));
    graphs.extend(single::graphs(6, MIXTRAL.sizes));
    graphs.extend(backward::graphs(6, MIXTRAL.sizes));
    graphs
}

#[test]
fn the_costliest_terms_compute_the_same() {
    for graph in corpus() {
        let costliest = costliest(&graph, &H200, rules::all().unwrap()).unwrap();
        let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(&graph, id.into(), 9, 1)).collect();
        let weights = |path: &str| graph.find(path).map(|id| random(&graph, id.into(), 9, 1));
        let want = eval_graph(&graph, &weights, &inputs).unwrap();
        let got = eval_graph(&costliest, &weights, &inputs).unwrap();
        for (want, got) in want.iter().zip(&got) {
            let error = relative_error(got, want).unwrap();
            let narrow = graph.node_ids().any(|id| graph.node(id).outputs.iter().any(|ty| ty.dtype == DType::Bf16));
            assert!(error <= tolerance(DType::F32, narrow), "{}: {error}", graph.name);
        }
    }
}

#[test]
fn a_wrong_rule_is_caught() {
    let wrong = |pattern: &str, right: &str| vec![rule("wrong", Numerics::Exact, "wrong").from(pattern).becomes(right).unwrap()];
    let graph = dense(DType::F32, Pointwise::Silu, false, false);
    for (pattern, right) in [("(silu ?x)", "(relu ?x)"), ("(mul ?x ?y)", "(add ?x ?y)")] {
        let found = checked(&graph, &wrong(pattern, right), 1, 1);
        assert_eq!(found.fired, ["wrong"]);
        assert!(!found.differences.is_empty(), "{pattern} => {right} must be caught");
    }
    let ill_typed = checked(&graph, &wrong("(silu ?x)", "(cast ?x dtype:f64)"), 1, 1);
    assert!(!ill_typed.differences.is_empty());
}

#[test]
fn every_rule_fires_and_is_sound() {
    let mut fired: BTreeSet<String> = BTreeSet::new();
    for graph in corpus() {
        let ids = if graph.name == "experts" { MIXTRAL.sizes.e } else { 4 };
        let found = sound(&graph, 5, ids);
        if graph.name != "experts" {
            assert_eq!(found.skipped, Vec::<String>::new(), "{}", graph.name);
        }
        fired.extend(found.fired);
    }
    let names = rules::all().unwrap().iter().map(|rule| rule.name.as_str());
    let never: Vec<&str> = names.filter(|name| !fired.contains(*name)).collect();
    assert_eq!(never, Vec::<&str>::new());
}

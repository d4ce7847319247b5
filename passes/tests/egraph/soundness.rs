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
    rule::{Numerics, Rule},
    soundness::{Checked, check, costliest},
};

/// Repeatable numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// The signs of the 16-bit values that graphs are tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signs {
    /// Sums of positive numbers do not cancel, which would show what rules may leave out: roundings to 16 bits.
    Positive,
    /// What cancels shows roundings; a wrong sign or a term left out is off by more.
    Both,
}

/// A value for an input or weight: noise, in 16 bits of positive numbers, and ids from 0 to `ids` for integers.
pub fn random(graph: &Graph, value: Value, seed: u64, ids: i64) -> Tensor {
    signed(graph, value, seed, ids, Signs::Positive)
}

fn signed(graph: &Graph, value: Value, seed: u64, ids: i64, signs: Signs) -> Tensor {
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
    let sign = |x: f64| if ty.dtype == DType::Bf16 && signs == Signs::Positive { x.abs() } else { x };
    let numbers: Vec<f64> = (0..count).map(|_| sign(noise.next())).collect();
    let wide = Tensor::from_slice(DType::F64, &shape, &numbers).unwrap();
    eval_op(&Cast { dtype: ty.dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).unwrap().remove(0)
}

/// What 16-bit values of both signs may differ by.
const CANCELLED: f64 = 0.5;

/// What a dtype may differ by. Exact rules give the same bits. Others may leave out roundings to 16 bits, which f32 values computed from
/// such values then show too.
fn tolerance(dtype: DType, narrow: bool, rules: Numerics) -> f64 {
    match dtype {
        _ if rules == Numerics::Exact => 0.0,
        DType::F32 if !narrow => 2e-5,
        DType::F32 | DType::Bf16 => 3e-2,
        // Sums of f32 values in f64 show f32's roundings.
        DType::F64 => {
            if narrow {
                3e-2
            } else {
                2e-5
            }
        }
        _ => 0.0,
    }
}

/// What the rules do to a graph, and every difference between the terms of a class.
pub fn checked(graph: &Graph, table: &[Rule], seed: u64, ids: i64) -> Checked {
    let narrow = is_narrow(graph);
    let value = |value| random(graph, value, seed, ids);
    let mut found = check(graph, table, &Bindings::new(), &value, &|dtype, rules| tolerance(dtype, narrow, rules)).unwrap();
    if narrow {
        let value = |value| signed(graph, value, seed, ids, Signs::Both);
        let wide = |dtype, rules| match tolerance(dtype, narrow, rules) {
            exact if exact == 0.0 => exact,
            _ => CANCELLED,
        };
        found.differences.extend(check(graph, table, &Bindings::new(), &value, &wide).unwrap().differences);
    }
    found
}

const ACTIVATIONS: [Pointwise; 5] =
    [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid];

/// Every graph that the rules are tried on, for so many rows of single rules and blocks of these sizes.
pub fn graphs(rows: i64, sizes: Sizes) -> Vec<Graph> {
    let mut graphs = Vec::new();
    for dress in [Dress::Grouped, Dress::Batched] {
        for gpt_oss in [false, true] {
            for dtype in [DType::F32, DType::Bf16] {
                let variant = Variant { dress, gpt_oss, dtype, sizes, ..MIXTRAL };
                graphs.extend([block(variant), experts_only(variant)]);
            }
        }
    }
    graphs.push(block(Variant { swapped: true, sizes, ..MIXTRAL }));
    for (one_weight, biased) in [(false, false), (false, true), (true, true)] {
        for dtype in [DType::F32, DType::Bf16] {
            graphs.extend(ACTIVATIONS.map(|act| dense(dtype, act, one_weight, biased)));
        }
    }
    graphs.extend([true, false].map(|gate| single::half_biased(rows, gate)));
    graphs.extend(single::graphs(rows, sizes));
    graphs.extend(backward::graphs(rows, sizes));
    graphs
}

/// One instance of every graph.
pub fn corpus() -> Vec<Graph> {
    graphs(6, MIXTRAL.sizes)
}

/// The largest error of the costliest terms against the graph, if it is more than its dtypes may show.
pub fn costliest_error(graph: &Graph, table: &[Rule], seed: u64) -> Option<f64> {
    let costliest = costliest(graph, &H200, table).unwrap();
    let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(graph, id.into(), seed, 1)).collect();
    let weights = |path: &str| graph.find(path).map(|id| random(graph, id.into(), seed, 1));
    let want = eval_graph(graph, &weights, &inputs).unwrap();
    let got = eval_graph(&costliest, &weights, &inputs).unwrap();
    let errors = want.iter().zip(&got).map(|(want, got)| relative_error(got, want).unwrap());
    let worst = errors.fold(0.0, f64::max);
    (worst > tolerance(DType::F32, is_narrow(graph), Numerics::SameAccumulator)).then_some(worst)
}

fn is_narrow(graph: &Graph) -> bool {
    graph.node_ids().any(|id| graph.node(id).outputs.iter().any(|ty| ty.dtype == DType::Bf16))
}

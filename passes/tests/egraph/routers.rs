//! Blocks behind routers of every kind.

use crate::{
    blocks::Sizes,
    build::{Builder, float, int, shape},
};
use eglu_ir::{
    DType, Graph, Scalar, Value,
    ops::{Axes, Expand, Full, Gather, IndexPut, Pointwise, Reduce, ReduceKind, TopK},
};

/// What makes the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Softmax,
    Sigmoid,
    TopKSoftmax,
    TopKSigmoid,
}

/// What the weights of the chosen are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Total {
    None,
    Sum,
    SumAndEpsilon,
    SumOrBound,
}

/// What experts compute between their products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// `silu(gate) · up`.
    Silu,
    /// `relu(gate)²`, without up (Nemotron-H).
    SquaredRelu,
    /// `silu(min(gate, l)) · clamp(up, -l, l)`.
    ClampedSilu,
}

/// A router; experts are in two groups where there are any.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    pub by: By,
    pub bias: bool,
    /// Best experts that rank a group, and what those of the other group count as.
    pub groups: Option<(usize, f64)>,
    /// The weights are the scores of the chosen, not what they were chosen by.
    pub gathered: bool,
    pub total: Total,
    /// Of logits and scores.
    pub dtype: DType,
    pub scaled: bool,
    /// Weights are cast to bf16.
    pub rounded: bool,
    /// The mask keeps the groups that were not chosen.
    pub inverted: bool,
    /// The weights are picked from the logits.
    pub foreign: bool,
    /// What is behind it.
    pub unit: Unit,
}

pub const PLAIN: Router = Router {
    by: By::Softmax,
    bias: false,
    groups: None,
    gathered: false,
    total: Total::None,
    dtype: DType::F32,
    scaled: false,
    rounded: false,
    inverted: false,
    foreign: false,
    unit: Unit::Silu,
};

/// DeepSeek-V3's.
pub const DEEPSEEK: Router = Router {
    by: By::Sigmoid,
    bias: true,
    groups: Some((2, f64::NEG_INFINITY)),
    gathered: true,
    total: Total::SumAndEpsilon,
    scaled: true,
    ..PLAIN
};

/// Routers that together need every rule; models' own among them.
pub const ROUTERS: [Router; 15] = [
    Router { unit: Unit::SquaredRelu, ..DEEPSEEK },
    Router { unit: Unit::ClampedSilu, ..PLAIN },
    Router { unit: Unit::SquaredRelu, dtype: DType::Bf16, ..PLAIN },
    PLAIN,
    DEEPSEEK,
    // Mixtral, Qwen3-MoE, GLM-4 without groups, Ernie 4.5, LFM2, Mistral 4, DeepSeek-V2.
    Router { total: Total::Sum, ..PLAIN },
    Router { total: Total::Sum, rounded: true, ..PLAIN },
    Router { by: By::Sigmoid, bias: true, gathered: true, total: Total::Sum, scaled: true, ..PLAIN },
    Router { bias: true, gathered: true, total: Total::SumOrBound, rounded: true, ..PLAIN },
    Router {
        by: By::Sigmoid,
        bias: true,
        gathered: true,
        total: Total::SumAndEpsilon,
        dtype: DType::Bf16,
        scaled: true,
        ..PLAIN
    },
    Router { groups: Some((2, 0.0)), gathered: true, total: Total::SumAndEpsilon, dtype: DType::Bf16, ..PLAIN },
    Router { groups: Some((1, 0.0)), scaled: true, ..PLAIN },
    Router { by: By::TopKSoftmax, scaled: true, ..PLAIN },
    Router { by: By::TopKSoftmax, dtype: DType::Bf16, ..PLAIN },
    Router { by: By::TopKSigmoid, total: Total::Sum, dtype: DType::Bf16, ..PLAIN },
];

/// A block whose experts are chosen by a router; with groups, sizes need an even number of experts.
pub fn routed(sizes: Sizes, router: Router) -> Graph {
    let Sizes { t, k, e, h, .. } = sizes;
    let mut b = Builder::new("routed");
    let x = b.input("x", router.dtype, &[t, h]);
    let w = b.weight("router", router.dtype, &[e, h]);
    let logits = b.linear(x, w);
    let (weights, ids) = chosen(&mut b, sizes, router, logits);
    let ids = b.reshape(ids, &[t * k]);
    let positions = b.iota(t * k);
    let tokens = b.floor_divide(positions, k);
    let rows = b.index(x, tokens);
    experts(&mut b, sizes, router, rows, ids, weights);
    b.graph
}

fn experts(b: &mut Builder, Sizes { t, k, e, h, i }: Sizes, router: Router, rows: Value, ids: Value, weights: Value) {
    let product = |b: &mut Builder, x: Value, name: &str, n: i64, inner: i64| {
        let w = b.weight(name, router.dtype, &[e, n, inner]);
        let picked = b.index(w, ids);
        let column = b.reshape(x, &[t * k, inner, 1]);
        let y = b.matmul(picked, column);
        b.reshape(y, &[t * k, n])
    };
    let gate = product(b, rows, "gate", i, h);
    let gated = match router.unit {
        Unit::SquaredRelu => {
            let act = b.unary(Pointwise::Relu, gate);
            b.mul(act, act)
        }
        Unit::Silu => {
            let up = product(b, rows, "up", i, h);
            let act = b.unary(Pointwise::Silu, gate);
            b.mul(act, up)
        }
        Unit::ClampedSilu => {
            let up = product(b, rows, "up", i, h);
            let (gate, up) = (b.clamp(gate, None, float(0.5)), b.clamp(up, Some(float(-0.5)), float(0.5)));
            let act = b.unary(Pointwise::Silu, gate);
            let up = b.add(up, float(0.25));
            b.mul(up, act)
        }
    };
    let y = product(b, gated, "down", h, i);
    let weights = b.reshape(weights, &[t * k, 1]);
    let y = b.mul(y, weights);
    let y = b.reshape(y, &[t, k, h]);
    let dtype = b.graph.ty(y).dtype;
    let out = b.sum(y, 1, false, dtype);
    b.output(out);
}

fn chosen(b: &mut Builder, sizes: Sizes, router: Router, logits: Value) -> (Value, Value) {
    let Sizes { k, e, .. } = sizes;
    let scores = match router.by {
        By::Softmax => b.softmax(logits, router.dtype),
        By::Sigmoid => b.unary(Pointwise::Sigmoid, logits),
        By::TopKSoftmax | By::TopKSigmoid => logits,
    };
    let mut choice = scores;
    if router.bias {
        let bias = b.weight("bias", DType::F32, &[e]);
        choice = b.add(bias, scores);
    }
    if let Some((best, fill)) = router.groups {
        choice = of_best_groups(b, sizes, choice, (best, fill), router.inverted);
    }
    let (values, ids) = b.topk(choice, k as usize);
    let from = if router.foreign { logits } else { scores };
    let picked = if router.gathered { b.call(Gather { dim: 1 }, &[from.into(), ids.into()]) } else { values };
    let dtype = b.graph.ty(picked).dtype;
    let values = match router.by {
        By::TopKSoftmax => b.softmax(picked, dtype),
        By::TopKSigmoid => b.unary(Pointwise::Sigmoid, picked),
        By::Softmax | By::Sigmoid => picked,
    };
    (weighed(b, router, values), ids)
}

fn of_best_groups(
    b: &mut Builder,
    Sizes { t, e, .. }: Sizes,
    choice: Value,
    (best, fill): (usize, f64),
    inverted: bool,
) -> Value {
    let dtype = b.graph.ty(choice).dtype;
    let split = b.reshape(choice, &[t, 2, e / 2]);
    let dims = Axes::from_slice(&[2]);
    let ranks = if best == 1 {
        b.call(Reduce { kind: ReduceKind::Amax, dims, keepdim: false, dtype }, &[split.into()])
    } else {
        let (tops, _) = b.two(TopK { k: best, dim: 2, largest: true }, &[split.into()]);
        b.sum(tops, 2, false, dtype)
    };
    let (_, kept) = b.topk(ranks, 1);
    let zeros = b.call(Full { shape: shape(&[t, 2]), value: Scalar::Int(0), dtype }, &[]);
    let ones = b.call(Full { shape: shape(&[]), value: Scalar::Int(1), dtype }, &[]);
    let rows = b.iota(t);
    let rows = b.reshape(rows, &[t, 1]);
    let put = IndexPut { axes: Axes::from_slice(&[0, 1]), accumulate: false };
    let mask = b.call(put, &[zeros.into(), ones.into(), rows.into(), kept.into()]);
    let mask = b.reshape(mask, &[t, 2, 1]);
    let mask = b.call(Expand { shape: shape(&[t, 2, e / 2]) }, &[mask.into()]);
    let mask = b.reshape(mask, &[t, e]);
    let mask = b.cast(mask, DType::Bool);
    if inverted {
        return b.call(Pointwise::Where, &[mask.into(), float(fill), choice.into()]);
    }
    let others = b.unary(Pointwise::BitNot, mask);
    b.call(Pointwise::Where, &[others.into(), float(fill), choice.into()])
}

fn weighed(b: &mut Builder, router: Router, values: Value) -> Value {
    let dtype = b.graph.ty(values).dtype;
    let mut weights = values;
    if router.total != Total::None {
        let sum = b.sum(values, 1, true, dtype);
        let total = match router.total {
            Total::SumAndEpsilon => b.add(sum, float(1e-20)),
            Total::SumOrBound => b.call(Pointwise::Maximum, &[sum.into(), float(1e-12)]),
            Total::Sum | Total::None => sum,
        };
        weights = b.call(Pointwise::Div, &[values.into(), total.into()]);
    }
    if router.scaled {
        weights = b.mul(weights, float(2.5));
        weights = b.call(Pointwise::Div, &[weights.into(), int(2)]);
    }
    if router.rounded { b.cast(weights, DType::Bf16) } else { weights }
}

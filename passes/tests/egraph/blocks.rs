//! Whole blocks in the dresses of `transformers`' exports.

use crate::build::{Builder, float, int};
use eglu_ir::{DType, Graph, Value, ops::Pointwise};

/// Tokens, choices, experts, hidden and inner features.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub t: i64,
    pub k: i64,
    pub e: i64,
    pub h: i64,
    pub i: i64,
}

/// How the experts are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dress {
    Grouped,
    Batched,
}

/// What differs from block to block; the defaults are Mixtral's.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub sizes: Sizes,
    pub dress: Dress,
    pub dtype: DType,
    /// gpt-oss: biases, interleaved lanes, weights [e, h, 2I], clamped swish; its router softmaxes the chosen logits.
    pub gpt_oss: bool,
    /// Added to the largest value that `histc` counts.
    pub counted_more: i64,
    /// Added to what the sorted positions are divided by.
    pub divided_more: i64,
    /// Lower limit of the clamp of gpt-oss' up projection.
    pub lower: f64,
    /// Experts less than there are, where the mask of ids begins.
    pub masked_more: i64,
    /// Weights stay in the order of the tokens.
    pub weights_unsorted: bool,
    /// Subtracted from the ids.
    pub shift: i64,
    /// Undo the permutation by itself instead of its inverse.
    pub undo_by_itself: bool,
    /// The gate is the second half.
    pub swapped: bool,
    /// What the rows are ordered by.
    pub order: Order,
}

/// What orders the rows of a grouped dress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// A sort of the ids.
    Own,
    /// A sort of other ids.
    Others,
    /// Positions that the user gives.
    Given,
}

pub const MIXTRAL: Variant = Variant {
    sizes: Sizes { t: 6, k: 2, e: 4, h: 8, i: 12 },
    dress: Dress::Grouped,
    dtype: DType::F32,
    gpt_oss: false,
    counted_more: 0,
    divided_more: 0,
    lower: -7.0,
    masked_more: 0,
    weights_unsorted: false,
    shift: 0,
    undo_by_itself: false,
    swapped: false,
    order: Order::Own,
};

/// The block as a graph of `x [2, T/2, H]`.
pub fn block(v: Variant) -> Graph {
    let mut b = Builder::new("block");
    let x = b.input("x", v.dtype, &[2, v.sizes.t / 2, v.sizes.h]);
    let out = mixture(&mut b, v, x);
    b.output(out);
    b.graph
}

/// A residual network of blocks after norms; every layer reads a table that is computed once.
pub fn stack(v: Variant, layers: usize, merged: bool) -> Graph {
    let Sizes { t, h, .. } = v.sizes;
    let mut b = Builder::new("stack");
    b.merged = merged;
    let mut x = b.input("x", v.dtype, &[2, t / 2, h]);
    let angles = b.input("angles", v.dtype, &[h]);
    let table = b.unary(Pointwise::Cos, angles);
    for _ in 0..layers {
        let square = b.mul(x, x);
        let mean = b.mean(square, 2, v.dtype);
        let shifted = b.add(mean, float(1e-5));
        let scale = b.unary(Pointwise::Rsqrt, shifted);
        let normal = b.mul(x, scale);
        let turned = b.mul(normal, table);
        let out = mixture(&mut b, v, turned);
        x = b.add(x, out);
    }
    b.output(x);
    b.graph
}

fn mixture(b: &mut Builder, v: Variant, x: Value) -> Value {
    let Sizes { t, k, e, h, .. } = v.sizes;
    let x = b.reshape(x, &[t, h]);
    let router = b.weight("router", v.dtype, &[e, h]);
    let logits = b.linear(x, router);
    let (weights, ids) = if v.gpt_oss {
        let (values, ids) = b.topk(logits, k as usize);
        (b.softmax(values, DType::F32), ids)
    } else {
        let wide = if v.dtype == DType::F32 { logits } else { b.cast(logits, DType::F32) };
        let scores = b.softmax(wide, DType::F32);
        let (values, ids) = b.topk(scores, k as usize);
        let sum = b.sum(values, 1, true, DType::F32);
        (b.call(Pointwise::Div, &[values.into(), sum.into()]), ids)
    };
    let ids = if v.shift == 0 { ids } else { b.call(Pointwise::Sub, &[ids.into(), int(v.shift)]) };
    let out = experts(b, v, x, ids, weights);
    let out = if v.dtype == DType::F32 { out } else { b.cast(out, v.dtype) };
    b.reshape(out, &[2, t / 2, h])
}

/// Experts alone: ids and weights are inputs.
pub fn experts_only(v: Variant) -> Graph {
    let Sizes { t, k, h, .. } = v.sizes;
    let mut b = Builder::new("experts");
    let x = b.input("x", v.dtype, &[t, h]);
    let ids = b.input("ids", DType::I64, &[t, k]);
    let weights = b.input("w", v.dtype, &[t, k]);
    let out = experts(&mut b, v, x, ids, weights);
    b.output(out);
    b.graph
}

fn experts(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let Sizes { t, k, .. } = v.sizes;
    let weights = b.reshape(weights, &[t * k]);
    let ids = b.reshape(ids, &[t * k]);
    match v.dress {
        Dress::Grouped => grouped(b, v, x, ids, weights),
        Dress::Batched => batched(b, v, x, ids, weights),
    }
}

struct Weights {
    gate_up: Value,
    gate_up_bias: Value,
    down: Value,
    down_bias: Value,
}

fn weights_of(b: &mut Builder, v: Variant) -> Weights {
    let Sizes { e, h, i, .. } = v.sizes;
    let (gate_up, down) = if v.gpt_oss { ([e, h, 2 * i], [e, i, h]) } else { ([e, 2 * i, h], [e, h, i]) };
    Weights {
        gate_up: b.weight("gate_up", v.dtype, &gate_up),
        gate_up_bias: b.weight("gate_up_bias", v.dtype, &[e, 2 * i]),
        down: b.weight("down", v.dtype, &down),
        down_bias: b.weight("down_bias", v.dtype, &[e, h]),
    }
}

fn gating(b: &mut Builder, v: Variant, both: Value) -> Value {
    let Sizes { i, .. } = v.sizes;
    if !v.gpt_oss {
        let halves = [b.slice(both, 1, (0, i), 1), b.slice(both, 1, (i, 2 * i), 1)];
        let [gate, up] = if v.swapped { [halves[1], halves[0]] } else { halves };
        let act = b.unary(Pointwise::Silu, gate);
        return b.mul(act, up);
    }
    let (gate, up) = (b.slice(both, 1, (0, 2 * i), 2), b.slice(both, 1, (1, 2 * i), 2));
    let gate = b.clamp(gate, None, float(7.0));
    let up = b.clamp(up, Some(float(v.lower)), float(7.0));
    let scaled = b.mul(gate, float(1.702));
    let sigmoid = b.unary(Pointwise::Sigmoid, scaled);
    let swish = b.mul(gate, sigmoid);
    let up = b.add(up, int(1));
    b.mul(up, swish)
}

fn grouped(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let Sizes { t, k, e, .. } = v.sizes;
    let rows = t * k;
    let w = weights_of(b, v);
    let (sorted, mut perm) = b.sort(ids);
    if v.order != Order::Own {
        let given = b.input("given", DType::I64, &[rows]);
        perm = if v.order == Order::Given { given } else { b.sort(given).1 };
    }
    let tokens = b.floor_divide(perm, k + v.divided_more);
    let picked = b.index(x, tokens);
    let row_weights = if v.weights_unsorted { weights } else { b.index(weights, perm) };
    let counted = if v.dtype == DType::F32 { DType::F32 } else { DType::I32 };
    let offs = b.offsets(sorted, e, e - 1 + v.counted_more, counted);
    let ge = b.call(Pointwise::Ge, &[sorted.into(), int(e - v.masked_more)]);
    let mask = b.reshape(ge, &[rows, 1]);
    let clamped = b.clamp(sorted, None, int(e - 1));
    let picked = b.masked(mask, picked);
    let turn = |b: &mut Builder, w: Value| if v.gpt_oss { w } else { b.permute(w, &[0, 2, 1]) };
    let gate_up = turn(b, w.gate_up);
    let mut both = b.grouped_mm(picked, gate_up, offs);
    if v.gpt_oss {
        let bias = b.index(w.gate_up_bias, clamped);
        both = b.add(both, bias);
    }
    let both = b.masked(mask, both);
    let gated = gating(b, v, both);
    let down = turn(b, w.down);
    let mut y = b.grouped_mm(gated, down, offs);
    if v.gpt_oss {
        let bias = b.index(w.down_bias, clamped);
        y = b.add(y, bias);
    }
    let y = b.masked(mask, y);
    let row_weights = b.reshape(row_weights, &[rows, 1]);
    let y = b.mul(y, row_weights);
    let inverse = if v.undo_by_itself { perm } else { b.inverse(perm, rows) };
    let y = b.index(y, inverse);
    total(b, v, y)
}

fn batched(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let Sizes { t, k, e, h, i } = v.sizes;
    let rows = t * k;
    let w = weights_of(b, v);
    let positions = b.iota(rows);
    let tokens = b.floor_divide(positions, k + v.divided_more);
    let picked = b.index(x, tokens);
    let ids = b.clamp(ids, Some(int(0)), int(e - 1));
    let product = |b: &mut Builder, x: Value, w: Value, (inner, n): (i64, i64)| {
        let matrices = b.index(w, ids);
        let y = if v.gpt_oss {
            let row = b.reshape(x, &[rows, 1, inner]);
            b.matmul(row, matrices)
        } else {
            let column = b.reshape(x, &[rows, inner, 1]);
            b.matmul(matrices, column)
        };
        b.reshape(y, &[rows, n])
    };
    let mut both = product(b, picked, w.gate_up, (h, 2 * i));
    if v.gpt_oss {
        let bias = b.index(w.gate_up_bias, ids);
        both = b.add(both, bias);
    }
    let gated = gating(b, v, both);
    let mut y = product(b, gated, w.down, (i, h));
    if v.gpt_oss {
        let bias = b.index(w.down_bias, ids);
        y = b.add(y, bias);
    }
    let row_weights = b.reshape(weights, &[rows, 1]);
    let y = b.mul(y, row_weights);
    total(b, v, y)
}

fn total(b: &mut Builder, v: Variant, y: Value) -> Value {
    let dtype = b.graph.ty(y).dtype;
    let Sizes { t, k, h, .. } = v.sizes;
    let y = b.reshape(y, &[t, k, h]);
    b.sum(y, 1, false, dtype)
}

/// `down(act(x·gateᵀ) · x·upᵀ)` of a dense layer.
pub fn dense(dtype: DType, act: Pointwise, one_weight: bool, biased: bool) -> Graph {
    let (h, i) = (8, 12);
    let mut b = Builder::new("dense");
    let x = b.input("x", dtype, &[2, 3, h]);
    let (gate, up) = if one_weight {
        let w = b.weight("gate_up", dtype, &[2 * i, h]);
        let mut both = b.linear(x, w);
        if biased {
            let bias = b.weight("gate_up_bias", dtype, &[2 * i]);
            both = b.add(both, bias);
        }
        (b.slice(both, 2, (0, i), 1), b.slice(both, 2, (i, 2 * i), 1))
    } else {
        let mut lane = |name: &str| {
            let w = b.weight(name, dtype, &[i, h]);
            let y = b.linear(x, w);
            if !biased {
                return y;
            }
            let bias = b.weight(&format!("{name}_bias"), dtype, &[i]);
            b.add(y, bias)
        };
        (lane("gate"), lane("up"))
    };
    let gate = b.unary(act, gate);
    let gated = b.mul(gate, up);
    let w = b.weight("down", dtype, &[h, i]);
    let out = b.linear(gated, w);
    b.output(out);
    b.graph
}

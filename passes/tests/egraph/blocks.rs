//! Whole blocks in the dresses of `transformers`' exports.

use crate::build::{Builder, float, int};
use eglu_ir::{DType, Graph, Value, ops::Pointwise};

/// Sizes: tokens, choices, experts, hidden, inner.
pub const T: i64 = 6;
pub const K: i64 = 2;
pub const E: i64 = 4;
pub const H: i64 = 8;
pub const I: i64 = 12;

/// How the experts are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dress {
    Grouped,
    Batched,
}

/// What differs from block to block; the defaults are Mixtral's.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub dress: Dress,
    pub dtype: DType,
    /// gpt-oss: biases, interleaved lanes, weights [E, H, 2I], clamped swish; its router softmaxes the chosen logits.
    pub gpt_oss: bool,
    /// Largest value that `histc` counts.
    pub histc_max: i64,
    /// What the sorted positions are divided by.
    pub divisor: i64,
    /// Lower limit of the clamp of gpt-oss' up projection.
    pub lower: f64,
    /// Where the mask of ids begins.
    pub mask_from: i64,
    /// Subtracted from the ids.
    pub shift: i64,
    /// Undo the permutation by itself instead of its inverse.
    pub undo_by_itself: bool,
    /// The gate is the second half.
    pub swapped: bool,
}

pub const MIXTRAL: Variant = Variant {
    dress: Dress::Grouped,
    dtype: DType::F32,
    gpt_oss: false,
    histc_max: E,
    divisor: K,
    lower: -7.0,
    mask_from: E,
    shift: 0,
    undo_by_itself: false,
    swapped: false,
};

/// The block as a graph of `x [T, H]`.
pub fn block(v: Variant) -> Graph {
    let mut b = Builder::new("block");
    let x = b.input("x", v.dtype, &[2, T / 2, H]);
    let x = b.reshape(x, &[T, H]);
    let router = b.weight("router", v.dtype, &[E, H]);
    let logits = b.linear(x, router);
    let (weights, ids) = if v.gpt_oss {
        let (values, ids) = b.topk(logits, K as usize);
        (b.softmax(values, DType::F32), ids)
    } else {
        let wide = if v.dtype == DType::F32 { logits } else { b.cast(logits, DType::F32) };
        let scores = b.softmax(wide, DType::F32);
        let (values, ids) = b.topk(scores, K as usize);
        let sum = b.sum(values, 1, true, DType::F32);
        (b.call(Pointwise::Div, &[values.into(), sum.into()]), ids)
    };
    let ids = if v.shift == 0 { ids } else { b.call(Pointwise::Sub, &[ids.into(), int(v.shift)]) };
    let out = experts(&mut b, v, x, ids, weights);
    let out = if v.dtype == DType::F32 { out } else { b.cast(out, v.dtype) };
    let out = b.reshape(out, &[2, T / 2, H]);
    b.output(out);
    b.graph
}

/// Experts alone: ids and weights are inputs.
pub fn experts_only(v: Variant) -> Graph {
    let mut b = Builder::new("experts");
    let x = b.input("x", v.dtype, &[T, H]);
    let ids = b.input("ids", DType::I64, &[T, K]);
    let weights = b.input("w", v.dtype, &[T, K]);
    let out = experts(&mut b, v, x, ids, weights);
    b.output(out);
    b.graph
}

fn experts(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let weights = b.reshape(weights, &[T * K]);
    let ids = b.reshape(ids, &[T * K]);
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
    let (gate_up, down) = if v.gpt_oss { ([E, H, 2 * I], [E, I, H]) } else { ([E, 2 * I, H], [E, H, I]) };
    Weights {
        gate_up: b.weight("gate_up", v.dtype, &gate_up),
        gate_up_bias: b.weight("gate_up_bias", v.dtype, &[E, 2 * I]),
        down: b.weight("down", v.dtype, &down),
        down_bias: b.weight("down_bias", v.dtype, &[E, H]),
    }
}

fn gating(b: &mut Builder, v: Variant, both: Value) -> Value {
    if !v.gpt_oss {
        let halves = [b.slice(both, 1, (0, I), 1), b.slice(both, 1, (I, 2 * I), 1)];
        let [gate, up] = if v.swapped { [halves[1], halves[0]] } else { halves };
        let act = b.unary(Pointwise::Silu, gate);
        return b.mul(act, up);
    }
    let (gate, up) = (b.slice(both, 1, (0, 2 * I), 2), b.slice(both, 1, (1, 2 * I), 2));
    let gate = b.clamp(gate, None, float(7.0));
    let up = b.clamp(up, Some(float(v.lower)), float(7.0));
    let scaled = b.mul(gate, float(1.702));
    let sigmoid = b.unary(Pointwise::Sigmoid, scaled);
    let swish = b.mul(gate, sigmoid);
    let up = b.add(up, int(1));
    b.mul(up, swish)
}

fn grouped(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let rows = T * K;
    let w = weights_of(b, v);
    let (sorted, perm) = b.sort(ids);
    let tokens = b.floor_divide(perm, v.divisor);
    let picked = b.index(x, tokens);
    let row_weights = b.index(weights, perm);
    let counted = if v.dtype == DType::F32 { DType::F32 } else { DType::I32 };
    let offs = b.offsets(sorted, v.histc_max, counted);
    let ge = b.call(Pointwise::Ge, &[sorted.into(), int(v.mask_from)]);
    let mask = b.reshape(ge, &[rows, 1]);
    let clamped = b.clamp(sorted, None, int(E - 1));
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
    total(b, y)
}

fn batched(b: &mut Builder, v: Variant, x: Value, ids: Value, weights: Value) -> Value {
    let rows = T * K;
    let w = weights_of(b, v);
    let positions = b.iota(rows);
    let tokens = b.floor_divide(positions, v.divisor);
    let picked = b.index(x, tokens);
    let ids = b.clamp(ids, Some(int(0)), int(E - 1));
    let product = |b: &mut Builder, x: Value, w: Value, (k, n): (i64, i64)| {
        let matrices = b.index(w, ids);
        let y = if v.gpt_oss {
            let row = b.reshape(x, &[rows, 1, k]);
            b.matmul(row, matrices)
        } else {
            let column = b.reshape(x, &[rows, k, 1]);
            b.matmul(matrices, column)
        };
        b.reshape(y, &[rows, n])
    };
    let mut both = product(b, picked, w.gate_up, (H, 2 * I));
    if v.gpt_oss {
        let bias = b.index(w.gate_up_bias, ids);
        both = b.add(both, bias);
    }
    let gated = gating(b, v, both);
    let mut y = product(b, gated, w.down, (I, H));
    if v.gpt_oss {
        let bias = b.index(w.down_bias, ids);
        y = b.add(y, bias);
    }
    let row_weights = b.reshape(weights, &[rows, 1]);
    let y = b.mul(y, row_weights);
    total(b, y)
}

fn total(b: &mut Builder, y: Value) -> Value {
    let dtype = b.graph.ty(y).dtype;
    let y = b.reshape(y, &[T, K, H]);
    b.sum(y, 1, false, dtype)
}

/// `down(act(x·gateᵀ) · x·upᵀ)` of a dense layer.
pub fn dense(dtype: DType, act: Pointwise, one_weight: bool, biased: bool) -> Graph {
    let mut b = Builder::new("dense");
    let x = b.input("x", dtype, &[2, 3, H]);
    let (gate, up) = if one_weight {
        let w = b.weight("gate_up", dtype, &[2 * I, H]);
        let mut both = b.linear(x, w);
        if biased {
            let bias = b.weight("gate_up_bias", dtype, &[2 * I]);
            both = b.add(both, bias);
        }
        (b.slice(both, 2, (0, I), 1), b.slice(both, 2, (I, 2 * I), 1))
    } else {
        let mut lane = |name: &str| {
            let w = b.weight(name, dtype, &[I, H]);
            let y = b.linear(x, w);
            if !biased {
                return y;
            }
            let bias = b.weight(&format!("{name}_bias"), dtype, &[I]);
            b.add(y, bias)
        };
        (lane("gate"), lane("up"))
    };
    let gate = b.unary(act, gate);
    let gated = b.mul(gate, up);
    let w = b.weight("down", dtype, &[H, I]);
    let out = b.linear(gated, w);
    b.output(out);
    b.graph
}

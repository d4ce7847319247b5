//! Graphs for rules that whole blocks do not need: one small graph each.

use crate::{
    blocks::{Dress, MIXTRAL, Sizes, Variant, block},
    build::{Builder, float, int, shape},
    routers::{ROUTERS, routed},
};
use eglu_ir::{
    DType, Graph, OpCode, Operand, Scalar, Value,
    ops::{Axes, Cat, Expand, Glu, Pointwise, Reduce, ReduceKind, RmsNorm, TypeRule},
    program::{InstrOp, Program, Ref},
};

/// A permutation of the rows, from sorting noise.
fn permutation(b: &mut Builder, rows: i64) -> Value {
    let noise = b.input("noise", DType::F32, &[rows]);
    b.sort(noise).1
}

/// The op on rows permuted alike, one graph for each operand that alone is permuted and one for all.
pub fn on_permuted(rows: i64, code: OpCode) -> Vec<Graph> {
    let OpCode::Pointwise(op) = code else { return structured(rows, code) };
    (0..=op.arity()).map(|only| pointwise(rows, op, (only < op.arity()).then_some(only))).collect()
}

fn pointwise(rows: i64, op: Pointwise, only: Option<usize>) -> Graph {
    let mut b = Builder::new(op.name());
    let p = permutation(&mut b, rows);
    let bits = op.rule() == TypeRule::Bits;
    let operands: Vec<Operand> = (0..op.arity())
        .map(|i| {
            let dtype = match op {
                Pointwise::Where if i == 0 => DType::Bool,
                _ if bits => DType::I64,
                _ => DType::F32,
            };
            let permuted = only.is_none_or(|only| only == i);
            let dims: &[i64] = if permuted { &[rows, 3] } else { [&[1, 3][..], &[3]][i % 2] };
            let x = b.input("x", if dtype == DType::Bool { DType::I64 } else { dtype }, dims);
            let x = if dtype == DType::Bool { b.call(Pointwise::Gt, &[x.into(), int(0)]) } else { x };
            if permuted { b.index(x, p).into() } else { x.into() }
        })
        .collect();
    let y = b.call(op, &operands);
    b.output(y);
    b.graph
}

fn structured(rows: i64, code: OpCode) -> Vec<Graph> {
    let mut b = Builder::new(code.name());
    let p = permutation(&mut b, rows);
    let x = b.input("x", DType::F32, &[rows, 4]);
    let x = b.index(x, p);
    let y = match code {
        OpCode::Cast => b.cast(x, DType::Bf16),
        OpCode::Slice => b.slice(x, 1, (1, 4), 2),
        OpCode::Reshape => b.reshape(x, &[rows, 2, 2]),
        OpCode::Permute => {
            let x = b.reshape(x, &[rows, 2, 2]);
            b.permute(x, &[0, 2, 1])
        }
        OpCode::Expand => {
            let x = b.slice(x, 1, (0, 1), 1);
            b.call(Expand { shape: shape(&[rows, 3]) }, &[x.into()])
        }
        OpCode::Softmax => b.softmax(x, DType::F32),
        OpCode::Reduce => b.sum(x, 1, false, DType::F32),
        OpCode::RmsNorm => {
            let w = b.weight("w", DType::F32, &[4]);
            b.call(RmsNorm { eps: Scalar::Float(1e-5), dtype: DType::F32 }, &[x.into(), w.into()])
        }
        OpCode::Cat => {
            let other = b.input("other", DType::F32, &[rows, 2]);
            let other = b.index(other, p);
            b.call(Cat { dim: 1 }, &[x.into(), other.into()])
        }
        OpCode::Glu => {
            let mut program = Program::new([DType::F32; 2]);
            let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), Ref::Param(1)], DType::F32);
            program.results.push((product, DType::F32));
            let other = b.input("other", DType::F32, &[rows, 4]);
            let other = b.index(other, p);
            b.call(Glu { program: program.into() }, &[x.into(), other.into()])
        }
        _ => return Vec::new(),
    };
    b.output(y);
    vec![b.graph]
}

/// `f` of `x [6, 4]` as a graph.
fn graph(rows: i64, name: &str, dtype: DType, f: impl FnOnce(&mut Builder, Value) -> Value) -> Graph {
    let mut b = Builder::new(name);
    let x = b.input("x", dtype, &[rows, 4]);
    let y = f(&mut b, x);
    b.output(y);
    b.graph
}

/// `x / √(mean(x²) + ε)`, widened and rounded as `transformers` does it, with a weight.
pub fn norm(rows: i64, dtype: DType, power: bool, mirrored: bool) -> Graph {
    graph(rows, "norm", dtype, |b, x| {
        let wide = if dtype == DType::F32 { x } else { b.cast(x, DType::F32) };
        let square = if power { b.call(Pointwise::Pow, &[wide.into(), int(2)]) } else { b.mul(wide, wide) };
        let mean = b.mean(square, 1, DType::F32);
        let shifted = b.add(mean, float(1e-5));
        let scale = b.unary(Pointwise::Rsqrt, shifted);
        let normal = if mirrored { b.mul(scale, wide) } else { b.mul(wide, scale) };
        let normal = if dtype == DType::F32 { normal } else { b.cast(normal, dtype) };
        let w = b.weight("w", dtype, &[4]);
        if mirrored { b.mul(normal, w) } else { b.mul(w, normal) }
    })
}

/// `(x - mean) / √(mean((x - mean)²) + ε)`, widened and rounded, with a weight and a bias; mirrored, the mean is that of the row before it is
/// widened.
fn layer_norm(rows: i64, dtype: DType, mirrored: bool) -> Graph {
    graph(rows, "layer-norm", dtype, |b, narrow| {
        let wide = |b: &mut Builder, value: Value| if dtype == DType::F32 { value } else { b.cast(value, DType::F32) };
        let x = wide(b, narrow);
        let mean = b.mean(if mirrored { narrow } else { x }, 1, DType::F32);
        let centered = b.call(Pointwise::Sub, &[x.into(), mean.into()]);
        let square = b.mul(centered, centered);
        let variance = b.mean(square, 1, DType::F32);
        let shifted = b.add(variance, float(1e-3));
        let scale = b.unary(Pointwise::Rsqrt, shifted);
        let normal = b.mul(centered, scale);
        let [w, bias] = ["w", "bias"].map(|name| b.weight(name, dtype, &[4]));
        let (w, bias) = (wide(b, w), wide(b, bias));
        let weighted = if mirrored { b.mul(normal, w) } else { b.mul(w, normal) };
        let out = if mirrored { b.add(weighted, bias) } else { b.add(bias, weighted) };
        if dtype == DType::F32 { out } else { b.cast(out, dtype) }
    })
}

/// How the root of a norm is written.
#[derive(Clone, Copy)]
enum Root {
    Divided,
    Power,
    Reciprocal,
}

/// `x / √(Σx² / n + ε)` with the root in other spellings.
fn norm_by_root(rows: i64, root: Root) -> Graph {
    graph(rows, "norm-by-root", DType::F32, |b, x| {
        let square = b.mul(x, x);
        let sum = b.sum(square, 1, true, DType::F32);
        let mean = b.call(Pointwise::Div, &[sum.into(), int(4)]);
        let shifted = b.add(mean, float(1e-5));
        match root {
            Root::Power => {
                let scale = b.call(Pointwise::Pow, &[shifted.into(), float(-0.5)]);
                b.mul(x, scale)
            }
            Root::Divided => {
                let root = b.unary(Pointwise::Sqrt, shifted);
                b.call(Pointwise::Div, &[x.into(), root.into()])
            }
            Root::Reciprocal => {
                let root = b.unary(Pointwise::Sqrt, shifted);
                let scale = b.unary(Pointwise::Reciprocal, root);
                b.mul(x, scale)
            }
        }
    })
}

/// Softmax or its logarithm by parts.
fn softmax_by_parts(rows: i64, log: bool) -> Graph {
    graph(rows, "softmax-by-parts", DType::F32, |b, x| {
        let max = Reduce { kind: ReduceKind::Amax, dims: Axes::from_slice(&[1]), keepdim: true, dtype: DType::F32 };
        let max = b.call(max, &[x.into()]);
        let shifted = b.call(Pointwise::Sub, &[x.into(), max.into()]);
        let exp = b.unary(Pointwise::Exp, shifted);
        let sum = b.sum(exp, 1, true, DType::F32);
        if log {
            let log = b.unary(Pointwise::Log, sum);
            return b.call(Pointwise::Sub, &[shifted.into(), log.into()]);
        }
        b.call(Pointwise::Div, &[exp.into(), sum.into()])
    })
}

/// Gate and up as chunks or as lanes of one product by a matrix `[K, 2N]`.
fn columns(rows: i64, interleaved: bool) -> Graph {
    graph(rows, "columns", DType::F32, |b, x| {
        let w = b.weight("w", DType::F32, &[4, 10]);
        let y = b.matmul(x, w);
        let lanes = if interleaved { [((0, 10), 2), ((1, 10), 2)] } else { [((0, 5), 1), ((5, 10), 1)] };
        let [gate, up] = lanes.map(|(bounds, step)| b.slice(y, 1, bounds, step));
        let act = b.unary(Pointwise::Silu, gate);
        b.mul(act, up)
    })
}

/// Gating in f32 of 16-bit values; rounded before or after the product.
fn upcast(rows: i64, act: Pointwise, before: bool) -> Graph {
    graph(rows, "upcast", DType::Bf16, |b, x| {
        let u = b.input("u", DType::Bf16, &[rows, 4]);
        let gate = b.cast(x, DType::F32);
        let gate = b.unary(act, gate);
        if before {
            let gate = b.cast(gate, DType::Bf16);
            return b.mul(gate, u);
        }
        let u = b.cast(u, DType::F32);
        let product = b.mul(gate, u);
        b.cast(product, DType::Bf16)
    })
}

/// `g · sigmoid(g) · u` as ops of their own, in any order of operands.
pub fn silu_by_parts(rows: i64, dtype: DType, mirrored: bool) -> Graph {
    graph(rows, "silu-by-parts", dtype, |b, x| {
        let u = b.input("u", dtype, &[rows, 4]);
        let sigmoid = b.unary(Pointwise::Sigmoid, x);
        let silu = if mirrored { b.mul(sigmoid, x) } else { b.mul(x, sigmoid) };
        if mirrored { b.mul(u, silu) } else { b.mul(silu, u) }
    })
}

/// A mixture whose weights are [E, K, N], transposed after they are picked, with gate and up as lanes of […, n, 2] or […, 2, n].
fn lanes(sizes: Sizes, neighbours: bool) -> Graph {
    let Sizes { t, k, e, h, i } = sizes;
    let mut b = Builder::new("lanes");
    let x = b.input("x", DType::F32, &[t, h]);
    let router = b.weight("router", DType::F32, &[e, h]);
    let logits = b.linear(x, router);
    let scores = b.softmax(logits, DType::F32);
    let (weights, ids) = b.topk(scores, k as usize);
    let ids = b.reshape(ids, &[t * k]);
    let positions = b.iota(t * k);
    let tokens = b.floor_divide(positions, k);
    let rows = b.index(x, tokens);
    let product = |b: &mut Builder, x: Value, name: &str, n: i64, inner: i64| {
        let w = b.weight(name, DType::F32, &[e, n, inner]);
        let picked = b.index(w, ids);
        let picked = b.permute(picked, &[0, 2, 1]);
        let row = b.reshape(x, &[t * k, 1, inner]);
        let y = b.matmul(row, picked);
        b.reshape(y, &[t * k, n])
    };
    let both = product(&mut b, rows, "gate_up", 2 * i, h);
    let split = if neighbours { [t * k, i, 2] } else { [t * k, 2, i] };
    let both = b.reshape(both, &split);
    let dim = if neighbours { 2 } else { 1 };
    let [gate, up] = [0, 1].map(|lane| {
        let one = b.slice(both, dim, (lane, lane + 1), 1);
        b.reshape(one, &[t * k, i])
    });
    let act = b.unary(Pointwise::Sigmoid, gate);
    let act = b.mul(gate, act);
    let gated = b.mul(up, act);
    let y = product(&mut b, gated, "down", h, i);
    let y = b.reshape(y, &[t, k, h]);
    let weights = b.reshape(weights, &[t, k, 1]);
    let y = b.mul(weights, y);
    let out = b.sum(y, 1, false, DType::F32);
    b.output(out);
    b.graph
}

/// Gate and up seen as […, 2, …] before they gate, as decomposed linear layers leave them.
fn gated_views(rows: i64) -> Graph {
    graph(2 * rows, "gated-views", DType::F32, |b, x| {
        let lane = |b: &mut Builder, name: &str| {
            let w = b.weight(name, DType::F32, &[5, 4]);
            let y = b.linear(x, w);
            b.reshape(y, &[2, rows, 5])
        };
        let (gate, up) = (lane(b, "gate"), lane(b, "up"));
        let act = b.unary(Pointwise::Silu, gate);
        b.mul(act, up)
    })
}

/// A permutation of the first rows of a longer tensor.
fn prefix(rows: i64) -> Graph {
    let mut b = Builder::new("prefix");
    let p = permutation(&mut b, rows);
    let x = b.input("x", DType::F32, &[2 * rows, 3]);
    let y = b.index(x, p);
    b.output(y);
    b.graph
}

/// All single graphs.
pub fn graphs(rows: i64, sizes: Sizes) -> Vec<Graph> {
    let mut graphs: Vec<Graph> = OpCode::all().flat_map(|code| on_permuted(rows, code)).collect();
    for dtype in [DType::F32, DType::Bf16] {
        for power in [false, true] {
            graphs.extend([norm(rows, dtype, power, false), norm(rows, dtype, power, true)]);
        }
    }
    for act in [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid] {
        graphs.extend([upcast(rows, act, false), upcast(rows, act, true)]);
    }
    for dtype in [DType::F32, DType::Bf16] {
        graphs.extend([silu_by_parts(rows, dtype, false), silu_by_parts(rows, dtype, true)]);
    }
    graphs.extend([lanes(sizes, false), lanes(sizes, true), gated_views(rows)]);
    graphs.extend([Root::Divided, Root::Power, Root::Reciprocal].map(|root| norm_by_root(rows, root)));
    graphs.extend([false, true].map(|log| softmax_by_parts(rows, log)));
    for dtype in [DType::F32, DType::Bf16] {
        graphs.extend([false, true].map(|mirrored| layer_norm(rows, dtype, mirrored)));
    }
    graphs.extend([false, true].map(|interleaved| columns(rows, interleaved)));
    for dtype in [DType::F32, DType::Bf16] {
        graphs.extend([false, true].map(|mirrored| other_activation(rows, dtype, mirrored)));
    }
    let even = Sizes { e: 2 * sizes.e, ..sizes };
    graphs.extend(ROUTERS.map(|router| routed(even, router)));
    graphs.push(sorted_rows(sizes));
    let one = Variant { sizes: Sizes { k: 1, ..sizes }, ..MIXTRAL };
    graphs.extend([block(one), block(Variant { dress: Dress::Batched, ..one }), direct(sizes), prefix(rows)]);
    graphs.push(graph(rows, "views", DType::F32, |b, x| {
        let x = b.cast(x, DType::F32);
        let x = b.call(Expand { shape: shape(&[rows, 4]) }, &[x.into()]);
        let x = b.slice(x, 1, (0, 4), 1);
        let x = b.reshape(x, &[rows, 1, 4]);
        let x = b.permute(x, &[1, 0, 2]);
        let ids = b.input("ids", DType::I64, &[rows]);
        let by = b.call(Pointwise::Remainder, &[ids.into(), int(4)]);
        let always = b.call(Pointwise::Ge, &[by.into(), int(0)]);
        let mask = b.reshape(always, &[1, rows, 1]);
        b.call(Pointwise::Where, &[mask.into(), x.into(), float(0.0)])
    }));
    graphs
}

/// One expert for each token, without any gathering of rows.
fn direct(sizes: Sizes) -> Graph {
    let Sizes { t, e, h, i, .. } = sizes;
    let mut b = Builder::new("direct");
    let x = b.input("x", DType::F32, &[t, h]);
    let router = b.weight("router", DType::F32, &[e, h]);
    let logits = b.linear(x, router);
    let scores = b.softmax(logits, DType::F32);
    let (weights, ids) = b.topk(scores, 1);
    let ids = b.reshape(ids, &[t]);
    let product = |b: &mut Builder, x: Value, name: &str, n: i64, inner: i64| {
        let w = b.weight(name, DType::F32, &[e, n, inner]);
        let picked = b.index(w, ids);
        let column = b.reshape(x, &[t, inner, 1]);
        let y = b.matmul(picked, column);
        b.reshape(y, &[t, n])
    };
    let gate = product(&mut b, x, "gate", i, h);
    let up = product(&mut b, x, "up", i, h);
    let act = b.unary(Pointwise::Relu, gate);
    let gated = b.mul(act, up);
    let y = product(&mut b, gated, "down", h, i);
    let weights = b.reshape(weights, &[t, 1]);
    let y = b.mul(y, weights);
    let y = b.reshape(y, &[t, 1, h]);
    let out = b.sum(y, 1, false, DType::F32);
    b.output(out);
    b.graph
}

/// Rows sorted by expert before they meet their matrices, picked by ids of two dims.
fn sorted_rows(Sizes { t, k, e, h, i }: Sizes) -> Graph {
    let mut b = Builder::new("sorted-rows");
    let x = b.input("x", DType::F32, &[t, h]);
    let scores = b.input("scores", DType::F32, &[t, e]);
    let ids = b.topk(scores, k as usize).1;
    let w = b.weight("w", DType::F32, &[e, h, i]);
    let matrices = b.index(w, ids);
    let matrices = b.reshape(matrices, &[t * k, h, i]);
    let flat = b.reshape(ids, &[t * k]);
    let p = b.sort(flat).1;
    let tokens = b.floor_divide(p, k);
    let rows = b.index(x, tokens);
    let rows = b.reshape(rows, &[t * k, 1, h]);
    let matrices = b.index(matrices, p);
    let y = b.matmul(rows, matrices);
    let y = b.reshape(y, &[t * k, i]);
    b.output(y);
    b.graph
}

/// Gated by an activation without a name, in f32 of 16-bit halves of one product by a packed weight, seen in another shape.
fn other_activation(rows: i64, dtype: DType, mirrored: bool) -> Graph {
    graph(2 * rows, "other-activation", dtype, |b, x| {
        let w = b.weight("w", dtype, &[10, 4]);
        let y = b.linear(x, w);
        let y = b.reshape(y, &[2, rows, 10]);
        let y = b.cast(y, DType::F32);
        let (gate, up) = (b.slice(y, 2, (0, 5), 1), b.slice(y, 2, (5, 10), 1));
        let act = b.unary(Pointwise::Tanh, gate);
        let act = b.mul(act, float(0.5));
        if mirrored { b.mul(up, act) } else { b.mul(act, up) }
    })
}

/// A linear layer that is biased only on one side of the gating.
pub fn half_biased(rows: i64, gate: bool) -> Graph {
    graph(rows, "half-biased", DType::F32, |b, x| {
        let lane = |b: &mut Builder, name: &str, biased: bool| {
            let w = b.weight(name, DType::F32, &[5, 4]);
            let y = b.linear(x, w);
            if !biased {
                return y;
            }
            let bias = b.weight("bias", DType::F32, &[5]);
            b.add(bias, y)
        };
        let g = lane(b, "gate", gate);
        let u = lane(b, "up", !gate);
        let g = b.unary(Pointwise::Silu, g);
        b.mul(g, u)
    })
}

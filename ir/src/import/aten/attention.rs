//! Scaled dot-product attention, decomposed.

use super::{
    super::call::{Built, Call, Fault, Out},
    activations::softmax_of,
    reductions::reduce,
    updates::iota,
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{Axes, Expand, Full, MatMul, Permute, Pointwise, ReduceKind, Reshape},
};
use smallvec::smallvec;

/// `softmax(q · kᵀ · scale, masked) · v` (aten/src/ATen/native/transformers/attention.cpp, `_scaled_dot_product_attention_math`).
/// Rows that are masked throughout give zero, as `_safe_softmax` does.
pub fn scaled_dot_product(c: &mut Call<'_, '_>) -> Built {
    Ok(Out::Value(attend(c)?.output))
}

/// `_scaled_dot_product_attention_math`: the result and the weights.
pub fn with_weights(c: &mut Call<'_, '_>) -> Built {
    let Attention { output, weights, .. } = attend(c)?;
    Ok(Out::Values(smallvec![output, weights]))
}

/// The flash and memory-efficient forms: the result, the logarithm of each row's sum of exponentials, and random seeds that only
/// dropout would use.
pub fn with_logsumexp(c: &mut Call<'_, '_>) -> Built {
    let Attention { output, scores, .. } = attend(c)?;
    let scores = c.cast(scores, DType::F32)?;
    let last = c.ty(scores).rank() - 1;
    let dims = Axes::from_iter([last]);
    let max = reduce(c, scores, ReduceKind::Amax, dims.clone(), true, DType::F32)?;
    let shifted = c.op(Pointwise::Sub, [scores.into(), max.into()])?;
    let exp = c.op(Pointwise::Exp, [shifted.into()])?;
    let sum = reduce(c, exp, ReduceKind::Sum, dims, true, DType::F32)?;
    let log = c.op(Pointwise::Log, [sum.into()])?;
    let total = c.op(Pointwise::Add, [log.into(), max.into()])?;
    let mut shape = c.ty(total).shape.clone();
    shape.pop();
    let total = c.op(Reshape { shape }, [total.into()])?;
    let seed = Full { shape: Shape::new(), value: Scalar::Int(0), dtype: DType::I64 };
    let (seed, offset) = (c.op(seed.clone(), [])?, c.op(seed, [])?);
    Ok(Out::Values(smallvec![output, total, seed, offset]))
}

/// The gradients by query, key and value, of weights computed anew (`_scaled_dot_product_flash_attention_for_cpu_backward`).
pub fn backward(c: &mut Call<'_, '_>) -> Built {
    let Attention { weights, scale, .. } = attend(c)?;
    let names = ["grad_out", "query", "key", "value", "out"];
    let tensors = names.iter().map(|name| c.tensor(name)).collect::<Built<Vec<_>>>()?;
    let (grad, q, k, v, out) = (tensors[0], tensors[1], tensors[2], tensors[3], tensors[4]);
    let dtype = c.ty(q).dtype;
    let wide = dtype.opmath();
    let rank = c.ty(q).rank();
    let mut dims: Axes = (0..rank).collect();
    dims.swap(rank - 2, rank - 1);
    let transposed = |c: &mut Call<'_, '_>, x: Value| c.op(Permute { dims: dims.clone() }, [x.into()]);
    let columns = transposed(c, weights)?;
    let of_value = c.op(MatMul {}, [columns.into(), grad.into()])?;
    let values = transposed(c, v)?;
    let by_weight = c.op(MatMul {}, [grad.into(), values.into()])?;
    // Σ over a row of weight · gradient is that of result · gradient over the head.
    let (wide_grad, wide_out) = (c.cast(grad, wide)?, c.cast(out, wide)?);
    let product = c.op(Pointwise::Mul, [wide_grad.into(), wide_out.into()])?;
    let sum = reduce(c, product, ReduceKind::Sum, Axes::from_iter([rank - 1]), true, wide)?;
    let (by_weight, weights) = (c.cast(by_weight, wide)?, c.cast(weights, wide)?);
    let centered = c.op(Pointwise::Sub, [by_weight.into(), sum.into()])?;
    let by_score = c.op(Pointwise::Mul, [weights.into(), centered.into()])?;
    let by_score = c.op(Pointwise::Mul, [by_score.into(), Scalar::Float(scale).into()])?;
    let by_score = c.cast(by_score, dtype)?;
    let of_query = c.op(MatMul {}, [by_score.into(), k.into()])?;
    let rows = transposed(c, by_score)?;
    let of_key = c.op(MatMul {}, [rows.into(), q.into()])?;
    Ok(Out::Values(smallvec![of_query, of_key, of_value]))
}

/// What attention computes on the way.
struct Attention {
    output: Value,
    /// After scaling and masking.
    scores: Value,
    /// The scores' softmax.
    weights: Value,
    /// What products of queries and keys are multiplied by.
    scale: f64,
}

fn attend(c: &mut Call<'_, '_>) -> Built<Attention> {
    let (q, k, v) = (c.tensor("query")?, c.tensor("key")?, c.tensor("value")?);
    if c.float("dropout_p")? != 0.0 {
        return Err(Fault::Unsupported("with dropout: export the model in eval mode".into()));
    }
    let query = c.ty(q).clone();
    let rank = query.rank();
    if rank < 2 || c.ty(k).rank() != rank || c.ty(v).rank() != rank {
        return Err(Fault::Bad("query, key and value must have one rank of at least 2".into()));
    }
    let (k, v) = if c.row.has("enable_gqa") && c.flag("enable_gqa")? {
        (repeat_heads(c, k, &query.shape)?, repeat_heads(c, v, &query.shape)?)
    } else {
        (k, v)
    };
    let scale = match c.number("scale")? {
        Some(scale) => scale.as_f64(),
        None => match query.shape[rank - 1].as_const() {
            Some(width) => 1.0 / (width as f64).sqrt(),
            None => return Err(Fault::Unsupported("with a dynamic head width and no scale".into())),
        },
    };
    let mut dims: Axes = (0..rank).collect();
    dims.swap(rank - 2, rank - 1);
    let keys = c.op(Permute { dims }, [k.into()])?;
    let scores = c.op(MatMul {}, [q.into(), keys.into()])?;
    let scores = c.op(Pointwise::Mul, [scores.into(), Scalar::Float(scale).into()])?;
    let minus_infinity: Operand = Scalar::Float(f64::NEG_INFINITY).into();
    let zero: Operand = Scalar::Float(0.0).into();

    let mask = c.optional(if c.row.has("attn_bias") { "attn_bias" } else { "attn_mask" })?;
    let (scores, weights) = if c.flag("is_causal")? {
        if mask.is_some() {
            return Err(Fault::Bad("a mask beside is_causal".into()));
        }
        let (rows, columns) = (query.shape[rank - 2].clone(), c.ty(k).shape[rank - 2].clone());
        let seen = causal(c, rows, columns)?;
        let masked = c.op(Pointwise::Where, [seen.into(), scores.into(), minus_infinity])?;
        (masked, softmax_of(c, masked, rank - 1, false, None)?)
    } else if let Some(mask) = mask {
        let (masked, seen) = if c.ty(mask).dtype == DType::Bool {
            (c.op(Pointwise::Where, [mask.into(), scores.into(), minus_infinity])?, mask)
        } else {
            let bias = c.cast(mask, query.dtype)?;
            let masked = c.op(Pointwise::Add, [scores.into(), bias.into()])?;
            (masked, c.op(Pointwise::Ne, [masked.into(), minus_infinity])?)
        };
        let weights = softmax_of(c, masked, rank - 1, false, None)?;
        (masked, c.op(Pointwise::Where, [seen.into(), weights.into(), zero])?)
    } else {
        (scores, softmax_of(c, scores, rank - 1, false, None)?)
    };
    let output = c.op(MatMul {}, [weights.into(), v.into()])?;
    Ok(Attention { output, scores, weights, scale })
}

/// True where the column does not come after the row.
fn causal(c: &mut Call<'_, '_>, rows: Dim, columns: Dim) -> Built<Value> {
    let row = iota(c, rows.clone())?;
    let row = c.op(Reshape { shape: Shape::from_iter([rows, Dim::from(1)]) }, [row.into()])?;
    let column = iota(c, columns)?;
    c.op(Pointwise::Le, [column.into(), row.into()])
}

/// Each head of a key or value repeated for the query heads it serves (`pre_process_group_query_attention_input`).
fn repeat_heads(c: &mut Call<'_, '_>, x: Value, query: &[Dim]) -> Built<Value> {
    let shape = c.ty(x).shape.clone();
    let at = shape.len().checked_sub(3).ok_or_else(|| Fault::Bad("grouped heads need at least 3 dims".into()))?;
    let heads = &shape[at];
    let times =
        query[at].exact_div(heads).ok_or_else(|| Fault::Bad(format!("{} heads are no multiple of {heads}", query[at])))?;
    if times.is(1) {
        return Ok(x);
    }
    let with =
        |extent: Dim| -> Shape { shape[..=at].iter().cloned().chain([extent]).chain(shape[at + 1..].iter().cloned()).collect() };
    let apart = c.op(Reshape { shape: with(Dim::from(1)) }, [x.into()])?;
    let repeated = c.op(Expand { shape: with(times) }, [apart.into()])?;
    let mut joined = shape.clone();
    joined[at] = query[at].clone();
    c.op(Reshape { shape: joined }, [repeated.into()])
}

//! Moments, norms of vectors, and log-sum-exp, from simpler reductions.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::{dims, reduce},
};
use crate::{
    DType, Dim, Operand, Scalar, Value,
    dtype::Category,
    ops::{Axes, Pointwise, ReduceKind, Reshape},
};

fn float(value: f64) -> Operand {
    Scalar::Float(value).into()
}

/// Drops the reduced dims of a result that kept them.
fn dropped(c: &mut Call<'_, '_>, x: Value, dims: &Axes, keepdim: bool) -> Built<Value> {
    if keepdim || dims.is_empty() {
        return Ok(x);
    }
    let shape = &c.ty(x).shape;
    let shape = (0..shape.len()).filter(|i| !dims.contains(i)).map(|i| shape[i].clone()).collect();
    c.op(Reshape { shape }, [x.into()])
}

/// `log(Σ exp(x - max)) + max`, with 0 for an infinite maximum (aten/src/ATen/native/ReduceOps.cpp, `logsumexp_out_impl`).
pub fn logsumexp(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let x = if c.ty(x).dtype.category() < Category::Float { c.cast(x, DType::F32)? } else { x };
    let ty = c.ty(x).clone();
    let (dims, keepdim) = (dims(c, "dim", ty.rank())?, c.flag("keepdim")?);
    if ty.numel().is(0) {
        let exp = c.op(Pointwise::Exp, [x.into()])?;
        let sum = reduce(c, exp, ReduceKind::Sum, dims, keepdim, ty.dtype)?;
        return Ok(Out::Value(c.op(Pointwise::Log, [sum.into()])?));
    }
    // Complex numbers are shifted by the largest real part.
    let real = if ty.dtype.is_complex() { c.cast(x, real_dtype(ty.dtype))? } else { x };
    let real_ty = c.ty(real).dtype;
    let max = reduce(c, real, ReduceKind::Amax, dims.clone(), true, real_ty)?;
    let size = c.op(Pointwise::Abs, [max.into()])?;
    let infinite = c.op(Pointwise::Eq, [size.into(), float(f64::INFINITY)])?;
    let max = c.op(Pointwise::Where, [infinite.into(), float(0.0), max.into()])?;
    let shifted = c.op(Pointwise::Sub, [x.into(), max.into()])?;
    let exp = c.op(Pointwise::Exp, [shifted.into()])?;
    let sum = reduce(c, exp, ReduceKind::Sum, dims.clone(), true, ty.dtype)?;
    let log = c.op(Pointwise::Log, [sum.into()])?;
    let result = c.op(Pointwise::Add, [log.into(), max.into()])?;
    Ok(Out::Value(dropped(c, result, &dims, keepdim)?))
}

/// The dtype of a complex dtype's parts; others stay.
pub fn real_dtype(dtype: DType) -> DType {
    match dtype {
        DType::C32 => DType::F16,
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        other => other,
    }
}

/// `|x|²` as a real number; `x` may be complex.
pub fn squared_size(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    let dtype = c.ty(x).dtype;
    if !dtype.is_complex() {
        return c.op(Pointwise::Mul, [x.into(), x.into()]);
    }
    let conjugate = c.op(Pointwise::Conj, [x.into()])?;
    let square = c.op(Pointwise::Mul, [x.into(), conjugate.into()])?;
    c.cast(square, real_dtype(dtype))
}

/// `|x|`; real also where `x` is complex.
pub fn size(c: &mut Call<'_, '_>, x: Value) -> Built<Value> {
    if !c.ty(x).dtype.is_complex() {
        return c.op(Pointwise::Abs, [x.into()]);
    }
    let square = squared_size(c, x)?;
    c.op(Pointwise::Sqrt, [square.into()])
}

/// The order of a norm; `aten.norm` calls it `p`, and takes 2 where it is none.
fn order(c: &Call<'_, '_>) -> Built<f64> {
    if c.row.has("ord") { c.float("ord") } else { Ok(c.number("p")?.map_or(2.0, Scalar::as_f64)) }
}

/// The mean of what is not NaN.
pub fn nanmean(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let (dims, keepdim) = (dims(c, "dim", ty.rank())?, c.flag("keepdim")?);
    let dtype = c.dtype("dtype")?.unwrap_or(ty.dtype);
    if !dtype.is_float() {
        return Err(Fault::Bad(format!("it needs floats, not {dtype}: cast first")));
    }
    let is_nan = c.op(Pointwise::IsNan, [x.into()])?;
    let clean = c.op(Pointwise::Where, [is_nan.into(), float(0.0), x.into()])?;
    let counted = c.op(Pointwise::LogicalNot, [is_nan.into()])?;
    let sum = reduce(c, clean, ReduceKind::Sum, dims.clone(), keepdim, dtype)?;
    let count = reduce(c, counted, ReduceKind::Sum, dims, keepdim, DType::I64)?;
    Ok(Out::Value(c.op(Pointwise::Div, [sum.into(), count.into()])?))
}

/// `(Σ |x|^ord)^(1/ord)` and its limits; halves accumulate in f32.
pub fn vector_norm(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let given = if c.row.has("dtype") { c.dtype("dtype")? } else { None };
    let x = given.map_or(Ok(x), |dtype| c.cast(x, dtype))?;
    let ty = c.ty(x).clone();
    if ty.dtype.category() < Category::Float {
        return Err(Fault::Bad(format!("it needs floats or complex numbers, not {}: cast first", ty.dtype)));
    }
    let keepdim = c.row.has("keepdim") && c.flag("keepdim")?;
    let (dims, keepdim, ord) = (dims(c, "dim", ty.rank())?, keepdim, order(c)?);
    Ok(Out::Value(norm(c, x, ord, dims, keepdim)?))
}

/// The norm of order `ord` over `dims`: floats, or real numbers where `x` is complex.
fn norm(c: &mut Call<'_, '_>, x: Value, ord: f64, dims: Axes, keepdim: bool) -> Built<Value> {
    let dtype = c.ty(x).dtype;
    let x = c.cast(x, dtype.opmath())?;
    let size = size(c, x)?;
    let wide = c.ty(size).dtype;
    let norm = if ord == f64::INFINITY {
        reduce(c, size, ReduceKind::Amax, dims, keepdim, wide)?
    } else if ord == f64::NEG_INFINITY {
        reduce(c, size, ReduceKind::Amin, dims, keepdim, wide)?
    } else if ord == 0.0 {
        let counted = c.op(Pointwise::Ne, [x.into(), Scalar::Int(0).into()])?;
        reduce(c, counted, ReduceKind::Sum, dims, keepdim, wide)?
    } else if ord == 1.0 {
        reduce(c, size, ReduceKind::Sum, dims, keepdim, wide)?
    } else if ord == 2.0 {
        let square = squared_size(c, x)?;
        let sum = reduce(c, square, ReduceKind::Sum, dims, keepdim, wide)?;
        c.op(Pointwise::Sqrt, [sum.into()])?
    } else {
        let power = c.op(Pointwise::Pow, [size.into(), float(ord)])?;
        let sum = reduce(c, power, ReduceKind::Sum, dims, keepdim, wide)?;
        c.op(Pointwise::Pow, [sum.into(), float(1.0 / ord)])?
    };
    c.cast(norm, real_dtype(dtype))
}

/// What `var`, `std` and `var_mean` return.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    Mean,
    Var,
    Std,
}

/// `Σ (x - mean)² / max(n - correction, 0)` and relatives. PyTorch accumulates these in double on the CPU (Welford's algorithm in
/// `std_var_kernel`); two passes in f64 give the same digits, and do not overflow where squares leave f32.
pub fn variance(c: &mut Call<'_, '_>, moments: &[Moment]) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    if ty.dtype.category() < Category::Float {
        return Err(Fault::Bad(format!("it needs floats or complex numbers, not {}: cast first", ty.dtype)));
    }
    let keepdim = c.row.has("keepdim") && c.flag("keepdim")?;
    let dims = dims(c, "dim", ty.rank())?;
    let correction = match c.row.has("unbiased") {
        true => f64::from(u8::from(c.flag("unbiased")?)),
        false => c.number("correction")?.map_or(1.0, Scalar::as_f64),
    };
    let wide = if ty.dtype.is_complex() { DType::C128 } else { DType::F64 };
    let x = c.cast(x, wide)?;
    let mean = reduce(c, x, ReduceKind::Mean, dims.clone(), true, wide)?;
    let centered = c.op(Pointwise::Sub, [x.into(), mean.into()])?;
    // The variance of complex numbers is that of their real parts plus that of their imaginary ones.
    let square = squared_size(c, centered)?;
    let sum = reduce(c, square, ReduceKind::Sum, dims.clone(), true, DType::F64)?;
    let count = dims.iter().fold(Dim::from(1), |n, &dim| n * ty.shape[dim].clone());
    let freedom = match count.as_const() {
        Some(n) => float((n as f64 - correction).max(0.0)),
        None => {
            let n = c.size(&count)?;
            let n = c.op(Pointwise::Sub, [n, float(correction)])?;
            c.op(Pointwise::Maximum, [n.into(), float(0.0)])?.into()
        }
    };
    let variance = c.op(Pointwise::Div, [sum.into(), freedom])?;
    let mut values = Vec::new();
    for moment in moments {
        let (value, dtype) = match moment {
            Moment::Mean => (mean, ty.dtype),
            Moment::Var => (variance, real_dtype(ty.dtype)),
            Moment::Std => (c.op(Pointwise::Sqrt, [variance.into()])?, real_dtype(ty.dtype)),
        };
        let value = dropped(c, value, &dims, keepdim)?;
        values.push(c.cast(value, dtype)?);
    }
    match values[..] {
        [value] => Ok(Out::Value(value)),
        _ => Ok(Out::Values(values.into())),
    }
}

/// `x · y / (max(|x|, eps) · max(|y|, eps))` along a dim.
pub fn cosine_similarity(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("x1")?, c.tensor("x2")?);
    let dtype = super::pointwise::common_dtype(c, &[x, y])?;
    let shape = crate::ops::infer::broadcast(&c.ty(x).shape.clone(), &c.ty(y).shape.clone())?;
    let dims = Axes::from_iter([c.axis("dim", shape.len())?]);
    let eps = c.float("eps")?;
    let mut units = Vec::new();
    for x in [x, y] {
        let x = c.cast(x, dtype)?;
        let x = c.expand(x, &shape)?;
        let square = c.op(Pointwise::Mul, [x.into(), x.into()])?;
        let sum = reduce(c, square, ReduceKind::Sum, dims.clone(), true, dtype)?;
        let norm = c.op(Pointwise::Sqrt, [sum.into()])?;
        let norm = c.op(Pointwise::Maximum, [norm.into(), float(eps)])?;
        units.push(c.op(Pointwise::Div, [x.into(), norm.into()])?);
    }
    let product = c.op(Pointwise::Mul, [units[0].into(), units[1].into()])?;
    Ok(Out::Value(reduce(c, product, ReduceKind::Sum, dims, false, dtype)?))
}

/// The norm of `x - y + eps` along the last dim.
pub fn pairwise_distance(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("x1")?, c.tensor("x2")?);
    let (p, eps, keepdim) = (c.float("p")?, c.float("eps")?, c.flag("keepdim")?);
    let difference = c.op(Pointwise::Sub, [x.into(), y.into()])?;
    let shifted = c.op(Pointwise::Add, [difference.into(), float(eps)])?;
    let ty = c.ty(shifted).clone();
    let last = ty.rank().checked_sub(1).ok_or_else(|| Fault::Bad("0-d tensors have no distance".into()))?;
    Ok(Out::Value(norm(c, shifted, p, Axes::from_iter([last]), keepdim)?))
}

/// The norm of all differences.
pub fn dist(c: &mut Call<'_, '_>) -> Built {
    let (x, y) = (c.tensor("self")?, c.tensor("other")?);
    let p = c.float("p")?;
    let difference = c.op(Pointwise::Sub, [x.into(), y.into()])?;
    let dims = (0..c.ty(difference).rank()).collect();
    Ok(Out::Value(norm(c, difference, p, dims, false)?))
}

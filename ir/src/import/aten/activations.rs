//! Activations and softmax.

use super::{
    super::call::{Built, Call, Fault, Out},
    pointwise::in_opmath,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Pointwise, Reshape, Slice, Softmax},
};

pub fn gelu(c: &mut Call<'_, '_>) -> Built {
    let op = match c.text("approximate")? {
        "none" => Pointwise::GeluErf,
        "tanh" => Pointwise::GeluTanh,
        other => return Err(Fault::Bad(format!("there is no GELU approximation `{other}`"))),
    };
    super::pointwise::unary(c, op)
}

fn number(value: f64) -> crate::Operand {
    Scalar::Float(value).into()
}

/// `scale · x` above zero, `alpha · scale · (exp(input_scale · x) - 1)` below.
pub fn elu(c: &mut Call<'_, '_>) -> Built {
    let (alpha, scale, input_scale) = (c.float("alpha")?, c.float("scale")?, c.float("input_scale")?);
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let positive = c.op(Pointwise::Gt, [x.into(), Scalar::Int(0).into()])?;
        let above = c.op(Pointwise::Mul, [x.into(), number(scale)])?;
        let scaled = c.op(Pointwise::Mul, [x.into(), number(input_scale)])?;
        let curve = c.op(Pointwise::Expm1, [scaled.into()])?;
        let below = c.op(Pointwise::Mul, [curve.into(), number(alpha * scale)])?;
        c.op(Pointwise::Where, [positive.into(), above.into(), below.into()])
    })?;
    Ok(Out::Value(result))
}

pub fn leaky_relu(c: &mut Call<'_, '_>) -> Built {
    let slope = c.float("negative_slope")?;
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let positive = c.op(Pointwise::Gt, [x.into(), Scalar::Int(0).into()])?;
        let below = c.op(Pointwise::Mul, [x.into(), number(slope)])?;
        c.op(Pointwise::Where, [positive.into(), x.into(), below.into()])
    })?;
    Ok(Out::Value(result))
}

/// `log(1 + exp(beta · x)) / beta`, and `x` itself where `beta · x` exceeds the threshold.
pub fn softplus(c: &mut Call<'_, '_>) -> Built {
    let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
    let x = c.tensor("self")?;
    let result = in_opmath(c, x, |c, x| {
        let scaled = c.op(Pointwise::Mul, [x.into(), number(beta)])?;
        let linear = c.op(Pointwise::Gt, [scaled.into(), number(threshold)])?;
        let exp = c.op(Pointwise::Exp, [scaled.into()])?;
        let log = c.op(Pointwise::Log1p, [exp.into()])?;
        let curve = c.op(Pointwise::Div, [log.into(), number(beta)])?;
        c.op(Pointwise::Where, [linear.into(), x.into(), curve.into()])
    })?;
    Ok(Out::Value(result))
}

/// The first half of a dim times the sigmoid of the second.
pub fn glu(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let shape = c.ty(x).shape.clone();
    let dim = c.axis("dim", shape.len())?;
    let extent = shape.get(dim).cloned().ok_or_else(|| Fault::Bad("a 0-d tensor has no halves".into()))?;
    let half = extent.exact_div(&Dim::from(2)).ok_or_else(|| Fault::Bad(format!("the extent {extent} is odd")))?;
    let first = c.op(Slice { dim, start: Dim::from(0), end: half.clone(), step: 1 }, [x.into()])?;
    let second = c.op(Slice { dim, start: half, end: extent, step: 1 }, [x.into()])?;
    let gate = c.op(Pointwise::Sigmoid, [second.into()])?;
    Ok(Out::Value(c.op(Pointwise::Mul, [first.into(), gate.into()])?))
}

/// Softmax of `x`, converted to `dtype` first where one is given, as PyTorch does.
pub fn softmax_of(c: &mut Call<'_, '_>, x: Value, dim: usize, log: bool, dtype: Option<DType>) -> Built<Value> {
    let dtype = dtype.unwrap_or(c.ty(x).dtype);
    let x = c.cast(x, dtype)?;
    if c.ty(x).rank() == 0 {
        let row = c.lines(x)?;
        let result = c.op(Softmax { dim: 0, log, dtype }, [row.into()])?;
        return c.op(Reshape { shape: Shape::new() }, [result.into()]);
    }
    c.op(Softmax { dim, log, dtype }, [x.into()])
}

pub fn softmax(c: &mut Call<'_, '_>, log: bool) -> Built {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let dtype = c.dtype("dtype")?;
    Ok(Out::Value(softmax_of(c, x, dim, log, dtype)?))
}

/// The core form, whose flag turns halves into f32.
pub fn softmax_core(c: &mut Call<'_, '_>, log: bool) -> Built {
    let x = c.tensor("self")?;
    let dim = c.axis("dim", c.ty(x).rank())?;
    let dtype = c.flag("half_to_float")?.then_some(DType::F32);
    Ok(Out::Value(softmax_of(c, x, dim, log, dtype)?))
}

/// Softmax, but zero for rows of minus infinity alone (attention rows that see nothing).
pub fn safe_softmax(c: &mut Call<'_, '_>) -> Built {
    let x = c.tensor("self")?;
    let rank = c.ty(x).rank();
    let dim = c.axis("dim", rank)?;
    let dtype = c.dtype("dtype")?;
    let result = softmax_of(c, x, dim, false, dtype)?;
    let masked = c.op(Pointwise::Eq, [x.into(), number(f64::NEG_INFINITY)])?;
    let dims = if rank == 0 { crate::ops::Axes::new() } else { crate::ops::Axes::from_iter([dim]) };
    let all = super::reductions::reduce(c, masked, crate::ops::ReduceKind::All, dims, true, DType::Bool)?;
    Ok(Out::Value(c.op(Pointwise::Where, [all.into(), number(0.0), result.into()])?))
}

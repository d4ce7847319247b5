//! Gradients of elementwise functions, where PyTorch has them as operators.

use super::{
    super::call::{Built, Call, Fault, Out},
    special::{float, one, select, two},
};
use crate::{
    Dim, Scalar, Value,
    ops::{Cat, Pointwise as P, Slice},
};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// `f` of tensors in the opmath of their common dtype, rounded once.
fn in_opmath(c: &mut Call<'_, '_>, names: &[&str], f: impl FnOnce(&mut Call<'_, '_>, &[Value]) -> Built<Value>) -> Built {
    let mut values = names.iter().map(|name| c.tensor(name)).collect::<Built<Vec<_>>>()?;
    let dtype = super::pointwise::common_dtype(c, &values)?;
    for value in &mut values {
        *value = c.cast(*value, dtype.opmath())?;
    }
    let result = f(c, &values)?;
    Ok(Out::Value(c.cast(result, dtype)?))
}

/// `x · factor + shift`.
pub fn scaled(c: &mut Call<'_, '_>, x: Value, factor: f64, shift: f64) -> Built<Value> {
    let x = if factor == 1.0 { x } else { two(c, P::Mul, x, float(factor))? };
    if shift == 0.0 { Ok(x) } else { two(c, P::Add, x, float(shift)) }
}

pub fn sigmoid(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "output"], |c, v| {
        let rest = two(c, P::Sub, float(1.0), v[1])?;
        let slope = two(c, P::Mul, rest, v[1])?;
        two(c, P::Mul, v[0], slope)
    })
}

pub fn tanh(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "output"], |c, v| {
        let square = two(c, P::Mul, v[1], v[1])?;
        let slope = two(c, P::Sub, float(1.0), square)?;
        two(c, P::Mul, v[0], slope)
    })
}

/// `s · (1 + x · (1 - s))` for `s = sigmoid(x)`.
pub fn silu(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let gate = one(c, P::Sigmoid, v[1])?;
        let rest = two(c, P::Sub, float(1.0), gate)?;
        let tail = two(c, P::Mul, v[1], rest)?;
        let tail = scaled(c, tail, 1.0, 1.0)?;
        let slope = two(c, P::Mul, gate, tail)?;
        two(c, P::Mul, v[0], slope)
    })
}

pub fn gelu(c: &mut Call<'_, '_>) -> Built {
    let tanh = match c.text("approximate")? {
        "none" => false,
        "tanh" => true,
        other => return Err(Fault::Bad(format!("there is no GELU approximation `{other}`"))),
    };
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let x = v[1];
        let square = two(c, P::Mul, x, x)?;
        let slope = if tanh {
            let (beta, kappa) = (FRAC_1_SQRT_2 * FRAC_2_SQRT_PI, 0.044_715);
            let cubic = two(c, P::Mul, square, x)?;
            let cubic = scaled(c, cubic, kappa, 0.0)?;
            let inner = two(c, P::Add, x, cubic)?;
            let inner = scaled(c, inner, beta, 0.0)?;
            let inner = one(c, P::Tanh, inner)?;
            let left = scaled(c, inner, 0.5, 0.5)?;
            let bend = two(c, P::Mul, inner, inner)?;
            let bend = two(c, P::Sub, float(1.0), bend)?;
            let steep = scaled(c, square, 3.0 * kappa * beta, beta)?;
            let right = two(c, P::Mul, bend, steep)?;
            let right = two(c, P::Mul, right, x)?;
            let right = scaled(c, right, 0.5, 0.0)?;
            two(c, P::Add, left, right)?
        } else {
            let cdf = scaled(c, x, FRAC_1_SQRT_2, 0.0)?;
            let cdf = one(c, P::Erf, cdf)?;
            let cdf = scaled(c, cdf, 0.5, 0.5)?;
            let density = scaled(c, square, -0.5, 0.0)?;
            let density = one(c, P::Exp, density)?;
            let density = scaled(c, density, 1.0 / (2.0 * PI).sqrt(), 0.0)?;
            let tail = two(c, P::Mul, x, density)?;
            two(c, P::Add, cdf, tail)?
        };
        two(c, P::Mul, v[0], slope)
    })
}

/// The gradient where `self` exceeds the threshold, else zero; of NaN it passes.
pub fn threshold(c: &mut Call<'_, '_>) -> Built {
    let (grad, x, threshold) = (c.tensor("grad_output")?, c.tensor("self")?, c.scalar("threshold")?);
    let below = two(c, P::Le, x, threshold)?;
    Ok(Out::Value(select(c, below, float(0.0), grad)?))
}

/// The gradient strictly between the bounds, else zero.
fn between(c: &mut Call<'_, '_>, grad: Value, x: Value, low: Scalar, high: Scalar) -> Built<Value> {
    let (above, below) = (two(c, P::Gt, x, low)?, two(c, P::Lt, x, high)?);
    let inside = two(c, P::LogicalAnd, above, below)?;
    select(c, inside, grad, float(0.0))
}

pub fn hardtanh(c: &mut Call<'_, '_>) -> Built {
    let (grad, x, low, high) = (c.tensor("grad_output")?, c.tensor("self")?, c.scalar("min_val")?, c.scalar("max_val")?);
    Ok(Out::Value(between(c, grad, x, low, high)?))
}

pub fn hardsigmoid(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let sixth = scaled(c, v[0], 1.0 / 6.0, 0.0)?;
        between(c, sixth, v[1], Scalar::Float(-3.0), Scalar::Float(3.0))
    })
}

pub fn hardswish(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let slope = scaled(c, v[1], 1.0 / 3.0, 0.5)?;
        let bent = two(c, P::Mul, v[0], slope)?;
        let beyond = two(c, P::Ge, v[1], float(3.0))?;
        let before = two(c, P::Le, v[1], float(-3.0))?;
        let inner = select(c, before, float(0.0), bent)?;
        select(c, beyond, v[0], inner)
    })
}

pub fn leaky_relu(c: &mut Call<'_, '_>) -> Built {
    let slope = c.float("negative_slope")?;
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let below = scaled(c, v[0], slope, 0.0)?;
        let positive = two(c, P::Gt, v[1], Scalar::Int(0))?;
        select(c, positive, v[0], below)
    })
}

pub fn elu(c: &mut Call<'_, '_>) -> Built {
    let (alpha, scale, input_scale) = (c.float("alpha")?, c.float("scale")?, c.float("input_scale")?);
    let of_result = c.flag("is_result")?;
    in_opmath(c, &["grad_output", "self_or_result"], |c, v| {
        let bent = if of_result {
            let curve = scaled(c, v[1], 1.0, alpha * scale)?;
            let bent = two(c, P::Mul, v[0], curve)?;
            scaled(c, bent, input_scale, 0.0)?
        } else {
            let curve = scaled(c, v[1], input_scale, 0.0)?;
            let curve = one(c, P::Exp, curve)?;
            let bent = two(c, P::Mul, v[0], curve)?;
            scaled(c, bent, input_scale * alpha * scale, 0.0)?
        };
        let straight = scaled(c, v[0], scale, 0.0)?;
        let below = two(c, P::Le, v[1], Scalar::Int(0))?;
        select(c, below, bent, straight)
    })
}

pub fn softplus(c: &mut Call<'_, '_>) -> Built {
    let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let steep = scaled(c, v[1], beta, 0.0)?;
        let gate = one(c, P::Sigmoid, steep)?;
        let bent = two(c, P::Mul, v[0], gate)?;
        let linear = two(c, P::Gt, steep, float(threshold))?;
        select(c, linear, v[0], bent)
    })
}

/// `sigmoid(-x)`.
pub fn log_sigmoid(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let minus = one(c, P::Neg, v[1])?;
        let gate = one(c, P::Sigmoid, minus)?;
        two(c, P::Mul, v[0], gate)
    })
}

pub fn mish(c: &mut Call<'_, '_>) -> Built {
    in_opmath(c, &["grad_output", "self"], |c, v| {
        let soft = super::activations::softplus_of(c, v[1])?;
        let tanh = one(c, P::Tanh, soft)?;
        let gate = one(c, P::Sigmoid, v[1])?;
        let square = two(c, P::Mul, tanh, tanh)?;
        let bend = two(c, P::Sub, float(1.0), square)?;
        let tail = two(c, P::Mul, gate, bend)?;
        let tail = two(c, P::Mul, v[1], tail)?;
        let slope = two(c, P::Add, tanh, tail)?;
        two(c, P::Mul, v[0], slope)
    })
}

/// The halves' gradients, side by side.
pub fn glu(c: &mut Call<'_, '_>) -> Built {
    let (grad, x) = (c.tensor("grad_output")?, c.tensor("self")?);
    let ty = c.ty(x).clone();
    let dim = c.axis("dim", ty.rank())?;
    let half = ty.shape.get(dim).and_then(|extent| extent.exact_div(&Dim::from(2)));
    let half = half.ok_or_else(|| Fault::Bad("it has no halves".into()))?;
    let wide = ty.dtype.opmath();
    let (grad, x) = (c.cast(grad, wide)?, c.cast(x, wide)?);
    let first = c.op(Slice { dim, start: Dim::from(0), end: half.clone(), step: 1 }, [x.into()])?;
    let second = c.op(Slice { dim, start: half, end: ty.shape[dim].clone(), step: 1 }, [x.into()])?;
    let gate = one(c, P::Sigmoid, second)?;
    let of_first = two(c, P::Mul, gate, grad)?;
    let rest = two(c, P::Sub, float(1.0), gate)?;
    let slope = two(c, P::Mul, of_first, rest)?;
    let of_second = two(c, P::Mul, slope, first)?;
    let both = c.op(Cat { dim }, [of_first.into(), of_second.into()])?;
    Ok(Out::Value(c.cast(both, ty.dtype)?))
}

//! Tensors made from sizes and numbers.

use super::super::call::{Built, Call, Fault, Out};
use crate::{
    DType, Dim, Operand, Scalar, Shape,
    ops::{Full, Iota, Pointwise},
};

/// The dtype of a number where none is given, with PyTorch's default of f32.
fn dtype_of(value: Scalar) -> DType {
    match value {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F32,
    }
}

fn filled_with(c: &mut Call<'_, '_>, shape: Shape, value: Scalar, dtype: DType) -> Built {
    Ok(Out::Value(c.op(Full { shape, value, dtype }, [])?))
}

pub fn full(c: &mut Call<'_, '_>) -> Built {
    let (shape, value) = (c.dims("size")?, c.scalar("fill_value")?);
    let dtype = c.dtype("dtype")?.unwrap_or(dtype_of(value));
    filled_with(c, shape.into(), value, dtype)
}

/// `zeros`, `ones`, and `empty`, which holds zeros here.
pub fn filled(c: &mut Call<'_, '_>, value: i64) -> Built {
    let shape = c.dims("size")?;
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    filled_with(c, shape.into(), Scalar::Int(value), dtype)
}

pub fn scalar_tensor(c: &mut Call<'_, '_>) -> Built {
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    match c.operand("s")? {
        Operand::Value(size) => Ok(Out::Value(c.cast(size, dtype)?)),
        _ => {
            let value = c.scalar("s")?;
            filled_with(c, Shape::new(), value, dtype)
        }
    }
}

/// A tensor of the shape of `self`, and of its dtype unless another is given.
fn like(c: &mut Call<'_, '_>, value: Scalar) -> Built {
    let x = c.tensor("self")?;
    let ty = c.ty(x).clone();
    let dtype = c.dtype("dtype")?.unwrap_or(ty.dtype);
    filled_with(c, ty.shape, value, dtype)
}

pub fn full_like(c: &mut Call<'_, '_>) -> Built {
    let value = c.scalar("fill_value")?;
    like(c, value)
}

pub fn filled_like(c: &mut Call<'_, '_>, value: i64) -> Built {
    like(c, Scalar::Int(value))
}

/// A tensor of another size, in the dtype of `self` unless another is given.
fn new(c: &mut Call<'_, '_>, value: Scalar) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.dtype("dtype")?.unwrap_or(c.ty(x).dtype);
    let shape = c.dims("size")?;
    filled_with(c, shape.into(), value, dtype)
}

pub fn new_filled(c: &mut Call<'_, '_>, value: i64) -> Built {
    new(c, Scalar::Int(value))
}

pub fn new_full(c: &mut Call<'_, '_>) -> Built {
    let value = c.scalar("fill_value")?;
    new(c, value)
}

fn is_float(c: &Call<'_, '_>, name: &str) -> bool {
    c.row.has(name) && matches!(c.argument(name), Ok(super::super::schema::Argument::Float(_)))
}

/// `start, start + step, …` before `end`.
pub fn arange(c: &mut Call<'_, '_>) -> Built {
    let given = c.dtype("dtype")?;
    if ["start", "end", "step"].iter().any(|name| is_float(c, name)) {
        return float_arange(c, given.unwrap_or(DType::F32));
    }
    let start = if c.row.has("start") { c.dim("start")? } else { Dim::from(0) };
    let step = if c.row.has("step") { c.int("step")? } else { 1 };
    let span = c.dim("end")? - start.clone();
    let len = match step {
        0 => return Err(Fault::Bad("its step is 0".into())),
        1.. => span.ceil_div(step),
        _ => (-span).ceil_div(step.checked_neg().ok_or_else(|| Fault::Bad("its step overflows".into()))?),
    };
    if len.as_const().is_some_and(|len| len < 0) {
        return Err(Fault::Bad("its bounds run against its step".into()));
    }
    let dtype = given.unwrap_or(DType::I64);
    let Some(known) = start.as_const() else {
        // The row starts at a number: a dynamic start is added.
        let steps = c.op(Iota { len, start: 0, step, dtype }, [])?;
        let start = c.size(&start)?;
        let shifted = c.op(Pointwise::Add, [steps.into(), start])?;
        return Ok(Out::Value(c.cast(shifted, dtype)?));
    };
    Ok(Out::Value(c.op(Iota { len, start: known, step, dtype }, [])?))
}

/// `steps` numbers from `start` to `end`, both included; the second half is counted from the end
/// (aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp).
pub fn linspace(c: &mut Call<'_, '_>) -> Built {
    let (start, end, steps) = (c.float("start")?, c.float("end")?, c.int("steps")?);
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    if steps < 0 {
        return Err(Fault::Bad(format!("{steps} steps")));
    }
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let half = steps / 2;
    let part = |c: &mut Call<'_, '_>, from: f64, first: i64, len: i64| {
        let at = c.op(Iota { len: Dim::from(len), start: first, step: 1, dtype: DType::F64 }, [])?;
        let scaled = c.op(Pointwise::Mul, [at.into(), Scalar::Float(step).into()])?;
        c.op(Pointwise::Add, [scaled.into(), Scalar::Float(from).into()])
    };
    if steps < 2 {
        let only = part(c, start, 0, steps)?;
        return Ok(Out::Value(c.cast(only, dtype)?));
    }
    let (first, second) = (part(c, start, 0, half)?, part(c, end, half - (steps - 1), steps - half)?);
    let all = c.op(crate::ops::Cat { dim: 0 }, [first.into(), second.into()])?;
    Ok(Out::Value(c.cast(all, dtype)?))
}

/// Ones on the diagonal of an n × m matrix.
pub fn eye(c: &mut Call<'_, '_>) -> Built {
    let rows = c.dim("n")?;
    let columns = if c.row.has("m") { c.dim("m")? } else { rows.clone() };
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    let row = c.op(Iota { len: rows.clone(), start: 0, step: 1, dtype: DType::I64 }, [])?;
    let row = c.op(crate::ops::Reshape { shape: Shape::from_iter([rows, Dim::from(1)]) }, [row.into()])?;
    let column = c.op(Iota { len: columns, start: 0, step: 1, dtype: DType::I64 }, [])?;
    let diagonal = c.op(Pointwise::Eq, [row.into(), column.into()])?;
    Ok(Out::Value(c.cast(diagonal, dtype)?))
}

/// `start + step · i` in f64, rounded once (aten/src/ATen/native/RangeFactories.cpp accumulates in double).
fn float_arange(c: &mut Call<'_, '_>, dtype: DType) -> Built {
    let start = if c.row.has("start") { c.float("start")? } else { 0.0 };
    let step = if c.row.has("step") { c.float("step")? } else { 1.0 };
    let len = ((c.float("end")? - start) / step).ceil();
    if !(0.0..=1e15).contains(&len) {
        return Err(Fault::Bad(format!("it would have {len} elements")));
    }
    let steps = c.op(Iota { len: Dim::from(len as i64), start: 0, step: 1, dtype: DType::F64 }, [])?;
    let scaled = c.op(Pointwise::Mul, [steps.into(), Scalar::Float(step).into()])?;
    let values = c.op(Pointwise::Add, [scaled.into(), Scalar::Float(start).into()])?;
    Ok(Out::Value(c.cast(values, dtype)?))
}

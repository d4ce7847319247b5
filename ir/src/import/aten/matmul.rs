//! Matrix products.

use super::super::call::{Built, Call, Fault, Out};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Axes, ExpertOuter, Full, GroupedMm, Iota, MatMul, Permute, Pointwise, Reduce, ReduceKind, Reshape},
};

/// `mm` and `bmm`: no broadcasting.
pub fn mm(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("mat2")?);
    Ok(Out::Value(c.op(MatMul {}, [a.into(), b.into()])?))
}

fn reshape(c: &mut Call<'_, '_>, x: Value, shape: Shape) -> Built<Value> {
    c.op(Reshape { shape }, [x.into()])
}

/// The product of tensors of any rank: a vector counts as a row on the left and as a column on the right, and leaves no dim.
fn product(c: &mut Call<'_, '_>, a: Value, b: Value) -> Built<Value> {
    let (left, right) = (c.ty(a).shape.clone(), c.ty(b).shape.clone());
    let row = if left.len() == 1 { reshape(c, a, [Dim::from(1)].into_iter().chain(left.clone()).collect())? } else { a };
    let column = if right.len() == 1 { reshape(c, b, right.iter().cloned().chain([Dim::from(1)]).collect())? } else { b };
    let product = c.op(MatMul {}, [row.into(), column.into()])?;
    let mut shape = c.ty(product).shape.clone();
    if right.len() == 1 {
        shape.pop();
    }
    if left.len() == 1 {
        let at = shape.len() - if right.len() == 1 { 1 } else { 2 };
        shape.remove(at);
    }
    if shape == c.ty(product).shape { Ok(product) } else { reshape(c, product, shape) }
}

pub fn matmul(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("other")?);
    Ok(Out::Value(product(c, a, b)?))
}

/// `input · weightᵀ + bias`.
pub fn linear(c: &mut Call<'_, '_>) -> Built {
    let (x, weight) = (c.tensor("input")?, c.tensor("weight")?);
    let transposed = match c.ty(weight).rank() {
        2 => c.op(Permute { dims: Axes::from_iter([1, 0]) }, [weight.into()])?,
        1 => weight,
        rank => return Err(Fault::Bad(format!("its weight has {rank} dims"))),
    };
    let result = product(c, x, transposed)?;
    match c.optional("bias")? {
        Some(bias) => Ok(Out::Value(c.op(Pointwise::Add, [result.into(), bias.into()])?)),
        None => Ok(Out::Value(result)),
    }
}

/// `factor · x`; nothing for one.
fn times(c: &mut Call<'_, '_>, x: Value, factor: Scalar) -> Built<Value> {
    if factor.as_f64() == 1.0 { Ok(x) } else { c.op(Pointwise::Mul, [x.into(), factor.into()]) }
}

/// `beta · self + alpha · (a · b)`; a factor of zero leaves its term out, NaN or not (`addmm_impl_cpu_`).
pub fn add_product(c: &mut Call<'_, '_>, a: &str, b: &str) -> Built {
    let (x, a, b) = (c.tensor("self")?, c.tensor(a)?, c.tensor(b)?);
    let product = c.op(MatMul {}, [a.into(), b.into()])?;
    let ty = c.ty(product).clone();
    let (beta, alpha) = (in_kind(c.scalar("beta")?, ty.dtype), in_kind(c.scalar("alpha")?, ty.dtype));
    let product = if alpha.as_f64() == 0.0 {
        let value = if ty.dtype.is_int() { Scalar::Int(0) } else { Scalar::Float(0.0) };
        c.op(Full { shape: ty.shape.clone(), value, dtype: ty.dtype }, [])?
    } else {
        times(c, product, alpha)?
    };
    if beta.as_f64() == 0.0 {
        return Ok(Out::Value(product));
    }
    let x = times(c, x, beta)?;
    Ok(Out::Value(c.op(Pointwise::Add, [product.into(), x.into()])?))
}

/// `_grouped_mm`: groups of rows by matrices (2-d × 3-d), or one product a group without offsets (3-d × 3-d).
pub fn grouped_mm(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("mat2")?);
    let dtype = c.ty(a).dtype;
    if c.given("bias")? || c.dtype("out_dtype")?.is_some_and(|out| out != dtype) {
        return Err(Fault::Unsupported("with a bias or another output dtype".into()));
    }
    let offs = c.optional("offs")?;
    match (c.ty(a).rank(), c.ty(b).rank(), offs) {
        (2, 3, Some(offs)) => Ok(Out::Value(c.op(GroupedMm {}, [a.into(), b.into(), offs.into()])?)),
        (3, 3, None) => Ok(Out::Value(c.op(MatMul {}, [a.into(), b.into()])?)),
        (2, 2, Some(offs)) => Ok(Out::Value(outer_groups(c, a, b, offs)?)),
        // Groups of columns: the transpose of groups of rows.
        (3, 2, Some(offs)) => {
            let rows = c.op(Permute { dims: Axes::from_iter([1, 0]) }, [b.into()])?;
            let matrices = c.op(Permute { dims: Axes::from_iter([0, 2, 1]) }, [a.into()])?;
            let product = c.op(GroupedMm {}, [rows.into(), matrices.into(), offs.into()])?;
            Ok(Out::Value(c.op(Permute { dims: Axes::from_iter([1, 0]) }, [product.into()])?))
        }
        (left, right, _) => Err(Fault::Unsupported(format!("of {left}-d and {right}-d tensors"))),
    }
}

/// `out[e] = a[:, offs[e-1]..offs[e]] · b[offs[e-1]..offs[e], :]`, the gradient of a grouped product by its weight: row s belongs to the group
/// that as many groups as end at s or before precede.
fn outer_groups(c: &mut Call<'_, '_>, a: Value, b: Value, offs: Value) -> Built<Value> {
    let (dtype, rows, groups) = (c.ty(a).dtype, c.ty(b).shape[0].clone(), c.ty(offs).shape[0].clone());
    let positions = c.op(Iota { len: rows, start: 0, step: 1, dtype: DType::I64 }, [])?;
    let ends = reshape(c, offs, Shape::from_iter([groups.clone(), Dim::from(1)]))?;
    let ended = c.op(Pointwise::Ge, [positions.into(), ends.into()])?;
    let count = Reduce { kind: ReduceKind::Sum, dims: Axes::from_iter([0]), keepdim: false, dtype: DType::I64 };
    let ids = c.op(count, [ended.into()])?;
    let rows = c.op(Permute { dims: Axes::from_iter([1, 0]) }, [a.into()])?;
    let outer = ExpertOuter { experts: groups, a_repeat: 1, b_repeat: 1, dtype };
    c.op(outer, [rows.into(), b.into(), ids.into()])
}

/// What transformers registers where `_grouped_mm` is missing: the same product.
pub fn grouped_mm_fallback(c: &mut Call<'_, '_>) -> Built {
    let (x, weight, offs) = (c.tensor("input")?, c.tensor("weight")?, c.tensor("offs")?);
    match (c.ty(x).rank(), c.ty(weight).rank()) {
        (2, 3) => Ok(Out::Value(c.op(GroupedMm {}, [x.into(), weight.into(), offs.into()])?)),
        (left, right) => Err(Fault::Unsupported(format!("of {left}-d and {right}-d tensors"))),
    }
}

/// `beta · self + alpha · vec1 ⊗ vec2`; a beta of zero leaves `self` out.
pub fn add_outer(c: &mut Call<'_, '_>) -> Built {
    let (x, a, b) = (c.tensor("self")?, c.tensor("vec1")?, c.tensor("vec2")?);
    let (beta, alpha) = (c.scalar("beta")?, c.scalar("alpha")?);
    let (rows, columns) = (c.ty(a).numel(), c.ty(b).numel());
    let column = reshape(c, a, Shape::from_iter([rows, Dim::from(1)]))?;
    let row = reshape(c, b, Shape::from_iter([Dim::from(1), columns]))?;
    let dtype = super::pointwise::common_dtype(c, &[x, a, b])?;
    let product = c.op(Pointwise::Mul, [column.into(), row.into()])?;
    let (alpha, beta) = (in_kind(alpha, dtype), in_kind(beta, dtype));
    let product = c.cast(product, dtype)?;
    let product = times(c, product, alpha)?;
    if beta.as_f64() == 0.0 {
        return Ok(Out::Value(product));
    }
    let x = times(c, x, beta)?;
    Ok(Out::Value(c.op(Pointwise::Add, [x.into(), product.into()])?))
}

/// A factor as PyTorch hands it to kernels: cut to an integer where the elements are.
pub fn in_kind(factor: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(factor.as_f64() != 0.0),
        dtype if dtype.is_int() => Scalar::Int(factor.as_i64()),
        _ => factor,
    }
}

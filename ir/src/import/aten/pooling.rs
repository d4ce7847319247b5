//! Pooling over 1 to 3 spatial dims: maximum and average, by windows or to a given size, and their gradients. One dim after the
//! other: both the maximum and the sum of a box are those of its lines.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
    special::two,
    taps::{Taps, table},
    updates::iota,
};
use crate::{
    DType, Dim, Operand, Scalar, Shape, Value,
    ops::{Axes, Expand, Full, Gather, Permute, Pointwise as P, ReduceKind, Reshape, ScatterAdd},
};
use smallvec::smallvec;

/// Windows along each spatial dim.
#[derive(Clone, Debug)]
pub struct Windows {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    ceil: bool,
}

/// A number for each spatial dim; one counts for all, and none for `default`.
fn numbers(c: &Call<'_, '_>, name: &str, default: &[i64], least: i64) -> Built<Vec<i64>> {
    if !c.row.has(name) {
        return Ok(default.to_vec());
    }
    let list = match c.optional_ints(name)?.unwrap_or_default() {
        list if list.is_empty() => return Ok(default.to_vec()),
        list if list.len() == 1 => vec![list[0]; default.len()],
        list => list,
    };
    if list.len() != default.len() || list.iter().any(|&value| !(least..1 << 31).contains(&value)) {
        return Err(Fault::Bad(format!("`{name}` must be {} numbers of at least {least}", default.len())));
    }
    Ok(list)
}

impl Windows {
    fn of(c: &Call<'_, '_>, spatial: usize) -> Built<Windows> {
        let one = vec![1; spatial];
        let kernel = numbers(c, "kernel_size", &one, 1)?;
        let padding = numbers(c, "padding", &vec![0; spatial], 0)?;
        if padding.iter().zip(&kernel).any(|(&padding, &kernel)| padding > kernel / 2) {
            return Err(Fault::Bad("its padding exceeds half the window".into()));
        }
        let (stride, dilation) = (numbers(c, "stride", &kernel, 1)?, numbers(c, "dilation", &one, 1)?);
        Ok(Windows { stride, padding, dilation, ceil: c.flag("ceil_mode")?, kernel })
    }

    /// Those of `im2col`, which has all numbers and may be padded beyond half a window.
    pub fn of_columns(c: &Call<'_, '_>) -> Built<Windows> {
        let one = [1, 1];
        let (kernel, stride) = (numbers(c, "kernel_size", &one, 1)?, numbers(c, "stride", &one, 1)?);
        let (padding, dilation) = (numbers(c, "padding", &[0, 0], 0)?, numbers(c, "dilation", &one, 1)?);
        Ok(Windows { kernel, stride, padding, dilation, ceil: false })
    }

    /// Elements of a window along each dim.
    pub fn size(&self) -> &[i64] {
        &self.kernel
    }

    /// Number of windows (`pooling_output_shape`, aten/src/ATen/native/Pool.h): the last one begins within the tensor or its padding.
    pub fn count(&self, i: usize, extent: &Dim) -> Built<Dim> {
        let reach = self.dilation[i].saturating_mul(self.kernel[i] - 1);
        let room = extent.clone() + Dim::from((2 * self.padding[i] - 1).saturating_sub(reach));
        if !self.ceil {
            return Ok(room.floor_div(&Dim::from(self.stride[i])) + Dim::from(1));
        }
        let (Some(room), Some(extent)) = (room.as_const(), extent.as_const()) else {
            return Err(Fault::Unsupported("with `ceil_mode` over a dynamic extent".into()));
        };
        let count = (room + self.stride[i] - 1).div_euclid(self.stride[i]) + 1;
        Ok(Dim::from(count - i64::from((count - 1) * self.stride[i] >= extent + self.padding[i])))
    }

    fn starts(&self, c: &mut Call<'_, '_>, i: usize, extent: &Dim) -> Built<Value> {
        let count = self.count(i, extent)?;
        if count.as_const().is_some_and(|count| count < 1) {
            return Err(Fault::Bad(format!("its windows do not fit into the extent {extent}")));
        }
        let first =
            c.op(crate::ops::Iota { len: count.clone(), start: -self.padding[i], step: self.stride[i], dtype: DType::I64 }, [])?;
        c.op(Reshape { shape: Shape::from_iter([count, Dim::from(1)]) }, [first.into()])
    }

    /// What each window reads along spatial dim `i`.
    pub fn taps(&self, c: &mut Call<'_, '_>, i: usize, extent: &Dim) -> Built<Taps> {
        let starts = self.starts(c, i, extent)?;
        let within =
            c.op(crate::ops::Iota { len: Dim::from(self.kernel[i]), start: 0, step: self.dilation[i], dtype: DType::I64 }, [])?;
        let at = two(c, P::Add, starts, within)?;
        if self.padding[i] == 0 && !self.ceil {
            return Ok(Taps { at, valid: None, weight: None });
        }
        let last = c.size(&(extent.clone() - Dim::from(1)))?;
        let after = two(c, P::Ge, at, Scalar::Int(0))?;
        let before = two(c, P::Le, at, last)?;
        let valid = two(c, P::LogicalAnd, after, before)?;
        let at = two(c, P::Maximum, at, Scalar::Int(0))?;
        let at = two(c, P::Minimum, at, last)?;
        Ok(Taps { at, valid: Some(valid), weight: None })
    }

    /// How many elements each window's average divides by, as `[count, 1]`, or one number for all.
    fn sizes(&self, c: &mut Call<'_, '_>, i: usize, extent: &Dim, padding_counts: bool) -> Built<Operand> {
        let (kernel, padding) = (self.kernel[i], self.padding[i]);
        if !self.ceil && (padding == 0 || padding_counts) {
            return Ok(Scalar::Int(kernel).into());
        }
        let border = if padding_counts { padding } else { 0 };
        let starts = self.starts(c, i, extent)?;
        let ends = two(c, P::Add, starts, Scalar::Int(kernel))?;
        let limit = c.size(&(extent.clone() + Dim::from(border)))?;
        let ends = two(c, P::Minimum, ends, limit)?;
        let starts = two(c, P::Maximum, starts, Scalar::Int(-border))?;
        Ok(two(c, P::Sub, ends, starts)?.into())
    }
}

/// Windows of a pooling to `to` results: from `⌊o · extent / to⌋` to `⌈(o + 1) · extent / to⌉`. Their taps, and their sizes.
fn adaptive(c: &mut Call<'_, '_>, extent: &Dim, to: &Dim) -> Built<(Taps, Operand)> {
    if let Some(each) = extent.exact_div(to).filter(|_| !to.is(0)) {
        let starts = iota(c, to.clone())?;
        let size = c.size(&each)?;
        let starts = two(c, P::Mul, starts, size)?;
        let starts = c.op(Reshape { shape: Shape::from_iter([to.clone(), Dim::from(1)]) }, [starts.into()])?;
        let within = iota(c, each)?;
        let at = two(c, P::Add, starts, within)?;
        return Ok((Taps { at, valid: None, weight: None }, size));
    }
    let (Some(extent), Some(to)) = (extent.as_const(), to.as_const()) else {
        return Err(Fault::Unsupported(format!("to {to} windows of the dynamic extent {extent}, which they do not divide")));
    };
    if !(0..1 << 24).contains(&to) || !(1..1 << 24).contains(&extent) {
        return Err(Fault::Bad(format!("to {to} windows of {extent} elements")));
    }
    let bounds: Vec<(i64, i64)> = (0..to).map(|o| (o * extent / to, ((o + 1) * extent + to - 1) / to)).collect();
    let longest = bounds.iter().map(|(start, end)| end - start).max().unwrap_or(0);
    if to.saturating_mul(longest) > 1 << 24 {
        return Err(Fault::Unsupported(format!("to {to} uneven windows of {extent} elements")));
    }
    let rows: Vec<Vec<i64>> =
        bounds.iter().map(|&(start, end)| (0..longest).map(|j| (start + j).min(end - 1)).collect()).collect();
    let valid: Vec<Vec<u8>> =
        bounds.iter().map(|&(start, end)| (0..longest).map(|j| u8::from(start + j < end)).collect()).collect();
    let sizes: Vec<Vec<i64>> = bounds.iter().map(|&(start, end)| vec![end - start]).collect();
    let (at, valid) = (table(c, DType::I64, &rows)?, table(c, DType::Bool, &valid)?);
    Ok((Taps { at, valid: Some(valid), weight: None }, table(c, DType::I64, &sizes)?.into()))
}

/// Where the spatial dims of a tensor begin.
pub fn first_spatial(c: &Call<'_, '_>, x: Value, spatial: usize) -> Built<usize> {
    let rank = c.ty(x).rank();
    if rank == spatial + 1 || rank == spatial + 2 {
        return Ok(rank - spatial);
    }
    Err(Fault::Bad(format!("it needs {} or {} dims, not {rank}", spatial + 1, spatial + 2)))
}

/// Below everything: what a maximum ignores.
pub fn lowest(dtype: DType) -> Scalar {
    match dtype {
        DType::I8 => Scalar::Int(i8::MIN.into()),
        DType::I16 => Scalar::Int(i16::MIN.into()),
        DType::I32 => Scalar::Int(i32::MIN.into()),
        DType::I64 => Scalar::Int(i64::MIN),
        dtype if dtype.is_float() => Scalar::Float(f64::NEG_INFINITY),
        _ => Scalar::Int(0),
    }
}

/// Above everything: what a minimum ignores.
pub fn highest(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(true),
        DType::U8 => Scalar::Int(u8::MAX.into()),
        DType::I8 => Scalar::Int(i8::MAX.into()),
        DType::I16 => Scalar::Int(i16::MAX.into()),
        DType::I32 => Scalar::Int(i32::MAX.into()),
        DType::I64 => Scalar::Int(i64::MAX),
        _ => Scalar::Float(f64::INFINITY),
    }
}

/// The maximum of each window.
fn maximum(c: &mut Call<'_, '_>, mut x: Value, first: usize, taps: &[Taps]) -> Built<Value> {
    let dtype = c.ty(x).dtype;
    for (i, taps) in taps.iter().enumerate() {
        let windows = taps.read(c, x, first + i, lowest(dtype))?;
        x = reduce(c, windows, ReduceKind::Amax, Axes::from_iter([first + i + 1]), false, dtype)?;
    }
    Ok(x)
}

/// Where in the flattened spatial dims each window has its maximum; the first of equals.
fn positions(c: &mut Call<'_, '_>, x: Value, first: usize, taps: &[Taps]) -> Built<Value> {
    let ty = c.ty(x).clone();
    let spatial = taps.len();
    let mut windows = x;
    for (i, taps) in taps.iter().enumerate() {
        // Each dim before this one has become two.
        windows = taps.read(c, windows, first + 2 * i, lowest(ty.dtype))?;
    }
    // Windows in front of what is in them.
    let order = (0..first).chain((0..spatial).map(|i| first + 2 * i)).chain((0..spatial).map(|i| first + 2 * i + 1));
    let windows = c.op(Permute { dims: order.collect() }, [windows.into()])?;
    let shape = c.ty(windows).shape.clone();
    let inside = crate::types::numel(&shape[first + spatial..]);
    let flat: Shape = shape[..first + spatial].iter().cloned().chain([inside.clone()]).collect();
    let windows = c.op(Reshape { shape: flat.clone() }, [windows.into()])?;
    let best = c.op(
        crate::ops::Reduce {
            kind: ReduceKind::Argmax,
            dims: Axes::from_iter([first + spatial]),
            keepdim: true,
            dtype: DType::I64,
        },
        [windows.into()],
    )?;
    let mut at: Option<Value> = None;
    for (i, taps) in taps.iter().enumerate() {
        let own = c.ty(taps.at).shape.clone();
        let mut beside: Shape = vec![Dim::from(1); 2 * spatial].into();
        (beside[i], beside[spatial + i]) = (own[0].clone(), own[1].clone());
        let own = c.op(Reshape { shape: beside }, [taps.at.into()])?;
        at = Some(match at {
            None => own,
            Some(outer) => {
                let extent = c.size(&ty.shape[first + i])?;
                let outer = two(c, P::Mul, outer, extent)?;
                two(c, P::Add, outer, own)?
            }
        });
    }
    let at = at.ok_or_else(|| Fault::Bad("it has no spatial dim".into()))?;
    let of_windows: Shape =
        (0..first).map(|_| Dim::from(1)).chain(flat[first..first + spatial].iter().cloned()).chain([inside]).collect();
    let at = c.op(Reshape { shape: of_windows }, [at.into()])?;
    let at = c.op(Expand { shape: flat }, [at.into()])?;
    let found = c.op(Gather { dim: first + spatial }, [at.into(), best.into()])?;
    let shape = c.ty(found).shape[..first + spatial].iter().cloned().collect();
    c.op(Reshape { shape }, [found.into()])
}

fn window_taps(c: &mut Call<'_, '_>, x: Value, windows: &Windows, first: usize, spatial: usize) -> Built<Vec<Taps>> {
    let shape = c.ty(x).shape.clone();
    (0..spatial).map(|i| windows.taps(c, i, &shape[first + i])).collect()
}

/// `max_pool1d`, `2d`, `3d`.
pub fn max_pool(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let x = c.tensor("self")?;
    let (windows, first) = (Windows::of(c, spatial)?, first_spatial(c, x, spatial)?);
    let taps = window_taps(c, x, &windows, first, spatial)?;
    Ok(Out::Value(maximum(c, x, first, &taps)?))
}

/// The maxima and where they are.
pub fn max_pool_with_indices(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let x = c.tensor("self")?;
    let (windows, first) = (Windows::of(c, spatial)?, first_spatial(c, x, spatial)?);
    let taps = window_taps(c, x, &windows, first, spatial)?;
    Ok(Out::Values(smallvec![maximum(c, x, first, &taps)?, positions(c, x, first, &taps)?]))
}

/// Each maximum's gradient at the element it came from.
pub fn max_pool_backward(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let (grad, x, at) = (c.tensor("grad_output")?, c.tensor("self")?, c.tensor("indices")?);
    let first = first_spatial(c, x, spatial)?;
    let ty = c.ty(x).clone();
    let flat =
        |shape: &Shape| -> Shape { shape[..first].iter().cloned().chain([crate::types::numel(&shape[first..])]).collect() };
    let (of_grad, of_x) = (flat(&c.ty(grad).shape), flat(&ty.shape));
    let grad = c.op(Reshape { shape: of_grad.clone() }, [grad.into()])?;
    let at = c.op(Reshape { shape: of_grad }, [at.into()])?;
    let zero = c.op(Full { shape: of_x, value: Scalar::Int(0), dtype: ty.dtype }, [])?;
    let sum = c.op(ScatterAdd { dim: first }, [zero.into(), at.into(), grad.into()])?;
    Ok(Out::Value(c.op(Reshape { shape: ty.shape }, [sum.into()])?))
}

/// `x / size`, the sizes along one spatial dim.
fn divided(c: &mut Call<'_, '_>, x: Value, dim: usize, size: Operand) -> Built<Value> {
    let op = if c.ty(x).dtype.is_float() { P::Div } else { P::TruncDiv };
    let Operand::Value(sizes) = size else { return two(c, op, x, size) };
    let mut shape = c.ty(sizes).shape.clone();
    shape.resize(c.ty(x).rank() - dim, Dim::from(1));
    let sizes = c.op(Reshape { shape }, [sizes.into()])?;
    two(c, op, x, sizes)
}

/// The product of the sizes of two dims, as `[rows, 1]` and so on, if all are numbers.
fn product(sizes: &[Operand]) -> Option<i64> {
    sizes.iter().try_fold(1i64, |product, size| match size {
        Operand::Scalar(Scalar::Int(size)) => product.checked_mul(*size),
        _ => None,
    })
}

/// The sum of each window divided by its size.
fn average(c: &mut Call<'_, '_>, x: Value, first: usize, taps: &[Taps], sizes: &[Operand]) -> Built<Value> {
    let dtype = c.ty(x).dtype;
    let mut x = c.cast(x, dtype.opmath())?;
    for (i, taps) in taps.iter().enumerate() {
        let windows = taps.read(c, x, first + i, if dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) })?;
        x = reduce(c, windows, ReduceKind::Sum, Axes::from_iter([first + i + 1]), false, dtype.opmath())?;
    }
    let x = match product(sizes) {
        Some(size) => divided(c, x, first, Scalar::Int(size).into())?,
        None => sizes.iter().enumerate().try_fold(x, |x, (i, size)| divided(c, x, first + i, *size))?,
    };
    c.cast(x, dtype)
}

/// The gradient of an average: each window's share to all its elements.
fn average_backward(
    c: &mut Call<'_, '_>,
    grad: Value,
    extents: &[Dim],
    first: usize,
    taps: &[Taps],
    sizes: &[Operand],
) -> Built<Value> {
    let dtype = c.ty(grad).dtype;
    let mut grad = c.cast(grad, dtype.opmath())?;
    for (i, size) in sizes.iter().enumerate() {
        grad = divided(c, grad, first + i, *size)?;
    }
    for (i, taps) in taps.iter().enumerate() {
        grad = taps.spread(c, grad, first + i, extents[i].clone())?;
    }
    c.cast(grad, dtype)
}

/// Taps and divisors of an average over windows.
fn average_windows(c: &mut Call<'_, '_>, x: Value, spatial: usize) -> Built<(usize, Vec<Taps>, Vec<Operand>)> {
    let (windows, first) = (Windows::of(c, spatial)?, first_spatial(c, x, spatial)?);
    let taps = window_taps(c, x, &windows, first, spatial)?;
    let padding_counts = c.flag("count_include_pad")?;
    let divisor = if c.row.has("divisor_override") { c.number("divisor_override")? } else { None };
    if let Some(divisor) = divisor {
        return Ok((first, taps, vec![divisor.into()]));
    }
    let shape = c.ty(x).shape.clone();
    let sizes = (0..spatial).map(|i| windows.sizes(c, i, &shape[first + i], padding_counts)).collect::<Built<_>>()?;
    Ok((first, taps, sizes))
}

/// `avg_pool1d`, `2d`, `3d`.
pub fn avg_pool(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let x = c.tensor("self")?;
    let (first, taps, sizes) = average_windows(c, x, spatial)?;
    Ok(Out::Value(average(c, x, first, &taps, &sizes)?))
}

pub fn avg_pool_backward(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let (grad, x) = (c.tensor("grad_output")?, c.tensor("self")?);
    let (first, taps, sizes) = average_windows(c, x, spatial)?;
    let extents = c.ty(x).shape[first..].to_vec();
    Ok(Out::Value(average_backward(c, grad, &extents, first, &taps, &sizes)?))
}

/// Taps and sizes of the windows that give the wanted number of results.
fn adaptive_windows(c: &mut Call<'_, '_>, x: Value, first: usize, to: &[Dim]) -> Built<(Vec<Taps>, Vec<Operand>)> {
    let shape = c.ty(x).shape.clone();
    let pairs = to.iter().zip(&shape[first..]).map(|(to, extent)| adaptive(c, extent, to)).collect::<Built<Vec<_>>>()?;
    Ok(pairs.into_iter().unzip())
}

/// The wanted number of results along each spatial dim; -1 stands for the extent itself.
fn wanted(c: &Call<'_, '_>, x: Value, first: usize, spatial: usize) -> Built<Vec<Dim>> {
    let to = c.dims("output_size")?;
    if to.len() != spatial {
        return Err(Fault::Bad(format!("`output_size` has {} numbers for {spatial} dims", to.len())));
    }
    Ok(to.into_iter().enumerate().map(|(i, to)| if to.is(-1) { c.ty(x).shape[first + i].clone() } else { to }).collect())
}

/// `adaptive_avg_pool1d`, `2d`, `3d`.
pub fn adaptive_avg_pool(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let x = c.tensor("self")?;
    let first = first_spatial(c, x, spatial)?;
    let to = wanted(c, x, first, spatial)?;
    if to.iter().all(|to| to.is(1)) {
        let dtype = c.ty(x).dtype;
        return Ok(Out::Value(reduce(c, x, ReduceKind::Mean, (first..first + spatial).collect(), true, dtype)?));
    }
    let (taps, sizes) = adaptive_windows(c, x, first, &to)?;
    Ok(Out::Value(average(c, x, first, &taps, &sizes)?))
}

pub fn adaptive_avg_pool_backward(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let (grad, x) = (c.tensor("grad_output")?, c.tensor("self")?);
    let first = first_spatial(c, x, spatial)?;
    let to = c.ty(grad).shape[first..].to_vec();
    let (taps, sizes) = adaptive_windows(c, x, first, &to)?;
    let extents = c.ty(x).shape[first..].to_vec();
    Ok(Out::Value(average_backward(c, grad, &extents, first, &taps, &sizes)?))
}

/// `adaptive_max_pool1d`, `2d`, `3d`: the maxima and where they are.
pub fn adaptive_max_pool(c: &mut Call<'_, '_>, spatial: usize) -> Built {
    let x = c.tensor("self")?;
    let first = first_spatial(c, x, spatial)?;
    let to = wanted(c, x, first, spatial)?;
    let (taps, _) = adaptive_windows(c, x, first, &to)?;
    Ok(Out::Values(smallvec![maximum(c, x, first, &taps)?, positions(c, x, first, &taps)?]))
}

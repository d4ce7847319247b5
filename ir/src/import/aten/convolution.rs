//! Convolutions, plain and transposed, and their gradients.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
};
use crate::{
    Dim, Scalar, Shape, TensorType, Value,
    ops::{Axes, Cat, Convolution, ConvolutionInput, ConvolutionWeight, Full, Pointwise, ReduceKind, Reshape},
};
use smallvec::smallvec;

/// Attributes of a convolution.
#[derive(Clone, Debug)]
struct Settings {
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: usize,
}

/// A number for each spatial dim; one counts for all.
fn numbers(c: &Call<'_, '_>, name: &str, spatial: usize) -> Built<Axes> {
    let list = c.optional_ints(name)?.unwrap_or_default();
    let list = if list.len() == 1 { vec![list[0]; spatial] } else { list };
    let number = |value: i64| usize::try_from(value).map_err(|_| Fault::Bad(format!("`{name}` is negative")));
    if list.len() != spatial {
        return Err(Fault::Bad(format!("`{name}` has {} numbers for {spatial} dims", list.len())));
    }
    list.into_iter().map(number).collect()
}

impl Settings {
    fn of(c: &Call<'_, '_>, spatial: usize, padding: Axes) -> Built<Settings> {
        let groups = usize::try_from(c.int("groups")?).map_err(|_| Fault::Bad("`groups` is negative".into()))?;
        Ok(Settings { stride: numbers(c, "stride", spatial)?, padding, dilation: numbers(c, "dilation", spatial)?, groups })
    }

    fn forward(&self, c: &mut Call<'_, '_>, x: Value, w: Value) -> Built<Value> {
        let Settings { stride, padding, dilation, groups } = self.clone();
        c.op(Convolution { stride, padding, dilation, groups }, [x.into(), w.into()])
    }

    fn of_input(&self, c: &mut Call<'_, '_>, grad: Value, w: Value, extents: Shape) -> Built<Value> {
        let Settings { stride, padding, dilation, groups } = self.clone();
        c.op(ConvolutionInput { extents, stride, padding, dilation, groups }, [grad.into(), w.into()])
    }

    fn of_weight(&self, c: &mut Call<'_, '_>, x: Value, grad: Value, w: &Shape) -> Built<Value> {
        let Settings { stride, padding, dilation, groups } = self.clone();
        let known = |dim: &Dim| dim.as_const().and_then(|extent| usize::try_from(extent).ok());
        let extents: Option<Axes> = w.iter().skip(2).map(known).collect();
        let extents = extents.ok_or_else(|| Fault::Unsupported("with a kernel of dynamic size".into()))?;
        c.op(ConvolutionWeight { extents, stride, padding, dilation, groups }, [x.into(), grad.into()])
    }

    /// `x` with zeros behind it, where the extra padding of a transposed convolution's result has room for more windows.
    fn lengthened(&self, c: &mut Call<'_, '_>, mut x: Value, extra: &Axes) -> Built<Value> {
        for (i, &extra) in extra.iter().enumerate() {
            let windows = (extra / self.stride[i].max(1)) as i64;
            if windows > 0 {
                let TensorType { dtype, mut shape } = c.ty(x).clone();
                shape[2 + i] = Dim::from(windows);
                let zero = c.op(Full { shape, value: Scalar::Int(0), dtype }, [])?;
                x = c.op(Cat { dim: 2 + i }, [x.into(), zero.into()])?;
            }
        }
        Ok(x)
    }

    /// Spatial extents of a transposed convolution's result.
    fn widened(&self, x: &Shape, w: &Shape, extra: &Axes) -> Shape {
        let number = |value: usize| Dim::from(value as i64);
        (0..self.stride.len())
            .map(|i| {
                let steps = (x[2 + i].clone() - Dim::from(1)) * number(self.stride[i]);
                let reach = (w[2 + i].clone() - Dim::from(1)) * number(self.dilation[i]);
                steps - number(self.padding[i]) * Dim::from(2) + reach + number(extra[i]) + Dim::from(1)
            })
            .collect()
    }
}

/// The weight's spatial dims.
fn spatial(c: &Call<'_, '_>, w: Value) -> Built<usize> {
    let rank = c.ty(w).rank();
    rank.checked_sub(2).filter(|&spatial| spatial > 0).ok_or_else(|| Fault::Bad(format!("its weight has {rank} dims")))
}

/// `input`, with a batch of one if it has none.
fn batched(c: &mut Call<'_, '_>, spatial: usize) -> Built<(Value, bool)> {
    let x = c.tensor("input")?;
    if c.ty(x).rank() != spatial + 1 {
        return Ok((x, false));
    }
    let shape = [Dim::from(1)].into_iter().chain(c.ty(x).shape.iter().cloned()).collect();
    Ok((c.op(Reshape { shape }, [x.into()])?, true))
}

/// The result with the bias by channel, and without the batch that was not there.
fn finished(c: &mut Call<'_, '_>, mut y: Value, alone: bool) -> Built {
    if let Some(bias) = c.optional("bias")? {
        let channels = c.ty(bias).numel();
        let shape = (0..c.ty(y).rank()).map(|i| if i == 1 { channels.clone() } else { Dim::from(1) }).collect();
        let bias = c.op(Reshape { shape }, [bias.into()])?;
        y = c.op(Pointwise::Add, [y.into(), bias.into()])?;
    }
    if alone {
        let shape = c.ty(y).shape[1..].iter().cloned().collect();
        y = c.op(Reshape { shape }, [y.into()])?;
    }
    Ok(Out::Value(y))
}

/// `convolution`: plain or transposed.
pub fn convolution(c: &mut Call<'_, '_>) -> Built {
    if c.flag("transposed")? { transposed(c) } else { plain(c) }
}

/// `conv1d`, `conv2d`, `conv3d` with padding by number.
pub fn plain(c: &mut Call<'_, '_>) -> Built {
    let w = c.tensor("weight")?;
    let spatial = spatial(c, w)?;
    let (x, alone) = batched(c, spatial)?;
    let padding = numbers(c, "padding", spatial)?;
    let y = Settings::of(c, spatial, padding)?.forward(c, x, w)?;
    finished(c, y, alone)
}

/// Padding by name: none, or as much as keeps the extents, the odd zero at the end.
pub fn padded_by_name(c: &mut Call<'_, '_>) -> Built {
    let w = c.tensor("weight")?;
    let spatial = spatial(c, w)?;
    let (mut x, alone) = batched(c, spatial)?;
    let mut settings = Settings::of(c, spatial, vec![0; spatial].into())?;
    match c.text("padding")? {
        "valid" => {}
        "same" if settings.stride.iter().any(|&stride| stride != 1) => {
            return Err(Fault::Bad("padding `same` needs a stride of 1".into()));
        }
        "same" => {
            for i in 0..spatial {
                let kernel = c.ty(w).shape[2 + i].as_const().and_then(|extent| usize::try_from(extent).ok());
                let kernel = kernel.ok_or_else(|| Fault::Unsupported("with a kernel of dynamic size".into()))?;
                let total = settings.dilation[i].saturating_mul(kernel.saturating_sub(1));
                settings.padding[i] = total / 2;
                if total % 2 == 1 {
                    let ty = c.ty(x).clone();
                    let mut shape = ty.shape;
                    shape[2 + i] = Dim::from(1);
                    let zero = c.op(Full { shape, value: Scalar::Int(0), dtype: ty.dtype }, [])?;
                    x = c.op(Cat { dim: 2 + i }, [x.into(), zero.into()])?;
                }
            }
        }
        other => return Err(Fault::Bad(format!("there is no padding `{other}`"))),
    }
    let y = settings.forward(c, x, w)?;
    finished(c, y, alone)
}

/// `conv_transpose`: what the gradient of a convolution by its input computes.
pub fn transposed(c: &mut Call<'_, '_>) -> Built {
    let w = c.tensor("weight")?;
    let spatial = spatial(c, w)?;
    let (x, alone) = batched(c, spatial)?;
    let padding = numbers(c, "padding", spatial)?;
    let (settings, extra) = (Settings::of(c, spatial, padding)?, numbers(c, "output_padding", spatial)?);
    if c.ty(x).rank() != spatial + 2 {
        return Err(Fault::Bad(format!("input and weight have {} and {} dims", c.ty(x).rank(), spatial + 2)));
    }
    let extents = settings.widened(&c.ty(x).shape.clone(), &c.ty(w).shape.clone(), &extra);
    let x = settings.lengthened(c, x, &extra)?;
    let y = settings.of_input(c, x, w, extents)?;
    finished(c, y, alone)
}

/// Gradients by input, weight and bias, as far as `output_mask` asks for them; an empty tensor stands for the others.
pub fn backward(c: &mut Call<'_, '_>) -> Built {
    let (grad, x, w) = (c.tensor("grad_output")?, c.tensor("input")?, c.tensor("weight")?);
    let spatial = spatial(c, w)?;
    let padding = numbers(c, "padding", spatial)?;
    let settings = Settings::of(c, spatial, padding)?;
    let (x_shape, w_shape) = (c.ty(x).shape.clone(), c.ty(w).shape.clone());
    let wanted = c.flags("output_mask")?;
    let wanted = |i: usize| wanted.get(i).copied().unwrap_or(true);
    let dtype = c.ty(grad).dtype;
    let none = Full { shape: Shape::from_iter([Dim::from(0)]), value: Scalar::Int(0), dtype };
    let transposed = c.flag("transposed")?;
    let of_x = if !wanted(0) {
        c.op(none.clone(), [])?
    } else if transposed {
        let all = settings.forward(c, grad, w)?;
        // Windows that start in the output's extra padding belong to no input.
        let mut own = all;
        for (dim, extent) in x_shape.iter().enumerate().skip(2) {
            if c.ty(own).shape[dim] != *extent {
                let part = crate::ops::Slice { dim, start: Dim::from(0), end: extent.clone(), step: 1 };
                own = c.op(part, [own.into()])?;
            }
        }
        own
    } else {
        settings.of_input(c, grad, w, x_shape.iter().skip(2).cloned().collect())?
    };
    let of_w = if !wanted(1) {
        c.op(none.clone(), [])?
    } else if transposed {
        let extra = numbers(c, "output_padding", spatial)?;
        let x = settings.lengthened(c, x, &extra)?;
        settings.of_weight(c, grad, x, &w_shape)?
    } else {
        settings.of_weight(c, x, grad, &w_shape)?
    };
    let of_bias = if wanted(2) {
        let dims: Axes = (0..spatial + 2).filter(|&i| i != 1).collect();
        reduce(c, grad, ReduceKind::Sum, dims, false, dtype)?
    } else {
        c.op(none, [])?
    };
    Ok(Out::Values(smallvec![of_x, of_w, of_bias]))
}

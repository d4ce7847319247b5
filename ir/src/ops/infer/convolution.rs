//! Convolutions and their gradients.

use super::same;
use crate::{
    Dim, TensorType,
    ops::{
        Args, Axes, Convolution, ConvolutionInput, ConvolutionWeight, Cost, InferError, OpDef, OperandType, Types,
        convolution::Window, one,
    },
    types::numel,
};

/// Bounds that keep all products of attributes far from overflow.
const LIMIT: usize = 1 << 30;

fn check_window(window: Window<'_>, groups: usize, spatial: usize) -> Result<(), InferError> {
    if !(1..=3).contains(&spatial) {
        return Err(InferError(format!("it has {spatial} spatial dims, where 1 to 3 are supported")));
    }
    let lists = [window.stride, window.padding, window.dilation];
    if lists.iter().any(|list| list.len() != spatial || list.iter().any(|&value| value > LIMIT)) {
        return Err(InferError(format!("stride, padding and dilation must have {spatial} numbers of at most 2³⁰")));
    }
    if window.stride.contains(&0) || window.dilation.contains(&0) || groups == 0 || groups > LIMIT {
        return Err(InferError::new("stride, dilation and groups must be at least 1"));
    }
    Ok(())
}

/// The extent of the output along spatial dim `i`.
fn output_extent(input: &Dim, kernel: &Dim, window: Window<'_>, i: usize) -> Result<Dim, InferError> {
    let number = |list: &Axes| Dim::from(list[i] as i64);
    let reach = number(window.dilation) * (kernel.clone() - Dim::from(1));
    let room = input.clone() + number(window.padding) * Dim::from(2) - reach - Dim::from(1);
    if kernel.is(0) || room.as_const().is_some_and(|room| room < 0) {
        return Err(InferError(format!("the kernel's extent {kernel} does not fit into {input} with its padding")));
    }
    Ok(room.floor_div(&number(window.stride)) + Dim::from(1))
}

/// The type of the convolution of `x` by `w`.
fn output(x: &TensorType, w: &TensorType, window: Window<'_>, groups: usize) -> Result<TensorType, InferError> {
    let spatial = x.rank().saturating_sub(2);
    check_window(window, groups, spatial)?;
    if w.rank() != x.rank() || w.dtype != x.dtype {
        return Err(InferError(format!("{x} and {w} must have one rank and dtype")));
    }
    let groups = Dim::from(groups as i64);
    same("channels of x and groups times those of w", &x.shape[1], &(w.shape[1].clone() * groups.clone()))?;
    if w.shape[0].exact_div(&groups).is_none() {
        return Err(InferError(format!("{} filters do not divide into {groups} groups", w.shape[0])));
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    for i in 0..spatial {
        shape.push(output_extent(&x.shape[2 + i], &w.shape[2 + i], window, i)?);
    }
    Ok(TensorType::new(x.dtype, shape))
}

fn agree(what: &str, got: &TensorType, want: &TensorType) -> Result<(), InferError> {
    if got == want { Ok(()) } else { Err(InferError(format!("{what} must be {want}, not {got}"))) }
}

/// Two operations for each pair of an output and a tap.
fn cost(operands: &[OperandType<'_>], outputs: &[TensorType], y: &TensorType, w: &[Dim]) -> Cost {
    let taps = numel(w.get(1..).unwrap_or(&[]));
    Cost::of(operands, outputs, y.numel() * taps * Dim::from(2), true)
}

impl Convolution {
    /// How its windows move.
    pub fn window(&self) -> Window<'_> {
        Window { stride: &self.stride, padding: &self.padding, dilation: &self.dilation }
    }
}

impl ConvolutionInput {
    /// How the windows of the convolution move.
    pub fn window(&self) -> Window<'_> {
        Window { stride: &self.stride, padding: &self.padding, dilation: &self.dilation }
    }
}

impl ConvolutionWeight {
    /// How the windows of the convolution move.
    pub fn window(&self) -> Window<'_> {
        Window { stride: &self.stride, padding: &self.padding, dilation: &self.dilation }
    }
}

impl OpDef for Convolution {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let y = output(args.tensor(0, "x")?, args.tensor(1, "w")?, self.window(), self.groups)?;
        Ok(one(y.dtype, y.shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        match (operands.get(1), outputs) {
            (Some(OperandType::Tensor(w)), [y]) => cost(operands, outputs, y, &w.shape),
            _ => Cost::streaming(operands, outputs, 1),
        }
    }
}

impl OpDef for ConvolutionInput {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (grad, w) = (args.tensor(0, "grad")?, args.tensor(1, "w")?);
        if w.rank() < 3 || grad.rank() != w.rank() || self.extents.len() != w.rank() - 2 {
            return Err(InferError(format!("{grad}, {w} and {} extents do not fit together", self.extents.len())));
        }
        check_window(self.window(), self.groups, self.extents.len())?;
        let channels = w.shape[1].clone() * Dim::from(self.groups as i64);
        let shape = [grad.shape[0].clone(), channels].into_iter().chain(self.extents.iter().cloned());
        let x = TensorType::new(grad.dtype, shape);
        agree("the gradient of the output", grad, &output(&x, w, self.window(), self.groups)?)?;
        Ok(one(x.dtype, x.shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        match operands {
            [OperandType::Tensor(grad), OperandType::Tensor(w)] => cost(operands, outputs, grad, &w.shape),
            _ => Cost::streaming(operands, outputs, 1),
        }
    }
}

impl OpDef for ConvolutionWeight {
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
        let args = Args(operands);
        let (x, grad) = (args.tensor(0, "x")?, args.tensor(1, "grad")?);
        if x.rank() < 3 || grad.rank() != x.rank() || self.extents.len() != x.rank() - 2 {
            return Err(InferError(format!("{x}, {grad} and {} extents do not fit together", self.extents.len())));
        }
        check_window(self.window(), self.groups, self.extents.len())?;
        let channels = x.shape[1].exact_div(&Dim::from(self.groups as i64));
        let channels = channels.ok_or_else(|| InferError(format!("{} channels in {} groups", x.shape[1], self.groups)))?;
        let kernel = self.extents.iter().map(|&extent| Dim::from(extent.min(LIMIT) as i64));
        let w = TensorType::new(x.dtype, [grad.shape[1].clone(), channels].into_iter().chain(kernel));
        agree("the gradient of the output", grad, &output(x, &w, self.window(), self.groups)?)?;
        Ok(one(w.dtype, w.shape))
    }

    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        match (operands, outputs) {
            ([_, OperandType::Tensor(grad)], [w]) => cost(operands, outputs, grad, &w.shape),
            _ => Cost::streaming(operands, outputs, 1),
        }
    }
}

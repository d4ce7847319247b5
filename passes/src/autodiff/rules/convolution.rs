//! Gradients of convolutions, which are rows of the table themselves, and of those.

use super::Site;
use crate::autodiff::tape::Tape;
use eglu_ir::{
    GraphError, Shape, Value,
    ops::{Axes, Convolution, ConvolutionInput, ConvolutionWeight},
};

/// The extents of a weight's spatial dims. One that is not known becomes 0, which inference refuses.
fn kernel(tape: &Tape, w: Value) -> Axes {
    tape.shape(w)[2..].iter().map(|extent| extent.as_const().unwrap_or(0) as usize).collect()
}

fn spatial(tape: &Tape, x: Value) -> Shape {
    tape.shape(x)[2..].iter().cloned().collect()
}

/// What a convolution and its two gradients share: each one's derivatives are the other two.
macro_rules! geometry {
    ($op:expr, $build:ident { $($extents:ident: $value:expr)? }) => {{
        let op = $op;
        $build {
            $($extents: $value,)?
            stride: op.stride.clone(),
            padding: op.padding.clone(),
            dilation: op.dilation.clone(),
            groups: op.groups,
        }
    }};
}

pub fn convolution(tape: &mut Tape, op: &Convolution, site: &Site, g: Value) -> Result<(), GraphError> {
    let (x, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let gradient = tape.call(geometry!(op, ConvolutionInput { extents: spatial(tape, x) }), [g.into(), w.into()])?;
        tape.add(x, gradient);
    }
    if site.wants(1).is_some() {
        let gradient = tape.call(geometry!(op, ConvolutionWeight { extents: kernel(tape, w) }), [x.into(), g.into()])?;
        tape.add(w, gradient);
    }
    Ok(())
}

pub fn by_input(tape: &mut Tape, op: &ConvolutionInput, site: &Site, g: Value) -> Result<(), GraphError> {
    let (grad, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let gradient = tape.call(geometry!(op, Convolution {}), [g.into(), w.into()])?;
        tape.add(grad, gradient);
    }
    if site.wants(1).is_some() {
        let gradient = tape.call(geometry!(op, ConvolutionWeight { extents: kernel(tape, w) }), [g.into(), grad.into()])?;
        tape.add(w, gradient);
    }
    Ok(())
}

pub fn by_weight(tape: &mut Tape, op: &ConvolutionWeight, site: &Site, g: Value) -> Result<(), GraphError> {
    let (x, grad) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let gradient = tape.call(geometry!(op, ConvolutionInput { extents: spatial(tape, x) }), [grad.into(), g.into()])?;
        tape.add(x, gradient);
    }
    if site.wants(1).is_some() {
        let gradient = tape.call(geometry!(op, Convolution {}), [x.into(), g.into()])?;
        tape.add(grad, gradient);
    }
    Ok(())
}

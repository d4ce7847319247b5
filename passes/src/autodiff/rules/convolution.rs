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

pub fn convolution(tape: &mut Tape, op: &Convolution, site: &Site, g: Value) -> Result<(), GraphError> {
    let Convolution { stride, padding, dilation, groups } = op.clone();
    let (x, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let by_input = ConvolutionInput {
            extents: spatial(tape, x),
            stride: stride.clone(),
            padding: padding.clone(),
            dilation: dilation.clone(),
            groups,
        };
        let gradient = tape.call(by_input, [g.into(), w.into()])?;
        tape.add(x, gradient);
    }
    if site.wants(1).is_some() {
        let by_weight = ConvolutionWeight { extents: kernel(tape, w), stride, padding, dilation, groups };
        let gradient = tape.call(by_weight, [x.into(), g.into()])?;
        tape.add(w, gradient);
    }
    Ok(())
}

pub fn by_input(tape: &mut Tape, op: &ConvolutionInput, site: &Site, g: Value) -> Result<(), GraphError> {
    let ConvolutionInput { stride, padding, dilation, groups, .. } = op.clone();
    let (grad, w) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let forward = Convolution { stride: stride.clone(), padding: padding.clone(), dilation: dilation.clone(), groups };
        let gradient = tape.call(forward, [g.into(), w.into()])?;
        tape.add(grad, gradient);
    }
    if site.wants(1).is_some() {
        let by_weight = ConvolutionWeight { extents: kernel(tape, w), stride, padding, dilation, groups };
        let gradient = tape.call(by_weight, [g.into(), grad.into()])?;
        tape.add(w, gradient);
    }
    Ok(())
}

pub fn by_weight(tape: &mut Tape, op: &ConvolutionWeight, site: &Site, g: Value) -> Result<(), GraphError> {
    let ConvolutionWeight { stride, padding, dilation, groups, .. } = op.clone();
    let (x, grad) = (site.tensor(&tape.graph, 0), site.tensor(&tape.graph, 1));
    if site.wants(0).is_some() {
        let by_input = ConvolutionInput {
            extents: spatial(tape, x),
            stride: stride.clone(),
            padding: padding.clone(),
            dilation: dilation.clone(),
            groups,
        };
        let gradient = tape.call(by_input, [grad.into(), g.into()])?;
        tape.add(x, gradient);
    }
    if site.wants(1).is_some() {
        let forward = Convolution { stride, padding, dilation, groups };
        let gradient = tape.call(forward, [x.into(), g.into()])?;
        tape.add(grad, gradient);
    }
    Ok(())
}

//! Convolutions, by their definition.

use super::{Call, EvalError, element::decode, reduce::Fold, values::with_work};
use crate::{
    Tensor,
    ops::{Convolution, ConvolutionInput, ConvolutionWeight, convolution::Geometry},
};

/// Offsets of an element of each of x, w and y that belong together.
struct Term {
    x: usize,
    w: usize,
    y: usize,
}

/// Every product of the convolution.
fn each(g: &Geometry, mut f: impl FnMut(Term)) {
    let (inputs, taps, outputs) = (g.input_len(), g.taps(), g.output_len());
    for sample in 0..g.samples {
        for filter in 0..g.groups * g.filters {
            for channel in 0..g.channels {
                let source = (sample * g.groups + filter / g.filters) * g.channels + channel;
                for out in 0..outputs {
                    for tap in 0..taps {
                        let Some(at) = g.source(out, tap) else { continue };
                        f(Term {
                            x: source * inputs + at,
                            w: (filter * g.channels + channel) * taps + tap,
                            y: (sample * g.groups * g.filters + filter) * outputs + out,
                        });
                    }
                }
            }
        }
    }
}

/// Sums of `a · b` by where `place` puts each product: offsets in the result, in a and in b.
fn sums(call: &Call<'_>, g: &Geometry, place: fn(Term) -> [usize; 3]) -> Result<Tensor, EvalError> {
    fn run<W: Fold>(call: &Call<'_>, g: &Geometry, place: fn(Term) -> [usize; 3]) -> Result<Tensor, EvalError> {
        let (a, b) = (decode::<W>(call.tensor(0)?), decode::<W>(call.tensor(1)?));
        let mut sums = vec![W::zero(); call.shape().iter().product()];
        each(g, |term| {
            let [to, i, j] = place(term);
            sums[to] = W::plus(sums[to], W::times(a[i], b[j]));
        });
        let rounded = sums.into_iter().map(W::rounded).collect();
        W::values(rounded).store(call.dtype(), call.dtype(), call.shape())
    }
    with_work!(call.dtype(), W => run::<W>(call, g, place))
}

pub(super) fn forward(op: &Convolution, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let geometry = Geometry::new(x.shape(), w.shape(), call.shape(), op.groups, op.window());
    sums(call, &geometry, |term| [term.y, term.x, term.w])
}

pub(super) fn of_input(op: &ConvolutionInput, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (grad, w) = (call.tensor(0)?, call.tensor(1)?);
    let geometry = Geometry::new(call.shape(), w.shape(), grad.shape(), op.groups, op.window());
    sums(call, &geometry, |term| [term.x, term.y, term.w])
}

pub(super) fn of_weight(op: &ConvolutionWeight, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let (x, grad) = (call.tensor(0)?, call.tensor(1)?);
    let geometry = Geometry::new(x.shape(), call.shape(), grad.shape(), op.groups, op.window());
    sums(call, &geometry, |term| [term.w, term.x, term.y])
}

//! Convolutions as matrix products: windows of a group become columns ("im2col", Chellapilla, Puri & Simard 2006), tasks share nothing.

use super::{
    call::{Call, Outcome, Source, Taken},
    matrix::{Number, Panel, multiply, ranges, with_number},
    view::View,
};
use eglu_ir::{
    Op,
    ops::convolution::{Geometry, Window},
};
use rayon::prelude::*;
use std::ops::Range;

/// Runs a convolution or one of its gradients.
pub fn convolution(call: &mut Call<'_>) -> Outcome {
    let (a, b) = (call.view(0)?.clone(), call.view(1)?.clone());
    let result = call.outputs[0].shape.clone();
    let geometry =
        |x: &[usize], w: &[usize], y: &[usize], groups: usize, window: Window<'_>| Geometry::new(x, w, y, groups, window);
    match &call.step.op {
        Op::Convolution(op) => {
            let g = geometry(&a.shape, &b.shape, &result, op.groups, op.window());
            with_number!(a.dtype, T => forward::<T>(call, &g, &a, &b))
        }
        Op::ConvolutionInput(op) => {
            let g = geometry(&result, &b.shape, &a.shape, op.groups, op.window());
            with_number!(a.dtype, T => of_input::<T>(call, &g, &a, &b))
        }
        Op::ConvolutionWeight(op) => {
            let g = geometry(&a.shape, &result, &b.shape, op.groups, op.window());
            with_number!(a.dtype, T => of_weight::<T>(call, &g, &a, &b))
        }
        _ => Ok(Taken::Refused),
    }
}

fn dense<T: Number>(view: &View<'_>) -> Vec<T> {
    let mut values = vec![T::default(); view.numel()];
    Source::new(view).read(0, &mut values);
    values
}

/// Row `channel · taps + tap`, column `out`: what each tap of each window reads, zero in the padding. `x` starts at the first channel.
fn columns<T: Number>(g: &Geometry, x: &[T], channels: usize, outs: Range<usize>, into: &mut Vec<T>) {
    let (len, taps) = (outs.len(), g.taps());
    into.clear();
    into.resize(channels * taps * len, T::default());
    for tap in 0..taps {
        for (i, out) in outs.clone().enumerate() {
            let Some(at) = g.source(out, tap) else { continue };
            for channel in 0..channels {
                into[(channel * taps + tap) * len + i] = x[channel * g.input_len() + at];
            }
        }
    }
}

/// How long pieces of `len` must be for `copies` equal jobs to keep all threads busy.
fn piece(len: usize, copies: usize, least: usize, most: usize) -> usize {
    let parts = (3 * rayon::current_num_threads()).div_ceil(copies.max(1));
    len.div_ceil(parts).clamp(least, most)
}

fn forward<T: Number>(call: &mut Call<'_>, g: &Geometry, x: &View<'_>, w: &View<'_>) -> Outcome {
    let (x, w) = (dense::<T>(x), dense::<T>(w));
    let (inner, len) = (g.channels * g.taps(), g.output_len());
    let dtype = call.outputs[0].dtype;
    let (memory, size) = call.shared()[0];
    let step = piece(len, g.samples * g.groups, 64, 2048);
    let tasks: Vec<(usize, Range<usize>)> =
        (0..g.samples * g.groups).flat_map(|group| ranges(len, step).map(move |outs| (group, outs))).collect();
    tasks.into_par_iter().for_each(|(group, outs)| {
        let source = &x[group * g.channels * g.input_len()..];
        let filters = &w[(group % g.groups) * g.filters * inner..];
        let mut windows = Vec::new();
        columns(g, source, g.channels, outs.clone(), &mut windows);
        let mut product = vec![T::default(); g.filters * outs.len()];
        multiply(
            Panel::dense(filters, g.filters, inner),
            Panel::dense(&windows, inner, outs.len()),
            &mut product,
            outs.len(),
            len,
        );
        for (filter, row) in product.chunks_exact(outs.len()).enumerate() {
            let start = (group * g.filters + filter) * len + outs.start;
            // SAFETY: each task writes its own outputs of its own filters.
            T::store(dtype, row, unsafe { memory.piece(start * size..(start + row.len()) * size) });
        }
    });
    Ok(Taken::Done)
}

fn of_input<T: Number>(call: &mut Call<'_>, g: &Geometry, grad: &View<'_>, w: &View<'_>) -> Outcome {
    let (grad, w) = (dense::<T>(grad), dense::<T>(w));
    let (inner, taps, len, inputs) = (g.channels * g.taps(), g.taps(), g.output_len(), g.input_len());
    let dtype = call.outputs[0].dtype;
    let (memory, size) = call.shared()[0];
    let step = piece(g.channels, g.samples * g.groups, 1, 64);
    let tasks: Vec<(usize, Range<usize>)> =
        (0..g.samples * g.groups).flat_map(|group| ranges(g.channels, step).map(move |part| (group, part))).collect();
    tasks.into_par_iter().for_each(|(group, part)| {
        let filters = &w[(group % g.groups) * g.filters * inner..];
        let output = &grad[group * g.filters * len..];
        let rows = part.len() * taps;
        let mut windows = vec![T::default(); rows * len];
        let transposed = match filters.len() {
            0 => Panel::strided(filters, rows, g.filters, 1, inner),
            _ => Panel::strided(&filters[part.start * taps..], rows, g.filters, 1, inner),
        };
        multiply(transposed, Panel::dense(output, g.filters, len), &mut windows, len, len);
        let mut input = vec![T::default(); part.len() * inputs];
        for tap in 0..taps {
            for out in 0..len {
                let Some(at) = g.source(out, tap) else { continue };
                for channel in 0..part.len() {
                    let slot = &mut input[channel * inputs + at];
                    *slot = *slot + windows[(channel * taps + tap) * len + out];
                }
            }
        }
        let start = (group * g.channels + part.start) * inputs;
        // SAFETY: each task writes its own channels.
        T::store(dtype, &input, unsafe { memory.piece(start * size..(start + input.len()) * size) });
    });
    Ok(Taken::Done)
}

fn of_weight<T: Number>(call: &mut Call<'_>, g: &Geometry, x: &View<'_>, grad: &View<'_>) -> Outcome {
    let (x, grad) = (dense::<T>(x), dense::<T>(grad));
    let (taps, len, inputs) = (g.taps(), g.output_len(), g.input_len());
    let dtype = call.outputs[0].dtype;
    let (memory, size) = call.shared()[0];
    let step = piece(g.channels, g.groups, 1, 64);
    let tasks: Vec<(usize, Range<usize>)> =
        (0..g.groups).flat_map(|group| ranges(g.channels, step).map(move |part| (group, part))).collect();
    tasks.into_par_iter().for_each(|(group, part)| {
        let columns_of = part.len() * taps;
        let mut sums = vec![T::default(); g.filters * columns_of];
        let (mut windows, mut product) = (Vec::new(), vec![T::default(); g.filters * columns_of]);
        for sample in 0..g.samples {
            let of_group = sample * g.groups + group;
            columns(g, &x[(of_group * g.channels + part.start) * inputs..], part.len(), 0..len, &mut windows);
            let output = Panel::dense(&grad[of_group * g.filters * len..], g.filters, len);
            multiply(output, Panel::strided(&windows, len, columns_of, 1, len), &mut product, columns_of.max(1), columns_of);
            sums.iter_mut().zip(&product).for_each(|(sum, &value)| *sum = *sum + value);
        }
        for (filter, row) in sums.chunks_exact(columns_of.max(1)).enumerate() {
            let start = ((group * g.filters + filter) * g.channels + part.start) * taps;
            // SAFETY: each task writes its own channels of its own filters.
            T::store(dtype, row, unsafe { memory.piece(start * size..(start + row.len()) * size) });
        }
    });
    Ok(Taken::Done)
}

//! Reductions and scans.

use super::{
    Call, EvalError,
    element::decode,
    program::{run, unrounded},
    strides::{Offsets, broadcast_shape},
    values::{Column, Values, cast, with_work},
};
use crate::{
    DType, Tensor,
    ops::{Cumsum, MapReduce, Reduce, ReduceKind},
};
use num_complex::Complex64;
use std::borrow::Cow;

/// An arithmetic with the folds of reductions. Sums of f32 accumulate in f64, which is at least as exact as PyTorch's cascade.
pub(super) trait Fold: Column {
    type Sum: Copy;

    fn zero() -> Self::Sum;
    fn plus(sum: Self::Sum, x: Self) -> Self::Sum;
    fn times(product: Self, x: Self) -> Self;
    fn rounded(sum: Self::Sum) -> Self;
    fn mean(sum: Self::Sum, count: usize) -> Self;
    /// True if `x` comes before `best` in the search for the largest (or smallest); NaN comes before all.
    fn beats(x: Self, best: Self, largest: bool) -> bool;
}

macro_rules! real_fold {
    ($ty:ty) => {
        impl Fold for $ty {
            type Sum = f64;

            fn zero() -> f64 {
                0.0
            }

            fn plus(sum: f64, x: Self) -> f64 {
                sum + f64::from(x)
            }

            fn times(product: Self, x: Self) -> Self {
                product * x
            }

            fn rounded(sum: f64) -> Self {
                sum as $ty
            }

            fn mean(sum: f64, count: usize) -> Self {
                (sum / count as f64) as $ty
            }

            fn beats(x: Self, best: Self, largest: bool) -> bool {
                !best.is_nan() && (x.is_nan() || if largest { x > best } else { x < best })
            }
        }
    };
}

real_fold!(f32);
real_fold!(f64);

impl Fold for i64 {
    type Sum = i64;

    fn zero() -> i64 {
        0
    }

    fn plus(sum: i64, x: i64) -> i64 {
        sum.wrapping_add(x)
    }

    fn times(product: i64, x: i64) -> i64 {
        product.wrapping_mul(x)
    }

    fn rounded(sum: i64) -> i64 {
        sum
    }

    fn mean(sum: i64, count: usize) -> i64 {
        sum / count.max(1) as i64
    }

    fn beats(x: i64, best: i64, largest: bool) -> bool {
        if largest { x > best } else { x < best }
    }
}

impl Fold for Complex64 {
    type Sum = Complex64;

    fn zero() -> Complex64 {
        Complex64::ZERO
    }

    fn plus(sum: Complex64, x: Complex64) -> Complex64 {
        sum + x
    }

    fn times(product: Complex64, x: Complex64) -> Complex64 {
        product * x
    }

    fn rounded(sum: Complex64) -> Complex64 {
        sum
    }

    fn mean(sum: Complex64, count: usize) -> Complex64 {
        // Of no numbers, or with a NaN in one part, division by a complex number makes NaN in both, as on PyTorch's CPU.
        sum / Complex64::new(count as f64, 0.0)
    }

    fn beats(_: Complex64, _: Complex64, _: bool) -> bool {
        false
    }
}

/// Where the elements of each result lie: the offset of its first, and those of all relative to it.
pub(super) struct Groups {
    /// Where each group starts.
    pub bases: Vec<usize>,
    /// How far its members lie from there.
    pub members: Vec<usize>,
}

impl Groups {
    pub fn new(shape: &[usize], dims: &[usize]) -> Groups {
        let bases = Offsets::along(shape, |i| !dims.contains(&i)).collect();
        Groups { bases, members: Offsets::along(shape, |i| dims.contains(&i)).collect() }
    }

    /// What `f` gives for the elements of each group.
    fn each<T: Copy, U>(&self, x: &[T], f: impl Fn(&[T]) -> U) -> Vec<U> {
        let mut items = Vec::with_capacity(self.members.len());
        let group = |base: &usize| {
            items.clear();
            items.extend(self.members.iter().map(|at| x[base + at]));
            f(&items)
        };
        self.bases.iter().map(group).collect()
    }
}

/// The values of one reduction and the dtype they are in; argmax and argmin give positions.
fn fold<W: Fold>(kind: ReduceKind, groups: &Groups, x: &[W], dtype: DType) -> Result<(Values<'static>, DType), EvalError> {
    let count = groups.members.len();
    let needs_elements = matches!(kind, ReduceKind::Amax | ReduceKind::Amin | ReduceKind::Argmax | ReduceKind::Argmin);
    if needs_elements && count == 0 && !groups.bases.is_empty() {
        return Err(EvalError::Data(format!("{kind:?} of no elements has no value")));
    }
    let best = |largest: bool| {
        move |items: &[W]| {
            let mut best = (0, W::default());
            for (i, &x) in items.iter().enumerate() {
                if i == 0 || W::beats(x, best.1, largest) {
                    best = (i, x);
                }
            }
            best
        }
    };
    let extreme = |largest| groups.each(x, best(largest)).into_iter();
    let sum = |items: &[W]| items.iter().fold(W::zero(), |sum, &x| W::plus(sum, x));
    let own = |values: Vec<W>| (W::values(values), dtype);
    let truth = |values: Vec<bool>| (i64::values(values.into_iter().map(i64::from).collect()), DType::Bool);
    Ok(match kind {
        ReduceKind::Sum => own(groups.each(x, |items| W::rounded(sum(items)))),
        ReduceKind::Mean => own(groups.each(x, |items| W::mean(sum(items), count))),
        ReduceKind::Prod => own(products(groups, x, dtype)?),
        ReduceKind::Amax | ReduceKind::Amin => own(extreme(kind == ReduceKind::Amax).map(|(_, x)| x).collect()),
        ReduceKind::Any => truth(groups.each(x, |items| items.iter().any(|x| x.truth()))),
        ReduceKind::All => truth(groups.each(x, |items| items.iter().all(|x| x.truth()))),
        ReduceKind::Argmax | ReduceKind::Argmin => {
            let positions = extreme(kind == ReduceKind::Argmax).map(|(i, _)| i as i64).collect();
            (i64::values(positions), DType::I64)
        }
    })
}

/// Products, in the dtype itself: PyTorch's CPU kernel rounds after every factor, halves too, unlike its sums. Its GPU kernels round once,
/// and so do ours.
fn products<W: Fold>(groups: &Groups, x: &[W], dtype: DType) -> Result<Vec<W>, EvalError> {
    if dtype == dtype.opmath() {
        return Ok(groups.each(x, |items| items.iter().fold(W::of_int(1), |product, &x| W::times(product, x))));
    }
    let mut products = vec![W::of_int(1); groups.bases.len()];
    for at in &groups.members {
        let factors = products.iter().zip(&groups.bases).map(|(&product, base)| W::times(product, x[base + at])).collect();
        let rounded = W::values(factors).store(dtype, dtype, &[products.len()])?;
        products = decode::<W>(&rounded).into_owned();
    }
    Ok(products)
}

pub(super) fn fold_values(
    kind: ReduceKind,
    groups: &Groups,
    x: &Values<'_>,
    dtype: DType,
) -> Result<(Values<'static>, DType), EvalError> {
    match x {
        Values::F32(x) => fold(kind, groups, x, dtype),
        Values::F64(x) => fold(kind, groups, x, dtype),
        Values::Int(x) => fold(kind, groups, x, dtype),
        Values::Complex(x) => fold(kind, groups, x, dtype),
    }
}

pub(super) fn reduce(op: &Reduce, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = call.tensor(0)?;
    // As PyTorch: elements become the result's dtype first, unless they are only compared.
    let x = match op.kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => Cow::Owned(cast(x, op.dtype)?),
        _ => Cow::Borrowed(x),
    };
    let groups = Groups::new(x.shape(), &op.dims);
    let (values, from) = fold_values(op.kind, &groups, &Values::load(&x), x.dtype())?;
    values.store(from, op.dtype, call.shape())
}

pub(super) fn map_reduce(op: &MapReduce, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let Some(shape) = call.shapes.first() else { return Ok(Vec::new()) };
    let read = op.prologue.params.len();
    let (inputs, captures) = (call.tensors(0..read)?, call.tensors(read..call.count())?);
    let full = broadcast_shape(&inputs);
    let params: Vec<Values<'_>> = inputs.iter().map(|x| Values::load(x).broadcast(x.shape(), &full)).collect();
    let values = unrounded(&op.prologue, &params, full.iter().product())?;
    let groups = Groups::new(&full, &op.dims);
    let mut reduced = Vec::with_capacity(op.kinds.len() + captures.len());
    for (i, (&kind, values)) in op.kinds.iter().zip(&values).enumerate() {
        let (folded, from) = fold_values(kind, &groups, values, op.prologue.results[i].1)?;
        reduced.push(folded.converted(from, op.epilogue.params[i]));
    }
    let kept: Vec<usize> = (0..full.len()).map(|i| if op.dims.contains(&i) { 1 } else { full[i] }).collect();
    reduced.extend(captures.iter().map(|x| Values::load(x).broadcast(x.shape(), &kept)));
    run(&op.epilogue, &reduced, shape)
}

/// A reduction of accumulators that are not rounded yet: over so many neighbours of the last dim, or, for a group of 0, over all other dims.
pub(super) fn fold_accumulators(
    kind: ReduceKind,
    group: usize,
    values: &Tensor,
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, EvalError> {
    let columns = if group > 0 { group } else { values.shape().last().copied().unwrap_or(1) };
    let lines = [values.numel() / columns.max(1), columns];
    let groups = Groups::new(&lines, if group > 0 { &[1] } else { &[0] });
    let (folded, from) = fold_values(kind, &groups, &Values::load(values), values.dtype())?;
    folded.store(from, dtype, shape)
}

pub(super) fn cumsum(op: &Cumsum, call: &Call<'_>) -> Result<Tensor, EvalError> {
    let x = cast(call.tensor(0)?, op.dtype)?;
    fn scan<W: Fold>(values: &mut [W], groups: &Groups) {
        for base in &groups.bases {
            let mut sum = W::zero();
            for at in &groups.members {
                sum = W::plus(sum, values[base + at]);
                values[base + at] = W::rounded(sum);
            }
        }
    }
    let groups = Groups::new(x.shape(), &[op.dim]);
    with_work!(op.dtype, W => {
        let mut values = decode::<W>(&x).into_owned();
        scan(&mut values, &groups);
        W::values(values).store(op.dtype, op.dtype, call.shape())
    })
}

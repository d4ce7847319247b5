//! Gradients by slices, put together: parts that tile a tensor are joined, where adding padded ones would read and write it once for each.

use super::tape::Tape;
use eglu_ir::{
    Dim, GraphError, Operand, Shape, TensorType, Value,
    ops::{Cat, Slice},
};

/// A slice and the gradient by it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub slice: Slice,
    pub gradient: Value,
}

/// The gradient by the whole from those by its parts: one tensor where they do not overlap, else several to add.
pub(super) fn together(tape: &mut Tape, whole: &TensorType, mut parts: Vec<Part>) -> Result<Vec<Value>, GraphError> {
    let mut made = Vec::new();
    while let Some(first) = parts.first() {
        let (dim, step) = (first.slice.dim, first.slice.step);
        let (alike, rest) = parts.into_iter().partition(|part| part.slice.dim == dim && part.slice.step == step);
        parts = rest;
        made.extend(if step == 1 { side_by_side(tape, whole, dim, alike)? } else { in_turn(tape, whole, dim, step, alike)? });
    }
    Ok(made)
}

fn extent_of(tape: &Tape, part: &Part) -> Dim {
    tape.ty(part.gradient).shape[part.slice.dim].clone()
}

/// Ranges of one dim: those that follow each other are joined, and the rest padded with zeros.
fn side_by_side(tape: &mut Tape, whole: &TensorType, dim: usize, mut parts: Vec<Part>) -> Result<Vec<Value>, GraphError> {
    let mut sums = Vec::new();
    // Sorts known bounds and leaves others where they stand.
    parts.sort_by_key(|part| part.slice.start.as_const().unwrap_or(i64::MAX));
    while !parts.is_empty() {
        let first = parts.remove(0);
        let start = first.slice.start.clone();
        let mut end = start.clone() + extent_of(tape, &first);
        let mut row = vec![first.gradient];
        while let Some(at) = parts.iter().position(|part| part.slice.start == end) {
            let next = parts.remove(at);
            end = end + extent_of(tape, &next);
            row.push(next.gradient);
        }
        sums.push(padded(tape, whole, dim, (start, end), row)?);
    }
    Ok(sums)
}

/// Neighbours from `start` to `end` along a dim, with zeros before and behind.
fn padded(
    tape: &mut Tape,
    whole: &TensorType,
    dim: usize,
    (start, end): (Dim, Dim),
    row: Vec<Value>,
) -> Result<Value, GraphError> {
    let zeros = |tape: &mut Tape, extent: Dim| -> Result<Option<Value>, GraphError> {
        let mut ty = whole.clone();
        ty.shape[dim] = extent;
        if ty.shape[dim].is(0) { Ok(None) } else { tape.zeros(&ty).map(Some) }
    };
    let before = zeros(tape, start)?;
    let behind = zeros(tape, whole.shape[dim].clone() - end)?;
    let all: Vec<Operand> = before.into_iter().chain(row).chain(behind).map(Operand::from).collect();
    match all[..] {
        [Operand::Value(only)] => Ok(only),
        _ => tape.call(Cat { dim }, all),
    }
}

/// Every `step`-th element: lanes side by side in a dim of their own, zeros for those that nothing reads.
fn in_turn(tape: &mut Tape, whole: &TensorType, dim: usize, step: i64, mut parts: Vec<Part>) -> Result<Vec<Value>, GraphError> {
    let mut sums = Vec::new();
    while !parts.is_empty() {
        let first = parts.remove(0);
        let (start, count) = (first.slice.start.clone(), extent_of(tape, &first));
        let mut lanes: Vec<Option<Value>> = vec![None; step as usize];
        lanes[0] = Some(first.gradient);
        let mut base = start;
        // The lanes of whole periods meet in one tensor; a lane that begins before the first one found moves the base to its own start.
        parts.retain(|part| {
            let Some(lane) = (part.slice.start.clone() - base.clone()).as_const() else { return true };
            if extent_of(tape, part) != count {
                return true;
            }
            if (0..step).contains(&lane) && lanes[lane as usize].is_none() {
                lanes[lane as usize] = Some(part.gradient);
                return false;
            }
            let room = lanes.iter().rposition(Option::is_some).map_or(0, |last| step - 1 - last as i64);
            if lane < 0 && -lane <= room {
                lanes.rotate_right(-lane as usize);
                lanes[0] = Some(part.gradient);
                base = part.slice.start.clone();
                return false;
            }
            true
        });
        sums.push(woven(tape, whole, dim, (base, count), lanes)?);
    }
    Ok(sums)
}

/// Lanes of `count` elements from `base` on, as the elements of a dim in turn.
fn woven(
    tape: &mut Tape,
    whole: &TensorType,
    dim: usize,
    (base, count): (Dim, Dim),
    lanes: Vec<Option<Value>>,
) -> Result<Value, GraphError> {
    let step = lanes.len() as i64;
    let mut apart: Shape = whole.shape.clone();
    apart[dim] = count.clone();
    apart.insert(dim + 1, Dim::from(1));
    let lane_ty = TensorType { dtype: whole.dtype, shape: apart.clone() };
    let lanes = lanes.into_iter().map(|lane| match lane {
        Some(gradient) => tape.reshape(gradient, &apart).map(Operand::from),
        None => tape.zeros(&lane_ty).map(Operand::from),
    });
    let lanes: Vec<Operand> = lanes.collect::<Result<_, _>>()?;
    let joined = tape.call(Cat { dim: dim + 1 }, lanes)?;
    let mut shape = whole.shape.clone();
    shape[dim] = count * Dim::from(step);
    let joined = tape.reshape(joined, &shape)?;
    let room = whole.shape[dim].clone() - base.clone();
    // The last period may reach beyond the end: its lanes there are zeros.
    let within = if shape[dim] == room || room.as_const().zip(shape[dim].as_const()).is_some_and(|(room, all)| all <= room) {
        joined
    } else {
        let end = Dim::min(&shape[dim], &room);
        tape.call(Slice { dim, start: Dim::from(0), end, step: 1 }, [joined.into()])?
    };
    let end = base.clone() + tape.ty(within).shape[dim].clone();
    padded(tape, whole, dim, (base, end), vec![within])
}

//! Gradients of views and casts.

use super::{super::slices::Part, Site};
use crate::autodiff::tape::Tape;
use eglu_ir::{
    GraphError, Value,
    ops::{Permute, Slice},
};

pub fn reshape(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let shape = tape.shape(x);
    let gradient = tape.reshape(g, &shape)?;
    tape.add(x, gradient);
    Ok(())
}

pub fn permute(tape: &mut Tape, op: &Permute, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let mut inverse = op.dims.clone();
    for (to, &from) in op.dims.iter().enumerate() {
        inverse[from] = to;
    }
    let gradient = tape.permute(g, inverse)?;
    tape.add(x, gradient);
    Ok(())
}

pub fn expand(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let ty = tape.ty(x).clone();
    let gradient = tape.unbroadcast(g, &ty)?;
    tape.add(x, gradient);
    Ok(())
}

pub fn slice(tape: &mut Tape, op: &Slice, site: &Site, g: Value) {
    if let Some(x) = site.wants(0) {
        tape.add_part(x, Part { slice: op.clone(), gradient: g });
    }
}

/// Rounding counts as the identity; what comes from an integer ends there.
pub fn cast(tape: &mut Tape, site: &Site, g: Value) -> Result<(), GraphError> {
    let Some(x) = site.wants(0) else { return Ok(()) };
    let dtype = tape.dtype(x);
    let gradient = tape.cast(g, dtype)?;
    tape.add(x, gradient);
    Ok(())
}

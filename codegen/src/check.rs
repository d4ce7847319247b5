//! Checks of plans that were read from a file: positions within their lists, types as inference says, views within their buffers.

use crate::{
    Arg, Layout, Plan, Source, TensorRef,
    cuda::{CudaPlan, KernelArg, Memory},
};
use eglu_ir::{TensorType, ops::InferError};

/// Why a plan cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckError {
    #[error("{what} is {index}, and there are {count}")]
    Position { what: String, index: usize, count: usize },
    #[error("{what} has {found}, and should have {want}")]
    Mismatch { what: String, found: String, want: String },
    #[error("step `{step}` ({op}): {source}")]
    Infer { step: String, op: &'static str, source: InferError },
}

fn position(what: impl FnOnce() -> String, index: usize, count: usize) -> Result<(), CheckError> {
    if index < count { Ok(()) } else { Err(CheckError::Position { what: what(), index, count }) }
}

fn equal<T: PartialEq>(what: impl FnOnce() -> String, found: T, want: T, text: impl Fn(&T) -> String) -> Result<(), CheckError> {
    if found == want {
        return Ok(());
    }
    Err(CheckError::Mismatch { what: what(), found: text(&found), want: text(&want) })
}

impl Plan {
    /// Checks a plan that was not made by [`lower`](crate::lower()) in this process. A plan that passes may be run on any backend.
    pub fn check(&self) -> Result<(), CheckError> {
        for step in &self.steps {
            for (i, arg) in step.inputs.iter().enumerate() {
                if let Arg::Tensor(tensor) = arg {
                    self.check_view(tensor, || format!("operand {i} of step `{}`", step.name))?;
                }
            }
            for (i, output) in step.outputs.iter().enumerate() {
                self.check_view(output, || format!("result {i} of step `{}`", step.name))?;
            }
            let types = step.input_types();
            let infer = |source| CheckError::Infer { step: step.name.to_string(), op: step.op.name(), source };
            let inferred = step.op.infer(&step.operand_types(&types)).map_err(infer)?;
            let recorded: Vec<TensorType> = step.outputs.iter().map(TensorRef::ty).collect();
            let list = |types: &Vec<TensorType>| types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
            equal(|| format!("the list of results of step `{}`", step.name), recorded, inferred.to_vec(), list)?;
        }
        for (i, output) in self.outputs.iter().enumerate() {
            self.check_view(&output.tensor, || format!("output {i}"))?;
        }
        for (i, input) in self.inputs.iter().enumerate() {
            let what = || format!("input `{}`", input.name);
            position(|| format!("the buffer of {}", what()), input.buffer, self.buffers.len())?;
            let buffer = &self.buffers[input.buffer];
            equal(what, buffer.dtype, input.ty.dtype, ToString::to_string)?;
            equal(what, buffer.numel.clone(), input.ty.numel(), ToString::to_string)?;
            equal(what, buffer.source == Source::Input(i), true, |&is| {
                format!("{} place in the signature", if is { "its" } else { "another" })
            })?;
        }
        for buffer in &self.buffers {
            if let Source::Input(at) = buffer.source {
                position(|| format!("the input behind buffer `{}`", buffer.name), at, self.inputs.len())?;
            }
            if let Source::Constant(tensor) = &buffer.source {
                let what = || format!("the constant `{}`", buffer.name);
                equal(what, tensor.dtype(), buffer.dtype, ToString::to_string)?;
                equal(what, Some(tensor.numel() as i64), buffer.numel.as_const(), |n| format!("{n:?} elements"))?;
            }
        }
        Ok(())
    }

    fn check_view(&self, tensor: &TensorRef, what: impl Fn() -> String) -> Result<(), CheckError> {
        position(|| format!("the buffer of {}", what()), tensor.buffer, self.buffers.len())?;
        let (buffer, layout) = (&self.buffers[tensor.buffer], &tensor.layout);
        equal(&what, tensor.dtype, buffer.dtype, ToString::to_string)?;
        equal(&what, layout.strides.len(), layout.shape.len(), |n| format!("{n} dims"))?;
        if let (Some(reach), Some(numel)) = (reach(layout), buffer.numel.as_const()) {
            position(|| format!("the last element of {}", what()), reach as usize, numel.max(0) as usize)?;
        }
        Ok(())
    }
}

/// The last element that a view of known extents reads; `None` where it is empty, or where extents are known to a run alone, which checks
/// them itself. A view that starts before its buffer reads beyond it.
fn reach(layout: &Layout) -> Option<u64> {
    let mut last = layout.offset.as_const()?;
    for (extent, stride) in layout.shape.iter().zip(&layout.strides) {
        let (extent, stride) = (extent.as_const()?, stride.as_const()?);
        if extent == 0 {
            return None;
        }
        last =
            (extent - 1).checked_mul(stride).filter(|&reach| reach >= 0).and_then(|reach| last.checked_add(reach)).unwrap_or(-1);
    }
    Some(u64::try_from(last).unwrap_or(u64::MAX))
}

impl CudaPlan {
    /// [`Plan::check`], and the launches: modules, steps and memory that they name must be there.
    pub fn check(&self) -> Result<(), CheckError> {
        self.plan.check()?;
        for scratch in &self.scratch {
            position(|| format!("the last step of scratch `{}`", scratch.name), scratch.last, self.plan.steps.len())?;
            position(|| format!("the first step of scratch `{}`", scratch.name), scratch.step, scratch.last + 1)?;
        }
        for launch in &self.launches {
            let of = |what: &str| format!("{what} of kernel `{}`", launch.entry);
            position(|| of("the step"), launch.step, self.plan.steps.len())?;
            position(|| of("the module"), launch.module, self.modules.len())?;
            for arg in &launch.args {
                let memory = match arg {
                    KernelArg::Int(_) => continue,
                    KernelArg::Pointer { memory, .. } => memory,
                    KernelArg::TensorMap(map) => {
                        equal(|| of("a tensor map"), map.tile.len(), map.dims.len(), |n| format!("{n} dims"))?;
                        equal(|| of("a tensor map"), map.strides.len() + 1, map.dims.len(), |n| format!("{n} dims"))?;
                        &map.memory
                    }
                };
                match *memory {
                    Memory::Buffer(id) => position(|| of("a buffer"), id, self.plan.buffers.len())?,
                    Memory::Scratch(i) => position(|| of("scratch"), i, self.scratch.len())?,
                    Memory::Counters => {}
                }
            }
        }
        Ok(())
    }
}

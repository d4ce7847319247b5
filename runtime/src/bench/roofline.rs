//! What each step would take at the device's peak rates.

use crate::RuntimeError;
use eglu_codegen::{Plan, Step};
use eglu_ir::{Bindings, DeviceProfile, TensorType};

/// The work of one step for given sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes to and from memory, every operand read once.
    pub bytes: f64,
    /// The slower of arithmetic and memory, seconds; launches are not counted.
    pub seconds: f64,
}

/// The work of each step of a plan.
pub fn work(plan: &Plan, bindings: &Bindings, profile: &DeviceProfile) -> Result<Vec<Work>, RuntimeError> {
    plan.steps.iter().map(|step| step_work(step, bindings, profile)).collect()
}

fn step_work(step: &Step, bindings: &Bindings, profile: &DeviceProfile) -> Result<Work, RuntimeError> {
    let types = step.input_types();
    let operands = step.operand_types(&types);
    let outputs: Vec<TensorType> = step.outputs.iter().map(|output| output.ty()).collect();
    let cost = step.op.def().cost(&operands, &outputs);
    let (flops, bytes) = (cost.flops.eval(bindings)? as f64, cost.bytes.eval(bindings)? as f64);
    let launch = profile.launch_seconds;
    Ok(Work { flops, bytes, seconds: profile.roofline(flops, bytes, cost.matrix) - launch })
}

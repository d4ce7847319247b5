//! Failed calls as errors: a kernel's fault with what is known of the kernel, or the call itself.

use super::{CudaError, bound::step_name, executable::Loaded, session::Session};
use cudarc::driver::sys::CUresult;

/// True for the codes by which the driver reports that a kernel broke its context; every later call gives the same.
pub(super) fn is_fault(code: CUresult) -> bool {
    use CUresult::*;
    matches!(
        code,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
    )
}

impl Session {
    /// What a failed call means; `launch` is the one that was issued last, where that is known.
    pub(super) fn failure(&self, loaded: &Loaded, doing: &str, launch: Option<usize>, code: CUresult) -> CudaError {
        if !is_fault(code) {
            return self.context.driver.error(doing, code);
        }
        self.context.lose();
        let (code, message) = self.context.driver.describe(code);
        let step = launch.map_or_else(|| "?".into(), |launch| step_name(&loaded.plan, launch));
        let known = match loaded.debug.wait_for_each {
            true => format!("it belongs to step `{step}`"),
            false => format!("the last step launched was `{step}`; EGLU_SYNC=1 waits for each kernel and names the one at fault"),
        };
        CudaError::Fault { plan: loaded.plan.plan.name.clone(), known, code, message }
    }
}

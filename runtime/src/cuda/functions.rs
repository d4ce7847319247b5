//! Loaded modules, and the kernels of a plan resolved in them.

use super::{CudaError, compile::Cubin, context::Context};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule, CUresult};
use eglu_codegen::cuda::CudaPlan;
use std::{collections::HashMap, ffi::CString, sync::Arc};

/// The kernels of a plan, one handle for each launch.
pub(super) struct Functions {
    context: Arc<Context>,
    modules: Vec<CUmodule>,
    /// The kernel of each launch, in the plan's order.
    pub(super) of_launch: Vec<CUfunction>,
}

// SAFETY: modules and functions are handles that the driver lets any thread use.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    /// Loads the plan's modules, compiled to `cubins` in the same order, and finds each launch's kernel. The context must be entered.
    pub(super) fn load(context: &Arc<Context>, plan: &CudaPlan, cubins: &[Cubin]) -> Result<Functions, CudaError> {
        let driver = &context.driver;
        let mut functions = Functions { context: context.clone(), modules: vec![], of_launch: vec![] };
        for (module, cubin) in plan.modules.iter().zip(cubins) {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the image is a whole ELF file, which carries its own size.
            unsafe { driver.cuModuleLoadData(&mut handle, cubin.image.as_ptr().cast()) }
                .map_err(|code| refusal(context, &module.name, (code, cubin.image.len())))?;
            functions.modules.push(handle);
        }
        // Kernel by module and name, with the most shared memory any launch gives it.
        let mut known: HashMap<(usize, &str), (CUfunction, u32)> = HashMap::new();
        for launch in &plan.launches {
            let inconsistent = |why: String| CudaError::Inconsistent { plan: plan.plan.name.clone(), why };
            let module = functions.modules.get(launch.module).copied();
            let module = module.ok_or_else(|| inconsistent(format!("kernel `{}` is in no module", launch.entry)))?;
            let (function, shared) = match known.get(&(launch.module, launch.entry.as_str())) {
                Some(&known) => known,
                None => {
                    let name =
                        CString::new(launch.entry.as_str()).map_err(|_| inconsistent("a kernel's name holds a NUL".into()))?;
                    let mut function = std::ptr::null_mut();
                    // SAFETY: the module is loaded, `name` and `function` outlive the call.
                    unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) }
                        .map_err(|code| driver.error(format!("finding kernel `{}`", launch.entry), code))?;
                    // 48 KB need no asking, but that counts what the kernel itself declares, of which a launch does not tell
                    // (CUDA C++ programming guide, shared memory of compute capability 7 and later).
                    (function, 0)
                }
            };
            if launch.shared_bytes > shared {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is of a loaded module.
                unsafe { driver.cuFuncSetAttribute(function, attribute, launch.shared_bytes as i32) }.map_err(|code| {
                    let (bytes, most) = (launch.shared_bytes, context.facts.shared_bytes);
                    driver.error(
                        format!("giving kernel `{}` {bytes} bytes of shared memory, of {most} there are", launch.entry),
                        code,
                    )
                })?;
            }
            known.insert((launch.module, launch.entry.as_str()), (function, shared.max(launch.shared_bytes)));
            functions.of_launch.push(function);
        }
        Ok(functions)
    }
}

/// Why the driver does not load a module of so many bytes.
fn refusal(context: &Context, module: &str, (code, bytes): (CUresult, usize)) -> CudaError {
    use CUresult::*;
    let driver = &context.driver;
    match code {
        CUDA_ERROR_OUT_OF_MEMORY => {
            // Where even this fails, the message shows zeros.
            let (free, total) = context.free().unwrap_or((0, 0));
            let what = format!("the machine code of the kernels of `{module}`");
            CudaError::OutOfMemory { what, wanted: bytes as u64, free, total, ordinal: context.facts.ordinal }
        }
        CUDA_ERROR_INVALID_IMAGE | CUDA_ERROR_NO_BINARY_FOR_GPU | CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            let (code, message) = driver.describe(code);
            // The device was opened by it, so that it has a version to tell.
            let version = driver.version().unwrap_or((0, 0));
            CudaError::OldDriver { module: module.into(), code, message, driver: version }
        }
        code => driver.error(format!("loading the kernels of `{module}`"), code),
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for &module in &self.modules {
                // SAFETY: loaded in this context and unloaded once; no run is in progress, as each borrows the executable.
                let _ = unsafe { self.context.driver.cuModuleUnload(module) };
            }
        }
    }
}

//! How long this machine takes from nothing to a first result, phase by phase, on a plan of one small kernel.

use super::{
    DeviceFacts,
    cache::{self, Cache},
    compile::compile_fresh,
    context::Context,
    driver::Driver,
    executable::CudaExecutable,
    nvrtc::Nvrtc,
};
use crate::{Backend, Phases, RuntimeError};
use eglu_codegen::{Plan, cuda::emit, lower};
use eglu_ir::{Bindings, DType, Graph, OutputKind, Tensor, TensorType, ops::Pointwise};

/// Opens device `ordinal`, compiles a kernel without the cache, reads it from the cache, loads and runs it; each is a phase. What this process
/// did before takes no time here.
pub fn start_up(ordinal: usize, phases: &Phases) -> Result<(), RuntimeError> {
    phases.time("driver", Driver::open)?;
    let facts = phases.time("device", || DeviceFacts::of(ordinal))?;
    let context = phases.time("context", || Context::open(ordinal))?;
    let nvrtc = phases.time("NVRTC", Nvrtc::open)?;
    let plan = phases.time("emit", || emit(&plan(), facts.target()))?;
    let (module, arch) = (&plan.modules[0], facts.arch()?);
    let cubin = phases.time("compile", || compile_fresh(nvrtc, module, &arch))?;
    let kept = Cache::from_env(&|name| std::env::var_os(name));
    // A name that no source has: what is measured is the disk.
    let key = cache::key(&["start-up", nvrtc.identity()]);
    kept.write(&key, &cubin.log, &cubin.image);
    phases.time("cache", || kept.read(&key));
    let none = |name: &str| unreachable!("the plan has no weight, not even `{name}`");
    let executable = CudaExecutable::with_cubins(context, plan, &[cubin], &none, phases)?;
    let failed = |source| RuntimeError::Tensor { what: "an input".into(), source };
    let x = Tensor::zeros(DType::F32, &[SIZE]).map_err(failed)?;
    for name in ["first run", "second run"] {
        phases.time(name, || executable.run(std::slice::from_ref(&x), &Bindings::new()))?;
    }
    Ok(())
}

/// Elements of the plan's one input.
const SIZE: usize = 1024;

/// `y = -x`.
fn plan() -> Plan {
    let mut graph = Graph::new("start-up");
    let x = graph.add_input("x", TensorType::fixed(DType::F32, &[SIZE as i64]));
    let y = graph.add_call("y", Pointwise::Neg.into(), [x.into()]);
    let y = y.unwrap_or_else(|error| unreachable!("the negative of floats: {error}"));
    graph.add_output(y.into(), OutputKind::User);
    lower(&graph).unwrap_or_else(|error| unreachable!("one op: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_codegen::cuda::Target;

    #[test]
    fn the_plan_is_one_kernel() {
        let plan = emit(&plan(), Target { arch: 90 }).unwrap();
        assert_eq!((plan.modules.len(), plan.launches.len()), (1, 1));
    }
}

//! Measuring a package: its plan alone, for it has no unfused one.

use super::{
    Bench,
    document::{self, Setting, cold_start_line},
};
use crate::{
    command::{device, model},
    deliver,
    failure::Failure,
    progress::Progress,
    screen::show,
    trace::trace,
};
use eglu_ir::weights::Weights;
use eglu_runtime::{Device, Package, bench, inputs};
use std::time::Duration;

impl Bench {
    /// Measures a program of a package.
    pub(super) fn run_package(&self) -> Result<(), Failure> {
        self.differentiate.refuse_for_package()?;
        self.kernels.refuse_for_package()?;
        if self.html.is_some() {
            return Err(Failure::usage("a package holds no graph, so that there is no report of it to read")
                .help("measure the model it was compiled from with --html; --json and --trace work for packages"));
        }
        let progress = Progress::new();
        let phases = progress.phases();
        let _opening = device::open_early(self.device);
        let package = phases.time("open", || Package::open(&self.model))?;
        let program = package.program(self.program.as_deref())?;
        let file = self.weights.as_deref().filter(|&weights| weights != "random");
        let mut weights = model::package_weights(&program, file.map(AsRef::as_ref))?;
        let random = match file {
            Some(_) => false,
            None => self.weights.is_some() || !program.absent().is_empty(),
        };
        if random {
            let drawn = |cause| Failure::data(format!("weights for `{}` cannot be drawn", program.name())).because(cause);
            weights.extend(Weights::random_of(program.absent(), self.seed).map_err(drawn)?);
        }
        let executable = program.load_in_phases(&weights, &self.device, &phases)?;
        let bindings = inputs::sizes(executable.plan(), self.tokens, &self.dims)?;
        let specs = self.inputs.iter().copied().collect();
        let tensors = inputs::generate_within(executable.plan(), &program.bounds(), &bindings, &specs, self.routing, self.seed)?;
        phases.time("first run", || executable.run(&tensors))?;
        let cold_start = phases.list();
        let memory = self.memory.then(|| executable.memory(&tensors)).transpose()?;
        let (rates, measured) = match self.device {
            Device::Cpu => (bench::host(), true),
            device => (device::profile_of(device)?, false),
        };
        let options = bench::Options { budget: Duration::from_secs_f64(self.seconds), ..bench::Options::default() };
        let mut told = |share: f64| progress.share("measure", share);
        let result = bench::alone(&executable, &tensors, (&rates, measured), &options, &mut told)?;
        drop(progress);
        let weights = if random { "random weights" } else { "weights of the package" };
        let cold = cold_start_line(&cold_start);
        let places = memory.as_ref().map_or_else(String::new, |memory| format!("\n{memory}"));
        show(&format!("{}\n{weights}, seed {}\n\n{cold}\n{places}", result.table(self.top).trim_end(), self.seed))?;
        if let Some(path) = &self.json {
            document::write(
                path,
                &result,
                &Setting { random, seed: self.seed, cold_start: &cold_start, memory: memory.as_ref() },
            )?;
        }
        if let Some(path) = &self.trace {
            let text = trace(&result.device, &[("one run", &result.fused)], &[], &cold_start);
            deliver::file(path, text.as_bytes())?;
        }
        Ok(())
    }
}

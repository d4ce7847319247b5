//! Measuring a package: its plan alone, for it has no unfused one.

use super::{Bench, PARTS, progress_bar};
use crate::{
    command::{device, json, model},
    deliver,
    failure::Failure,
    screen::show,
};
use eglu_ir::weights::Weights;
use eglu_runtime::{Device, Package, bench, inputs};
use std::time::Duration;

impl Bench {
    /// Measures a program of a package.
    pub(super) fn run_package(&self) -> Result<(), Failure> {
        self.differentiate.refuse_for_package()?;
        let package = Package::open(&self.model)?;
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
        let executable = program.load(&weights, &self.device)?;
        let bindings = inputs::sizes(executable.plan(), self.tokens, &self.dims)?;
        let specs = self.inputs.iter().copied().collect();
        let tensors = inputs::generate_within(executable.plan(), &program.bounds(), &bindings, &specs, self.routing, self.seed)?;
        let (rates, measured) = match self.device {
            Device::Cpu => (bench::host(), true),
            device => (device::profile_of(device)?, false),
        };
        let options = bench::Options { budget: Duration::from_secs_f64(self.seconds), ..bench::Options::default() };
        let bar = progress_bar();
        let mut progress = |share: f64| bar.set_position((share * PARTS as f64) as u64);
        let result = bench::alone(&executable, &tensors, (&rates, measured), &options, &mut progress);
        bar.finish_and_clear();
        let result = result?;
        let weights = if random { "random weights" } else { "weights of the package" };
        show(&format!("{}\n{weights}, seed {}\n", result.table(self.top).trim_end(), self.seed));
        if let Some(path) = &self.json {
            deliver::file(path, json(&result).as_bytes())?;
        }
        Ok(())
    }
}

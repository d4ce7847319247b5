//! Options of the subcommands that make kernels: which of several that compute the same.

use crate::failure::Failure;
use clap::Args;
use eglu_codegen::{
    Plan, Source,
    cuda::{Choices, Schedule, Target},
};
use eglu_ir::{TensorType, weights::Weights};
use eglu_runtime::{
    Device, Phases, RuntimeError,
    cuda::{self, DeviceFacts, Selection},
};
use std::sync::Arc;

/// Options for kernels.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels")]
pub struct Kernels {
    /// How a mixture-of-experts block runs on a GPU, its router aside: `single`, as one persistent kernel; `split`, as a kernel for each projection
    /// and one for the weighted sum; `auto`, whichever is fastest, as measured on the device if it was, else by what is known of sizes
    #[arg(long, value_name = "single|split|auto", default_value = "auto", hide_default_value = true)]
    schedule: Schedule,
    /// Measure the ways to run the model's mixture-of-experts blocks on the GPU, for numbers of tokens up to 16384, take the fastest, and remember
    /// them in the cache folder: later runs on that device take them, too
    #[arg(long)]
    tune: bool,
}

impl Kernels {
    /// What a plan is loaded with on this device.
    pub fn selection(&self, device: Device) -> Result<Selection, Failure> {
        if self.tune && device == Device::Cpu {
            return Err(
                Failure::usage("--tune measures kernels on a GPU, and this runs on the host").help("give --device cuda[:N]")
            );
        }
        Ok(Selection { schedule: self.schedule, tune: self.tune })
    }

    /// What a plan is emitted with: nothing that was measured unless it is measured now, so that equal options give equal kernels.
    pub fn choices(&self, plan: &Plan, weights: &Weights, target: Target, phases: &Phases) -> Result<Choices, RuntimeError> {
        if !self.tune {
            return Ok(Choices { schedule: self.schedule, ..Choices::default() });
        }
        let facts = DeviceFacts::of(0)?;
        if facts.target() != target {
            return Err(RuntimeError::Usage(format!(
                "--tune measures kernels on the device they are for, and {} is none for {}: leave --tune out, or run this where there is one",
                facts.name,
                target.name()
            )));
        }
        let selection = Selection { schedule: self.schedule, tune: true };
        // Times do not depend on what the weights are, so that an archive of structure alone can be measured.
        let drawn = |path: &str| {
            let buffer = plan.buffers.iter().find(|buffer| matches!(&buffer.source, Source::Weight(name) if **name == *path));
            let ty = buffer.map(|buffer| TensorType::new(buffer.dtype, [buffer.numel.clone()]));
            let name: Arc<str> = path.into();
            Ok(Weights::random_of(ty.iter().map(|ty| (&name, ty)), 0)?.get(path)?)
        };
        let contents = |path: &str| if weights.contains(path) { Ok(weights.get(path)?) } else { drawn(path) };
        cuda::choices(plan, &contents, &facts, (selection, phases))
    }

    /// An error if kernels are asked of a package, whose kernels are made.
    pub fn refuse_for_package(&self) -> Result<(), Failure> {
        match self.tune || self.schedule != Schedule::Auto {
            true => Err(Failure::usage("--schedule and --tune cannot change a package, whose kernels are made")
                .help("compile the model again with these options")),
            false => Ok(()),
        }
    }
}

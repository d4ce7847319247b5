//! Options of the subcommands that can differentiate a model before anything else.

use crate::failure::Failure;
use clap::Args;
use eglu_ir::{DeviceProfile, import::Imported};
use eglu_passes::{Gradients, Options, Pipeline, Recompute};

/// Options for gradients.
#[derive(Debug, Args)]
#[command(next_help_heading = "Gradients")]
pub struct Differentiate {
    /// Differentiate first: the model's results are then its own, followed by gradients. OUTPUT is `all`, or an output's position or name; an output
    /// that is no scalar takes its gradient as a further input. May be given several times
    #[arg(long, value_name = "OUTPUT")]
    grad: Vec<String>,
    /// Gradients by this input (by name) or weight (by name or path) only, or by all `inputs` or `parameters`; by default both, in this order. May be
    /// given several times; the order is that of the gradients
    #[arg(long, value_name = "NAME")]
    wrt: Vec<String>,
    /// What the backward pass computes again rather than keep from the forward pass: `none`; `auto`, what takes less time than its bytes are worth;
    /// `all` but matrix products, orders and scatters
    #[arg(long, value_name = "none|auto|all", default_value = "auto", value_parser = recompute, hide_default_value = true)]
    recompute: Recompute,
}

fn recompute(text: &str) -> Result<Recompute, String> {
    match text {
        "none" => Ok(Recompute::None),
        "auto" => Ok(Recompute::Auto),
        "all" => Ok(Recompute::All),
        _ => Err("it is `none`, `auto` or `all`".into()),
    }
}

/// The word for all outputs.
const ALL: &str = "all";

impl Differentiate {
    /// An error if gradients are asked of a package, whose plans are made.
    pub fn refuse_for_package(&self) -> Result<(), Failure> {
        if self.asked() {
            return Err(Failure::usage("--grad and --wrt cannot change a package, whose plans are made")
                .help("compile the model again with these options"));
        }
        Ok(())
    }

    fn asked(&self) -> bool {
        !self.grad.is_empty() || !self.wrt.is_empty()
    }

    /// The pipeline, behind `autodiff` if a gradient is asked for.
    pub fn before(&self, pipeline: Pipeline) -> Pipeline {
        if self.asked() { pipeline.differentiated() } else { pipeline }
    }

    /// The options of a pipeline that may differentiate.
    pub fn options(&self, imported: &Imported, profile: DeviceProfile) -> Options {
        let of = if self.grad.iter().any(|output| output == ALL) { Vec::new() } else { self.grad.clone() };
        let gradients = Gradients { of, by: self.wrt.clone(), buffers: imported.buffers.clone() };
        Options { gradients, recompute: self.recompute, ..Options::new(profile) }
    }
}

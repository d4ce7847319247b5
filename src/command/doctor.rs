//! `eglu doctor`: what this machine has and lacks.

use crate::{failure::Failure, screen::show};
use clap::Args;
use eglu_runtime::cuda::probe;

/// Shows what this machine has and lacks for running fused models, and how to get it.
///
/// Looks for the CUDA driver, its devices, the run-time compiler NVRTC and the cache of compiled kernels. The CPU backend needs none of them.
#[derive(Debug, Args)]
pub struct Doctor {}

impl Doctor {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let probe = probe();
        let verdict =
            if probe.usable() { "`--device cuda` works here" } else { "`--device cuda` does not work here; the CPU does" };
        show(&format!("cpu      {threads} threads\n{probe}\n{verdict}\n"));
        Ok(())
    }
}

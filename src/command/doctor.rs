//! `eglu doctor`: what this machine has and lacks.

use crate::{failure::Failure, screen::show};
use clap::Args;
use eglu_runtime::{
    Phases,
    cuda::{probe, start_up},
};

/// Shows what this machine has and lacks for running fused models, and how to get it.
///
/// Looks for the CUDA driver, its devices, the run-time compiler NVRTC and the cache of compiled kernels. The CPU backend needs none of them. Where
/// they are there, a small kernel is compiled and run, and the time of each phase shown.
#[derive(Debug, Args)]
pub struct Doctor {}

impl Doctor {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // First, for what was asked before is quick the second time.
        let phases = Phases::default();
        let started = start_up(0, &phases);
        let probe = probe();
        let verdict = match (&started, probe.usable()) {
            (Ok(()), true) => "`--device cuda` works here".to_owned(),
            (Err(error), true) => format!("`--device cuda` does not work here: {error}"),
            (_, false) => "`--device cuda` does not work here; the CPU does".to_owned(),
        };
        show(&format!("cpu      {threads} threads\n{probe}{}\n{verdict}\n", start_line(&phases)));
        Ok(())
    }
}

/// The phases of a start on the first device, in one line; nothing where there is none.
fn start_line(phases: &Phases) -> String {
    let list = phases.list();
    if !list.iter().any(|phase| phase.name == "context") {
        return String::new();
    }
    let each: Vec<String> = list.iter().map(|phase| format!("{} {:.1}", phase.name, 1e3 * phase.seconds)).collect();
    format!("start    of device 0, ms: {}\n", each.join(", "))
}

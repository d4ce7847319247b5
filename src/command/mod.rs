//! The subcommands, one file each.

mod bench;
mod compile;
mod device;
mod differentiate;
mod doctor;
mod emit;
mod inspect;
mod kernels;
mod launches;
mod model;
mod optimize;
mod run;

use crate::failure::Failure;
use clap::{Parser, Subcommand};

/// Fuses the mixture-of-experts blocks, GLU blocks, matmuls and reductions of exported PyTorch graphs, and runs the result.
#[derive(Debug, Parser)]
#[command(name = "eglu", version, max_term_width = 120, after_help = EXIT_CODES)]
pub struct Eglu {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
MODEL is a torch.export archive (.pt2) or a graph in eglu's own JSON (.json); run, bench and inspect take packages of `eglu compile` (.eglu), too.

Exit codes: 0 success, 1 the model or the data is at fault or results differ, 2 bad usage, 3 the environment lacks something.";

/// What each does is told where its options are; a text here would hide that one.
#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::Inspect),
    Optimize(optimize::Optimize),
    Emit(emit::Emit),
    Compile(compile::Compile),
    Run(run::Run),
    Bench(bench::Bench),
    Doctor(doctor::Doctor),
}

impl Eglu {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Inspect(command) => command.run(),
            Command::Optimize(command) => command.run(),
            Command::Emit(command) => command.run(),
            Command::Compile(command) => command.run(),
            Command::Run(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Doctor(command) => command.run(),
        }
    }
}

/// A value as JSON text to read.
fn json(value: &impl serde::Serialize) -> String {
    // Only maps with keys that are not text, and failing `Serialize` implementations, have no JSON; reports have neither.
    serde_json::to_string_pretty(value).map_or_else(|error| unreachable!("a report without JSON: {error}"), |text| text + "\n")
}

/// A number of things, in words: `1 input`, `2 inputs`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The name by which a unit variant travels in JSON.
pub fn word(value: &impl serde::Serialize) -> String {
    json(value).trim().trim_matches('"').to_owned()
}

//! The `eglu` command: see `eglu --help`.

mod command;
mod deliver;
mod draw;
mod failure;
mod page;
mod progress;
mod screen;
mod table;
mod trace;
mod warnings;

use clap::Parser;
use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    warnings::show_warnings();
    // Clap exits with 2 on bad usage and 0 for --help and --version.
    match command::Eglu::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Where stderr is full or closed, the exit code still tells.
            let _ = std::io::stderr().write_all(failure.render().as_bytes());
            ExitCode::from(failure.exit_code())
        }
    }
}

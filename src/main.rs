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
use std::{env, io::Write, process::ExitCode};

/// How many queues of work the driver makes when it opens a device (CUDA C++ programming guide, environment variables).
const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() -> ExitCode {
    if env::var_os(QUEUES).is_none() {
        // The command issues to one stream at a time. Opening an H200 then takes 60 ms, not the 125 of the usual eight queues.
        // SAFETY: there is no other thread yet.
        unsafe { env::set_var(QUEUES, "1") };
    }
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

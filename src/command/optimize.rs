//! `eglu optimize`: what the passes do to a model.

use super::{device, model};
use crate::{
    deliver,
    failure::Failure,
    screen::show,
    table::{Table, bytes},
};
use clap::Args;
use eglu_codegen::{
    Plan,
    cuda::{Target, emit},
    lower,
};
use eglu_ir::{DeviceProfile, json::to_json, text::print};
use eglu_passes::{Optimized, Options, Pipeline, PrintAfter, report::Report};
use serde::Serialize;
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Instant,
};

/// Optimises a model and shows what was fused by which rule, and what was refused and why.
///
/// The device decides costs and thereby choices; it need not be present.
#[derive(Debug, Args)]
pub struct Optimize {
    /// Model: .pt2 or .json
    model: PathBuf,
    /// Passes to run, in order, separated by commas
    #[arg(long, value_name = "a,b,c", default_value = Pipeline::STANDARD, hide_default_value = false)]
    passes: String,
    /// Device to optimise for: cpu, h200 or a100, or cuda[:N] for one of this machine
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Print the graph after each pass
    #[arg(long, conflicts_with = "print_changed")]
    print_after_all: bool,
    /// Print the graph after each pass that changed it
    #[arg(long)]
    print_changed: bool,
    /// Print how long each pass took
    #[arg(long)]
    time_passes: bool,
    /// Evaluate each fused region beside its original on random inputs, and print the error
    #[arg(long)]
    certify: bool,
    /// Tell which rules led to the node of that name, of the model or of the result
    #[arg(long, value_name = "NODE")]
    explain: Option<String>,
    /// Where to write the report as JSON
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Where to write the optimised graph: .json (eglu's own form, can be run again) or .txt
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

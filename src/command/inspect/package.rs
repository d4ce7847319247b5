//! What a package holds.

use super::Format;
use crate::{command::json, failure::Failure, screen::show};
use eglu_runtime::{Package, package::ProgramInfo};
use indexmap::IndexMap;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Summary<'a> {
    package: String,
    /// The version of eglu that wrote it.
    eglu: &'a str,
    programs: Vec<ProgramSummary<'a>>,
}

#[derive(Serialize)]
struct ProgramSummary<'a> {
    name: &'a str,
    inputs: IndexMap<&'a str, &'a str>,
    outputs: &'a [String],
    /// By architecture, what compiled its kernels.
    targets: IndexMap<&'a str, Option<&'a str>>,
    weights: usize,
    /// The archive that weights are taken from.
    refers_to: Option<&'a str>,
    /// Weights that must be given.
    absent: Vec<&'a str>,
}

impl<'a> ProgramSummary<'a> {
    fn of(program: ProgramInfo<'a>) -> ProgramSummary<'a> {
        ProgramSummary {
            name: program.name(),
            inputs: program.inputs().collect(),
            outputs: program.outputs(),
            targets: program.targets().collect(),
            weights: program.weight_names().count(),
            refers_to: program.refers_to(),
            absent: program.absent().keys().map(|name| &**name).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", self.name);
        for (name, ty) in &self.inputs {
            text += &format!("  input    {name}: {ty}\n");
        }
        for ty in self.outputs {
            text += &format!("  output   {ty}\n");
        }
        for (arch, compiler) in &self.targets {
            text += &format!("  plan     {arch}{}\n", compiler.map_or_else(String::new, |compiler| format!(", by {compiler}")));
        }
        let place = self.refers_to.map_or_else(|| "inside".to_owned(), |path| format!("in {path}"));
        text += &match self.weights {
            0 => String::new(),
            count => format!("  weights  {count}, {place}\n"),
        };
        text += &match self.absent.len() {
            0 => String::new(),
            count => format!("  lacks    {count} weights, to be given with --weights\n"),
        };
        text
    }
}

/// Prints what a package holds.
pub(super) fn show_package(path: &Path, format: Format) -> Result<(), Failure> {
    let package = Package::open(path)?;
    let summary = Summary {
        package: path.display().to_string(),
        eglu: package.writer(),
        programs: package.programs().map(ProgramSummary::of).collect(),
    };
    match format {
        Format::Text => {
            let programs: Vec<String> = summary.programs.iter().map(ProgramSummary::text).collect();
            show(&format!("{}, by eglu {}\n\n{}", summary.package, summary.eglu, programs.join("\n")))?;
        }
        Format::Json => show(&json(&summary))?,
        Format::Dot | Format::Mermaid => {
            return Err(Failure::usage("a package has plans, and no graph to draw").help("draw the model that it was made of"));
        }
    }
    Ok(())
}

//! `eglu optimize`: what the passes do to a model.

use super::{device, differentiate::Differentiate, model};
use crate::{
    deliver,
    failure::Failure,
    progress::Progress,
    screen::{Screen, show},
    table::{Table, bytes},
};
use clap::Args;
use eglu_codegen::{
    cuda::{Launch, Target, emit},
    lower,
};
use eglu_ir::{DeviceProfile, Graph, Tensor, json::to_json, text::print as print_graph};
use eglu_passes::{Optimized, Pipeline, PrintAfter, Report, certify, cost::typical_sizes, explain};
use eglu_runtime::compare::{Tolerance, tolerance};
use std::{
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
    #[arg(long, value_name = "a,b,c", default_value = Pipeline::STANDARD)]
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
    #[command(flatten)]
    differentiate: Differentiate,
}

impl Optimize {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let form = self.output.as_deref().map(Form::of).transpose()?;
        [&self.report, &self.output].into_iter().flatten().try_for_each(|path| deliver::expect_place(path))?;
        let profile = device::profile_named(&self.device)?;
        let pipeline = self.differentiate.before(Pipeline::parse(&self.passes)?);
        let progress = Progress::new();
        let phases = progress.phases();
        let start = Instant::now();
        let imported = phases.time("import", || model::load(&self.model))?;
        let import_time = start.elapsed();
        let print = match (self.print_after_all, self.print_changed) {
            (true, _) => PrintAfter::All,
            (_, true) => PrintAfter::Changed,
            _ => PrintAfter::Never,
        };
        let mut options = self.differentiate.options(&imported, profile.clone());
        let unfused = if pipeline.differentiates() { Pipeline::unfused().differentiated() } else { Pipeline::unfused() };
        let unfused = kernels(&unfused.run_with(imported.graph.clone(), &options)?.graph, &profile)?;
        options.print = print;
        // Where graphs are printed meanwhile, a line that comes and goes would stand between them.
        let progress = (print == PrintAfter::Never).then_some(progress);
        let mut optimized = phases.time("passes", || pipeline.run_printing(imported.graph, &options, &mut Screen))?;
        drop(progress);
        optimized.report.add_time("import", import_time);
        let start = Instant::now();
        optimized.report.kernels = kernels(&optimized.graph, &profile)?;
        optimized.report.add_time("codegen", start.elapsed());

        if let Some(name) = &self.explain {
            let story = explain(&optimized, name).ok_or_else(|| {
                Failure::usage(format!("neither `{}` nor the optimised graph has a node called `{name}`", optimized.graph.name))
                    .help("`eglu inspect MODEL --format dot` shows the names of all nodes")
            })?;
            show(&story)?;
        } else {
            show(&summary(&optimized, unfused, &profile))?;
        }
        if self.time_passes {
            show(&times(&optimized.report))?;
        }
        if self.certify {
            certified(&optimized, &|name| imported.weights.get(name).ok())?;
        }
        if let Some(path) = &self.report {
            deliver::file(path, super::json(&optimized.report).as_bytes())?;
        }
        if let (Some(path), Some(form)) = (&self.output, form) {
            let text = match form {
                Form::Json => to_json(&optimized.graph)?,
                Form::Text => print_graph(&optimized.graph),
            };
            deliver::file(path, text.as_bytes())?;
        }
        Ok(())
    }
}

/// The forms in which a graph can be written.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Text,
}

impl Form {
    fn of(path: &Path) -> Result<Form, Failure> {
        match path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("json") => Ok(Form::Json),
            Some("txt") => Ok(Form::Text),
            _ => Err(Failure::usage(format!("`{}` names no form of a graph", path.display()))
                .help("end it in .json (eglu's own form, can be run again) or .txt (to read)")),
        }
    }
}

/// How many kernels a run of the graph launches on the device, at [typical sizes](typical_sizes). A plan also holds kernels for other sizes, on grids
/// that are empty at these.
fn kernels(graph: &Graph, profile: &DeviceProfile) -> Result<usize, Failure> {
    let plan = lower(graph)?;
    let Some(target) = Target::of_profile(profile) else { return Ok(plan.steps.len()) };
    let sizes = typical_sizes(graph);
    let runs = |launch: &&Launch| launch.grid.iter().all(|extent| extent.eval(&sizes).is_ok_and(|extent| extent > 0));
    Ok(emit(&plan, target)?.launches.iter().filter(runs).count())
}

fn summary(optimized: &Optimized, unfused: usize, profile: &DeviceProfile) -> String {
    let Optimized { graph, report } = optimized;
    let mut text = format!(
        "{} for {}: {} ops became {}, {unfused} kernels became {}\n",
        graph.name, profile.name, report.nodes_before, report.nodes_after, report.kernels
    );
    let mut sites = Table::new(["kind", "node", "rule", "ops", "launches saved", "traffic saved"]);
    for site in &report.sites {
        sites.row([
            super::word(&site.kind),
            site.node.to_string(),
            site.rule.clone(),
            site.nodes.len().to_string(),
            site.saves.launches.to_string(),
            bytes(site.saves.bytes as f64),
        ]);
    }
    if !sites.is_empty() {
        text += &format!("\nfused\n{sites}");
    }
    let mut refused = Table::new(["rule", "at", "condition", "why"]);
    for miss in &report.refused {
        refused.row([miss.rule.clone(), miss.node.clone(), miss.condition.clone(), miss.why.clone()]);
    }
    if !refused.is_empty() {
        text += &format!("\nrefused\n{refused}");
    }
    if let Some(kept) = report.kept {
        text +=
            &format!("\nthe backward pass keeps {} tensors of the forward pass, {}\n", kept.tensors, bytes(kept.bytes as f64));
    }
    for stop in &report.stops {
        text += &format!("\nstopped early: {stop}\n");
    }
    text
}

fn times(report: &Report) -> String {
    let mut table = Table::new(["phase", "ms"]);
    for (phase, ms) in &report.time_ms {
        table.row([phase.clone(), format!("{ms:.2}")]);
    }
    format!("\ntimes\n{table}")
}

/// Evaluates both graphs, prints the errors, and fails if an output is beyond its tolerance.
fn certified(optimized: &Optimized, weights: &dyn Fn(&str) -> Option<Tensor>) -> Result<(), Failure> {
    let certificate = certify(optimized.report.before(), &optimized.graph, weights, 0)
        .map_err(|cause| Failure::data("the graphs cannot be evaluated for certification").because(cause))?;
    let sizes: Vec<String> = certificate.sizes.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    show(&format!("\ncertified on random inputs{}, largest difference over largest value\n", sizes.concat()))?;
    let mut table = Table::new(["", "node", "error"]);
    for (kind, deviations) in [("fused", &certificate.nodes), ("output", &certificate.outputs)] {
        for deviation in deviations {
            table.row([kind.to_owned(), deviation.name.to_string(), format!("{:.2e}", deviation.error)]);
        }
    }
    show(&table.to_string())?;
    let outputs = optimized.graph.outputs().iter().map(|output| optimized.graph.ty(output.value).dtype);
    let bound = |dtype| match tolerance(dtype) {
        Tolerance::Relative(bound) => bound,
        Tolerance::Exact => 0.0,
    };
    let beyond = certificate.outputs.iter().zip(outputs).find(|(deviation, dtype)| deviation.error > bound(*dtype));
    match beyond {
        Some((deviation, dtype)) => Err(Failure::data(format!(
            "the optimised graph differs from its original: `{}` ({dtype}) by {:.2e}",
            deviation.name, deviation.error
        ))
        .help("this is a bug in eglu; --print-changed shows which pass does it, and --passes can leave it out")),
        None => Ok(()),
    }
}

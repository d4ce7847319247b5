//! Passes in order: parsing a list of names, running with timing, verification and printing.

use crate::{
    autodiff::{Autodiff, AutodiffError, Gradients},
    canonicalize::{Canonicalize, SimplifyViews},
    cluster::Cluster,
    cse::MergeEqual,
    dce::RemoveDead,
    equality::Saturate,
    fold::FoldConstants,
    recompute::{ChooseKept, Recompute},
    report::Report,
};
use eglu_ir::{DeviceProfile, Graph, GraphError, profile};
use std::{io, time::Instant};

/// One transformation of a graph.
pub trait Pass {
    /// Name used by `--passes`.
    fn name(&self) -> &'static str;
    /// One line on what it does.
    fn doc(&self) -> &'static str;
    /// Transforms the graph; true if anything changed.
    fn run(&self, graph: &mut Graph, context: &mut Context<'_>) -> Result<bool, Failure>;
}

/// What passes know besides the graph, and where they leave their findings.
pub struct Context<'a> {
    /// The device to optimise for.
    pub profile: &'a DeviceProfile,
    /// What `autodiff` differentiates by what.
    pub gradients: &'a Gradients,
    /// What a backward pass computes again.
    pub recompute: Recompute,
    /// Findings for the user.
    pub report: &'a mut Report,
}

/// Which graphs to print while passes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrintAfter {
    /// None.
    #[default]
    Never,
    /// The graph after each pass that changed it.
    Changed,
    /// The graph after each pass.
    All,
}

/// How to optimise.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device to optimise for.
    pub profile: DeviceProfile,
    /// What to print on the way.
    pub print: PrintAfter,
    /// What `autodiff` differentiates by what, where the pipeline has that pass.
    pub gradients: Gradients,
    /// What a backward pass computes again.
    pub recompute: Recompute,
}

impl Options {
    /// Optimises for this device and prints nothing.
    pub fn new(profile: DeviceProfile) -> Options {
        Options { profile, print: PrintAfter::Never, gradients: Gradients::default(), recompute: Recompute::default() }
    }
}

impl Default for Options {
    /// For the host.
    fn default() -> Options {
        Options::new(profile::CPU)
    }
}

/// The outcome of a pipeline.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The graph, equivalent to the one given.
    pub graph: Graph,
    /// What was done to it.
    pub report: Report,
}

/// Why a pass failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Autodiff(#[from] AutodiffError),
    #[error(transparent)]
    Egraph(#[from] crate::egraph::EgraphError),
}

/// Why a pipeline failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PassError {
    #[error("there is no pass called `{name}`; the passes are: {known}")]
    UnknownPass { name: String, known: String },
    #[error("pass `{pass}`: {source}")]
    Failed { pass: &'static str, source: Failure },
    #[error("pass `{pass}` left a graph that does not verify, a fault of eglu: {source}")]
    Verify { pass: &'static str, source: eglu_ir::verify::VerifyError },
    #[error("cannot print the graph after pass `{pass}`: {source}")]
    Print { pass: &'static str, source: io::Error },
}

/// Passes in the order they run.
pub struct Pipeline {
    passes: Vec<Box<dyn Pass>>,
}

/// All passes, in the order in which the standard pipeline first needs them.
fn all() -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(Autodiff),
        Box::new(SimplifyViews),
        Box::new(Canonicalize),
        Box::new(FoldConstants),
        Box::new(MergeEqual),
        Box::new(Saturate),
        Box::new(ChooseKept),
        Box::new(Cluster),
        Box::new(RemoveDead),
    ]
}

impl Pipeline {
    /// What `eglu` runs by default. Equality saturation comes before folding into kernels, because its rules speak of single ops.
    pub const STANDARD: &'static str = "canonicalize,fold,cse,dce,egraph,canonicalize,cse,recompute,cluster,dce";

    /// Views in canonical form and nothing else, so that each op is a kernel of its own, as in PyTorch's eager mode.
    pub const UNFUSED: &'static str = "views,dce";

    /// The pipeline behind `autodiff`, unless it has that pass already.
    pub fn differentiated(mut self) -> Pipeline {
        if !self.differentiates() {
            self.passes.insert(0, Box::new(Autodiff));
        }
        self
    }

    /// True if one of the passes is `autodiff`.
    pub fn differentiates(&self) -> bool {
        self.passes.iter().any(|pass| pass.name() == Autodiff.name())
    }

    /// Names and one-line descriptions of all passes.
    pub fn known() -> Vec<(&'static str, &'static str)> {
        all().iter().map(|pass| (pass.name(), pass.doc())).collect()
    }

    /// The pipeline of these passes, separated by commas; an empty list does nothing.
    pub fn parse(list: &str) -> Result<Pipeline, PassError> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let passes = names.map(|name| {
            all().into_iter().find(|pass| pass.name() == name).ok_or_else(|| {
                let known: Vec<&str> = all().iter().map(|pass| pass.name()).collect();
                PassError::UnknownPass { name: name.into(), known: known.join(", ") }
            })
        });
        Ok(Pipeline { passes: passes.collect::<Result<_, _>>()? })
    }

    /// The default pipeline.
    pub fn standard() -> Pipeline {
        Self::of(Self::STANDARD)
    }

    /// The pipeline of `--no-fuse`.
    pub fn unfused() -> Pipeline {
        Self::of(Self::UNFUSED)
    }

    fn of(list: &str) -> Pipeline {
        Self::parse(list).unwrap_or_else(|error| unreachable!("a built-in pipeline: {error}"))
    }

    /// Runs the passes for the host; each leaves a graph that verifies.
    pub fn run(&self, graph: Graph) -> Result<Optimized, PassError> {
        self.run_with(graph, &Options::default())
    }

    /// [`Pipeline::run`] for another device, or with gradients.
    pub fn run_with(&self, graph: Graph, options: &Options) -> Result<Optimized, PassError> {
        self.run_printing(graph, options, &mut io::sink())
    }

    /// [`Pipeline::run_with`], writing the graphs that `options.print` asks for in textual form.
    pub fn run_printing(&self, mut graph: Graph, options: &Options, out: &mut dyn io::Write) -> Result<Optimized, PassError> {
        let mut report = Report::new(&graph);
        for pass in &self.passes {
            let name = pass.name();
            let start = Instant::now();
            let mut context = Context {
                profile: &options.profile,
                gradients: &options.gradients,
                recompute: options.recompute,
                report: &mut report,
            };
            let changed = pass.run(&mut graph, &mut context).map_err(|source| PassError::Failed { pass: name, source })?;
            report.ran(name, start);
            if changed {
                eglu_ir::verify::verify(&graph).map_err(|source| PassError::Verify { pass: name, source })?;
            }
            if options.print == PrintAfter::All || (options.print == PrintAfter::Changed && changed) {
                let note = if changed { "" } else { " (nothing changed)" };
                writeln!(out, "// after {name}{note}\n{}", eglu_ir::text::print(&graph))
                    .map_err(|source| PassError::Print { pass: name, source })?;
            }
        }
        report.conclude(&graph);
        Ok(Optimized { graph, report })
    }
}

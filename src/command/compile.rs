//! `eglu compile`: a package that runs with no compiler.

use super::{differentiate::Differentiate, kernels::Kernels, model};
use crate::{deliver, failure::Failure, progress::Progress, screen::show};
use clap::Args;
use eglu::{
    ahead::{self, Architecture, Model},
    reductions,
};
use eglu_codegen::Plan;
use eglu_ir::{DType, weights::Weights};
use eglu_passes::Pipeline;
use eglu_runtime::package::{Draft, Program, Target};
use std::{collections::HashSet, path::PathBuf};

/// Compiles models ahead of time into one package, which `eglu run`, `eglu bench` and the library load with no compiler.
///
/// No GPU is needed; NVRTC is. Each model is optimised for each architecture, and for the host, on which every package runs, too. Equal models,
/// options and compilers give equal bytes. The file appears whole or not at all.
#[derive(Debug, Args)]
pub struct Compile {
    /// Models: .pt2 or .json. Of several, `--program` chooses one by the file's name without extension
    #[arg(required_unless_present = "reductions", value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Architectures: sm_80, sm_86, sm_89, sm_90a; `cpu` alone makes a package for the host, without NVRTC
    #[arg(long, required = true, value_delimiter = ',', value_name = "ARCH,…")]
    arch: Vec<Architecture>,
    /// The package to write
    #[arg(short, long, value_name = "OUT.eglu")]
    output: PathBuf,
    /// Weights that the archive lacks, or that replace its own, by name
    #[arg(long, value_name = "FILE.safetensors")]
    weights: Option<PathBuf>,
    /// Add the common reductions of these dtypes, for every size: programs `sum.inner.bf16`, `argmax.full.f32`, … (layouts: inner, outer,
    /// middle, full). By default f64,f32,f16,bf16,i8,i32,i64,bool
    #[arg(long, value_name = "DTYPE,…", num_args = 0..=1, require_equals = true, value_parser = dtypes, default_missing_value = "")]
    reductions: Option<Dtypes>,
    /// Leave weights in the model's archive, and say where it is, as seen from the package
    #[arg(long)]
    refer_to_weights: bool,
    /// Compile each operator as a kernel of its own
    #[arg(long)]
    no_fuse: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    differentiate: Differentiate,
}

/// Dtypes from one argument.
type Dtypes = Box<[DType]>;

/// Dtypes by their names, separated by commas; those that are common where none is named.
fn dtypes(text: &str) -> Result<Dtypes, String> {
    let dtype =
        |name: &str| DType::from_name(name).ok_or_else(|| format!("`{name}` is no dtype: give names such as f32, bf16, i64"));
    match text {
        "" => Ok(reductions::DTYPES.into()),
        text => text.split(',').map(dtype).collect(),
    }
}

impl Compile {
    /// Runs the subcommand.
    pub fn run(&self) -> Result<(), Failure> {
        let mut architectures = vec![Architecture::Cpu];
        for &arch in &self.arch {
            if !architectures.contains(&arch) {
                architectures.push(arch);
            }
        }
        deliver::expect_place(&self.output)?;
        let progress = Progress::new();
        let phases = progress.phases();
        let pipeline = if self.no_fuse { Pipeline::unfused() } else { Pipeline::standard() };
        let pipeline = self.differentiate.before(pipeline);
        let mut models = vec![];
        for path in &self.models {
            let mut imported = phases.time("import", || model::load(path))?;
            if let Some(weights) = &self.weights {
                model::add_weights(&mut imported, weights)?;
            }
            let (graph, weights) = (imported.graph.clone(), imported.weights.clone());
            let (contents, phases) = (imported.weights.clone(), &phases);
            let options = move |profile| self.differentiate.options(&imported, profile);
            let choices = move |plan: &Plan, target| self.kernels.choices(plan, &contents, target, phases);
            models.push(Model { options: Box::new(options), choices: Box::new(choices), ..Model::new(graph, weights) });
        }
        if let Some(dtypes) = &self.reductions {
            let model = |graph| Model::new(graph, Weights::default());
            models.extend(reductions::programs(dtypes).into_iter().map(model));
        }
        let mut names = HashSet::new();
        if let Some(Model { graph, .. }) = models.iter().find(|model| !names.insert(model.graph.name.as_str())) {
            return Err(Failure::usage(format!("two models are called `{}`", graph.name))
                .help("rename one of the files: their names tell the programs of a package apart"));
        }
        let programs = ahead::compile_in_phases(&models, &architectures, &pipeline, &phases)?;
        let draft = Draft { programs, refer_to_weights: self.refer_to_weights };
        draft.write(&self.output)?;
        drop(progress);
        let bytes = std::fs::metadata(&self.output).map_or(0, |metadata| metadata.len());
        let mut text = format!("{}: {bytes} bytes\n", self.output.display());
        match draft.programs.len() {
            0..=8 => draft.programs.iter().for_each(|program| text += &summary(program)),
            count => text += &format!("{count} programs; `eglu inspect` lists them\n"),
        }
        show(&text)
    }
}

/// One line for each plan of a program, and one for the weights it lacks.
fn summary(program: &Program) -> String {
    let mut text = String::new();
    for target in &program.targets {
        text += &match target {
            Target::Cpu(plan) => format!("{}  cpu  {} steps\n", program.name, plan.steps.len()),
            Target::Cuda { arch, compiler, plan, .. } => {
                let (launches, modules) = (plan.launches.len(), plan.modules.len());
                format!("{}  {arch}  {launches} launches of kernels in {modules} cubins, by {compiler}\n", program.name)
            }
        };
    }
    if !program.absent.is_empty() {
        text += &format!("{}  lacks {} weights: give them with --weights when it is run\n", program.name, program.absent.len());
    }
    text
}

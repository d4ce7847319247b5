//! `eglu compile`: a package that runs with no compiler.

use super::model;
use crate::{failure::Failure, screen::show};
use clap::Args;
use eglu::ahead::{self, Architecture};
use eglu_passes::Pipeline;
use eglu_runtime::package::{Draft, Program, Target};
use std::path::PathBuf;

/// Compiles models ahead of time into one package, which `eglu run`, `eglu bench` and the library load with no compiler.
///
/// No GPU is needed; NVRTC is. Each model is optimised for each architecture, and for the host, on which every package runs, too. Equal models,
/// options and compilers give equal bytes. The file appears whole or not at all.
#[derive(Debug, Args)]
pub struct Compile {
    /// Models: .pt2 or .json. Of several, `--program` chooses one by the file's name without extension
    #[arg(required = true, value_name = "MODEL")]
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
    /// Leave weights in the model's archive, and say where it is, as seen from the package
    #[arg(long)]
    refer_to_weights: bool,
    /// Compile each operator as a kernel of its own
    #[arg(long)]
    no_fuse: bool,
}

impl Compile {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let mut architectures = vec![Architecture::Cpu];
        for &arch in &self.arch {
            if !architectures.contains(&arch) {
                architectures.push(arch);
            }
        }
        let pipeline = if self.no_fuse { Pipeline::unfused() } else { Pipeline::standard() };
        let mut draft = Draft { programs: vec![], refer_to_weights: self.refer_to_weights };
        for path in &self.models {
            let mut imported = model::load(path)?;
            if let Some(weights) = &self.weights {
                model::add_weights(&mut imported, weights)?;
            }
            let program = ahead::compile(&imported.graph, &imported.weights, &architectures, &pipeline)?;
            if draft.programs.iter().any(|other| other.name == program.name) {
                return Err(Failure::usage(format!("two models are called `{}`", program.name))
                    .help("rename one of the files: their names tell the programs of a package apart"));
            }
            draft.programs.push(program);
        }
        draft.write(&self.output)?;
        let bytes = std::fs::metadata(&self.output).map_or(0, |metadata| metadata.len());
        let mut text = format!("{}: {bytes} bytes\n", self.output.display());
        for program in &draft.programs {
            text += &summary(program);
        }
        show(&text);
        Ok(())
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

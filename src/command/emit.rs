//! `eglu emit`: CUDA sources and cubins.

use super::{device, differentiate::Differentiate, kernels::Kernels, launches, model};
use crate::{deliver, failure::Failure, progress::Progress, screen::show};
use clap::Args;
use eglu_codegen::{cuda::emit_with, lower};
use eglu_passes::Pipeline;
use eglu_runtime::cuda::compile_in_phases;
use std::path::PathBuf;

/// Writes the CUDA sources and cubins of the optimised model into one folder, which appears whole or not at all.
///
/// No GPU is needed; NVRTC is, unless --sources-only is given. The file launches.txt says which kernels run in which order, on which grids and with
/// which arguments; launches.json says the same, and more, for programs.
#[derive(Debug, Args)]
pub struct Emit {
    /// Model: .pt2 or .json
    model: PathBuf,
    /// Architecture: sm_80, sm_86, sm_89 or sm_90a
    #[arg(long)]
    arch: String,
    /// The folder to write
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Write no cubins: NVRTC is not needed then
    #[arg(long)]
    sources_only: bool,
    /// Emit each operator as a kernel of its own
    #[arg(long)]
    no_fuse: bool,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    differentiate: Differentiate,
}

impl Emit {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), Failure> {
        let target = device::target_named(&self.arch)?;
        deliver::expect_folder(&self.output, is_own)?;
        let progress = Progress::new();
        let phases = progress.phases();
        let imported = phases.time("import", || model::load(&self.model))?;
        let pipeline = if self.no_fuse { Pipeline::unfused() } else { Pipeline::standard() };
        let options = self.differentiate.options(&imported, target.profile().clone());
        let pipeline = self.differentiate.before(pipeline);
        let optimized = phases.time("passes", || pipeline.run_with(imported.graph, &options))?;
        let plan = lower(&optimized.graph)?;
        let choices = self.kernels.choices(&plan, &imported.weights, target, &phases)?;
        let plan = emit_with(&plan, target, &choices)?;
        let mut files = vec![
            ("launches.txt".to_owned(), launches::text(&plan).into_bytes()),
            ("launches.json".to_owned(), super::json(&launches::document(&plan)).into_bytes()),
        ];
        for module in &plan.modules {
            files.push((format!("{}.cu", module.name), module.source.clone().into_bytes()));
        }
        if !self.sources_only {
            let cubins = compile_in_phases(&plan.modules, &self.arch, &phases)?;
            for (module, cubin) in plan.modules.iter().zip(&cubins) {
                files.push((format!("{}.cubin", module.name), cubin.image.to_vec()));
            }
        }
        drop(progress);
        deliver::folder(&self.output, &files, is_own)?;
        let cubins = if self.sources_only { "no cubins" } else { "a cubin for each" };
        show(&format!(
            "{}: {} launches of kernels in {} sources, {cubins}\n",
            self.output.display(),
            plan.launches.len(),
            plan.modules.len()
        ))?;
        Ok(())
    }
}

/// True for the names of files that this command writes.
fn is_own(name: &str) -> bool {
    ["launches.txt", "launches.json"].contains(&name) || name.ends_with(".cu") || name.ends_with(".cubin")
}

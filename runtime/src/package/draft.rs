//! What goes into a package, and writing it.

use super::{
    PackageError,
    manifest::{
        CPU, FORMAT, InputRecord, MANIFEST, Manifest, ModuleRecord, PlanRecord, ProgramRecord, ReferenceRecord, TargetRecord,
        VERSION, WeightRecord,
    },
    seal,
    sink::Sink,
};
use crate::{
    cuda::{Cubin, source_digest},
    inputs::Bound,
};
use eglu_codegen::{Plan, PlanInput, Source, cuda::CudaPlan};
use eglu_ir::{
    TensorType,
    archive::Archive,
    weights::{Placement, Weights},
    whole::write_whole,
};
use indexmap::{IndexMap, IndexSet};
use memmap2::Mmap;
use sha2::{Digest, Sha256};
use std::{
    cell::RefCell,
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    path::{Component, Path, PathBuf},
    sync::Arc,
};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A plan for one architecture, with everything that running it takes but weights.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Target {
    /// For the host.
    Cpu(Plan),
    /// For a GPU: the name of the architecture, the plan, and the cubin of each module of it.
    Cuda { arch: String, compiler: String, plan: CudaPlan, cubins: Vec<Cubin> },
}

/// A model with its plans.
#[derive(Clone, Debug)]
pub struct Program {
    /// By which it is asked for.
    pub name: String,
    /// Its plans, each for another architecture.
    pub targets: Vec<Target>,
    /// Contents of its weights.
    pub weights: Weights,
    /// Types of the weights without contents, which must be given when it is run.
    pub absent: IndexMap<Arc<str>, TensorType>,
    /// What the model says of its integer inputs, in signature order: see [`bounds`](crate::inputs::bounds).
    pub bounds: Vec<Vec<Bound>>,
}

/// A package to be written.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Its programs, with names of their own.
    pub programs: Vec<Program>,
    /// Weights stay in the archives that they are in, and the package says where; else it holds them.
    pub refer_to_weights: bool,
}

impl Target {
    fn arch(&self) -> &str {
        match self {
            Target::Cpu(_) => CPU,
            Target::Cuda { arch, .. } => arch,
        }
    }

    fn plan(&self) -> &Plan {
        match self {
            Target::Cpu(plan) => plan,
            Target::Cuda { plan, .. } => &plan.plan,
        }
    }
}

impl Draft {
    /// Writes the package. Where that fails, `path` keeps its old contents.
    pub fn write(&self, path: &Path) -> Result<(), PackageError> {
        let mut failed = None;
        let written = write_whole(path, |file| {
            let full = RefCell::new(None);
            let zip = ZipWriter::new(Sink::new(file, &full));
            let result = Writing { draft: self, path, zip, cubins: IndexMap::new(), kernels: IndexMap::new() }.all();
            if let Some(error) = full.into_inner() {
                return Err(error);
            }
            result.map_err(|error| match error {
                PackageError::Write { source, .. } => source,
                other => {
                    failed = Some(other);
                    io::ErrorKind::Other.into()
                }
            })?;
            set_seal(file)?;
            // Else a loss of power could leave a file of the right name and length without contents.
            file.sync_all()
        });
        match (failed, written) {
            (Some(error), _) => Err(error),
            (None, Err(source)) => Err(PackageError::Write { path: path.into(), source }),
            (None, Ok(())) => Ok(()),
        }
    }
}

struct Writing<'a> {
    draft: &'a Draft,
    path: &'a Path,
    zip: ZipWriter<Sink<'a>>,
    /// Entries of cubins by architecture and digest.
    cubins: IndexMap<(String, [u8; 32]), String>,
    /// The same by architecture and digest of the source.
    kernels: IndexMap<String, IndexMap<String, String>>,
}

impl Writing<'_> {
    fn all(mut self) -> Result<(), PackageError> {
        let draft = self.draft;
        let mut programs = Vec::with_capacity(draft.programs.len());
        let mut contents: IndexMap<[u8; 32], String> = IndexMap::new();
        for (i, program) in draft.programs.iter().enumerate() {
            let mut targets = vec![];
            for target in &program.targets {
                targets.push(self.target(i, target)?);
            }
            let (inputs, outputs) = signature(program);
            let mut record = ProgramRecord {
                name: program.name.clone(),
                inputs,
                outputs,
                targets,
                reference: None,
                weights: IndexMap::new(),
                absent: IndexMap::new(),
            };
            for name in weights_of(program) {
                if let Some(ty) = program.absent.get(&name) {
                    record.absent.insert(name, ty.clone());
                } else if draft.refer_to_weights {
                    refer(self.path, program, &name, &mut record)?;
                } else {
                    let weight = self.embed(program, &name, &mut contents)?;
                    record.weights.insert(name, weight);
                }
            }
            programs.push(record);
        }
        let eglu = env!("CARGO_PKG_VERSION").to_owned();
        let kernels = std::mem::take(&mut self.kernels);
        let manifest = Manifest { format: FORMAT.into(), version: VERSION, eglu, programs, kernels };
        self.json(MANIFEST, &manifest)?;
        let failed = self.failed();
        self.zip.set_raw_comment(seal::blank().into()).map_err(|error| failed(error.into()))?;
        self.zip.finish().map(drop).map_err(|error| failed(error.into()))
    }

    fn failed(&self) -> impl Fn(io::Error) -> PackageError + 'static + Copy + use<> {
        // The path is added by the caller, which writes beside it.
        |source| PackageError::Write { path: PathBuf::new(), source }
    }

    fn entry(&mut self, name: &str, contents: &[u8], method: CompressionMethod) -> Result<(), PackageError> {
        let failed = self.failed();
        // Aligned as PyTorch aligns its storages, so that contents can be used where they are mapped.
        let options = SimpleFileOptions::default()
            .compression_method(method)
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(0o644)
            .large_file(contents.len() as u64 >= u32::MAX.into())
            .with_alignment(64);
        self.zip.start_file(name, options).map_err(|error| failed(error.into()))?;
        self.zip.write_all(contents).map_err(failed)
    }

    fn json(&mut self, name: &str, value: &impl serde::Serialize) -> Result<(), PackageError> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| self.failed()(error.into()))?;
        self.entry(name, &text, CompressionMethod::Deflated)
    }

    /// Writes the plan and cubins of one architecture.
    fn target(&mut self, program: usize, target: &Target) -> Result<TargetRecord, PackageError> {
        let arch = target.arch().to_owned();
        let (record, compiler) = match target {
            Target::Cpu(plan) => (PlanRecord { plan: plan.clone(), scratch: vec![], modules: vec![], launches: vec![] }, None),
            Target::Cuda { compiler, plan, cubins, .. } => {
                let mut modules = vec![];
                for (module, cubin) in plan.modules.iter().zip(cubins) {
                    let entry = self.cubin(&arch, cubin)?;
                    self.kernels.entry(arch.clone()).or_default().insert(source_digest(module, &arch), entry.clone());
                    modules.push(ModuleRecord { name: module.name.clone(), cubin: entry });
                }
                let (plan, scratch, launches) = (plan.plan.clone(), plan.scratch.clone(), plan.launches.clone());
                (PlanRecord { plan, scratch, modules, launches }, Some(compiler.clone()))
            }
        };
        let entry = format!("plans/{program}.{arch}.json");
        self.json(&entry, &record)?;
        Ok(TargetRecord { arch, plan: entry, compiler })
    }

    /// The entry of a cubin, written unless an equal one is there.
    fn cubin(&mut self, arch: &str, cubin: &Cubin) -> Result<String, PackageError> {
        let key = (arch.to_owned(), Sha256::digest(&cubin.image).into());
        if let Some(entry) = self.cubins.get(&key) {
            return Ok(entry.clone());
        }
        let count = self.cubins.keys().filter(|(of, _)| of == arch).count();
        let entry = format!("cubins/{arch}/{count}.cubin");
        // Line tables and names make them four times as large as they need be, and inflating is no matter of a millisecond.
        self.entry(&entry, &cubin.image, CompressionMethod::Deflated)?;
        self.cubins.insert(key, entry.clone());
        Ok(entry)
    }

    /// Writes a weight's contents, unless equal ones are there.
    fn embed(
        &mut self,
        program: &Program,
        name: &str,
        contents: &mut IndexMap<[u8; 32], String>,
    ) -> Result<WeightRecord, PackageError> {
        let tensor = program.weights.get(name)?;
        let shape: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
        let mut strides = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i].max(1);
        }
        let digest = Sha256::digest(tensor.bytes()).into();
        let file = match contents.get(&digest) {
            Some(entry) => entry.clone(),
            None => {
                let entry = format!("weights/{}", contents.len());
                self.entry(&entry, tensor.bytes(), CompressionMethod::Stored)?;
                contents.insert(digest, entry.clone());
                entry
            }
        };
        Ok(WeightRecord { file, place: Placement { dtype: tensor.dtype(), shape, strides, offset: 0 } })
    }
}

/// The names of the weights that any plan reads, in the order of the plans.
fn weights_of(program: &Program) -> IndexSet<Arc<str>> {
    let buffers = program.targets.iter().flat_map(|target| &target.plan().buffers);
    buffers
        .filter_map(|buffer| match &buffer.source {
            Source::Weight(path) => Some(path.clone()),
            _ => None,
        })
        .collect()
}

fn signature(program: &Program) -> (IndexMap<Arc<str>, InputRecord>, Vec<String>) {
    let Some(plan) = program.targets.first().map(Target::plan) else { return Default::default() };
    let bounds = program.bounds.iter().cloned().chain(std::iter::repeat(vec![]));
    let record = |(input, bounds): (&PlanInput, _)| (input.name.clone(), InputRecord { ty: input.ty.to_string(), bounds });
    let inputs = plan.inputs.iter().zip(bounds).map(record).collect();
    (inputs, plan.outputs.iter().map(|output| output.tensor.ty().to_string()).collect())
}

/// Records where a weight lies in its archive.
fn refer(package: &Path, program: &Program, name: &Arc<str>, record: &mut ProgramRecord) -> Result<(), PackageError> {
    let refused =
        |why: &str| PackageError::NoReference { program: program.name.clone(), weight: name.to_string(), why: why.into() };
    let (archive, file, place) =
        program.weights.placement(name).ok_or_else(|| refused("does not come from the model's archive"))?;
    let reference = match &record.reference {
        Some(reference) => reference.clone(),
        None => {
            let io = |source| PackageError::Open { path: archive.path().into(), source };
            let (from, to) = (folder_of(package).canonicalize(), archive.path().canonicalize().map_err(io)?);
            let from = from.map_err(|source| PackageError::Write { path: package.into(), source })?;
            let path = relative(&from, &to);
            let path = path.to_str().ok_or_else(|| refused("lies in an archive whose path is no Unicode"))?.to_owned();
            reference_to(archive, path)
        }
    };
    record.reference = Some(reference);
    record.weights.insert(name.clone(), WeightRecord { file: file.to_owned(), place });
    Ok(())
}

pub(super) fn reference_to(archive: &Archive, path: String) -> ReferenceRecord {
    let directory = seal::hex(&Sha256::digest(archive.directory()));
    ReferenceRecord { path, bytes: archive.map().len() as u64, directory }
}

pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// The way from a folder to a file; both are absolute and free of links.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) = (from.components().collect(), to.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[shared..].iter().map(|_| Component::ParentDir);
    up.chain(to[shared..].iter().copied()).collect()
}

/// Puts the digest into the seal at the end of the file.
fn set_seal(file: &mut File) -> io::Result<()> {
    // SAFETY: the part is locked and this process alone writes it, not while it is mapped.
    let digest = seal::digest(&unsafe { Mmap::map(&*file) }?);
    file.seek(SeekFrom::End(-(digest.len() as i64)))?;
    file.write_all(digest.as_bytes())
}

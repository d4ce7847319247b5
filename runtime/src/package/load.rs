//! From a program of a package to an executable: which plan, its kernels and its weights.

use super::{
    PackageError,
    manifest::{CPU, PlanRecord, TargetRecord},
    read::ProgramInfo,
};
use crate::{
    Device, Executable, Phases, RuntimeError,
    cpu::CpuExecutable,
    cuda::{Cubin, CudaExecutable, DeviceFacts},
    executable::checked_source,
};
use eglu_codegen::{
    CheckError,
    cuda::{CudaPlan, Module, Target},
};
use eglu_ir::weights::Weights;

impl ProgramInfo<'_> {
    /// Makes the program ready on a device, with no compiler. `weights` are those of [`weights`](ProgramInfo::weights), or others of the same
    /// names and types.
    pub fn load(&self, weights: &Weights, device: &Device) -> Result<Executable, RuntimeError> {
        self.load_in_phases(weights, device, &Phases::default())
    }

    /// [`load`](ProgramInfo::load), with its phases timed and told of.
    pub fn load_in_phases(&self, weights: &Weights, device: &Device, phases: &Phases) -> Result<Executable, RuntimeError> {
        match device {
            Device::Cpu => {
                let target = self.record.targets.iter().find(|target| target.arch == CPU);
                let target = target.ok_or_else(|| self.no_target("the host", CPU))?;
                let record = phases.time("package", || self.plan(target))?;
                record.plan.check().map_err(|source| self.unfit(target, source))?;
                let source = checked_source(&record.plan, weights);
                let backend = phases.time("weights", || CpuExecutable::load(record.plan.clone(), &source, None))?;
                Ok(Executable::new(Box::new(backend)))
            }
            Device::Cuda(ordinal) => {
                let facts = phases.time("device", || DeviceFacts::of(*ordinal))?;
                let (plan, cubins) = phases.time("package", || self.for_device(&facts))?;
                if let Some((module, _)) = plan.modules.iter().zip(&cubins).find(|(_, cubin)| !is_whole_elf(&cubin.image)) {
                    let why = format!("what it holds for the kernels of `{}` is no machine code", module.name);
                    return Err(PackageError::Contents { path: self.package.path().into(), why }.into());
                }
                let source = checked_source(&plan.plan, weights);
                let backend = CudaExecutable::with_kernels(plan.clone(), &cubins, &source, *ordinal, phases)?;
                Ok(Executable::new(Box::new(backend)))
            }
        }
    }

    /// The plan and cubins that run on a device of these facts: those for its architecture, or for the nearest older one it is compatible with.
    pub(super) fn for_device(&self, facts: &DeviceFacts) -> Result<(CudaPlan, Vec<Cubin>), RuntimeError> {
        let mut fitting: Vec<(u32, &TargetRecord)> = self
            .record
            .targets
            .iter()
            .filter_map(|record| {
                Some((Target::named(&record.arch).filter(|target| target.runs_on(facts.capability))?.arch, record))
            })
            .collect();
        fitting.sort_by_key(|&(arch, _)| std::cmp::Reverse(arch));
        for (_, target) in fitting {
            let PlanRecord { plan, scratch, modules, launches } = self.plan(target)?;
            // An older target may use more shared memory than a small device of the same family has (100 KiB on sm_86, 164 KiB on sm_80).
            if launches.iter().any(|launch| launch.shared_bytes > facts.shared_bytes) {
                continue;
            }
            let cubins = modules
                .iter()
                .map(|module| Ok(Cubin { image: self.package.entry(&module.cubin)?.into(), log: "".into() }))
                .collect::<Result<_, PackageError>>()?;
            let modules = modules.into_iter().map(|module| Module { name: module.name, source: String::new() }).collect();
            let plan = CudaPlan { plan, scratch, modules, launches };
            plan.check().map_err(|source| self.unfit(target, source))?;
            return Ok((plan, cubins));
        }
        let device = format!("device {} ({})", facts.ordinal, facts.name);
        Err(self.no_target(&device, &facts.arch()?))
    }

    fn plan(&self, target: &TargetRecord) -> Result<PlanRecord, RuntimeError> {
        let text = self.package.entry(&target.plan)?;
        let syntax =
            |error| PackageError::Contents { path: self.package.path().into(), why: format!("`{}`: {error}", target.plan) };
        Ok(serde_json::from_slice(&text).map_err(syntax)?)
    }

    fn unfit(&self, target: &TargetRecord, source: CheckError) -> RuntimeError {
        let (path, entry) = (self.package.path().into(), target.plan.clone());
        PackageError::Plan { path, entry, source: Box::new(source) }.into()
    }

    fn no_target(&self, device: &str, needs: &str) -> RuntimeError {
        let has = self.targets().map(|(arch, _)| arch).collect::<Vec<_>>().join(", ");
        PackageError::Arch { path: self.package.path().into(), has, device: device.into(), needs: needs.into() }.into()
    }
}

/// True for a 64-bit ELF file with all of its section headers: the driver is told no length, and reads what these say.
fn is_whole_elf(image: &[u8]) -> bool {
    let word = |at: usize| Some(u16::from_le_bytes(*image.get(at..)?.first_chunk()?));
    let headers = || {
        let start = u64::from_le_bytes(*image.get(0x28..)?.first_chunk()?);
        start.checked_add(u64::from(word(0x3a)?) * u64::from(word(0x3c)?))
    };
    image.starts_with(b"\x7fELF\x02") && headers().is_some_and(|end| end <= image.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_told_from_other_things() {
        let mut elf = [0; 200];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[0x28], elf[0x3a], elf[0x3c]) = (136, 64, 1);
        assert!(is_whole_elf(&elf));
        assert!(!is_whole_elf(&elf[..199]) && !is_whole_elf(b"\x7fELF\x02") && !is_whole_elf(b""));
        assert!(!is_whole_elf(&[b'x'; 200]));
    }
}

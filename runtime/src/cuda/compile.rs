//! Sources to cubins: in parallel, each source once per process and, by way of the disk cache, once per machine.

use super::{
    CudaError,
    cache::{self, Cache, Key},
    nvrtc::Nvrtc,
};
use crate::{Phases, package::kernels};
use eglu_codegen::cuda::Module;
use eglu_ir::text::to_hex;
use rayon::prelude::*;
use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A compiled translation unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The machine code, an ELF file.
    pub image: Arc<[u8]>,
    /// What the compiler said of it.
    pub log: Arc<str>,
}

/// What one kernel takes of a multiprocessor, as `ptxas` reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUse {
    /// The kernel's name.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack in local memory.
    pub stack_bytes: u32,
    /// Bytes stored to and loaded from local memory for want of registers.
    pub spill_bytes: u32,
}

/// A source the compiler refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel source `{module}` does not compile for {arch}: {}\nThis is a defect of eglu: please report it with the output of `eglu emit`.",
    excerpt(log, source_text)
)]
pub struct CompileError {
    /// The module's name.
    pub module: String,
    /// For which architecture.
    pub arch: String,
    /// Everything the compiler said.
    pub log: String,
    /// The source, for the line the log names.
    pub source_text: String,
}

/// Compiles each module for `arch` (`sm_80`, `sm_90a`, …), in the order given.
///
/// Results are kept in memory and in the cache folder. No fast-math option is given, so arithmetic is IEEE's.
pub fn compile(modules: &[Module], arch: &str) -> Result<Vec<Cubin>, CudaError> {
    compile_in_phases(modules, arch, &Phases::default())
}

/// What every source is compiled with.
fn options(arch: &str) -> [String; 5] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".into(),
        "-default-device".into(),
        "-lineinfo".into(),
        "--ptxas-options=-v".into(),
    ]
}

/// What tells sources apart, whatever compiles them: SHA-256 of text and options, in hexadecimal.
pub fn source_digest(module: &Module, arch: &str) -> String {
    to_hex(&cache::key(&[&module.source, &options(arch).join(" ")]))
}

/// The compiler and its version, as packages record it.
pub fn compiler() -> Result<String, CudaError> {
    let (major, minor) = Nvrtc::open()?.version();
    Ok(format!("NVRTC {major}.{minor}"))
}

/// [`compile`], timed and told of as the phase `compile`.
pub fn compile_in_phases(modules: &[Module], arch: &str, phases: &Phases) -> Result<Vec<Cubin>, CudaError> {
    let cache = Cache::from_env(&|name| std::env::var_os(name));
    phases.time_noting("compile", || {
        let compiled = AtomicUsize::new(0);
        let told = |done| phases.tell("compile", done, modules.len());
        let cubins = compile_into(modules, arch, &cache, (&told, &compiled));
        (cubins, format!("{} sources, {} of them compiled", modules.len(), compiled.into_inner()))
    })
}

/// [`compile`] with another disk cache; `told` is told how many modules are done, and `compiled` counts those that no cache had.
pub(crate) fn compile_into(
    modules: &[Module],
    arch: &str,
    cache: &Cache,
    (told, compiled): (&(dyn Fn(usize) + Sync), &AtomicUsize),
) -> Result<Vec<Cubin>, CudaError> {
    let env = |name: &str| std::env::var_os(name);
    let built: Vec<Option<Cubin>> = modules.iter().map(|module| kernels::find(arch, || source_digest(module, arch))).collect();
    let built = match cache.compiler(&env).filter(|_| built.iter().any(Option::is_none)) {
        Some(identity) => built
            .into_par_iter()
            .zip(modules)
            .map(|(cubin, module)| cubin.or_else(|| known(&key(module, arch, &identity), cache)))
            .collect(),
        None => built,
    };
    if let Some(cubins) = built.iter().cloned().collect() {
        // Nothing is left to compile, so that no compiler need be there, nor be loaded.
        return Ok(cubins);
    }
    let nvrtc = Nvrtc::open()?;
    let slot = |cubin: Option<Cubin>| cubin.map_or_else(OnceLock::new, |cubin| OnceLock::from(Ok(cubin)));
    let slots: Vec<OnceLock<Result<Cubin, CudaError>>> = built.into_iter().map(slot).collect();
    // Long sources take longest: whoever starts one last keeps the others waiting.
    let mut order: Vec<usize> = (0..modules.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(modules[at].source.len()));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Each slot is taken by one thread only.
            slots[at].get_or_init(|| compile_one(nvrtc, &modules[at], arch, (cache, compiled)));
            told(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(modules.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // The compiler recurses over expressions: give it the stack of a main thread. Without a thread, the others do its share.
            let _ = std::thread::Builder::new().stack_size(8 << 20).spawn_scoped(scope, work);
        }
        work();
    });
    cache.remember(nvrtc, &env);
    cache.tidy();
    slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(|| unreachable!("every module was compiled above"))).collect()
}

type Slot = Arc<OnceLock<Result<Cubin, CudaError>>>;

/// What this process compiled or read.
static MEMORY: LazyLock<Mutex<HashMap<Key, Slot>>> = LazyLock::new(Mutex::default);

fn memory() -> MutexGuard<'static, HashMap<Key, Slot>> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a source is filed under.
fn key(module: &Module, arch: &str, compiler: &str) -> Key {
    cache::key(&[&module.name, &module.source, &options(arch).join(" "), compiler])
}

/// A cubin that is in memory or on disk.
fn known(key: &Key, cache: &Cache) -> Option<Cubin> {
    let slot = memory().get(key).cloned();
    if let Some(Ok(cubin)) = slot.as_ref().and_then(|slot| slot.get()) {
        return Some(cubin.clone());
    }
    let (log, image) = cache.read(key)?;
    let cubin = Cubin { image: image.into(), log: log.into() };
    memory().entry(*key).or_default().get_or_init(|| Ok(cubin.clone()));
    Some(cubin)
}

fn compile_one(
    nvrtc: &Nvrtc,
    module: &Module,
    arch: &str,
    (cache, compiled): (&Cache, &AtomicUsize),
) -> Result<Cubin, CudaError> {
    let key = key(module, arch, nvrtc.identity());
    let slot = memory().entry(key).or_default().clone();
    // Who comes while another compiles the same source waits for that.
    let cubin = slot.get_or_init(|| compile_or_read(nvrtc, module, arch, (cache, &key, compiled))).clone();
    if cubin.is_err() {
        // What failed for want of memory, say, may succeed later.
        memory().remove(&key);
    }
    cubin
}

fn compile_or_read(
    nvrtc: &Nvrtc,
    module: &Module,
    arch: &str,
    (cache, key, compiled): (&Cache, &Key, &AtomicUsize),
) -> Result<Cubin, CudaError> {
    if let Some((log, image)) = cache.read(key) {
        return Ok(Cubin { image: image.into(), log: log.into() });
    }
    compiled.fetch_add(1, Ordering::Relaxed);
    let result = nvrtc.compile(&format!("{}.cu", module.name), &module.source, &options(arch));
    let result = result.map_err(|why| CudaError::Compiler { module: module.name.clone(), arch: arch.into(), why })?;
    match result.cubin {
        Some(image) => {
            cache.write(key, &result.log, &image);
            Ok(Cubin { image: image.into(), log: result.log.into() })
        }
        None => {
            let (module, source_text) = (module.name.clone(), module.source.clone());
            Err(CompileError { module, arch: arch.into(), log: result.log, source_text }.into())
        }
    }
}

impl Cubin {
    /// What its kernels use, from the compiler's log, in the log's order.
    pub fn uses(&self) -> Vec<KernelUse> {
        let mut uses: Vec<KernelUse> = vec![];
        for line in self.log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let entry = rest.split('\'').next().unwrap_or_default().to_string();
                uses.push(KernelUse { entry, ..KernelUse::default() });
                continue;
            }
            let Some(last) = uses.last_mut() else { continue };
            let before = |what: &str| {
                let (head, _) = line.split_once(what)?;
                head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
            };
            last.registers = before(" registers").unwrap_or(last.registers);
            last.stack_bytes = before(" bytes stack frame").unwrap_or(last.stack_bytes);
            let spills = before(" bytes spill stores").unwrap_or(0) + before(" bytes spill loads").unwrap_or(0);
            last.spill_bytes = last.spill_bytes.max(spills);
        }
        uses
    }
}

/// The first error of a log, with the source line it names.
fn excerpt(log: &str, source: &str) -> String {
    let error = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().next()).unwrap_or("no reason given");
    // `name.cu(12): error: …`
    let number = error.split_once('(').and_then(|(_, rest)| rest.split_once(')')?.0.parse::<usize>().ok());
    let line = number.and_then(|n| source.lines().nth(n.checked_sub(1)?));
    match line {
        Some(line) => format!("{error}\n    {}", line.trim()),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kernels_use() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
            ptxas info    : Function properties for first\n    \
            16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 168 registers, used 1 barriers\n\
            ptxas info    : Compiling entry function 'second' for 'sm_90a'\n\
            ptxas info    : Used 10 registers, 400 bytes cmem[0]";
        let cubin = Cubin { image: Arc::new([]), log: log.into() };
        let kernel = |entry: &str, registers, stack_bytes, spill_bytes| KernelUse {
            entry: entry.into(),
            registers,
            stack_bytes,
            spill_bytes,
        };
        assert_eq!(cubin.uses(), [kernel("first", 168, 16, 20), kernel("second", 10, 0, 0)]);
    }

    #[test]
    fn errors_quote_the_line() {
        let text = excerpt("k.cu(2): error: identifier \"y\" is undefined", "int x;\n  x = y;\n");
        assert_eq!(text, "k.cu(2): error: identifier \"y\" is undefined\n    x = y;");
        assert_eq!(excerpt("", ""), "no reason given");
    }
}

//! NVRTC: where it is, and its handful of functions.
//!
//! Own bindings, as cudarc opens libraries by bare name only, and Python's packages keep NVRTC off the loader's path.

use super::{
    CudaError,
    python::{self, Env, children, remove_repeats},
};
use libloading::Library;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

const INSTALL: &str = "`pip install nvidia-cuda-nvrtc` installs it; or set EGLU_NVRTC to the library, or to its folder";

type Program = *mut std::ffi::c_void;

/// The loaded compiler. Any thread may use it at any time.
pub(crate) struct Nvrtc {
    path: PathBuf,
    version: (u32, u32),
    identity: String,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// What became of one source.
pub(crate) struct Compiled {
    /// The cubin, or `None` where the compiler refused the source.
    pub cubin: Option<Vec<u8>>,
    /// What the compiler said: errors, warnings, resources used.
    pub log: String,
}

impl Nvrtc {
    /// This machine's compiler, found at the first call.
    pub(crate) fn open() -> Result<&'static Nvrtc, CudaError> {
        static NVRTC: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
        NVRTC.get_or_init(|| Nvrtc::find(&|name| std::env::var_os(name))).as_ref().map_err(Clone::clone)
    }

    /// The first usable NVRTC. `EGLU_NVRTC`, where set, is the only place looked at: a choice that fails must not be replaced in silence.
    pub(crate) fn find(env: Env<'_>) -> Result<Nvrtc, CudaError> {
        let mut failures = vec![];
        if let Some(chosen) = env("EGLU_NVRTC").filter(|value| !value.is_empty()) {
            let chosen = PathBuf::from(chosen);
            let files = if chosen.is_dir() { libraries_in(&chosen) } else { vec![chosen.clone()] };
            if files.is_empty() {
                failures.push("there is no libnvrtc.so in it".to_string());
            }
            let found = first_usable(files, &mut failures);
            let why = || format!("EGLU_NVRTC is `{}`, but {}", chosen.display(), failures.join("; "));
            return found.ok_or_else(|| CudaError::NoCompiler { why: why(), how: "point it at libnvrtc.so, or unset it".into() });
        }
        let by_name = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from);
        let mut ignored = vec![];
        if let Some(found) = first_usable(by_name.to_vec(), &mut ignored) {
            return Ok(found);
        }
        let mut folders = toolkit_folders(env);
        folders.extend(python::nvidia_folders(env));
        let files = folders.iter().flat_map(|folder| libraries_in(folder)).collect();
        if let Some(found) = first_usable(files, &mut failures) {
            return Ok(found);
        }
        let files = python::ask_python().iter().flat_map(|folder| libraries_in(folder)).collect();
        first_usable(files, &mut failures).ok_or_else(|| {
            let searched = "not on the loader's path, nor in CUDA's usual folders, nor in Python's `nvidia` packages".to_string();
            let why = if failures.is_empty() { searched } else { failures.join("; ") };
            CudaError::NoCompiler { why, how: INSTALL.into() }
        })
    }

    /// Loads one library; the error says what is wrong with it.
    fn load(path: &Path) -> Result<Nvrtc, String> {
        // NVRTC opens its built-ins by bare name, which finds a library that is loaded already.
        let builtins: Vec<PathBuf> = path.parent().map(|folder| children(folder, "libnvrtc-builtins.so")).unwrap_or_default();
        for file in builtins {
            // SAFETY: NVIDIA's built-ins library holds data and has no initialisers of note.
            if let Ok(library) = unsafe { Library::new(&file) } {
                std::mem::forget(library);
            }
        }
        // SAFETY: loading runs the library's initialisers; NVRTC's have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("`{}` does not load: {error}", path.display()))?;
        // SAFETY: the signatures are those of nvrtc.h, the same in every version since 11.1.
        let nvrtc =
            unsafe { Nvrtc::bind(&library, path) }.map_err(|error| format!("`{}` is no NVRTC: {error}", path.display()))?;
        // Never unloaded: `nvrtc` keeps addresses in it.
        std::mem::forget(library);
        if nvrtc.version < (12, 0) {
            let (major, minor) = nvrtc.version;
            return Err(format!("`{}` is version {major}.{minor}, and 12.0 or newer is needed", path.display()));
        }
        Ok(nvrtc)
    }

    unsafe fn bind(library: &Library, path: &Path) -> Result<Nvrtc, libloading::Error> {
        // SAFETY: the caller vouches for the signatures.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = *library.get("nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            let path = loaded_from(path);
            // Releases of one version differ in their fixes, and tell no more of themselves than their size.
            let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            Ok(Nvrtc {
                path,
                version: (major.max(0) as u32, minor.max(0) as u32),
                identity: format!("NVRTC {major}.{minor}, {bytes} bytes"),
                create: *library.get("nvrtcCreateProgram")?,
                compile: *library.get("nvrtcCompileProgram")?,
                log_size: *library.get("nvrtcGetProgramLogSize")?,
                log: *library.get("nvrtcGetProgramLog")?,
                cubin_size: *library.get("nvrtcGetCUBINSize")?,
                cubin: *library.get("nvrtcGetCUBIN")?,
                destroy: *library.get("nvrtcDestroyProgram")?,
                error_string: *library.get("nvrtcGetErrorString")?,
            })
        }
    }

    /// Where it was loaded from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// What tells it from other compilers, whose cubins may differ.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Compiles one self-contained source to a cubin. `Err` says what is wrong with the compiler rather than the source.
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled, String> {
        let text = |s: &str| CString::new(s).map_err(|_| format!("`{s}` holds a NUL character"));
        let (source, name) = (text(source)?, text(name)?);
        // Leaves out what CUDA's runtime and textures would declare: a third of the time that a small source takes to be read.
        let minimal = (self.version >= (13, 0)).then_some("--minimal");
        // Its own cache would answer without `ptxas`, whose notes on registers and spills the log would then lack; ours keeps both.
        let uncached = (self.version >= (12, 9)).then_some("--no-cache");
        let options = options.iter().map(String::as_str).chain(minimal).chain(uncached);
        let options = options.map(text).collect::<Result<Vec<CString>, String>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Guard { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: all pointers outlive the call; no headers are given.
        self.check(unsafe { (self.create)(&mut program.program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) })?;
        // SAFETY: the program is alive, and so are the options.
        let code = unsafe { (self.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        let log = self.text(program.program)?;
        const SOURCE_AT_FAULT: c_int = 6;
        if code == SOURCE_AT_FAULT {
            return Ok(Compiled { cubin: None, log });
        }
        self.check(code).map_err(|error| format!("{error}\n{log}"))?;
        let mut bytes = 0;
        // SAFETY: the program is alive and `bytes` outlives the call.
        self.check(unsafe { (self.cubin_size)(program.program, &mut bytes) })?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the buffer has the size asked for.
        self.check(unsafe { (self.cubin)(program.program, cubin.as_mut_ptr().cast()) })?;
        Ok(Compiled { cubin: Some(cubin), log })
    }

    fn text(&self, program: Program) -> Result<String, String> {
        let mut bytes = 0;
        // SAFETY: the program is alive and `bytes` outlives the call.
        self.check(unsafe { (self.log_size)(program, &mut bytes) })?;
        let mut log = vec![0u8; bytes];
        // SAFETY: the buffer has the size asked for, the final NUL included.
        self.check(unsafe { (self.log)(program, log.as_mut_ptr().cast()) })?;
        Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string())
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC returns a static string for every code, known or not.
        let text = unsafe { (self.error_string)(code) };
        match text.is_null() {
            true => Err(format!("NVRTC error {code}")),
            // SAFETY: not null, so a static NUL-terminated string.
            false => Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()),
        }
    }
}

struct Guard<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by the same library and destroyed once.
            unsafe { (self.nvrtc.destroy)(&mut self.program) };
        }
    }
}

fn first_usable(files: Vec<PathBuf>, failures: &mut Vec<String>) -> Option<Nvrtc> {
    files.iter().find_map(|file| Nvrtc::load(file).map_err(|failure| failures.push(failure)).ok())
}

/// The NVRTC libraries in a folder, later versions first.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    children(folder, "libnvrtc.so")
}

/// Where CUDA's own installers put libraries.
fn toolkit_folders(env: Env<'_>) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].iter().filter_map(|name| env(name)).map(PathBuf::from).collect();
    roots.push("/usr/local/cuda".into());
    roots.extend(children(Path::new("/usr/local"), "cuda-"));
    roots.extend(["/opt/cuda", "/usr/lib/cuda", "/usr"].map(PathBuf::from));
    let places =
        ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];
    let mut folders: Vec<PathBuf> = roots.iter().flat_map(|root| places.map(|place| root.join(place))).collect();
    remove_repeats(&mut folders);
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The file behind a library loaded by bare name, from the process's memory map.
fn loaded_from(path: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_path_buf();
    }
    let name = path.to_string_lossy().into_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file =
        maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).find(|file| file.contains(&format!("/{name}")));
    file.map_or_else(|| path.to_path_buf(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_with(chosen: &Path) -> Result<Nvrtc, CudaError> {
        Nvrtc::find(&|name| (name == "EGLU_NVRTC").then(|| chosen.as_os_str().to_os_string()))
    }

    #[test]
    fn a_wrong_choice_is_an_error_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let rubbish = root.path().join("libnvrtc.so.13");
        std::fs::write(&rubbish, "rubbish").unwrap();
        for chosen in
            [root.path().join("absent"), rubbish, root.path().to_path_buf(), tempfile::tempdir().unwrap().path().to_path_buf()]
        {
            let error = find_with(&chosen).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("EGLU_NVRTC") && error.contains(&*chosen.to_string_lossy()), "{error}");
        }
    }

    #[test]
    fn another_library_is_no_nvrtc() {
        let error = find_with(Path::new("libc.so.6")).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("is no NVRTC"), "{error}");
    }
}

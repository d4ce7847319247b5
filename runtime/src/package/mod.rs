//! Packages: models compiled ahead of time, each one file that loads and runs with no compiler.
//!
//! A package is a zip archive (so `unzip -l` shows what is in it) sealed with a digest of all its bytes:
//!
//! | entry | what |
//! |---|---|
//! | `manifest.json` | version, programs, their signatures, targets and weights |
//! | `plans/N.ARCH.json` | steps, buffers and launches of program N for one architecture; `cpu` is the host |
//! | `cubins/ARCH/N.cubin` | machine code; programs share equal ones |
//! | `weights/N` | contents of a weight, dense, aligned to be mapped; not there where weights are referred to |
//!
//! Equal models, options and compilers give equal bytes. A package is written whole or not at all.

mod draft;
mod error;
pub(crate) mod kernels;
mod load;
mod manifest;
mod read;
mod seal;
mod sink;
#[cfg(test)]
mod tests;

pub use draft::{Draft, Program, Target};
pub use error::PackageError;
pub use manifest::{CPU, VERSION};
pub use read::{Package, ProgramInfo, is_package};

//! Why a package cannot be written, read or run.

use eglu_codegen::CheckError;
use eglu_ir::{archive::ArchiveError, weights::WeightError};
use std::{io, path::PathBuf};

/// What is wrong with a package, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PackageError {
    #[error("the package `{path}` cannot be opened: {source}")]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "`{path}` ends in no seal of an eglu package: its end is missing, or it is another kind of file; copy it again, or make it with `eglu compile`"
    )]
    Unsealed { path: PathBuf },
    #[error(
        "the package `{path}` is damaged ({part}): its contents do not fit the checksum at its end; copy it again, or make it anew with `eglu compile`"
    )]
    Damaged { path: PathBuf, part: String },
    #[error(
        "the package `{path}` is of version {found}{by}, and this eglu reads version {}: compile it again with this eglu, or run it with one that is as new",
        super::VERSION
    )]
    Version { path: PathBuf, found: u64, by: String },
    #[error("the package `{path}` does not hold what its manifest says: {why}; make it anew with `eglu compile`")]
    Contents { path: PathBuf, why: String },
    #[error("the plan `{entry}` of the package `{path}` cannot be run: {source}; make it anew with `eglu compile`")]
    Plan { path: PathBuf, entry: String, source: Box<CheckError> },
    #[error("the package `{path}` has no program `{wanted}`: it has {has}")]
    NoProgram { path: PathBuf, wanted: String, has: String },
    #[error("the package `{path}` has several programs, choose one with --program: {has}")]
    WhichProgram { path: PathBuf, has: String },
    #[error("the package `{path}` has code for {has}, and {device} needs {needs}: compile it with --arch {needs}")]
    Arch { path: PathBuf, has: String, device: String, needs: String },
    #[error(
        "the package `{path}` takes its weights from `{archive}`, which cannot be used: {why}; put that file there again, give weights with --weights FILE.safetensors, or compile without --refer-to-weights"
    )]
    Reference { path: PathBuf, archive: PathBuf, why: String },
    #[error(
        "weights of `{program}` cannot be referred to: `{weight}` {why}; compile without --refer-to-weights, so that they are part of the package"
    )]
    NoReference { program: String, weight: String, why: String },
    #[error("the package `{path}` cannot be written: {source}; check that its folder exists, may be written to and has room")]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Weight(#[from] WeightError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

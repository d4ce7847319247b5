//! Models as the subcommands take them: imported, with the weights they run with.

use crate::failure::Failure;
use eglu_ir::{
    DType, NodeKind, Tensor,
    import::{Imported, import},
    reference::{in_dtype, read_tensors},
    weights::Weights,
};
use eglu_runtime::package::ProgramInfo;
use indexmap::IndexMap;
use std::path::Path;

/// Imports a model. The archive stays mapped as long as its weights live.
pub fn load(path: &Path) -> Result<Imported, Failure> {
    expect_file(path)?;
    import(path).map_err(|cause| Failure::data(format!("cannot import `{}`", path.display())).because(cause))
}

/// Refuses what is no file; files are mapped into memory, which folders and devices cannot be.
fn expect_file(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => Err(Failure::data(format!("`{}` is a folder, not a file", path.display()))),
        Ok(data) if !data.is_file() => Err(Failure::data(format!("`{}` is a device or a pipe, not a file", path.display()))
            .help("copy its contents into a file")),
        _ => Ok(()),
    }
}

/// Adds the tensors of a `.safetensors` file to the model's own weights, by fully qualified name. A file that holds none of them is the wrong one.
pub fn add_weights(imported: &mut Imported, path: &Path) -> Result<(), Failure> {
    expect_file(path)?;
    let more = Weights::from_safetensors(path)
        .map_err(|cause| Failure::data(format!("cannot read the weights in `{}`", path.display())).because(cause))?;
    let mut wanted = imported.graph.node_ids().filter_map(|id| match &imported.graph.node(id).kind {
        NodeKind::Weight(name) => Some(name.clone()),
        _ => None,
    });
    if let Some(first) = wanted.next()
        && !more.contains(&first)
        && !wanted.any(|name| more.contains(&name))
    {
        let what = format!("`{}` holds none of the weights of `{}`", path.display(), imported.graph.name);
        return Err(Failure::data(what).help(format!("name its tensors as the model does, such as `{first}`")));
    }
    imported.weights.extend(more);
    Ok(())
}

/// Refuses a model that lacks weights.
pub fn require_weights(imported: &Imported) -> Result<(), Failure> {
    let missing = imported.weights.missing(&imported.graph);
    let Some(first) = missing.first() else { return Ok(()) };
    let others = if missing.len() > 1 { format!(" and {} more", missing.len() - 1) } else { String::new() };
    let what = format!("`{}` has no contents for the weight `{first}`{others}", imported.graph.name);
    let failure = Failure::data(what);
    // The cause says what to do: not every archive that lacks weights lacks them for the same reason.
    Err(match imported.weights.get(first) {
        Err(cause) => failure.because(cause),
        Ok(_) => failure,
    })
}

/// The weights that a program of a package runs with: its own, and those of a file in place of them or for those it lacks.
pub fn package_weights(program: &ProgramInfo<'_>, more: Option<&Path>) -> Result<Weights, Failure> {
    let file = |path: &Path| {
        Weights::from_safetensors(path)
            .map_err(|cause| Failure::data(format!("cannot read the weights in `{}`", path.display())).because(cause))
    };
    let more = more.map(file).transpose()?.unwrap_or_default();
    // An archive referred to need not be there where the file has everything.
    let mut weights = match program.weight_names().all(|name| more.contains(name)) {
        true => Weights::default(),
        false => program.weights()?,
    };
    weights.extend(more);
    Ok(weights)
}

/// The tensors of a `.safetensors` file.
pub fn tensors(path: &Path) -> Result<IndexMap<String, Tensor>, Failure> {
    expect_file(path)?;
    read_tensors(path).map_err(|cause| Failure::data(format!("cannot read `{}`", path.display())).because(cause))
}

/// The tensors that a file calls `KIND.0`, `KIND.1`, …, in order.
pub fn numbered(path: &Path, kind: &str) -> Result<Vec<Tensor>, Failure> {
    let tensors = tensors(path)?;
    let found: Vec<Tensor> = (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect();
    let stray = tensors.keys().find(|name| {
        let number = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(|number| number.parse().map_or(true, |i: usize| i >= found.len()))
    });
    match stray {
        Some(name) => Err(Failure::data(format!("`{}` holds `{name}` but not `{kind}.{}`", path.display(), found.len()))
            .help(format!("name the tensors `{kind}.0`, `{kind}.1`, … without gaps"))),
        None => Ok(found),
    }
}

/// Tensors with the dtypes that `wanted` says: a complex tensor travels in a file as a trailing axis of 2.
pub fn as_declared(tensors: Vec<Tensor>, wanted: &[DType]) -> Vec<Tensor> {
    let declared = wanted.iter().map(|&dtype| Some(dtype)).chain(std::iter::repeat(None));
    tensors
        .into_iter()
        .zip(declared)
        .map(|(tensor, dtype)| dtype.map_or(tensor.clone(), |dtype| in_dtype(tensor, dtype)))
        .collect()
}

//! From the files of `torch.export` to a [`Graph`]: functional, in the ops of the table, with every type checked against the archive's.

mod alias;
mod aten;
mod autocast;
mod call;
mod error;
mod guards;
mod number;
mod payload;
mod schema;
mod signature;
pub mod single;
mod srepr;
mod strides;
mod translate;

pub use aten::{Operator, operators};
pub use error::{ImportError, UnsupportedTarget};

use crate::{Graph, NodeKind, SymbolRange, archive::Archive, verify::verify, weights::Weights};
use schema::ExportedProgram;
use std::{path::Path, sync::Arc};
use translate::{Scope, Translator};

/// What a file holds.
#[derive(Debug)]
pub struct Imported {
    /// The program.
    pub graph: Graph,
    /// Its weights, as far as the file has them.
    pub weights: Weights,
    /// Weights that are no parameters: buffers, by path. Own JSON does not tell.
    pub buffers: Vec<Arc<str>>,
    /// Where the file is from.
    pub metadata: Metadata,
}

/// Where a file is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The PyTorch that wrote it; empty where the file does not say.
    pub torch_version: String,
    /// The export schema's version, major and minor; zeros for the project's own JSON.
    pub schema: (i64, i64),
}

impl Graph {
    /// Reads a model: its graph, its weights, and where it is from. See [`import`].
    pub fn import(path: impl AsRef<Path>) -> Result<Imported, ImportError> {
        import(path.as_ref())
    }
}

/// Reads a `.pt2` archive, or a graph in the project's own JSON (`.json`, which has no weights). Weights stay in the archive, which
/// is memory-mapped, until they are asked for.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return import_json(path);
    }
    let archive = Arc::new(Archive::open(path)?);
    let program = find_program(&archive)?;
    check_byte_order(&archive, &program.root)?;
    let text = archive.read(&program.entry)?.unwrap_or_default();
    let json = |why: String| ImportError::Json { path: path.into(), entry: program.entry.clone(), why };
    let exported: ExportedProgram = serde_json::from_slice(&text).map_err(|e| json(e.to_string()))?;
    let version = exported.schema_version;
    if !(7..=8).contains(&version.major) {
        return Err(ImportError::Schema { path: path.into(), major: version.major, minor: version.minor });
    }
    let mut weights = payload::read(&archive, &program.root, &program.name)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let graph = translate(&exported, &name, &weights)?;
    explain_absence(&archive, &graph, &mut weights);
    let metadata = Metadata { torch_version: exported.torch_version, schema: (version.major, version.minor) };
    let buffers = signature::buffers(&exported.graph_module.signature);
    Ok(Imported { graph, weights, buffers, metadata })
}

fn import_json(path: &Path) -> Result<Imported, ImportError> {
    let text = std::fs::read_to_string(path).map_err(|source| ImportError::Open { path: path.into(), source })?;
    let graph = crate::json::from_json(&text).map_err(|source| ImportError::OwnJson { path: path.into(), source })?;
    let metadata = Metadata { torch_version: String::new(), schema: (0, 0) };
    Ok(Imported { graph, weights: Weights::default(), buffers: Vec::new(), metadata })
}

/// Where a program is in its archive.
struct ProgramEntry {
    /// The folder that everything is in, with its slash.
    root: String,
    name: String,
    entry: String,
}

/// The archive's one program: `ROOT/models/NAME.json`, or the single JSON of PyTorch before 2.8.
fn find_program(archive: &Archive) -> Result<ProgramEntry, ImportError> {
    let mut found = Vec::new();
    for entry in archive.names() {
        if let Some(root) = entry.strip_suffix("serialized_exported_program.json") {
            found.push(ProgramEntry { root: root.into(), name: "model".into(), entry: entry.into() });
        }
        let Some((folder, file)) = entry.rsplit_once('/') else { continue };
        let root = folder.strip_suffix("models").filter(|root| root.is_empty() || root.ends_with('/'));
        if let (Some(root), Some(name)) = (root, file.strip_suffix(".json")) {
            found.push(ProgramEntry { root: root.into(), name: name.into(), entry: entry.into() });
        }
    }
    let path = archive.path().to_owned();
    match found.len() {
        0 => Err(ImportError::NoProgram { path }),
        1 => Ok(found.remove(0)),
        _ => Err(ImportError::SeveralPrograms { path, names: found.into_iter().map(|program| program.name).collect() }),
    }
}

fn check_byte_order(archive: &Archive, root: &str) -> Result<(), ImportError> {
    match archive.read(&format!("{root}byteorder"))? {
        Some(order) if order.trim_ascii() != b"little" => {
            let order = String::from_utf8_lossy(&order).chars().take(20).collect();
            Err(ImportError::ByteOrder { path: archive.path().into(), order })
        }
        _ => Ok(()),
    }
}

fn translate(exported: &ExportedProgram, name: &str, weights: &Weights) -> Result<Graph, ImportError> {
    let module = &exported.graph_module;
    let mut translator = Translator::new(name);
    for (symbol, range) in &exported.range_constraints {
        // Ranges of derived sizes such as `5*s6` follow from those of their symbols.
        if !symbol.chars().all(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let range = SymbolRange { min: range.min_val.unwrap_or(0), max: range.max_val };
        translator.graph.symbols.insert(symbol.as_str().into(), range);
    }
    guards::narrow(&exported.guards_code, &module.graph, &mut translator.graph.symbols);
    translator.replaced = guards::multiples(&exported.guards_code, &module.graph, &mut translator.graph.symbols);
    let mut scope = Scope::new(&module.graph, "");
    let mutable = signature::inputs(&mut translator, &mut scope, &module.signature, weights)?;
    translator.nodes(&mut scope)?;
    signature::outputs(&mut translator, &scope, &module.signature, mutable)?;
    translator.check_supported()?;
    verify(&translator.graph)?;
    Ok(translator.graph)
}

/// Notes for weights without a config why they are not there.
fn explain_absence(archive: &Archive, graph: &Graph, weights: &mut Weights) {
    let Some(why) = payload::absence(archive) else { return };
    for id in graph.node_ids() {
        if let NodeKind::Weight(path) = &graph.node(id).kind {
            weights.refuse(path, why);
        }
    }
}

#[cfg(test)]
mod tests;

//! The weights and constants of an archive, by their configs: whole storages, of which each tensor is a window.

use super::{
    ImportError,
    schema::{Payload, PayloadConfig, SymInt, TensorMeta},
};
use crate::{
    DType,
    archive::Archive,
    weights::{Placement, Stored, Weights},
};
use std::sync::Arc;

const PICKLED: &str = "the archive keeps it pickled, as PyTorch before 2.9 does: export again with PyTorch 2.9 or later, or give the weights with --weights FILE.safetensors";

/// The weights and constants of the program `program` in `root`, a folder's name with its slash.
pub fn read(archive: &Arc<Archive>, root: &str, program: &str) -> Result<Weights, ImportError> {
    let mut weights = Weights::default();
    for (folder, kind) in [("weights", "weights"), ("constants", "constants")] {
        let config = format!("{root}data/{folder}/{program}_{kind}_config.json");
        let Some(text) = archive.read(&config)? else { continue };
        let json = |why: String| ImportError::Json { path: archive.path().into(), entry: config.clone(), why };
        let config: PayloadConfig = serde_json::from_slice(&text).map_err(|e| json(e.to_string()))?;
        for (name, payload) in &config.config {
            add(&mut weights, archive, &format!("{root}data/{folder}/"), name, payload)?;
        }
    }
    Ok(weights)
}

fn add(weights: &mut Weights, archive: &Arc<Archive>, folder: &str, name: &str, payload: &Payload) -> Result<(), ImportError> {
    if payload.use_pickle {
        weights.refuse(name, PICKLED);
        return Ok(());
    }
    // Script objects stand among the constants without being tensors: whoever reads one is told so by the graph.
    let Some(meta) = &payload.tensor_meta else { return Ok(()) };
    let file = format!("{folder}{}", payload.path_name);
    if archive.entry(&file).is_none() {
        weights.refuse(
            name,
            &format!("its storage `{file}` is not in the archive: give the weights with --weights FILE.safetensors"),
        );
        return Ok(());
    }
    weights.insert_stored(name, Stored::new(archive, name, &file, &placement(name, meta)?)?);
    Ok(())
}

fn placement(name: &str, meta: &TensorMeta) -> Result<Placement, ImportError> {
    let refuse = |what: String| ImportError::Tensor { place: format!("the weight `{name}`"), what };
    let dtype = DType::from_export_code(meta.dtype).ok_or_else(|| refuse(format!("the dtype number {}", meta.dtype)))?;
    if meta.layout.is_some_and(|layout| layout != 7) {
        return Err(refuse("a sparse or packed layout".into()));
    }
    let known = |size: &SymInt| match size {
        SymInt::AsInt(value) => Ok(*value),
        SymInt::AsExpr(expr) => Err(refuse(format!("the dynamic size {}", expr.expr_str))),
    };
    let list = |sizes: &[SymInt]| sizes.iter().map(known).collect::<Result<Vec<i64>, _>>();
    let offset = meta.storage_offset.as_ref().map_or(Ok(0), known)?;
    Ok(Placement { dtype, shape: list(&meta.sizes)?, strides: list(&meta.strides)?, offset })
}

/// Why a weight that no config names cannot be read: pickled state of older PyTorch, or none at all.
pub fn absence(archive: &Archive) -> Option<&'static str> {
    let pickled = |name: &str| name.ends_with(".pt") && !name.contains("sample_inputs") && !name.contains("example_inputs");
    archive.names().any(pickled).then_some(PICKLED)
}

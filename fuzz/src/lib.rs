//! What the fuzz targets share: an archive around a program's JSON, mutations that keep JSON valid, and what must hold of any graph.

pub mod mutate;

use eglu_ir::{Graph, import, json, text, verify};
use std::{
    io::{Cursor, Write},
    path::Path,
    sync::OnceLock,
};
use tempfile::TempDir;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A file of these bytes, imported. Files are in memory where the system has a folder for that.
pub fn import_bytes(bytes: &[u8], name: &str) -> Option<Graph> {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        made.expect("a folder for the archives")
    });
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("room for an archive");
    let imported = import::import(&path).inspect_err(|error| drop(error.to_string())).ok()?;
    // Weights that the archive has are read, so that their windows are tried too.
    for name in imported.weights.names() {
        let _ = imported.weights.get(name).inspect_err(|error| drop(error.to_string()));
    }
    Some(imported.graph)
}

/// An archive whose program is `model`, beside a weight and a constant that programs may read.
pub fn archive(model: &[u8]) -> Vec<u8> {
    let meta = r#"{"dtype":7,"sizes":[{"as_int":2},{"as_int":2}],"strides":[{"as_int":2},{"as_int":1}],"storage_offset":{"as_int":0},"layout":7}"#;
    let config = |name: &str, file: &str| format!(r#"{{"config":{{"{name}":{{"path_name":"{file}","use_pickle":false,"tensor_meta":{meta}}}}}}}"#);
    let (weights, constants) = (config("w", "weight_0"), config("c", "tensor_0"));
    let entries: [(&str, &[u8]); 6] = [
        ("a/byteorder", b"little"),
        ("a/models/model.json", model),
        ("a/data/weights/model_weights_config.json", weights.as_bytes()),
        ("a/data/weights/weight_0", &[0; 16]),
        ("a/data/constants/model_constants_config.json", constants.as_bytes()),
        ("a/data/constants/tensor_0", &[0; 16]),
    ];
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in entries {
        zip.start_file(name, stored).expect("an entry");
        zip.write_all(bytes).expect("an entry in memory");
    }
    zip.finish().expect("an archive in memory").into_inner()
}

/// What must hold of every graph that a reader accepts: it verifies, and both written forms give it back.
pub fn check(graph: &Graph) {
    if let Err(error) = verify::verify(graph) {
        panic!("the graph does not verify: {error}\n{}", text::print(graph));
    }
    let printed = text::print(graph);
    match text::parse(&printed) {
        Ok(again) => assert_eq!(text::print(&again), printed, "the text changes when it is read"),
        Err(error) => panic!("the text is not read: {error}\n{printed}"),
    }
    let written = json::to_json(graph).expect("a graph that verifies is written");
    match json::from_json(&written) {
        Ok(again) => assert_eq!(text::print(&again), printed, "the JSON changes when it is read"),
        Err(error) => panic!("the JSON is not read: {error}\n{printed}"),
    }
}

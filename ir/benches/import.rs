//! Parsing, functionalising and verifying an archive of many layers: a fixture whose nodes repeat, or the file that EGLU_BENCH_ARCHIVE names.

// criterion_group! writes a public function without documentation.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use eglu_ir::import::import;
use serde_json::{Value, json};
use std::{
    io::{Cursor, Read, Write},
    path::{Path, PathBuf},
};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

/// How often the fixture's nodes stand one after another.
const LAYERS: usize = 120;

/// The fixture with its nodes repeated, each layer reading the result of the one before. Weights are left out.
fn deep(fixture: &Path, to: &Path) {
    let bytes = std::fs::read(fixture).expect("the fixture");
    let mut archive = ZipArchive::new(Cursor::new(bytes)).expect("the fixture is an archive");
    let name = archive.file_names().flatten().find(|name| name.contains("/models/")).expect("a program").into_owned();
    let mut text = String::new();
    archive.by_name(&name).expect("the program").read_to_string(&mut text).expect("the program is text");
    let mut program: Value = serde_json::from_str(&text).expect("the program is JSON");
    let graph = &mut program["graph_module"]["graph"];
    let (nodes, values) = (graph["nodes"].as_array().expect("nodes").clone(), graph["tensor_values"].clone());
    let (input, output) = ("x", graph["outputs"][0]["as_tensor"]["name"].as_str().expect("an output").to_owned());
    let defined: Vec<String> = nodes.iter().flat_map(|node| names(&node["outputs"])).collect();
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        let rename = |name: &str| match layer {
            _ if defined.iter().any(|own| own == name) => Some(format!("{name}_l{layer}")),
            1.. if name == input => Some(format!("{output}_l{}", layer - 1)),
            _ => None,
        };
        for node in &nodes {
            let mut node = node.clone();
            renamed(&mut node, &rename);
            all.push(node);
        }
        for name in &defined {
            if let Some(meta) = values.get(name) {
                graph["tensor_values"][format!("{name}_l{layer}")] = meta.clone();
            }
        }
    }
    let last = format!("{output}_l{}", LAYERS - 1);
    graph["nodes"] = all.into();
    graph["outputs"] = json!([{"as_tensor": {"name": last}}]);
    program["graph_module"]["signature"]["output_specs"] = json!([{"user_output": {"arg": {"as_tensor": {"name": last}}}}]);
    let mut zip = ZipWriter::new(std::fs::File::create(to).expect("a file"));
    zip.start_file(name, SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored)).expect("an entry");
    zip.write_all(program.to_string().as_bytes()).expect("the program is written");
    zip.finish().expect("the archive is written");
}

/// All names in a piece of JSON.
fn names(json: &Value) -> Vec<String> {
    match json {
        Value::Array(items) => items.iter().flat_map(names).collect(),
        Value::Object(fields) => match fields.get("name") {
            Some(Value::String(name)) => vec![name.clone()],
            _ => fields.values().flat_map(names).collect(),
        },
        _ => Vec::new(),
    }
}

/// Gives values new names, wherever they are written or read.
fn renamed(json: &mut Value, rename: &dyn Fn(&str) -> Option<String>) {
    match json {
        Value::Array(items) => items.iter_mut().for_each(|item| renamed(item, rename)),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::String(name) if key == "name" || key == "as_name" => {
                        if let Some(new) = rename(name) {
                            *name = new;
                        }
                    }
                    other => renamed(other, rename),
                }
            }
        }
        _ => {}
    }
}

fn bench(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = match std::env::var_os("EGLU_BENCH_ARCHIVE") {
        Some(path) => PathBuf::from(path),
        None => {
            let path = folder.path().join("deep.pt2");
            deep(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/mixtral-grouped_mm.block.pt2"), &path);
            path
        }
    };
    let nodes = import(&path).expect("the archive imports").graph.len();
    c.bench_function(&format!("import {nodes} nodes"), |b| b.iter(|| import(&path)));
}

criterion_group!(benches, bench);
criterion_main!(benches);

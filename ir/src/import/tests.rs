//! Broken and unusual archives, built here; real ones are read in `ir/tests`.

mod found;
mod functional;
mod sparse;

use super::*;
use crate::archive::ArchiveError;
use serde_json::{Value as Json, json};
use std::io::Write;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn tensor_meta(sizes: &[i64]) -> Json {
    let list = |values: Vec<i64>| values.into_iter().map(|v| json!({"as_int": v})).collect::<Vec<_>>();
    let strides = (0..sizes.len()).map(|i| sizes[i + 1..].iter().product()).collect();
    json!({"dtype": 7, "sizes": list(sizes.to_vec()), "strides": list(strides), "storage_offset": {"as_int": 0}, "layout": 7,
           "requires_grad": false, "device": {"type": "cpu", "index": null}})
}

fn tensor(name: &str) -> Json {
    json!({"as_tensor": {"name": name}})
}

fn node(target: &str, inputs: &[(&str, Json)], output: &str) -> Json {
    let inputs: Vec<Json> = inputs.iter().map(|(name, arg)| json!({"name": name, "arg": arg, "kind": 1})).collect();
    json!({"target": format!("torch.ops.{target}"), "inputs": inputs, "outputs": [tensor(output)], "metadata": {}, "name": output})
}

/// `relu(x) + w`, with `x` and `w` of 2 × 3.
fn program() -> Json {
    json!({
        "graph_module": {
            "graph": {
                "inputs": [tensor("w"), tensor("x")],
                "outputs": [tensor("add")],
                "nodes": [
                    node("aten.relu.default", &[("self", tensor("x"))], "relu"),
                    node("aten.add.Tensor", &[("self", tensor("relu")), ("other", tensor("w"))], "add"),
                ],
                "tensor_values": {
                    "w": tensor_meta(&[2, 3]), "x": tensor_meta(&[2, 3]), "relu": tensor_meta(&[2, 3]), "add": tensor_meta(&[2, 3]),
                },
            },
            "signature": {
                "input_specs": [
                    {"parameter": {"arg": {"name": "w"}, "parameter_name": "m.w"}},
                    {"user_input": {"arg": tensor("x")}},
                ],
                "output_specs": [{"user_output": {"arg": tensor("add")}}],
            },
        },
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.15.0",
    })
}

fn config(meta: Json) -> Json {
    json!({"config": {"m.w": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": meta}}})
}

const MODEL: &str = "m/models/model.json";
const CONFIG: &str = "m/data/weights/model_weights_config.json";
const STORAGE: &str = "m/data/weights/weight_0";

fn archive(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn load(bytes: &[u8]) -> Result<Imported, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.pt2");
    std::fs::write(&path, bytes).unwrap();
    import(&path)
}

/// Imports an archive of these entries.
fn load_entries(entries: &[(&str, Vec<u8>)]) -> Result<Imported, ImportError> {
    load(&archive(entries, CompressionMethod::Stored))
}

/// Imports a program without weights, after a change.
fn load_changed(change: impl FnOnce(&mut Json)) -> Result<Imported, ImportError> {
    let mut program = program();
    change(&mut program);
    load_entries(&[(MODEL, program.to_string().into())])
}

fn graph(program: &mut Json) -> &mut Json {
    &mut program["graph_module"]["graph"]
}

fn weight_bytes() -> Vec<u8> {
    (0..6u8).flat_map(|i| f32::from(i).to_le_bytes()).collect()
}

#[test]
fn a_whole_archive_imports_stored_and_deflated() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let entries = [
            (MODEL, program().to_string().into()),
            (CONFIG, config(tensor_meta(&[2, 3])).to_string().into()),
            (STORAGE, weight_bytes()),
        ];
        let imported = load(&archive(&entries, method)).unwrap();
        assert_eq!(imported.metadata, Metadata { torch_version: "2.15.0".into(), schema: (8, 20) });
        assert_eq!(imported.graph.len(), 4);
        assert_eq!(imported.weights.get("m.w").unwrap().as_slice::<f32>(), [0., 1., 2., 3., 4., 5.]);
        assert_eq!(imported.weights.bytes(), 24);
        assert!(imported.weights.missing(&imported.graph).is_empty());
    }
}

#[test]
fn archives_without_weights_import_and_say_what_is_missing() {
    let imported = load_changed(|_| ()).unwrap();
    assert_eq!(imported.weights.missing(&imported.graph), ["m.w".into()]);
    assert!(imported.weights.get("m.w").unwrap_err().to_string().contains("there is no weight `m.w`"));
}

#[test]
fn pickled_weights_are_refused_with_the_way_out() {
    let mut pickled = config(tensor_meta(&[2, 3]));
    pickled["config"]["m.w"]["use_pickle"] = true.into();
    let new = load_entries(&[(MODEL, program().to_string().into()), (CONFIG, pickled.to_string().into()), (STORAGE, vec![1])]);
    let old = load_entries(&[
        ("serialized_exported_program.json", program().to_string().into()),
        ("serialized_state_dict.pt", vec![1]),
    ]);
    for imported in [new.unwrap(), old.unwrap()] {
        let why = imported.weights.get("m.w").unwrap_err().to_string();
        assert!(why.contains("pickled") && why.contains("--weights"), "{why}");
        assert_eq!(imported.weights.missing(&imported.graph), ["m.w".into()]);
    }
}

#[test]
fn a_truncated_zip_is_an_error() {
    let whole = archive(&[(MODEL, program().to_string().into())], CompressionMethod::Stored);
    for len in [0, 1, 30, whole.len() / 2, whole.len() - 30, whole.len() - 1] {
        assert!(
            matches!(load(&whole[..len]), Err(ImportError::Archive(ArchiveError::Zip { .. } | ArchiveError::Open { .. }))),
            "{len} bytes"
        );
    }
}

#[test]
fn damage_anywhere_never_panics() {
    let entries = [
        (MODEL, program().to_string().into()),
        (CONFIG, config(tensor_meta(&[2, 3])).to_string().into()),
        (STORAGE, weight_bytes()),
    ];
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let whole = archive(&entries, method);
        for at in (0..whole.len()).step_by(3) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            if let Ok(imported) = load(&damaged) {
                let _ = imported.weights.get("m.w");
            }
        }
    }
}

#[test]
fn an_archive_without_a_program_or_with_two_is_an_error() {
    let model: Vec<u8> = program().to_string().into();
    assert!(matches!(load_entries(&[("m/version", vec![b'6'])]), Err(ImportError::NoProgram { .. })));
    let two = load_entries(&[("m/models/encode.json", model.clone()), ("m/models/decode.json", model)]);
    assert!(matches!(two, Err(ImportError::SeveralPrograms { names, .. }) if names == ["encode", "decode"]));
}

#[test]
fn json_that_is_none_or_another_is_an_error() {
    let nested = "[".repeat(100_000) + &"]".repeat(100_000);
    for text in ["", "{", "[]", "{\"graph_module\": 3}", &nested] {
        let error = load_entries(&[(MODEL, text.into())]).unwrap_err();
        assert!(matches!(error, ImportError::Json { ref entry, .. } if entry == MODEL), "{error}");
    }
    let error = load_entries(&[(MODEL, program().to_string().into()), (CONFIG, b"{}".into())]).unwrap_err();
    assert!(matches!(error, ImportError::Json { entry, .. } if entry == CONFIG));
}

#[test]
fn nesting_in_arguments_ends_in_an_error() {
    let mut inner = json!({"as_int": 1});
    for _ in 0..60 {
        inner = json!({"as_graph": {"graph": {"inputs": [inner], "outputs": [], "nodes": []}}});
    }
    let error = load_changed(|p| graph(p)["nodes"][0]["inputs"][0]["arg"] = inner).unwrap_err();
    assert!(matches!(error, ImportError::Json { .. }), "{error}");
}

#[test]
fn foreign_versions_and_byte_orders_are_errors() {
    let error = load_changed(|p| p["schema_version"]["major"] = 99.into()).unwrap_err();
    assert!(matches!(error, ImportError::Schema { major: 99, .. }));
    let error = load_entries(&[(MODEL, program().to_string().into()), ("m/byteorder", b"big".into())]).unwrap_err();
    assert!(matches!(error, ImportError::ByteOrder { order, .. } if order == "big"));
}

#[test]
fn a_zip_bomb_is_refused_by_what_its_directory_claims() {
    let mut bytes = archive(&[(MODEL, vec![b' '; 100_000])], CompressionMethod::Deflated);
    // The uncompressed size stands at offset 24 of the central header (APPNOTE 4.3.12).
    let header = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for (claim, large) in [(0xffff_fff0u32, true), (1 << 29, false), (1000, false)] {
        bytes[header + 24..header + 28].copy_from_slice(&claim.to_le_bytes());
        match load(&bytes).unwrap_err() {
            ImportError::Archive(ArchiveError::TooLarge { bytes, .. }) => assert!(large && bytes == u64::from(claim)),
            ImportError::Archive(ArchiveError::Entry { entry, .. }) => assert!(!large && entry == MODEL),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn all_ops_without_counterpart_are_named_at_once() {
    let error = load_changed(|p| {
        graph(p)["nodes"] = json!([
            node("aten.unique.default", &[("self", tensor("x"))], "u"),
            node("aten.cholesky.default", &[("self", tensor("u"))], "b"),
            node("aten.unique.default", &[("self", tensor("x"))], "v"),
            node(
                "aten.dropout.default",
                &[("input", tensor("x")), ("p", json!({"as_float": 0.5})), ("train", json!({"as_bool": true}))],
                "d"
            ),
            node("aten.add.Tensor", &[("self", tensor("b")), ("other", tensor("d"))], "add"),
        ]);
    })
    .unwrap_err();
    let ImportError::Unsupported(targets) = &error else { panic!("{error}") };
    let found: Vec<_> = targets.iter().map(|t| (&*t.target, &*t.node, t.count, t.why.is_some())).collect();
    assert_eq!(
        found,
        [
            ("aten.cholesky.default", "b", 1, false),
            ("aten.dropout.default", "d", 1, true),
            ("aten.unique.default", "u", 2, false)
        ]
    );
    assert!(error.to_string().contains("aten.unique.default (node `u`, 2 times)"), "{error}");
}

#[test]
fn names_are_defined_once_and_before_they_are_read() {
    let error = load_changed(|p| graph(p)["nodes"][1]["inputs"][1]["arg"] = tensor("nobody")).unwrap_err();
    assert!(matches!(error, ImportError::Undefined { ref node, ref name } if &**node == "add" && name == "nobody"));
    // A cycle is a name read before its definition.
    let error = load_changed(|p| graph(p)["nodes"][0]["inputs"][0]["arg"] = tensor("add")).unwrap_err();
    assert!(matches!(error, ImportError::Undefined { ref node, ref name } if &**node == "relu" && name == "add"));
    let error = load_changed(|p| graph(p)["nodes"][1]["outputs"][0] = tensor("relu")).unwrap_err();
    assert!(matches!(error, ImportError::Duplicate { ref name, .. } if name == "relu"));
    let error =
        load_changed(|p| p["graph_module"]["signature"]["output_specs"][0]["user_output"]["arg"] = tensor("gone")).unwrap_err();
    assert!(matches!(error, ImportError::DanglingOutput { ref name } if name == "gone"));
}

#[test]
fn arguments_and_types_are_checked() {
    let error = load_changed(|p| graph(p)["nodes"][0]["inputs"] = json!([])).unwrap_err();
    assert!(error.to_string().contains("node `relu` (aten.relu.default): the argument `self` is missing"), "{error}");
    let error = load_changed(|p| graph(p)["tensor_values"]["relu"] = tensor_meta(&[3, 2])).unwrap_err();
    assert!(matches!(error, ImportError::TypeMismatch { ref output, .. } if output == "relu"), "{error}");
    let error = load_changed(|p| graph(p)["tensor_values"]["w"] = tensor_meta(&[5, 3])).unwrap_err();
    assert!(matches!(error, ImportError::Node { ref node, .. } if &**node == "add"), "{error}");
    let error = load_changed(|p| graph(p)["tensor_values"]["x"]["dtype"] = 77.into()).unwrap_err();
    assert!(matches!(error, ImportError::Tensor { .. }), "{error}");
    let error = load_changed(|p| graph(p)["tensor_values"] = json!({})).unwrap_err();
    assert!(matches!(error, ImportError::Signature(_)), "{error}");
}

#[test]
fn absurd_sizes_are_errors() {
    for sizes in [vec![i64::MAX, i64::MAX], vec![-3, 2], vec![1 << 40, 1 << 40]] {
        let list: Vec<Json> = sizes.iter().map(|d| json!({"as_int": d})).collect();
        let error = load_changed(|p| graph(p)["tensor_values"]["x"]["sizes"] = list.into()).unwrap_err();
        assert!(matches!(error, ImportError::Tensor { .. }), "{error}");
    }
    let error = load_changed(|p| {
        graph(p)["tensor_values"]["x"]["sizes"][0] = json!({"as_expr": {"expr_str": "Log(Symbol('s0'))"}});
    })
    .unwrap_err();
    assert!(matches!(error, ImportError::Expression { ref place, .. } if place == "x"), "{error}");
}

#[test]
fn a_weight_may_not_leave_its_storage() {
    let changes: [(&str, Json); 4] = [
        ("sizes", json!([{"as_int": 3}, {"as_int": 3}])),
        ("strides", json!([{"as_int": 4}, {"as_int": 1}])),
        ("storage_offset", json!({"as_int": 1})),
        ("strides", json!([{"as_int": -3}, {"as_int": 1}])),
    ];
    for (field, value) in changes {
        let mut meta = tensor_meta(&[2, 3]);
        meta[field] = value;
        let entries =
            [(MODEL, program().to_string().into()), (CONFIG, config(meta).to_string().into()), (STORAGE, weight_bytes())];
        let error = load_entries(&entries).unwrap_err().to_string();
        assert!(error.contains("`m.w` leaves its storage") && error.contains("has 24"), "{field}: {error}");
    }
}

#[test]
fn a_window_of_a_storage_is_gathered_dense() {
    let mut meta = tensor_meta(&[2, 2]);
    meta["strides"] = json!([{"as_int": 1}, {"as_int": 2}]);
    meta["storage_offset"] = json!({"as_int": 1});
    let entries = [(MODEL, program().to_string().into()), (CONFIG, config(meta).to_string().into()), (STORAGE, weight_bytes())];
    let imported = load_entries(&entries).unwrap();
    assert_eq!(imported.weights.get("m.w").unwrap().as_slice::<f32>(), [1., 3., 2., 4.]);
}

#[test]
fn a_missing_storage_or_file_is_told_when_asked_for() {
    let imported =
        load_entries(&[(MODEL, program().to_string().into()), (CONFIG, config(tensor_meta(&[2, 3])).to_string().into())]);
    let why = imported.unwrap().weights.get("m.w").unwrap_err().to_string();
    assert!(why.contains(STORAGE), "{why}");
    assert!(matches!(import(Path::new("/nowhere/at/all.pt2")), Err(ImportError::Archive(ArchiveError::Open { .. }))));
}

#[test]
fn mutated_inputs_become_outputs_of_their_own() {
    let imported = load_changed(|p| graph(p)["nodes"][0] = node("aten.relu_.default", &[("self", tensor("x"))], "relu")).unwrap();
    let kinds: Vec<_> = imported.graph.outputs().iter().map(|output| output.kind.clone()).collect();
    assert_eq!(kinds, [crate::OutputKind::User, crate::OutputKind::Mutation("x".into())]);
}

/// PyTorch writes zip64 records behind the directory of archives that would not need them. The directory starts where the end record says,
/// also where a header happens to stand at the place that its size would tell without those records.
#[test]
fn zip64_records_do_not_move_the_directory() {
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/llama.block.pt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let end = whole.windows(4).rposition(|four| four == b"PK\x05\x06").unwrap();
    let short = |at: usize| u16::from_le_bytes([whole[at], whole[at + 1]]);
    let long = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
    let (entries, size, start) = (short(end + 10), long(end + 12) as usize, long(end + 16) as usize);
    let header = |at: usize| 46 + usize::from(short(at + 28)) + usize::from(short(at + 30)) + usize::from(short(at + 32));
    let two = header(start) + header(start + header(start));
    // The record has room for data of its own, which makes both records as long as the first two headers.
    let room = two - 76;
    let mut bytes = whole[..start + size].to_vec();
    let record = bytes.len() as u64;
    bytes.extend(b"PK\x06\x06".iter().copied().chain((44 + room as u64).to_le_bytes()).chain([45, 0, 45, 0]).chain([0; 8]));
    for number in [entries.into(), entries.into(), size as u64, start as u64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(vec![0; room]);
    bytes.extend(b"PK\x06\x07".iter().copied().chain([0; 4]).chain(record.to_le_bytes()).chain(1u32.to_le_bytes()));
    bytes.extend(&whole[end..]);
    let path = folder.path().join("zip64.pt2");
    std::fs::write(&path, bytes).unwrap();
    assert!(import(&path).unwrap().graph.len() > 5);
}

//! Bad models and bad data: exit code 1, a message that says what is wrong, no panic, and no file left behind.

use super::{
    archive::Changed,
    call::{Outcome, eglu, fixture},
};
use std::path::Path;

const MODEL: &str = "models/model.json";
const WEIGHTS: &str = "data/weights/model_weights_config.json";

/// Runs the archive on llama's block inputs with an output file asked for, which must not appear.
#[track_caller]
fn refused(changed: &Changed, parts: &[&str]) -> Outcome {
    let inputs = fixture("llama.block.io.safetensors");
    let outputs = changed.beside("out.safetensors");
    let outcome = eglu([
        "run".as_ref(),
        changed.path.as_os_str(),
        "--inputs".as_ref(),
        inputs.as_ref(),
        "--outputs".as_ref(),
        outputs.as_ref(),
    ]);
    assert_eq!(changed.others(), Vec::<String>::new(), "files were left behind");
    outcome.error(1, parts)
}

#[test]
fn a_file_that_is_not_there() {
    eglu(["inspect", "no/such/model.pt2"]).error(1, &["no/such/model.pt2"]);
}

#[test]
fn a_truncated_zip() {
    let whole = std::fs::read(fixture("llama.block.pt2")).unwrap();
    // Cut behind the sample inputs, which are a zip of their own, the file looks like another archive.
    for len in [0, 10, whole.len() / 2, whole.len() - 2000, whole.len() - 1] {
        refused(&Changed::bytes("model.pt2", &whole[..len]), &["model.pt2", "truncated"]);
    }
}

#[test]
fn an_unknown_extension() {
    eglu(["inspect", &fixture("README.md")]).error(1, &["README.md"]);
}

#[test]
fn no_program_in_the_archive() {
    let changed = Changed::of("llama.block.pt2", |entry, data| (entry != MODEL).then_some(data));
    refused(&changed, &["models"]);
}

#[test]
fn a_program_that_is_not_json() {
    refused(&Changed::json("llama.block.pt2", MODEL, |text| text[..text.len() / 2].to_owned()), &["model.json"]);
    refused(&Changed::json("llama.block.pt2", MODEL, |_| "{\"graph_module\": 3}".to_owned()), &["model.json"]);
}

#[test]
fn unknown_operators_are_all_listed() {
    let changed = Changed::json("llama.block.pt2", MODEL, |text| {
        text.replace("torch.ops.aten.silu.default", "torch.ops.aten.hypothetical.default")
            .replace("torch.ops.aten.mul.Tensor", "torch.ops.mylib.blend.default")
    });
    refused(&changed, &["aten.hypothetical.default", "mylib.blend.default"]);
}

#[test]
fn an_undefined_name() {
    let changed = Changed::json("llama.block.pt2", MODEL, |text| {
        text.replacen(r#"{"as_tensor":{"name":"silu"}},"kind""#, r#"{"as_tensor":{"name":"ghost"}},"kind""#, 1)
    });
    refused(&changed, &["ghost"]);
}

#[test]
fn a_weight_that_leaves_its_storage() {
    for (what, change) in [
        ("size", ["\"sizes\": [{\"as_int\": 96}, {\"as_int\": 64}]", "\"sizes\": [{\"as_int\": 97}, {\"as_int\": 64}]"]),
        ("stride", ["\"strides\": [{\"as_int\": 64}, {\"as_int\": 1}]", "\"strides\": [{\"as_int\": 65}, {\"as_int\": 1}]"]),
        ("offset", ["\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": 1}"]),
    ] {
        let changed = Changed::json("llama.block.pt2", WEIGHTS, |text| text.replacen(change[0], change[1], 1));
        let outcome = refused(&changed, &["weight"]);
        assert!(
            outcome.stderr.contains("m.gate_proj.weight") || outcome.stderr.contains("weight_0"),
            "{what}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn a_weight_shorter_than_declared() {
    let changed = Changed::of("llama.block.pt2", |entry, data| match entry {
        "data/weights/weight_0" => Some(data[..data.len() - 4].to_vec()),
        _ => Some(data),
    });
    refused(&changed, &["weight"]);
}

#[test]
fn a_missing_weight() {
    let dropped = Changed::of("llama.block.pt2", |entry, data| (entry != "data/weights/weight_1").then_some(data));
    refused(&dropped, &["m.up_proj.weight", "weight_1"]);
    // Structure-only archives import, but do not run without weights.
    let structure = fixture("mixtral-mid-grouped_mm.pt2");
    eglu(["inspect", &structure]).success();
    let inputs = fixture("mixtral-grouped_mm.block.io.safetensors");
    eglu(["run", &structure, "--inputs", &inputs]).error(1, &["m.gate.weight", "--weights"]);
    // Tensors by other names than the model's.
    eglu(["run", &structure, "--inputs", &inputs, "--weights", &inputs]).error(1, &["none of the weights", "m.gate.weight"]);
}

#[test]
fn inputs_of_the_wrong_shape_or_dtype() {
    let (model, other) = (fixture("llama.block.pt2"), fixture("llama.lm.io.safetensors"));
    eglu(["run", &model, "--inputs", &other]).error(1, &["f32", "i64"]);
    eglu(["run", &model, "--inputs", &fixture("llama.block.bf16.io.safetensors")]).error(1, &["f32", "bf16"]);
    eglu(["run", &fixture("llama.lm.pt2"), "--inputs", &fixture("llama.dyn.io2.safetensors")]).error(1, &["13"]);
    eglu(["run", &model, "--inputs", &fixture("llama.block.pt2")]).error(1, &["llama.block.pt2"]);
}

#[test]
fn references_of_the_wrong_shape_or_dtype() {
    let (model, inputs) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    eglu(["run", &model, "--inputs", &inputs, "--expect", &fixture("llama.block.bf16.io.safetensors")])
        .error(1, &["f32", "bf16"]);
    eglu(["run", &model, "--inputs", &inputs, "--expect", &fixture("llama.lm.io.safetensors")])
        .error(1, &["[2, 8, 64]", "[2, 8, 128]"]);
}

#[test]
fn results_that_differ() {
    let (model, inputs) = (fixture("mixtral-grouped_mm.block.pt2"), fixture("mixtral-grouped_mm.block.io.safetensors"));
    let outcome =
        eglu(["run", &model, "--inputs", &inputs, "--expect", &fixture("llama.block.io.safetensors")]).error(1, &["differ"]);
    assert!(outcome.stdout.contains("FAIL"), "{outcome:?}");
}

/// The fixture in the project's own JSON, changed as text.
fn own_json(change: impl Fn(String) -> String) -> Changed {
    let changed = Changed::bytes("model.json", b"");
    let path = changed.path.to_string_lossy().into_owned();
    eglu(["optimize", &fixture("llama.block.pt2"), "--passes", "", "-o", &path]).success();
    let before = std::fs::read_to_string(&changed.path).unwrap();
    std::fs::write(&changed.path, change(before)).unwrap();
    changed
}

#[test]
fn own_json_round_trips() {
    let copy = own_json(|text| text);
    let path = copy.path.to_string_lossy().into_owned();
    let own = eglu(["inspect", &path]).success().stdout;
    assert!(own.contains("matmul"), "{own}");
}

/// llama's block in own JSON, its node `silu` changed.
fn silu_changed(change: impl Fn(&mut serde_json::Value)) -> Changed {
    own_json(|text| {
        let mut graph: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut nodes = graph["nodes"].as_array_mut().unwrap().iter_mut();
        change(nodes.find(|node| node["name"] == "silu").unwrap());
        graph.to_string()
    })
}

#[test]
fn own_json_with_an_undefined_name_or_a_cycle() {
    let reading = |name: &'static str| silu_changed(move |silu| silu["operands"][0]["value"][0] = name.into());
    eglu(["inspect".as_ref(), reading("ghost").path.as_os_str()]).error(1, &["silu", "ghost"]);
    // `mul` reads `silu`.
    eglu(["inspect".as_ref(), reading("mul").path.as_os_str()]).error(1, &["cycle"]);
    let unknown = silu_changed(|silu| silu["kind"]["call"] = serde_json::json!({ "hypothetical": {} }));
    eglu(["inspect".as_ref(), unknown.path.as_os_str()]).error(1, &["hypothetical"]);
}

#[test]
fn own_json_cut_short_or_of_another_version() {
    let cut = own_json(|text| text[..text.len() / 2].to_owned());
    eglu(["inspect".as_ref(), cut.path.as_os_str()]).error(1, &["model.json"]);
    let text = own_json(|_| "[]".to_owned());
    eglu(["inspect".as_ref(), text.path.as_os_str()]).error(1, &["model.json"]);
}

#[test]
fn an_output_folder_that_is_not_there() {
    let (model, inputs) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    eglu(["run", &model, "--inputs", &inputs, "--outputs", "/no/such/folder/out.safetensors"])
        .error(1, &["/no/such/folder/out.safetensors"]);
    assert!(!Path::new("/no").exists());
}

//! What a newcomer may try: each is answered with the right exit code and words that help, and nothing panics or is left behind.

use super::{
    archive::Changed,
    call::{eglu, fixture},
};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

fn block() -> String {
    fixture("llama.block.pt2")
}

fn io() -> String {
    fixture("llama.block.io.safetensors")
}

/// A graph in eglu's own form: an input `x` and its sigmoid-weighted self.
fn graph(dtype: &str, shape: &Value, symbols: &Value) -> Value {
    let types = json!([{ "dtype": dtype, "shape": shape }]);
    json!({
        "format": "eglu-graph", "version": 1, "name": "g", "symbols": symbols,
        "nodes": [
            { "name": "x", "kind": "input", "types": types },
            { "name": "y", "kind": { "call": { "pointwise": "silu" } }, "operands": [{ "value": ["x", 0] }], "types": types },
        ],
        "outputs": [{ "value": ["y", 0], "kind": "user" }],
    })
}

fn written(folder: &TempDir, graph: &Value) -> PathBuf {
    let path = folder.path().join("g.json");
    fs::write(&path, graph.to_string()).unwrap();
    path
}

#[test]
fn what_is_no_model_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    fs::create_dir(place("folder.pt2")).unwrap();
    fs::write(place("text.pt2"), "nonsense").unwrap();
    fs::write(place("empty.pt2"), "").unwrap();
    fs::write(place("empty.json"), "").unwrap();
    fs::write(place("object.json"), "{}").unwrap();
    fs::write(place("deep.json"), "[".repeat(200_000)).unwrap();
    for (file, part) in [
        ("folder.pt2", "is a folder"),
        ("text.pt2", "does not begin as a zip file does"),
        ("empty.pt2", "truncated"),
        ("empty.json", "not a graph in JSON"),
        ("object.json", "no field `format`"),
        ("deep.json", "not a graph in JSON"),
        ("missing.pt2", "No such file"),
    ] {
        let outcome = eglu([OsStr::new("inspect"), place(file).as_os_str()]).error(1, &[file, part]);
        let causes: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("cause:")).collect();
        assert!(causes.len() <= 1, "said twice: {causes:?}");
    }
    eglu(["inspect", &io()]).error(1, &["does not begin as a zip file does"]);
    #[cfg(unix)]
    eglu(["inspect", "/dev/null"]).error(1, &["a device or a pipe"]);
}

#[cfg(unix)]
#[test]
fn names_need_not_be_text() {
    use std::os::unix::ffi::OsStringExt;
    let folder = tempfile::tempdir().unwrap();
    let odd = |bytes: &[u8]| folder.path().join(OsString::from_vec(bytes.to_vec()));
    fs::copy(block(), odd(b"n\xff\xfe.pt2")).unwrap();
    fs::copy(block(), odd(b"name with space")).unwrap();
    for name in [&b"n\xff\xfe.pt2"[..], b"name with space"] {
        eglu([OsStr::new("inspect"), odd(name).as_os_str()]).success();
    }
    eglu([OsStr::new("inspect"), odd(b"missing\xff.pt2").as_os_str()]).error(1, &["missing"]);
    let (page, model) = (odd(b"p\xff.html"), odd(b"n\xff\xfe.pt2"));
    eglu([OsStr::new("bench"), model.as_os_str(), "--seconds".as_ref(), "0".as_ref(), "--html".as_ref(), page.as_os_str()])
        .success();
    assert!(page.exists());
}

/// Outputs that cannot be written are found out before the work, in every subcommand.
#[test]
fn outputs_without_a_place_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (model, io) = (block(), io());
    let (inside, itself) = (folder.path().join("no/out.json"), folder.path().to_path_buf());
    let lines: [&[&str]; 8] = [
        &["optimize", &model, "--report"],
        &["optimize", &model, "-o"],
        &["run", &model, "--inputs", &io, "--outputs"],
        &["bench", &model, "--json"],
        &["bench", &model, "--html"],
        &["bench", &model, "--trace"],
        &["compile", &model, "--arch", "cpu", "-o"],
        &["emit", &model, "--arch", "sm_90a", "--sources-only", "-o"],
    ];
    for line in lines {
        let call = |path: &Path| eglu(line.iter().map(OsStr::new).chain([path.as_os_str()]));
        let outcome = call(&inside).error(1, &["there is no folder", "no/out.json"]);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.contains("no/.tmp"), "{outcome:?}");
        if line[0] != "emit" && !line.contains(&"-o") {
            call(&itself).error(1, &["is a folder"]);
        }
    }
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    eglu(["emit", &model, "--arch", "sm_90a", "--sources-only", "-o", file.to_str().unwrap()]).error(2, &["is a file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left behind");
}

/// As root, a rename would put a file in the device's place.
#[cfg(unix)]
#[test]
fn devices_are_written_to_and_stay() {
    let (model, io) = (block(), io());
    eglu(["run", &model, "--inputs", &io, "--outputs", "/dev/null"]).success();
    eglu(["optimize", &model, "--report", "/dev/null"]).success();
    let outcome = eglu(["bench", &model, "--seconds", "0", "--json", "/dev/stdout"]).success();
    assert!(outcome.stdout.contains("\"cold_start\""), "{outcome:?}");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_costs_nothing_but_what_it_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let quiet = |line: &[&OsStr]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_eglu"))
            .args(line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{line:?}");
    };
    let model = block();
    let model = OsStr::new(&model);
    quiet(&["inspect".as_ref(), model, "--format".as_ref(), "json".as_ref()]);
    quiet(&["optimize".as_ref(), model, "--print-after-all".as_ref()]);
    quiet(&["bench".as_ref(), model, "--seconds".as_ref(), "0".as_ref(), "--json".as_ref(), json.as_os_str()]);
    assert!(json.exists(), "the file is written though nobody read the table");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_stdout_is_an_error_and_a_full_stderr_no_panic() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_eglu")).args(["inspect", &block()]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    let status = Command::new(env!("CARGO_BIN_EXE_eglu")).args(["inspect", "missing.pt2"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn numbers_that_make_no_sense_are_bad_usage() {
    let (model, tokens, experts) = (block(), fixture("mixtral-mid-grouped_mm.pt2"), fixture("mixtral-grouped_mm.experts.pt2"));
    for (line, part) in [
        (&["bench", &tokens, "--tokens", "-5"][..], "is -5, but the graph was exported for 1 to 65536"),
        (&["bench", &tokens, "--tokens", "0"], "1 to 65536"),
        (&["bench", &tokens, "--tokens", "99999999999999999999"], "too large"),
        (&["bench", &tokens, "--dim", "s27=4", "--dim", "s27=8"], "set twice"),
        (&["bench", &tokens, "--dim", "s27=4", "--tokens", "8"], "`--dim` sets all"),
        (&["bench", &model, "--dim", "s0"], "NAME=VALUE"),
        (&["bench", &model, "--seconds", "-1"], "from 0 to 3600"),
        (&["bench", &model, "--seconds", "nan"], "from 0 to 3600"),
        (&["bench", &model, "--top", "-3"], "-3"),
        (&["bench", &model, "--seed", "-1"], "-1"),
        (&["bench", &model, "--input", "-1=normal"], "no input's position"),
        (&["bench", &model, "--input", "0=normal", "--input", "0=normal"], "twice"),
        (&["bench", &model, "--input", "0=normal:3"], "describes no contents"),
        (&["bench", &experts, "--input", "1=topk:9999999999"], "experts"),
        (&["bench", &experts, "--input", "1=topk:1"], "only 1 can differ"),
        (&["bench", &experts, "--input", "1=randint:5:2"], "LO must be below HI"),
        (&["bench", &experts, "--input", "0=uniform:1:0"], "LO must be below HI"),
        (&["bench", &experts, "--input", "0=uniform:nan:inf"], "describes no contents"),
        (&["bench", &model, "--routing", "random"], "no routing"),
        (&["bench", &model, "--program", "p"], "package"),
        (&["run", &model, "--inputs", "x", "--device", "cuda:-1"], "cuda:-1"),
        (&["optimize", &model, "--device", ""], "no device profile"),
        (&["optimize", &model, "--explain", ""], "node"),
        (&["optimize", &model, "--print-after-all", "--print-changed"], "cannot be used with"),
        (&["inspect", &model, "--format", "yaml"], "mermaid"),
        (&["inspect", ""], "MODEL"),
        (&["emit", &model], "--arch"),
        (&["doctor", "extra"], "extra"),
    ] {
        eglu(line).error(2, &[part]);
    }
    let outcome = eglu(["run", &model]).error(2, &["takes 1 input, and none is given"]);
    assert!(outcome.stdout.is_empty());
}

#[test]
fn files_of_tensors_that_do_not_fit() {
    let (model, folder) = (block(), tempfile::tempdir().unwrap());
    let file = |header: &Value, bytes: usize| {
        let (path, header) = (folder.path().join("x.safetensors"), header.to_string());
        let head = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&head[..], header.as_bytes(), &vec![0; bytes]].concat()).unwrap();
        path
    };
    let tensor = |dtype: &str, shape: &[usize], from: usize, to: usize| json!({ "dtype": dtype, "shape": shape, "data_offsets": [from, to] });
    let right = || tensor("F32", &[2, 8, 64], 0, 4096);
    for (header, bytes, part) in [
        (json!({ "input.0": tensor("F64", &[2, 8, 64], 0, 8192) }), 8192, "not f64"),
        (json!({ "input.1": tensor("F32", &[2], 0, 8) }), 8, "not `input.0`"),
        (json!({ "x": tensor("F32", &[2], 0, 8) }), 8, "0 given"),
        (json!({}), 0, "0 given"),
        (json!({ "input.0": right(), "input.1": tensor("F32", &[2], 4096, 4104) }), 4104, "2 given"),
        (json!({ "input.0": right() }), 40, "no safetensors file"),
    ] {
        let path = file(&header, bytes);
        eglu(["run".as_ref(), OsStr::new(&model), "--inputs".as_ref(), path.as_os_str()]).error(1, &[part]);
    }
    let path = folder.path().join("x.safetensors");
    fs::write(&path, [&(1u64 << 60).to_le_bytes()[..], b"{}"].concat()).unwrap();
    for option in ["--inputs", "--weights"] {
        let rest = if option == "--weights" { vec!["--inputs".to_owned(), io()] } else { vec![] };
        let line = [OsString::from("run"), model.clone().into(), option.into(), path.clone().into()];
        eglu(line.into_iter().chain(rest.into_iter().map(OsString::from))).error(1, &["no safetensors file"]);
    }
    eglu(["run", &model, "--inputs", folder.path().to_str().unwrap()]).error(1, &["is a folder"]);
}

#[test]
fn graphs_of_every_size() {
    let folder = tempfile::tempdir().unwrap();
    let call = |path: &Path, command: &str, more: &[&str]| {
        eglu([OsStr::new(command), path.as_os_str()].into_iter().chain(more.iter().map(OsStr::new)))
    };
    let page = folder.path().join("page.html");
    let bench = ["--seconds", "0", "--html", page.to_str().unwrap()];
    // Nothing at all, an input alone, an input returned, and no elements.
    let mut nothing = graph("f32", &json!([2]), &json!({}));
    nothing["nodes"] = json!([]);
    nothing["outputs"] = json!([]);
    let mut returned = graph("f32", &json!([2]), &json!({}));
    returned["nodes"].as_array_mut().unwrap().pop();
    returned["outputs"][0]["value"][0] = "x".into();
    for small in [nothing, returned, graph("f32", &json!([0, 4]), &json!({}))] {
        let path = written(&folder, &small);
        call(&path, "inspect", &[]).success();
        call(&path, "optimize", &["--certify", "--device", "h200"]).success();
        call(&path, "bench", &bench).success();
    }
    // More than any machine holds.
    for shape in [json!([1i64 << 40, 1i64 << 20]), json!([1i64 << 62, 1i64 << 62])] {
        let path = written(&folder, &graph("f32", &shape, &json!({})));
        call(&path, "inspect", &[]).success();
        call(&path, "optimize", &["--certify"]).error(1, &["fit in memory"]);
        call(&path, "bench", &bench).error(1, &["fit in memory"]);
    }
    let open = written(&folder, &graph("f32", &json!(["s0"]), &json!({ "s0": { "min": 1, "max": null } })));
    for tokens in ["9223372036854775807", "1000000000000000"] {
        call(&open, "bench", &["--tokens", tokens]).error(1, &["--tokens"]);
    }
    // What no graph may be.
    for (bad, part) in [
        (graph("f32", &json!([-2]), &json!({})), "cannot be negative"),
        (graph("f99", &json!([2]), &json!({})), "f99"),
        (graph("i64", &json!([2]), &json!({})), "records i64[2]"),
        (graph("f32", &json!(["s0"]), &json!({})), "does not declare"),
        (graph("f32", &json!(["s0*"]), &json!({})), "expected an extent"),
        (graph("f32", &json!(["s0"]), &json!({ "s0": { "min": 4, "max": 2 } })), "no value between"),
    ] {
        call(&written(&folder, &bad), "inspect", &[]).error(1, &["g.json", part]);
    }
}

#[test]
fn operators_without_a_counterpart_are_listed_by_inspect_too() {
    let changed = Changed::json("llama.block.pt2", "models/model.json", |text| {
        text.replace("torch.ops.aten.silu.default", "torch.ops.aten.hypothetical.default")
    });
    let outcome = eglu([OsStr::new("inspect"), changed.path.as_os_str()]).error(1, &["aten.hypothetical.default", "node `silu`"]);
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
}

#[test]
fn doctor_runs_a_small_model() {
    let text = eglu(["doctor"]).success().stdout;
    for part in ["cpu: correct", "cold start", "probe of driver", "passes", "first run"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(!eglu(["doctor", "--no-run"]).success().stdout.contains("self-test"));
}

#[test]
fn packages_are_measured_without_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let package = place("p.eglu");
    eglu(["compile", &block(), "--arch", "cpu", "-o", &package]).success();
    eglu(["bench", &package, "--html", &place("page.html")]).error(2, &["no graph", "--trace"]);
    eglu(["bench", &package, "--seconds", "0", "--json", &place("p.json"), "--trace", &place("p.trace")]).success();
    let read = |name: &str| -> Value { serde_json::from_str(&fs::read_to_string(place(name)).unwrap()).unwrap() };
    let (result, trace) = (read("p.json"), read("p.trace"));
    let phases: Vec<&str> =
        result["cold_start"].as_array().unwrap().iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["open", "package", "weights", "first run"]);
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["cat"] == "kernel"), "{trace}");
}

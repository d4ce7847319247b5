//! Every fixture with reference tensors, fused and unfused, against PyTorch's results.

use super::{
    archive::Changed,
    call::{eglu, fixture},
};
use eglu::{Tensor, import::import, reference::write_tensors};
use std::path::Path;

/// Each archive with the names of its reference files.
fn references() -> Vec<(String, Vec<String>)> {
    let mut names: Vec<String> =
        std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let stems = names.iter().filter_map(|name| name.strip_suffix(".pt2"));
    let references =
        |stem: &str| names.iter().filter(|name| name.starts_with(&format!("{stem}.io"))).cloned().collect::<Vec<_>>();
    stems.map(|stem| (format!("{stem}.pt2"), references(stem))).filter(|(_, references)| !references.is_empty()).collect()
}

#[track_caller]
fn matches_pytorch(extra: &[&str]) {
    let all = references();
    assert!(all.len() >= 12 && all.iter().any(|(_, references)| references.len() == 2), "{all:?}");
    let mut failures = Vec::new();
    for (model, references) in &all {
        for reference in references {
            let io = fixture(reference);
            let model = fixture(model);
            let outcome = eglu(["run", &model, "--inputs", &io, "--expect", &io].iter().chain(extra));
            if outcome.code != 0 || !outcome.stdout.contains("PASS") {
                failures.push(format!("{reference}: exit {} {}{}", outcome.code, outcome.stdout, outcome.stderr));
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn fused_results_are_pytorchs() {
    matches_pytorch(&[]);
}

#[test]
fn unfused_results_are_pytorchs() {
    matches_pytorch(&["--no-fuse"]);
}

#[test]
fn results_are_written_and_can_be_compared() {
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let out = out.to_str().unwrap();
    eglu(["run", &model, "--inputs", &io, "--outputs", out]).success();
    eglu(["run", &model, "--inputs", &io, "--expect", out]).success();
}

#[test]
fn memory_is_shown_as_it_is_used() {
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    let peak = |extra: &[&str]| {
        let text = eglu(["run", &model, "--inputs", &io, "--memory"].iter().chain(extra)).success().stdout;
        let mut numbers = text
            .lines()
            .next()
            .unwrap_or_default()
            .split(' ')
            .filter_map(|word| word.trim_start_matches('(').parse::<u64>().ok());
        let (peak, sum) = (numbers.next().unwrap(), numbers.next().unwrap());
        assert!(peak <= sum && text.contains("output.0") && text.contains("linear_2"), "{text}");
        peak
    };
    assert!(peak(&[]) < peak(&["--no-fuse"]), "fused values need no place");
}

/// What the file holds takes the place of the model's own; what it lacks stays in use.
#[test]
fn weights_come_from_another_file() {
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    let weights = import(Path::new(&model)).unwrap().weights;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let file = path.to_str().unwrap();
    let run = || eglu(["run", &model, "--inputs", &io, "--expect", &io, "--weights", file]);
    for name in weights.names() {
        let own = weights.get(name).unwrap();
        write_tensors(&path, [(&**name, &own)]).unwrap();
        run().success();
        write_tensors(&path, [(&**name, &Tensor::zeros(own.dtype(), own.shape()).unwrap())]).unwrap();
        run().error(1, &["differ"]);
    }
}

#[test]
fn a_file_without_any_of_the_weights_is_refused() {
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    eglu(["run", &model, "--inputs", &io, "--expect", &io, "--weights", &io]).error(1, &["holds none of the weights"]);
}

/// Archives of PyTorch 2.5 to 2.8 pickle their weights: the newer of them entry by entry, the older all in one file. What is pickled is
/// not read; the graph is, and runs with the weights from a file beside it.
#[test]
fn pickled_weights_come_from_another_file() {
    let name = "llama.block.pt2";
    let io = fixture("llama.block.io.safetensors");
    let newer = Changed::json(name, "data/weights/model_weights_config.json", |text| {
        text.replace("\"use_pickle\": false", "\"use_pickle\": true")
    });
    let older = Changed::only(
        name,
        &[("models/model.json", "serialized_exported_program.json")],
        &[("serialized_state_dict.pt", b"\x80\x02}q\x00.")],
    );
    let weights = import(Path::new(&fixture(name))).unwrap().weights;
    let names: Vec<String> = weights.names().map(|name| name.to_string()).collect();
    let tensors: Vec<Tensor> = names.iter().map(|name| weights.get(name).unwrap()).collect();
    for archive in [newer, older] {
        let model = archive.path.to_str().unwrap();
        let file = archive.beside("weights.safetensors");
        write_tensors(&file, names.iter().map(String::as_str).zip(&tensors)).unwrap();
        let summary = eglu(["inspect", model]).success().stdout;
        assert!(summary.contains("none of which the file holds"), "{summary}");
        eglu(["run", model, "--inputs", &io, "--expect", &io]).error(1, &["pickled", "--weights"]);
        eglu(["run", model, "--inputs", &io, "--expect", &io, "--weights", file.to_str().unwrap()]).success();
    }
}

#[test]
fn a_missing_driver_is_the_environments_fault() {
    use eglu::runtime::cuda::probe;
    if probe().usable() {
        return;
    }
    let (model, io) = (fixture("llama.block.pt2"), fixture("llama.block.io.safetensors"));
    eglu(["run", &model, "--inputs", &io, "--device", "cuda"]).error(3, &["CUDA"]);
}

//! The public bug reports of `fixtures/reports`: each archive computes what PyTorch computes, or is refused with a reason; and a test of
//! the repository stands for the whole kind of fault.

use eglu::{
    Device, DeviceProfile, Executable, Options, Pipeline,
    compare::compare,
    import::import,
    lower,
    reference::{in_dtype, read_tensors},
};
use eglu_tests::{fixture, inputs};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    /// The reports, as `owner/repository#number`.
    origin: String,
    /// What is easily got wrong.
    look: String,
    io: Vec<String>,
    /// Tests that rule the kind of fault out: a file and a function.
    stands: Vec<String>,
    /// What the refusal says, where the archive or its inputs must be refused.
    error: Option<Vec<String>>,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read(fixture("reports/cases.json")).expect("the cases");
    serde_json::from_slice(&text).expect("the cases are JSON")
}

/// Runs a case's archive on one file of inputs; what is wrong with the results.
fn run(case: &Case, io: Option<&String>, pipeline: &Pipeline) -> Result<Vec<String>, String> {
    let imported = import(&fixture(&format!("reports/{}.pt2", case.name))).map_err(|e| e.to_string())?;
    let profile = DeviceProfile::named("h200").expect("a built-in device");
    let optimized = pipeline.run_with(imported.graph, &Options::new(profile.clone())).map_err(|e| e.to_string())?;
    let plan = lower(&optimized.graph).map_err(|e| e.to_string())?;
    let executable = Executable::load(plan, &imported.weights, &Device::Cpu).map_err(|e| e.to_string())?;
    let Some(io) = io else { return Ok(Vec::new()) };
    let tensors = read_tensors(&fixture(&format!("reports/{io}"))).map_err(|e| e.to_string())?;
    let types = optimized.graph.inputs().iter().map(|&id| optimized.graph.ty(id.into()).dtype);
    let given: Vec<_> = inputs(&tensors).into_iter().zip(types).map(|(tensor, dtype)| in_dtype(tensor, dtype)).collect();
    let outputs = executable.run(&given).map_err(|e| e.to_string())?;
    let mut wrong = Vec::new();
    for (i, got) in outputs.iter().enumerate() {
        let Some(want) = tensors.get(&format!("output.{i}")) else { continue };
        let difference = compare(&format!("output.{i}"), got, &in_dtype(want.clone(), got.dtype())).map_err(|e| e.to_string())?;
        if !difference.within {
            wrong.push(format!("{} ({io}): output.{i} differs by {:.1e}; {}", case.name, difference.relative, case.look));
        }
    }
    assert!(case.error.is_some() || tensors.contains_key("output.0"), "{io} has no results");
    Ok(wrong)
}

fn check(pipeline: &Pipeline) {
    let mut wrong = Vec::new();
    for case in cases() {
        let files: Vec<Option<&String>> = if case.io.is_empty() { vec![None] } else { case.io.iter().map(Some).collect() };
        for io in files {
            match (run(&case, io, pipeline), &case.error) {
                (Ok(found), None) => wrong.extend(found),
                (Ok(_), Some(_)) => wrong.push(format!("{} is not refused; {}", case.name, case.look)),
                (Err(why), None) => wrong.push(format!("{}: {why}", case.name)),
                (Err(why), Some(says)) => {
                    wrong.extend(
                        says.iter()
                            .filter(|part| !why.contains(*part))
                            .map(|part| format!("{}: no `{part}` in: {why}", case.name)),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn fused_graphs_compute_what_pytorch_computes() {
    check(&Pipeline::standard());
}

#[test]
fn unfused_graphs_compute_what_pytorch_computes() {
    check(&Pipeline::unfused());
}

#[test]
fn a_test_stands_for_every_kind_of_fault() {
    let cases = cases();
    assert_eq!(cases.len(), 39);
    for case in cases {
        assert!(case.origin.contains('#') && !case.stands.is_empty(), "{case:?}");
        for test in &case.stands {
            let (file, function) = test.split_once(' ').unwrap_or_else(|| panic!("{test}"));
            let source = std::fs::read_to_string(fixture("..").join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            let start = source.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("{file} has no test `{function}`"));
            assert!(source[..start].contains("test"), "{test}");
        }
    }
}

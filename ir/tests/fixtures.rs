//! PyTorch's results on exported models, against the reference evaluator.

use eglu_ir::{
    DType, OutputKind, Tensor,
    eval::{EvalOperand, eval_graph, eval_op},
    import::import,
    json::{from_json, to_json},
    ops::Cast,
    reference::{in_dtype, read_tensors},
    text::{parse, print},
    verify::verify,
};
use std::path::{Path, PathBuf};

/// The archives of a folder and, for each, the files of tensors beside it.
fn archives(folder: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let files = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let beside = |archive: &Path| {
        let stem = archive.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let of_it = |file: &&PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            [".io.safetensors", ".io2.safetensors"].iter().any(|end| name == format!("{stem}{end}"))
        };
        files.iter().filter(of_it).cloned().collect()
    };
    let archives = files.iter().filter(|file| file.extension().is_some_and(|e| e == "pt2"));
    archives.map(|archive| (archive.clone(), beside(archive))).collect()
}

/// Elements as f64; the parts of complex ones follow each other, and one that is NaN makes both so: PyTorch's devices differ in which.
fn as_f64(tensor: &Tensor) -> Vec<f64> {
    if tensor.dtype().is_complex() {
        let cast = eval_op(&Cast { dtype: DType::C128 }.into(), &[EvalOperand::Tensor(tensor)], &Default::default());
        let cast = cast.unwrap_or_else(|e| panic!("{e}")).remove(0);
        let nan = |[re, im]: &[f64; 2]| re.is_nan() || im.is_nan();
        return cast.as_slice().iter().flat_map(|pair| if nan(pair) { [f64::NAN; 2] } else { *pair }).collect();
    }
    let cast = eval_op(&Cast { dtype: DType::F64 }.into(), &[EvalOperand::Tensor(tensor)], &Default::default());
    cast.unwrap_or_else(|e| panic!("{e}"))[0].as_slice().to_vec()
}

/// ‖got − want‖ / ‖want‖; equal infinities are equal, and NaN equals NaN.
fn relative_error(got: &Tensor, want: &Tensor) -> f64 {
    let (got, want) = (as_f64(got), as_f64(want));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan();
    let difference = norm(&mut got.iter().zip(&want).map(|(&x, &y)| if same(x, y) { 0.0 } else { x - y }));
    let reference = norm(&mut want.iter().copied().filter(|y| y.is_finite()));
    if difference == 0.0 { 0.0 } else { difference / reference }
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => 1e-12,
        DType::F32 | DType::C64 => 1e-5,
        DType::F16 => 2e-3,
        DType::Bf16 => 2e-2,
        _ => 0.0,
    }
}

/// What is wrong with the archive's results; nothing if all is well.
fn disagreements(archive: &Path, tensors: &[PathBuf]) -> Vec<String> {
    let imported = match import(archive) {
        Ok(imported) => imported,
        Err(e) => return vec![format!("import: {e}")],
    };
    let graph = imported.graph;
    if let Err(e) = verify(&graph) {
        return vec![format!("verify: {e}")];
    }
    let mut wrong = Vec::new();
    let text = print(&graph);
    match parse(&text) {
        Ok(again) if print(&again) == text => {}
        Ok(_) => wrong.push("the text does not round-trip".to_string()),
        Err(e) => wrong.push(format!("text: {e}")),
    }
    let json = to_json(&graph).unwrap_or_else(|e| panic!("{e}"));
    match from_json(&json).and_then(|graph| to_json(&graph)) {
        Ok(again) if again == json => {}
        Ok(_) => wrong.push("the JSON does not round-trip".to_string()),
        Err(e) => wrong.push(format!("JSON: {e}")),
    }
    for file in tensors {
        let io = read_tensors(file).unwrap_or_else(|e| panic!("{e}"));
        let named = |name: String, dtype: DType| io.get(&name).cloned().map(|tensor| in_dtype(tensor, dtype));
        let inputs = graph.inputs().iter().enumerate();
        let inputs: Option<Vec<Tensor>> =
            inputs.map(|(i, &id)| named(format!("input.{i}"), graph.node(id).outputs[0].dtype)).collect();
        let Some(inputs) = inputs else {
            wrong.push(format!("{} lacks an input", file.display()));
            continue;
        };
        let outputs = match eval_graph(&graph, &|path| imported.weights.get(path).ok(), &inputs) {
            Ok(outputs) => outputs,
            Err(e) => {
                wrong.push(format!("{e}"));
                continue;
            }
        };
        let of_user = graph.outputs().iter().zip(&outputs).filter(|(o, _)| !matches!(o.kind, OutputKind::Mutation(_)));
        for (i, (_, got)) in of_user.enumerate() {
            let Some(want) = named(format!("output.{i}"), got.dtype()) else {
                wrong.push(format!("{} lacks output.{i}", file.display()));
                continue;
            };
            if got.shape() != want.shape() || got.dtype() != want.dtype() {
                wrong.push(format!("output {i} is {got:?}, PyTorch's {want:?}"));
                continue;
            }
            let error = relative_error(got, &want);
            // Not `>`: an error that is NaN must not pass.
            if error.is_nan() || error > tolerance(got.dtype()) {
                wrong.push(format!("output {i} ({got:?}) differs by {error:.2e}"));
            }
        }
    }
    wrong
}

#[test]
fn agrees_with_pytorch() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let folders = match std::env::var_os("EGLU_ARCHIVES") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => vec![fixtures.join("regions"), fixtures],
    };
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (archive, tensors) in folders.iter().flat_map(|folder| archives(folder)) {
        compared += tensors.len();
        for why in disagreements(&archive, &tensors) {
            wrong.push(format!("{}: {why}", archive.file_name().unwrap_or_default().to_string_lossy()));
        }
    }
    assert!(wrong.is_empty(), "{compared} files of results, {} disagreements:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 10, "only {compared} files of results in {folders:?}");
}

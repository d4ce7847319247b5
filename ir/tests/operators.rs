//! Single operators against PyTorch's own results (`fixtures/operators.jsonl`, by `fixtures/generate/export_operators.py`): import by the table
//! that archives go through, evaluation, every result's dtype, shape and elements.

use eglu_ir::{
    DType, Tensor,
    eval::{EvalOperand, eval_graph, eval_op},
    import::{
        ImportError,
        single::{Argument, call},
    },
    ops::Cast,
    verify::verify,
};
use serde_json::Value as Json;

/// Least number of cases that must compare: fewer means that the fixture or the reader broke.
const CASES: usize = 1000;

fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let bits =
            group.iter().fold(0u32, |bits, letter| bits << 6 | LETTERS.iter().position(|l| l == letter).unwrap_or(0) as u32);
        let padding = group.iter().filter(|&&letter| letter == b'=').count();
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    bytes
}

fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap_or_else(|| panic!("no dtype `{name}`"))
}

fn tensor(json: &Json) -> Tensor {
    let shape: Vec<usize> = json["shape"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect();
    Tensor::from_bytes(dtype(json["dtype"].as_str().unwrap()), &shape, &decode(json["b64"].as_str().unwrap())).unwrap()
}

fn argument(json: &Json) -> Argument {
    let Some((kind, value)) = json.as_object().and_then(|object| object.iter().next()) else { return Argument::None };
    let list = || value.as_array().unwrap().iter();
    let float = |x: &Json| x.as_str().unwrap().parse().unwrap();
    match kind.as_str() {
        "t" => Argument::Input(value.as_u64().unwrap() as usize),
        "b" => Argument::Bool(value.as_bool().unwrap()),
        "i" => Argument::Int(value.as_i64().unwrap()),
        "f" => Argument::Float(float(value)),
        "s" => Argument::Text(value.as_str().unwrap().into()),
        "d" => Argument::DType(dtype(value.as_str().unwrap())),
        "is" => Argument::Ints(list().map(|x| x.as_i64().unwrap()).collect()),
        "bs" => Argument::Bools(list().map(|x| x.as_bool().unwrap()).collect()),
        "fs" => Argument::Floats(list().map(float).collect()),
        "ts" => Argument::OptionalInputs(list().map(|x| x.as_u64().map(|x| x as usize)).collect()),
        other => panic!("no argument of kind `{other}`"),
    }
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    let dtype = if tensor.dtype().is_complex() { DType::C128 } else { DType::F64 };
    let wide = eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(tensor)], &Default::default()).unwrap().remove(0);
    wide.bytes().chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// How the results differ; halves may differ by a rounding more or less.
fn difference(got: &Tensor, want: &Tensor) -> Option<String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Some(format!("{} instead of {}", got.ty(), want.ty()));
    }
    let tolerance = match want.dtype() {
        DType::F64 | DType::C128 => 1e-11,
        DType::F32 | DType::C64 => 3e-5,
        DType::F16 => 3e-3,
        DType::Bf16 => 2e-2,
        _ => 0.0,
    };
    let (got, want) = (elements(got), elements(want));
    let scale = want.iter().filter(|x| x.is_finite()).fold(0.0f64, |scale, x| scale.max(x.abs()));
    let near =
        |(&x, &y): (&f64, &f64)| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * y.abs().max(0.1 * scale);
    (!got.iter().zip(&want).all(near)).then(|| format!("{got:?} instead of {want:?}"))
}

#[test]
fn operators_give_what_pytorch_gives() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/operators.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in text.lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        let target = case["target"].as_str().unwrap();
        let inputs: Vec<Tensor> = case["inputs"].as_array().unwrap().iter().map(tensor).collect();
        let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
        let arguments: Vec<(&str, Argument)> =
            case["args"].as_object().unwrap().iter().map(|(name, json)| (name.as_str(), argument(json))).collect();
        let mut fail = |why: String| wrong.push(format!("{target} {types:?} {}: {why}", case["args"]));
        let graph = match call(target, &types, &arguments) {
            Ok(graph) => graph,
            // What has no counterpart is said at import, and is no wrong result.
            Err(ImportError::Unsupported(_)) => continue,
            Err(error) => {
                fail(error.to_string());
                continue;
            }
        };
        let results = verify(&graph)
            .map_err(|e| e.to_string())
            .and_then(|()| eval_graph(&graph, &|_| None, &inputs).map_err(|e| e.to_string()));
        compared += 1;
        match results {
            Err(why) => fail(why),
            Ok(results) => {
                for (i, want) in case["outputs"].as_array().unwrap().iter().enumerate().filter(|(_, want)| !want.is_null()) {
                    match results.get(i).map(|got| difference(got, &tensor(want))) {
                        Some(None) => {}
                        Some(Some(why)) => fail(format!("result {i} is {why}")),
                        None => fail(format!("there is no result {i}")),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= CASES, "only {compared} cases");
}

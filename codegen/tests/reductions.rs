//! `docs/reductions.md` says which reductions have kernels for which dtypes; `UPDATE_EXPECT=1 cargo test -p eglu-codegen --test reductions`
//! writes it anew.

use eglu_codegen::{
    cuda::{Target, emit},
    lower,
};
use eglu_ir::{
    DType, TensorType,
    import::single::{Argument, call},
};
use std::{collections::BTreeMap, fmt::Write};

/// PyTorch's function, the operator it dispatches to, the name of its input, and whether a dim, dims, a normalized shape or a tensor of class
/// numbers follow.
const OPS: [(&str, &str, &str, &str); 24] = [
    ("sum", "aten.sum.dim_IntList", "self", "dims"),
    ("mean", "aten.mean.dim", "self", "dims"),
    ("prod", "aten.prod.dim_int", "self", "dim"),
    ("amax", "aten.amax.default", "self", "dims"),
    ("amin", "aten.amin.default", "self", "dims"),
    ("max", "aten.max.dim", "self", "dim"),
    ("min", "aten.min.dim", "self", "dim"),
    ("aminmax", "aten.aminmax.default", "self", "dim"),
    ("argmax", "aten.argmax.default", "self", "dim"),
    ("argmin", "aten.argmin.default", "self", "dim"),
    ("any", "aten.any.dim", "self", "dim"),
    ("all", "aten.all.dim", "self", "dim"),
    ("nansum", "aten.nansum.default", "self", "dims"),
    ("count_nonzero", "aten.count_nonzero.dim_IntList", "self", "dims"),
    ("var", "aten.var.correction", "self", "dims"),
    ("std", "aten.std.correction", "self", "dims"),
    ("var_mean", "aten.var_mean.correction", "self", "dims"),
    ("vector_norm", "aten.linalg_vector_norm.default", "self", "dims"),
    ("logsumexp", "aten.logsumexp.default", "self", "dims"),
    ("softmax", "aten.softmax.int", "self", "dim"),
    ("log_softmax", "aten.log_softmax.int", "self", "dim"),
    ("rms_norm", "aten.rms_norm.default", "input", "normalized_shape"),
    ("layer_norm", "aten.layer_norm.default", "input", "normalized_shape"),
    ("cross_entropy", "aten.cross_entropy_loss.default", "self", "target"),
];

const DTYPES: [DType; 19] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::F8E4M3Fn,
    DType::F8E5M2,
    DType::F8E4M3FnUz,
    DType::F8E5M2FnUz,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::C64,
    DType::C128,
];

/// Why there is no kernel for an op of a dtype, on either architecture.
fn refusal(target: &str, input: &str, over: &str, dtype: DType) -> Option<String> {
    let mut arguments = vec![(input, Argument::Input(0))];
    arguments.push(match over {
        "dim" => ("dim", Argument::Int(1)),
        "dims" => ("dim", Argument::Ints(vec![1])),
        "target" => ("target", Argument::Input(1)),
        _ => (over, Argument::Ints(vec![6])),
    });
    let mut inputs = vec![TensorType::fixed(dtype, &[4, 6])];
    if over == "target" {
        inputs.push(TensorType::fixed(DType::I64, &[4]));
    }
    let graph = match call(target, &inputs, &arguments) {
        Ok(graph) => graph,
        Err(error) => return Some(error.to_string()),
    };
    let plan = lower(&graph).unwrap_or_else(|error| panic!("{target} of {dtype}: {error}"));
    [80, 90].into_iter().find_map(|arch| emit(&plan, Target { arch }).err()).map(|error| error.to_string())
}

fn document() -> String {
    let mut text = String::from(
        "# Reductions\n\nWritten by `UPDATE_EXPECT=1 cargo test -p eglu-codegen --test reductions`; do not edit.\n\n\
         Kernels of sm_80 and sm_90a for each function and dtype, over any dims; a number names the reason why there is none.\n\n| |",
    );
    DTYPES.iter().for_each(|dtype| text += &format!(" {dtype} |"));
    text += "\n|---|";
    text += &":-:|".repeat(DTYPES.len());
    text += "\n";
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut listed = Vec::new();
    for (name, target, input, over) in OPS {
        let _ = write!(text, "| `{name}` |");
        for dtype in DTYPES {
            let cell = match refusal(target, input, over, dtype) {
                None => "native".into(),
                Some(why) => {
                    let why = why.replace(dtype.name(), "the dtype");
                    let next = reasons.len() + 1;
                    let number = *reasons.entry(why.clone()).or_insert(next);
                    if number == next {
                        listed.push(why);
                    }
                    number.to_string()
                }
            };
            let _ = write!(text, " {cell} |");
        }
        text += "\n";
    }
    text += "\n";
    for (i, why) in listed.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", i + 1, why.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    text
}

#[test]
fn the_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reductions.md");
    let text = document();
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reductions.md is out of date: run UPDATE_EXPECT=1 cargo test -p eglu-codegen --test reductions"
    );
}

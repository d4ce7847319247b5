//! The common reductions as programs of their own, for a package that is compiled once and serves every size.
//!
//! Each program is called `FUNCTION.LAYOUT.DTYPE`, as `sum.inner.bf16`:
//!
//! | layout | input | reduced |
//! |---|---|---|
//! | `inner` | `[rows, columns]` | columns |
//! | `outer` | `[rows, columns]` | rows |
//! | `middle` | `[planes, rows, columns]` | rows |
//! | `full` | `[rows, columns]` | everything |
//!
//! `rms_norm` and `layer_norm` are without weights; `cross_entropy` takes `i64` class numbers `[rows]` besides, and is the mean over rows.

use eglu_ir::{
    DType, Dim, Graph, SymbolRange, TensorType,
    import::{
        ImportError,
        single::{Argument, call},
    },
};

/// The dtypes that [`programs`] is usually asked for.
pub const DTYPES: [DType; 8] = [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::I8, DType::I32, DType::I64, DType::Bool];

/// How a function of PyTorch's takes what it reduces.
#[derive(Clone, Copy)]
enum Over {
    /// `dim: int[]`; an empty list is everything.
    Dims,
    /// `dim: int`; for everything there is another overload.
    Dim { full: Option<&'static str> },
    /// `normalized_shape: int[]`: the last dim.
    Shape,
    /// `target: Tensor`: a class number for each row.
    Target,
}

/// Each function with the operator that it dispatches to.
const FUNCTIONS: [(&str, &str, Over); 24] = [
    ("sum", "aten.sum.dim_IntList", Over::Dims),
    ("mean", "aten.mean.dim", Over::Dims),
    ("prod", "aten.prod.dim_int", Over::Dim { full: Some("aten.prod.default") }),
    ("amax", "aten.amax.default", Over::Dims),
    ("amin", "aten.amin.default", Over::Dims),
    ("max", "aten.max.dim", Over::Dim { full: Some("aten.max.default") }),
    ("min", "aten.min.dim", Over::Dim { full: Some("aten.min.default") }),
    ("aminmax", "aten.aminmax.default", Over::Dim { full: Some("aten.aminmax.default") }),
    ("argmax", "aten.argmax.default", Over::Dim { full: Some("aten.argmax.default") }),
    ("argmin", "aten.argmin.default", Over::Dim { full: Some("aten.argmin.default") }),
    ("any", "aten.any.dim", Over::Dim { full: Some("aten.any.default") }),
    ("all", "aten.all.dim", Over::Dim { full: Some("aten.all.default") }),
    ("nansum", "aten.nansum.default", Over::Dims),
    ("count_nonzero", "aten.count_nonzero.dim_IntList", Over::Dims),
    ("var", "aten.var.correction", Over::Dims),
    ("std", "aten.std.correction", Over::Dims),
    ("var_mean", "aten.var_mean.correction", Over::Dims),
    ("vector_norm", "aten.linalg_vector_norm.default", Over::Dims),
    ("logsumexp", "aten.logsumexp.default", Over::Dims),
    ("softmax", "aten.softmax.int", Over::Dim { full: None }),
    ("log_softmax", "aten.log_softmax.int", Over::Dim { full: None }),
    ("rms_norm", "aten.rms_norm.default", Over::Shape),
    ("layer_norm", "aten.layer_norm.default", Over::Shape),
    ("cross_entropy", "aten.cross_entropy_loss.default", Over::Target),
];

/// Layouts with the rank of the input and the dim reduced, if it is one.
const LAYOUTS: [(&str, usize, Option<i64>); 4] =
    [("inner", 2, Some(1)), ("outer", 2, Some(0)), ("middle", 3, Some(1)), ("full", 2, None)];

/// A graph for each function, layout and dtype that PyTorch has; their extents are all dynamic.
pub fn programs(dtypes: &[DType]) -> Vec<Graph> {
    let mut programs = vec![];
    for (function, target, over) in FUNCTIONS {
        for (layout, rank, dim) in LAYOUTS {
            for &dtype in dtypes {
                // PyTorch refuses some: the mean of integers, the position of the largest truth value. GPUs have no exp of complex numbers.
                let exponential = function == "logsumexp" && dtype.is_complex();
                if !exponential && let Some(Ok(mut graph)) = program((target, over), (rank, dim), dtype) {
                    graph.name = format!("{function}.{layout}.{dtype}");
                    programs.push(graph);
                }
            }
        }
    }
    programs
}

/// The graph of one call; `None` where a function has no such form.
fn program((target, over): (&str, Over), (rank, dim): (usize, Option<i64>), dtype: DType) -> Option<Result<Graph, ImportError>> {
    let inner = (rank, dim) == (2, Some(1));
    let (target, input, argument) = match (over, dim) {
        (Over::Dims, _) => (target, "self", Some(("dim", Argument::Ints(Vec::from_iter(dim))))),
        (Over::Dim { .. }, Some(dim)) => (target, "self", Some(("dim", Argument::Int(dim)))),
        (Over::Dim { full }, None) => (full?, "self", None),
        // How many dims are normalised is all that counts: their extents are the input's.
        (Over::Shape, _) if inner => (target, "input", Some(("normalized_shape", Argument::Ints(vec![-1])))),
        (Over::Target, _) if inner => (target, "self", Some(("target", Argument::Input(1)))),
        (Over::Shape | Over::Target, _) => return None,
    };
    let mut arguments = vec![(input, Argument::Input(0))];
    arguments.extend(argument);
    let names = &["planes", "rows", "columns"][3 - rank..];
    let extents = |names: &[&str]| names.iter().map(|name| Dim::symbol(name)).collect::<Vec<_>>();
    let mut inputs = vec![TensorType::new(dtype, extents(names))];
    if let Over::Target = over {
        inputs.push(TensorType::new(DType::I64, extents(&names[..1])));
    }
    Some(call(target, &inputs, &arguments).map(|mut graph| {
        graph.symbols = names.iter().map(|&name| (name.into(), SymbolRange { min: 0, max: None })).collect();
        graph
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_ir::verify::verify;

    #[test]
    fn every_function_has_every_layout_that_makes_sense() {
        let programs = programs(&[DType::F32]);
        for (function, _, over) in FUNCTIONS {
            for (layout, _, dim) in LAYOUTS {
                let name = format!("{function}.{layout}.f32");
                let wanted = match over {
                    Over::Dims | Over::Dim { full: Some(_) } => true,
                    Over::Dim { full: None } => dim.is_some(),
                    Over::Shape | Over::Target => layout == "inner",
                };
                assert_eq!(programs.iter().filter(|graph| graph.name == name).count(), usize::from(wanted), "{name}");
            }
        }
        for graph in &programs {
            verify(graph).unwrap_or_else(|error| panic!("{}: {error}", graph.name));
        }
    }

    #[test]
    fn what_pytorch_refuses_is_left_out() {
        let names: Vec<String> = programs(&DTYPES).into_iter().map(|graph| graph.name).collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        assert!(has("mean.inner.bf16") && !has("mean.inner.i32"));
        assert!(has("any.full.bool") && !has("argmax.full.bool"));
        assert!(has("rms_norm.inner.bf16") && !has("layer_norm.inner.i64") && has("cross_entropy.inner.f16"));
    }
}

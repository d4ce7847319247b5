//! Inputs for benchmarks: sizes, and contents by a short description.

mod bounds;
mod random;
mod spec;

pub use bounds::{Bound, bounds, defaults};
pub use random::{generate, generate_within};
pub use spec::{Routing, Spec, SpecError};

use eglu_codegen::Plan;
use eglu_ir::{Bindings, dim::DimError, tensor::TensorError};
use std::sync::Arc;

/// Why no inputs can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum InputError {
    #[error("`--tokens` sets the one dynamic dim, but `{model}` has none: it was exported with fixed sizes")]
    Fixed { model: String },
    #[error("`--tokens` sets the one dynamic dim, but `{model}` has several ({dims}): set each with `--dim NAME=VALUE`")]
    Several { model: String, dims: String },
    #[error("`--tokens` sets the dim that `--dim` leaves open, but `--dim` sets all of `{model}`'s: {dims}")]
    AllSet { model: String, dims: String },
    #[error("the dim `{name}` is set twice")]
    Twice { name: String },
    #[error("`{model}` has no dim `{name}`; its dynamic dims: {dims}")]
    Unknown { model: String, name: String, dims: String },
    #[error("the dim `{name}` is {value}, but the graph was exported for {range}")]
    Range { name: Arc<str>, value: i64, range: String },
    #[error("there is no input {index}: `{model}` has {count}, numbered from 0")]
    Index { model: String, index: usize, count: usize },
    #[error("input {index} (`{name}`) is {ty}: `{spec}` does not fit it: {why}")]
    Misfit { index: usize, name: Arc<str>, ty: String, spec: Spec, why: String },
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// What a dynamic dim is where nobody says: enough rows to fill a matrix product's blocks.
const DEFAULT_EXTENT: i64 = 256;

/// Values for the plan's symbols: `tokens` for the one dynamic dim, `dims` by name, the rest a default within its range.
pub fn sizes(plan: &Plan, tokens: Option<i64>, dims: &[(String, i64)]) -> Result<Bindings, InputError> {
    let model = || plan.name.clone();
    let names = || match plan.symbols.len() {
        0 => "none".to_string(),
        _ => plan.symbols.keys().map(|name| &**name).collect::<Vec<_>>().join(", "),
    };
    let mut bindings = Bindings::new();
    for (name, value) in dims {
        if !plan.symbols.contains_key(name.as_str()) {
            return Err(InputError::Unknown { model: model(), name: name.clone(), dims: names() });
        }
        if bindings.insert(name.as_str().into(), *value).is_some() {
            return Err(InputError::Twice { name: name.clone() });
        }
    }
    if let Some(tokens) = tokens {
        let mut open = plan.symbols.keys().filter(|name| !bindings.contains_key(&**name));
        match (open.next(), open.next()) {
            (None, _) if plan.symbols.is_empty() => return Err(InputError::Fixed { model: model() }),
            (None, _) => return Err(InputError::AllSet { model: model(), dims: names() }),
            (Some(_), Some(_)) => return Err(InputError::Several { model: model(), dims: names() }),
            (Some(name), None) => bindings.insert(name.clone(), tokens),
        };
    }
    let mut ordered = Bindings::new();
    for (name, range) in &plan.symbols {
        let default = DEFAULT_EXTENT.min(range.max.unwrap_or(i64::MAX)).max(range.min);
        let value = bindings.get(name).copied().unwrap_or(default);
        if value < range.min || range.max.is_some_and(|max| value > max) {
            let range = match range.max {
                Some(max) => format!("{} to {max}", range.min),
                None => format!("{} or more", range.min),
            };
            return Err(InputError::Range { name: name.clone(), value, range });
        }
        ordered.insert(name.clone(), value);
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_codegen::lower;
    use eglu_ir::{DType, Dim, Graph, SymbolRange, TensorType};

    fn plan(symbols: &[&str]) -> Plan {
        let mut graph = Graph::new("model");
        graph.add_input("x", TensorType::new(DType::F32, symbols.iter().map(|s| Dim::symbol(s))));
        for &symbol in symbols {
            graph.symbols.insert(symbol.into(), SymbolRange { min: 2, max: Some(100) });
        }
        lower(&graph).expect("lowers")
    }

    #[test]
    fn tokens_need_one_open_dim() {
        let error = |symbols: &[&str], tokens, dims: &[(String, i64)]| {
            sizes(&plan(symbols), tokens, dims).expect_err("no sizes").to_string()
        };
        assert!(error(&[], Some(5), &[]).contains("fixed sizes"));
        assert!(error(&["batch", "tokens"], Some(5), &[]).contains("several (batch, tokens)"));
        assert!(error(&["tokens"], Some(5), &[("tokens".into(), 5)]).contains("sets all"));
        assert!(error(&["tokens"], None, &[("tokens".into(), 5), ("tokens".into(), 6)]).contains("twice"));
        assert!(error(&["tokens"], Some(1), &[]).contains("2 to 100"));
        assert!(error(&["tokens"], None, &[("rows".into(), 3)]).contains("no dim `rows`"));
        let both = sizes(&plan(&["batch", "tokens"]), Some(7), &[("batch".into(), 3)]).expect("sizes");
        assert_eq!(both, Bindings::from([("batch".into(), 3), ("tokens".into(), 7)]));
        assert_eq!(sizes(&plan(&["s"]), None, &[]).expect("sizes")["s"], 100);
    }
}

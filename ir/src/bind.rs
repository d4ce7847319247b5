//! From the tensors of one run to the values of the graph's symbols.

use crate::{Bindings, DType, Dim, SymbolRange, Tensor, TensorType, dim::Factor};
use indexmap::IndexMap;
use std::sync::Arc;

/// Why tensors are no inputs of a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum BindError {
    #[error("the graph takes {want} inputs ({names}), {got} given")]
    Count { want: usize, names: String, got: usize },
    #[error("input `{input}` must be {want}, not {got}")]
    Type { input: Arc<str>, want: Box<TensorType>, got: Box<TensorType> },
    #[error("input `{input}` must be {want}, not {got}: dim {dim} is `{extent}`, here {value}")]
    Extent { input: Arc<str>, want: Box<TensorType>, got: Box<TensorType>, dim: usize, extent: Dim, value: i64 },
    #[error("input `{input}`: dim {dim} makes `{symbol}` {value}, but the graph was exported for {range}")]
    Range { input: Arc<str>, dim: usize, symbol: Arc<str>, value: i64, range: String },
    #[error("input `{input}`: dim {dim} (`{extent}`) is {got}, but the other inputs make it {want}")]
    Disagree { input: Arc<str>, dim: usize, extent: Dim, want: i64, got: i64 },
    #[error("input `{input}`: dim {dim} is `{extent}`, which has no value: {why}")]
    Unbound { input: Arc<str>, dim: usize, extent: Dim, why: String },
}

/// The values of the symbols for these input tensors; checks number, dtypes, ranks, every extent and the symbols' ranges.
pub fn bind(
    symbols: &IndexMap<Arc<str>, SymbolRange>,
    inputs: &[(Arc<str>, TensorType)],
    tensors: &[Tensor],
) -> Result<Bindings, BindError> {
    bind_types(symbols, inputs, &tensors.iter().map(|tensor| (tensor.dtype(), tensor.shape())).collect::<Vec<_>>())
}

/// [`bind`] for tensors of which only dtypes and shapes are at hand.
pub fn bind_types(
    symbols: &IndexMap<Arc<str>, SymbolRange>,
    inputs: &[(Arc<str>, TensorType)],
    given: &[(DType, &[usize])],
) -> Result<Bindings, BindError> {
    if inputs.len() != given.len() {
        let names = inputs.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
        return Err(BindError::Count { want: inputs.len(), names, got: given.len() });
    }
    let mut bindings = Bindings::new();
    for ((input, want), &(dtype, shape)) in inputs.iter().zip(given) {
        let got = || Box::new(TensorType::new(dtype, shape.iter().map(|&extent| (extent as i64).into())));
        if dtype != want.dtype || shape.len() != want.rank() {
            return Err(BindError::Type { input: input.clone(), want: Box::new(want.clone()), got: got() });
        }
        for (dim, (extent, &value)) in want.shape.iter().zip(shape).enumerate() {
            let value = value as i64;
            let mismatch = || BindError::Extent {
                input: input.clone(),
                want: Box::new(want.clone()),
                got: got(),
                dim,
                extent: extent.clone(),
                value,
            };
            if let Some(constant) = extent.as_const() {
                if constant != value {
                    return Err(mismatch());
                }
            } else if let Some((symbol, scale, offset)) = linear(extent)
                && !bindings.contains_key(&symbol)
            {
                let solved = value.checked_sub(offset).filter(|rest| rest % scale == 0).map(|rest| rest / scale);
                let solved = solved.ok_or_else(mismatch)?;
                check_range(symbols, input, dim, &symbol, solved)?;
                bindings.insert(symbol, solved);
            }
        }
    }
    check_extents(inputs, given, &bindings)?;
    Ok(bindings)
}

/// The symbol, coefficient and constant of `coefficient · symbol + constant`.
fn linear(dim: &Dim) -> Option<(Arc<str>, i64, i64)> {
    let (mut found, mut offset) = (None, 0);
    for (coefficient, factors) in dim.terms() {
        match factors.as_slice() {
            [] => offset = coefficient,
            [(Factor::Symbol(name), 1)] if found.is_none() => found = Some((name.clone(), coefficient)),
            _ => return None,
        }
    }
    found.map(|(name, scale)| (name, scale, offset))
}

fn check_range(
    symbols: &IndexMap<Arc<str>, SymbolRange>,
    input: &Arc<str>,
    dim: usize,
    symbol: &Arc<str>,
    value: i64,
) -> Result<(), BindError> {
    let Some(range) = symbols.get(symbol) else { return Ok(()) };
    if value >= range.min && range.max.is_none_or(|max| value <= max) {
        return Ok(());
    }
    let range = match range.max {
        Some(max) => format!("{}..={max}", range.min),
        None => format!("at least {}", range.min),
    };
    Err(BindError::Range { input: input.clone(), dim, symbol: symbol.clone(), value, range })
}

/// Checks every symbolic extent once all symbols have values.
fn check_extents(inputs: &[(Arc<str>, TensorType)], given: &[(DType, &[usize])], bindings: &Bindings) -> Result<(), BindError> {
    for ((input, ty), (_, shape)) in inputs.iter().zip(given) {
        for (dim, (extent, &got)) in ty.shape.iter().zip(*shape).enumerate() {
            let got = got as i64;
            match extent.eval(bindings) {
                Ok(want) if want == got => {}
                Ok(want) => {
                    return Err(BindError::Disagree { input: input.clone(), dim, extent: extent.clone(), want, got });
                }
                Err(e) => {
                    let why = e.to_string();
                    return Err(BindError::Unbound { input: input.clone(), dim, extent: extent.clone(), why });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols() -> IndexMap<Arc<str>, SymbolRange> {
        IndexMap::from([("s0".into(), SymbolRange { min: 2, max: Some(8) })])
    }

    fn signature() -> Vec<(Arc<str>, TensorType)> {
        let s = Dim::symbol("s0");
        vec![
            ("x".into(), TensorType::new(DType::F32, [s.clone() * Dim::from(2) + Dim::from(1), Dim::from(3)])),
            ("y".into(), TensorType::new(DType::I64, [s])),
        ]
    }

    fn run(x: &[usize], y: &[usize]) -> Result<Bindings, BindError> {
        let tensors = [Tensor::zeros(DType::F32, x).expect("small"), Tensor::zeros(DType::I64, y).expect("small")];
        bind(&symbols(), &signature(), &tensors)
    }

    #[test]
    fn solves_linear_extents() {
        assert_eq!(run(&[9, 3], &[4]), Ok(Bindings::from([("s0".into(), 4)])));
    }

    #[test]
    fn says_what_is_wrong() {
        let message = |x: &[usize], y: &[usize]| run(x, y).expect_err("must be refused").to_string();
        assert!(message(&[9, 4], &[4]).contains("input `x` must be f32[2*s0+1, 3], not f32[9, 4]"));
        assert!(message(&[8, 3], &[4]).contains("dim 0 is `2*s0+1`, here 8"));
        assert!(message(&[9, 3], &[5]).contains("input `y`: dim 0 (`s0`) is 5, but the other inputs make it 4"));
        assert!(message(&[21, 3], &[10]).contains("makes `s0` 10, but the graph was exported for 2..=8"));
        assert!(message(&[9, 3], &[4, 1]).contains("input `y` must be i64[s0]"));
        let few = bind(&symbols(), &signature(), &[]).expect_err("must be refused").to_string();
        assert_eq!(few, "the graph takes 2 inputs (x, y), 0 given");
    }
}

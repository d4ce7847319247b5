//! The values of symbolic dims for one measurement.

use eglu_ir::{Bindings, SymbolRange};
use indexmap::IndexMap;
use std::sync::Arc;

/// What a dim is where neither the user nor its range says otherwise.
const DEFAULT: i64 = 64;

/// Why dims cannot have the values asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SizeError {
    #[error("the model has no dim called `{name}`; {known}")]
    Unknown { name: String, known: String },
    #[error("`{text}` sets no dim: give NAME=VALUE")]
    Text { text: String },
    #[error("--tokens sets the one dynamic dim, but {known}")]
    Tokens { known: String },
    #[error("the dim `{name}` is to be {value}, but its range is {min} to {max}")]
    Range { name: Arc<str>, value: i64, min: i64, max: String },
}

/// A value for every symbol: as given by `NAME=VALUE` texts or by `tokens`, else 64 or what is nearest to it in range.
pub fn sizes(symbols: &IndexMap<Arc<str>, SymbolRange>, given: &[String], tokens: Option<i64>) -> Result<Bindings, SizeError> {
    let mut bindings: Bindings = symbols.iter().map(|(name, range)| (name.clone(), default(range))).collect();
    let mut set = |name: &str, value: i64| {
        let (name, range) =
            symbols.get_key_value(name).ok_or_else(|| SizeError::Unknown { name: name.into(), known: known(symbols) })?;
        if value < range.min || range.max.is_some_and(|max| value > max) {
            let max = range.max.map_or("any".into(), |max| max.to_string());
            return Err(SizeError::Range { name: name.clone(), value, min: range.min, max });
        }
        bindings.insert(name.clone(), value);
        Ok(())
    };
    if let Some(tokens) = tokens {
        match symbols.first() {
            Some((name, _)) if symbols.len() == 1 => set(name, tokens)?,
            _ => return Err(SizeError::Tokens { known: known(symbols) }),
        }
    }
    for text in given {
        let (name, value) = text.split_once('=').ok_or_else(|| SizeError::Text { text: text.clone() })?;
        set(name, value.parse().map_err(|_| SizeError::Text { text: text.clone() })?)?;
    }
    Ok(bindings)
}

fn default(range: &SymbolRange) -> i64 {
    DEFAULT.min(range.max.unwrap_or(i64::MAX)).max(range.min)
}

fn known(symbols: &IndexMap<Arc<str>, SymbolRange>) -> String {
    let names: Vec<&str> = symbols.keys().map(|name| &**name).collect();
    match names[..] {
        [] => "it has no dynamic dims".into(),
        [name] => format!("its dynamic dim is {name}"),
        _ => format!("its dynamic dims are {}: set them with --dim NAME=VALUE", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(names: &[&str]) -> IndexMap<Arc<str>, SymbolRange> {
        names.iter().map(|&name| (name.into(), SymbolRange { min: 2, max: Some(100) })).collect()
    }

    #[test]
    fn tokens_set_the_one_dim() {
        assert_eq!(sizes(&symbols(&["s0"]), &[], Some(7)), Ok(Bindings::from([("s0".into(), 7)])));
        assert!(
            matches!(sizes(&symbols(&["s0", "s1"]), &[], Some(7)), Err(SizeError::Tokens { known }) if known.contains("s0, s1"))
        );
        assert!(sizes(&symbols(&[]), &[], Some(7)).is_err());
    }

    #[test]
    fn values_stay_in_range() {
        assert_eq!(sizes(&symbols(&["s0"]), &[], None), Ok(Bindings::from([("s0".into(), 64)])));
        assert!(sizes(&symbols(&["s0"]), &["s0=1".into()], None).is_err());
        assert!(sizes(&symbols(&["s0"]), &["s0=101".into()], None).is_err());
        assert!(sizes(&symbols(&["s0"]), &["s0".into()], None).is_err());
        assert!(sizes(&symbols(&["s0"]), &["t=3".into()], None).is_err());
    }
}

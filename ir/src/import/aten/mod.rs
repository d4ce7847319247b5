//! ATen: which builder translates which operator, and the defaults that archives leave out.
//!
//! [`table`] is the one list of targets; builders are grouped by family. A builder serves every overload that means the same.

mod activations;
mod attention;
mod channels;
mod complex;
mod convolution;
mod creation;
mod diagonals;
mod einsum;
mod gradients;
mod higher_order;
mod indexing;
mod layouts;
mod losses;
mod matmul;
mod norms;
mod pointwise;
mod pooling;
mod ranks;
mod rarer;
mod reductions;
mod resample;
mod seldom;
mod selections;
mod sizes;
mod slices;
mod slopes;
mod special;
mod statistics;
mod table;
mod taps;
mod updates;
mod views;

use super::{
    call::{Built, Call},
    schema::Argument,
};
use std::{collections::HashMap, sync::LazyLock};

/// Translates one node.
pub type Build = fn(&mut Call<'_, '_>) -> Built;

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    params: Vec<(String, Option<Argument>)>,
    pub build: Build,
    /// The result is written into `self`.
    pub in_place: bool,
    dropped: bool,
}

impl Row {
    /// True if the operator has a parameter of that name.
    pub fn has(&self, name: &str) -> bool {
        self.params.iter().any(|(param, _)| param == name)
    }

    /// The schema's default of a parameter.
    pub fn default(&self, name: &str) -> Option<&Argument> {
        self.params.iter().find(|(param, _)| param == name)?.1.as_ref()
    }

    /// True for operators that only check or constrain: no tensor depends on them.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }
}

/// The row of a target such as `aten.add.Tensor`.
pub fn lookup(target: &str) -> Option<&'static Row> {
    static ROWS: LazyLock<HashMap<String, Row>> = LazyLock::new(|| {
        let mut rows = HashMap::new();
        for &(schema, build) in table::ROWS.iter().chain(rarer::ROWS).chain(seldom::ROWS) {
            let (target, params) = parse(schema);
            // `name[_].overload` lists the operator and its in-place form.
            if target.contains("[_]") {
                let (_, params) = parse(schema);
                rows.insert(target.replace("[_]", "_"), Row { params, build, in_place: true, dropped: false });
            }
            rows.insert(target.replace("[_]", ""), Row { params, build, in_place: false, dropped: false });
        }
        for &(schema, build) in table::IN_PLACE {
            let (target, params) = parse(schema);
            rows.insert(target, Row { params, build, in_place: true, dropped: false });
        }
        for &target in table::DROPPED {
            rows.insert(target.into(), Row { params: Vec::new(), build: sizes::nothing, in_place: false, dropped: true });
        }
        rows
    });
    ROWS.get(target)
}

/// An operator that imports, as documentation shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// `aten.add.Tensor`.
    pub target: String,
    /// Its parameters with their defaults, as PyTorch's schema has them.
    pub parameters: String,
    /// There is a form that writes its result into `self`, with the same parameters.
    pub has_in_place: bool,
}

/// All operators that import, sorted by target; those that only check are left out.
pub fn operators() -> Vec<Operator> {
    let rows = table::ROWS.iter().chain(rarer::ROWS).chain(seldom::ROWS).chain(table::IN_PLACE);
    let mut all: Vec<Operator> = rows
        .map(|&(schema, _)| {
            let (target, parameters) = schema.split_once('(').unwrap_or((schema, ""));
            Operator {
                target: target.replace("[_]", ""),
                parameters: parameters.trim_end_matches(')').into(),
                has_in_place: target.contains("[_]"),
            }
        })
        .collect();
    all.sort_by(|a, b| a.target.cmp(&b.target));
    all
}

type Params = Vec<(String, Option<Argument>)>;

/// The target and the parameters of `name(self, dim=-1, …)`.
fn parse(schema: &str) -> (String, Params) {
    let (target, rest) = schema.split_once('(').unwrap_or((schema, ""));
    let mut params = Params::new();
    let mut rest = rest.trim_end_matches(')');
    while !rest.is_empty() {
        let end = param_end(rest);
        let param = rest[..end].trim();
        rest = rest.get(end + 1..).unwrap_or("");
        match param.split_once('=') {
            Some((name, default)) => params.push((name.into(), Some(literal(default)))),
            None => params.push((param.into(), None)),
        }
    }
    (target.into(), params)
}

/// Where the first parameter ends: at a comma outside of brackets.
fn param_end(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

/// A default as PyTorch's schemas write it.
fn literal(text: &str) -> Argument {
    match text {
        "None" => Argument::None,
        "True" => Argument::Bool(true),
        "False" => Argument::Bool(false),
        _ if text.starts_with('[') => {
            Argument::Ints(text.trim_matches(['[', ']']).split(',').filter_map(|item| item.trim().parse().ok()).collect())
        }
        _ if text.starts_with('\'') => Argument::Str(text.trim_matches('\'').into()),
        _ => match text.parse() {
            Ok(int) => Argument::Int(int),
            Err(_) => Argument::Float(text.parse().unwrap_or(f64::NAN)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_carry_the_defaults_of_the_schemas() {
        let topk = lookup("aten.topk.default").unwrap();
        assert!(matches!(topk.default("dim"), Some(Argument::Int(-1))));
        assert!(matches!(topk.default("largest"), Some(Argument::Bool(true))));
        assert!(topk.default("k").is_none() && topk.has("k") && !topk.has("q"));
        assert!(matches!(lookup("aten.layer_norm.default").unwrap().default("eps"), Some(Argument::Float(x)) if *x == 1e-5));
    }

    #[test]
    fn in_place_forms_share_the_builder() {
        assert!(lookup("aten.add_.Tensor").unwrap().in_place);
        assert!(!lookup("aten.add.Tensor").unwrap().in_place);
        assert!(lookup("aten.masked_fill_.Scalar").unwrap().in_place);
    }

    #[test]
    fn no_target_is_listed_twice_and_every_default_parses() {
        let mut seen = std::collections::HashSet::new();
        let rows = table::ROWS
            .iter()
            .chain(rarer::ROWS)
            .chain(seldom::ROWS)
            .chain(table::IN_PLACE)
            .map(|row| row.0)
            .chain(table::DROPPED.iter().copied());
        for schema in rows {
            let (target, params) = parse(schema);
            assert!(seen.insert(target.clone()), "{target} is listed twice");
            for (name, default) in params {
                assert!(!matches!(default, Some(Argument::Float(x)) if x.is_nan()), "{target}: {name}");
            }
        }
    }
}

//! The rule table.
//!
//! Rules are one-directional and small; no commutativity, so mirrored operands are listed as further patterns. Those of [`views`] and
//! [`facts`] tidy up, [`permutation`] and [`push`] move permutations of rows outward until they meet their inverse, [`scatter`] undoes
//! transposed gathers, the rest name what is left: [`experts`], [`outer`], [`dropping`], [`glu`], [`moe`], [`dense`], [`route`],
//! [`norm`], [`softmax`].

pub mod choice;
pub mod dense;
pub mod dropping;
pub mod experts;
pub mod facts;
pub mod gating;
pub mod glu;
pub mod moe;
pub mod norm;
pub mod outer;
pub mod permutation;
pub mod push;
pub mod route;
pub mod scatter;
pub mod softmax;
pub mod views;

use super::rule::{Rule, RuleError, Site, Verdict};
use egg::Id;
use std::sync::OnceLock;

/// All rules, in the order in which they are tried.
pub fn all() -> Result<&'static [Rule], RuleError> {
    static TABLE: OnceLock<Result<Vec<Rule>, RuleError>> = OnceLock::new();
    TABLE.get_or_init(parse).as_deref().map_err(Clone::clone)
}

fn parse() -> Result<Vec<Rule>, RuleError> {
    let mut table = Vec::new();
    for family in [
        views::rules,
        facts::rules,
        permutation::rules,
        push::rules,
        scatter::rules,
        experts::rules,
        dropping::rules,
        outer::rules,
        glu::rules,
        moe::rules,
        dense::rules,
        route::rules,
        norm::rules,
        softmax::rules,
    ] {
        table.extend(family()?);
    }
    Ok(table)
}

/// Both orders of a two-operand op.
fn either(op: &str, a: &str, b: &str) -> [String; 2] {
    [format!("({op} {a} {b})"), format!("({op} {b} {a})")]
}

/// The variable is a permutation of 0..n, and n rows are what it picks from `rows`.
fn permutes_rows(site: &Site<'_>, permutation: &str, rows: &str) -> Verdict {
    let p = site.fact(site.id(permutation));
    match (p, site.extent(rows, 0)) {
        (Some(fact), _) if !fact.permutation => Verdict::Refused("the index is not known to be a permutation".into()),
        (Some(fact), Some(rows)) => Verdict::when(fact.ty.shape[0] == rows, || {
            format!("the permutation has {} entries for {rows} rows", fact.ty.shape[0])
        }),
        _ => Verdict::Refused("it permutes no rows".into()),
    }
}

/// The types of two classes are known and equal.
fn same_type(site: &Site<'_>, a: Id, b: Id) -> Verdict {
    let (a, b) = (site.ty_of(a), site.ty_of(b));
    Verdict::when(a.is_some() && a == b, || match (a, b) {
        (Some(a), Some(b)) => format!("types differ: {a} and {b}"),
        _ => "one of them is no tensor".into(),
    })
}

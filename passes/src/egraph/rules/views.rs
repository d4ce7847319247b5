//! Views: nested ones become one, those that change nothing go.

use super::same_type;
use crate::egraph::rule::{Numerics::Exact, Refusal, Rule, RuleError, Site, Verdict, rule};
use egg::Id;
use eglu_ir::{
    Dim, Op,
    ops::{Axes, Permute, Reshape, Slice},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![
        rule("reshape-of-reshape", Exact, "only the last shape counts")
            .from("(reshape (reshape ?x ?s) ?t)")
            .becomes("(reshape ?x ?t)")?,
        unchanged("reshape-to-same", "(reshape ?x ?s)")?,
        unchanged("cast-to-same", "(cast ?x ?d)")?,
        unchanged("expand-to-same", "(expand ?x ?s)")?,
        rule("permute-in-order", Exact, "a permutation of dims that keeps their order changes nothing")
            .from("(permute ?x ?d)")
            .when("in-order", |s| {
                let dims: Axes = s.attr("?d").unwrap_or_default();
                Verdict::when(dims.iter().copied().eq(0..dims.len()), || format!("dims go to {dims:?}"))
            })
            .becomes("?x")?,
        rule("permute-of-permute", Exact, "two permutations of dims are one").from("(permute (permute ?x ?a) ?b)").builds(
            |s| {
                let (a, b): (Axes, Axes) = (s.attr("?a").unwrap_or_default(), s.attr("?b").unwrap_or_default());
                let dims = b.iter().filter_map(|&i| a.get(i).copied()).collect();
                let x = s.id("?x");
                s.call(Permute { dims }, &[x])
            },
        )?,
        rule("permute-of-unit-dims", Exact, "moving dims of extent 1 past others is a reshape")
            .from("(permute ?x ?d)")
            .when("order-kept", |s| {
                let shape = s.shape("?x");
                let dims: Axes = s.attr("?d").unwrap_or_default();
                let kept: Vec<usize> = dims.iter().copied().filter(|&i| shape.get(i).is_some_and(|dim| !dim.is(1))).collect();
                let moved = dims.iter().any(|&i| shape.get(i).is_some_and(|dim| dim.is(1)));
                Verdict::when(moved && kept.is_sorted(), || "dims of more than one element change places".into())
            })
            .builds(as_reshape)?,
        rule("slice-of-all", Exact, "a slice of every element changes nothing")
            .from("(slice ?x ?dim ?start ?end int:1)")
            .when("whole", |s| {
                let dim = s.attr::<usize>("?dim").unwrap_or(usize::MAX);
                let whole = s.attr("?start") == Some(Dim::from(0)) && s.attr("?end") == s.extent("?x", dim);
                Verdict::when(whole, || "it takes a part".into())
            })
            .becomes("?x")?,
        rule("interleaved-lane", Exact, "lane j of the last dim seen as […, n, lanes] is every lanes-th element from j")
            .from("(reshape (slice (reshape ?x ?s) ?dim ?start ?end int:1) ?t)")
            .when("one-lane", |s| lane(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
            .builds(|s| {
                let slice = lane(s).map_err(|why| Refusal::new("one-lane", why))?;
                let x = s.id("?x");
                s.call(slice, &[x])
            })?,
    ])
}

fn unchanged(name: &str, pattern: &str) -> Result<Rule, RuleError> {
    rule(name, Exact, "a view or cast to the type that is there changes nothing")
        .from(pattern)
        .when("same-type", |s| same_type(s, s.id("?x"), s.class))
        .becomes("?x")
}

fn as_reshape(site: &mut Site<'_>) -> Result<Id, Refusal> {
    let shape = site.result().map(|ty| ty.shape.clone()).unwrap_or_default();
    let x = site.id("?x");
    site.call(Op::from(Reshape { shape }), &[x])
}

/// The strided or contiguous slice of x's last dim that `x.reshape(…, n, lanes)[…, j]` or `x.reshape(…, lanes, n)[…, j, :]` is.
fn lane(site: &Site<'_>) -> Result<Slice, String> {
    let (x, split, result) = (site.shape("?x"), site.attr::<eglu_ir::Shape>("?s"), site.attr::<eglu_ir::Shape>("?t"));
    let refuse = || "it is not one lane of the last dim".to_string();
    let (split, result) = (split.ok_or_else(refuse)?, result.ok_or_else(refuse)?);
    let last = x.len().checked_sub(1).ok_or_else(refuse)?;
    let start: Dim = site.attr("?start").ok_or_else(refuse)?;
    let one = site.attr("?end") == Some(start.clone() + Dim::from(1));
    let dim: usize = site.attr("?dim").ok_or_else(refuse)?;
    let shaped = split.len() == last + 2 && split[..last] == x[..last] && result.len() == last + 1 && result[..last] == x[..last];
    if !one || !shaped {
        return Err(refuse());
    }
    if dim == last + 1 && result[last] == split[last] {
        let step = split[last + 1].as_const().ok_or_else(refuse)?;
        return Ok(Slice { dim: last, start, end: x[last].clone(), step });
    }
    if dim == last && result[last] == split[last + 1] {
        let n = split[last + 1].clone();
        return Ok(Slice { dim: last, start: start.clone() * n.clone(), end: (start + Dim::from(1)) * n, step: 1 });
    }
    Err(refuse())
}

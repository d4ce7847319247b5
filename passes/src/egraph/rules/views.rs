//! Views: nested ones become one, those that change nothing go.

use super::{experts::slice, same_type};
use crate::egraph::rule::{Numerics::Exact, Refusal, Rule, RuleError, Site, Verdict, rule};
use egg::Id;
use eglu_ir::{
    Dim, Op,
    ops::{Axes, Index, Permute, Reshape, Slice},
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
        rule(
            "picked-in-a-row",
            Exact,
            "what an index of several dims picks, seen one after another, is what the index picks seen so",
        )
        .from("(reshape (index ?x ?i axes:0) ?s)")
        .when("picked-whole", |s| {
            let (index, x, seen) = (s.ty("?i").cloned(), s.shape("?x"), s.attr::<eglu_ir::Shape>("?s").unwrap_or_default());
            let several = index.as_ref().is_some_and(|ty| ty.rank() > 1);
            let flat = index.map(|ty| ty.numel());
            let whole = !x.is_empty() && seen.len() == x.len() && seen[1..] == x[1..] && seen.first() == flat.as_ref();
            Verdict::when(several && whole, || "what is picked is not seen one after another".into())
        })
        .builds(|s| {
            let (x, i) = (s.id("?x"), s.id("?i"));
            let picked = s.result().map(|ty| ty.shape[..1].iter().cloned().collect()).unwrap_or_default();
            let i = s.call(Reshape { shape: picked }, &[i])?;
            s.call(Index { axes: Axes::from_slice(&[0]) }, &[x, i])
        })?,
        rule("slice-of-cast", Exact, "casting and then taking a part is taking it and then casting")
            .from("(slice (cast ?x ?d) ?dim ?start ?end ?step)")
            .becomes("(cast (slice ?x ?dim ?start ?end ?step) ?d)")?,
        rule("slice-of-view", Exact, "some columns of rows seen in another shape are those columns of the rows, seen so")
            .from("(slice (reshape ?x ?s) ?dim ?start ?end ?step)")
            .when("last-dim", |s| {
                let last = s.result().map(|ty| ty.rank() - 1);
                Verdict::when(s.attr::<usize>("?dim") == last, || "it slices another dim than the last".into())
            })
            .when("whole-rows", |s| {
                let (x, split) = (s.shape("?x"), s.attr::<eglu_ir::Shape>("?s").unwrap_or_default());
                Verdict::when(x.last().is_some() && x.last() == split.last(), || "the view divides or joins rows".into())
            })
            .builds(|s| {
                let dim = s.rank("?x").map_or(0, |rank| rank - 1);
                let columns = slice(s, dim)?;
                let x = s.id("?x");
                let columns = s.call(columns, &[x])?;
                as_shape_of_match(s, columns)
            })?,
        rule("interleaved-lane", Exact, "lane j of the last dim seen as […, n, lanes] is every lanes-th element from j")
            .from("(reshape (slice (reshape ?x ?s) ?dim ?start ?end int:1) ?t)")
            .when("one-lane", |s| lane(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
            .builds(|s| {
                let slice = lane(s).map_err(|why| Refusal::new("one-lane", why))?;
                let x = s.id("?x");
                let lane = s.call(slice, &[x])?;
                if s.ty_of(lane) == s.result() { Ok(lane) } else { as_shape_of_match(s, lane) }
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
    let x = site.id("?x");
    as_shape_of_match(site, x)
}

/// A value seen in the shape of what matched.
fn as_shape_of_match(site: &mut Site<'_>, x: Id) -> Result<Id, Refusal> {
    let shape = site.result().map(|ty| ty.shape.clone()).unwrap_or_default();
    site.call(Op::from(Reshape { shape }), &[x])
}

/// The strided or contiguous slice of x's last dim that `x.reshape(…, n, lanes)[…, j]` or `x.reshape(…, lanes, n)[…, j, :]` is, in whichever shape the
/// rows are seen.
fn lane(site: &Site<'_>) -> Result<Slice, String> {
    let (x, split, result) = (site.shape("?x"), site.attr::<eglu_ir::Shape>("?s"), site.attr::<eglu_ir::Shape>("?t"));
    let refuse = || "it is not one lane of the last dim".to_string();
    let (split, result) = (split.ok_or_else(refuse)?, result.ok_or_else(refuse)?);
    let last = x.len().checked_sub(1).ok_or_else(refuse)?;
    let at = split.len().checked_sub(2).ok_or_else(refuse)?;
    let start: Dim = site.attr("?start").ok_or_else(refuse)?;
    let one = site.attr("?end") == Some(start.clone() + Dim::from(1));
    let dim: usize = site.attr("?dim").ok_or_else(refuse)?;
    let (outer, inner) = (split[at].clone(), split[at + 1].clone());
    let whole_rows = outer.clone() * inner.clone() == x[last];
    if !one || !whole_rows || result.len() != at + 1 || result[..at] != split[..at] {
        return Err(refuse());
    }
    if dim == at + 1 && result[at] == outer {
        let step = inner.as_const().ok_or_else(refuse)?;
        return Ok(Slice { dim: last, start, end: x[last].clone(), step });
    }
    if dim == at && result[at] == inner {
        return Ok(Slice { dim: last, start: start.clone() * inner.clone(), end: (start + Dim::from(1)) * inner, step: 1 });
    }
    Err(refuse())
}

//! Where permutations of rows come from, compose and cancel.

use super::permutes_rows;
use crate::egraph::rule::{Numerics::Exact, Refusal, Rule, RuleError, Verdict, rule};
use eglu_ir::{
    DType, Dim,
    ops::{Axes, Index, InversePermutation, Iota, Pointwise},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![
        rule("sorted-values", Exact, "sorted values are the values in sorted order")
            .from("(out0 (sort ?x int:0 ?desc))")
            .when("one-dim", |s| Verdict::when(s.rank("?x") == Some(1), || "it sorts along one of several dims".into()))
            .becomes("(index ?x (out1 (sort ?x int:0 ?desc)) axes:0)")?,
        rule(
            "scattered-positions",
            Exact,
            "positions written at a permutation's places are its inverse; what was there is overwritten",
        )
        .from("(index_put ?o (iota ?n int:0 int:1 ?d) ?p axes:0 flag:false)")
        .when("a-permutation", |s| permutes_rows(s, "?p", "?o"))
        .when("all-positions", |s| {
            Verdict::when(s.attr("?n") == s.extent("?p", 0), || "there are more places than positions".into())
        })
        .when("dtype", |s| Verdict::when(s.dtype("?o") == Some(DType::I64), || "positions are not stored as i64".into()))
        .builds(|s| {
            let p = s.id("?p");
            s.call(InversePermutation {}, &[p])
        })?,
        rule("permuted-and-back", Exact, "a permutation undone by its inverse")
            .from("(index (index ?a ?p axes:0) (inverse_permutation ?p) axes:0)")
            .from("(index (index ?a (inverse_permutation ?p) axes:0) ?p axes:0)")
            .when("a-permutation", |s| permutes_rows(s, "?p", "?a"))
            .becomes("?a")?,
        rule("divided-permutation", Exact, "dividing a permutation is picking from the divided positions")
            .from("(floor_divide ?p ?k)")
            .when("a-permutation", |s| permutes_rows(s, "?p", "?p"))
            .when("whole-divisor", |s| {
                let k = s.scalar("?k").filter(|k| matches!(k, eglu_ir::Scalar::Int(k) if *k > 0));
                Verdict::when(k.is_some(), || "the divisor is no positive integer".into())
            })
            .builds(|s| {
                let (p, k) = (s.id("?p"), s.id("?k"));
                let ty = s.ty("?p").cloned().ok_or_else(|| Refusal::new("types", "no tensor"))?;
                let len = ty.shape.first().cloned().unwrap_or(Dim::from(0));
                let positions = s.call(Iota { len, start: 0, step: 1, dtype: ty.dtype }, &[])?;
                let divided = s.call(Pointwise::FloorDiv, &[positions, k])?;
                s.call(Index { axes: Axes::from_slice(&[0]) }, &[divided, p])
            })?,
        rule("index-by-permuted", Exact, "rows picked by a permuted index are the picked rows, permuted")
            .from("(index ?x (index ?a ?p axes:0) axes:0)")
            .when("one-dim", |s| Verdict::when(s.rank("?a") == Some(1), || "the index has several dims".into()))
            .when("a-permutation", |s| permutes_rows(s, "?p", "?a"))
            .becomes("(index (index ?x ?a axes:0) ?p axes:0)")?,
        rule("index-by-prefix", Exact, "a permutation of the first n rows reads no others")
            .from("(index ?x ?p axes:0)")
            .when("shorter", |s| {
                let Some(fact) = s.fact(s.id("?p")).filter(|fact| fact.permutation) else {
                    return Verdict::Refused("the index is not known to be a permutation".into());
                };
                let len = fact.ty.shape.first().cloned();
                let rows = s.extent("?x", 0);
                let longer = match (len.as_ref().and_then(Dim::as_const), rows.as_ref().and_then(Dim::as_const)) {
                    (Some(len), Some(rows)) => len < rows,
                    _ => len != rows,
                };
                Verdict::when(longer, || "it permutes all rows".into())
            })
            .builds(|s| {
                let (x, p) = (s.id("?x"), s.id("?p"));
                let end = s.extent("?p", 0).unwrap_or(Dim::from(0));
                let prefix = s.call(eglu_ir::ops::Slice { dim: 0, start: Dim::from(0), end, step: 1 }, &[x])?;
                s.call(Index { axes: Axes::from_slice(&[0]) }, &[prefix, p])
            })?,
        rule("histogram-of-permuted", Exact, "counts do not depend on the order")
            .from("(histc (index ?a ?p axes:0) ?bins ?min ?max)")
            .when("a-permutation", |s| permutes_rows(s, "?p", "?a"))
            .becomes("(histc ?a ?bins ?min ?max)")?,
    ])
}

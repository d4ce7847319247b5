//! Transposed gathers, which backward graphs are full of: sums scattered to rows are gathers, sums over a dim, or scatters of fewer kinds.

use super::{either, permutes_rows, same_type};
use crate::egraph::{
    language::Head,
    rule::{
        Numerics::{Exact, Reassociating, SameAccumulator},
        Refusal, Rule, RuleError, Site, Verdict, rule,
    },
};
use egg::Id;
use eglu_ir::{
    DType, Dim, OpCode, Scalar, Shape,
    ops::{Axes, Cast, Cat, Index, InversePermutation, Iota, Pointwise, Reduce, ReduceKind, Reshape},
};

/// A tensor of one number, as a pattern; [`zeros`] asks that the number is 0.
pub const FULL: &str = "(full ?os ?z ?od)";

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![
        repeat_by_expand()?,
        rule("cast-of-picked", Exact, "casting and then picking rows is picking and then casting")
            .from("(index (cast ?x ?d) ?i axes:0)")
            .becomes("(cast (index ?x ?i axes:0) ?d)")?,
        rule("cast-of-reshaped", Exact, "casting and then viewing is viewing and then casting")
            .from("(reshape (cast ?x ?d) ?s)")
            .becomes("(cast (reshape ?x ?s) ?d)")?,
        rule("sum-of-kept-dims", Exact, "keeping summed dims is a view")
            .from("(reduce ?x reduce:sum ?dims flag:true ?d)")
            .builds(|s| {
                let x = s.id("?x");
                let dims = s.attr("?dims").ok_or_else(|| Refusal::new("types", "no dims"))?;
                let dtype = s.attr("?d").ok_or_else(|| Refusal::new("types", "no dtype"))?;
                let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
                let sum = s.call(Reduce { kind: ReduceKind::Sum, dims, keepdim: false, dtype }, &[x])?;
                s.call(Reshape { shape }, &[sum])
            })?,
        rule("scatter-to-permutation", Exact, "rows added to zeros at a permutation's places are picked by its inverse")
            .from(format!("(index_put {FULL} ?v ?p axes:0 ?add)"))
            .when("a-permutation", |s| permutes_rows(s, "?p", "?v"))
            .when("no-positions", |s| {
                let positions = s.holds(s.id("?v"), &Head::Op(OpCode::Iota));
                Verdict::when(!positions, || "positions written there are the inverse itself".into())
            })
            .when("all-rows", |s| {
                let rows = s.result().and_then(|ty| ty.shape.first().cloned());
                Verdict::when(rows == s.extent("?p", 0), || "it writes only some of the rows".into())
            })
            .when("same-type", |s| same_type(s, s.id("?v"), s.class))
            .when("zeros", |s| if s.attr("?add") == Some(false) { Verdict::Holds } else { zeros(s) })
            .builds(|s| {
                let (v, p) = (s.id("?v"), s.id("?p"));
                let inverse = match inverse_of(s, p) {
                    Some(inverse) => inverse,
                    None => s.call(InversePermutation {}, &[p])?,
                };
                s.call(Index { axes: Axes::from_slice(&[0]) }, &[v, inverse])
            })?,
        rule("scatter-of-permuted", Reassociating, "where sums are scattered to does not depend on the order of the rows")
            .from("(index_put ?o (index ?v ?p axes:0) (index ?i ?p axes:0) axes:0 flag:true)")
            .when("a-permutation", |s| permutes_rows(s, "?p", "?v"))
            .when("rows-and-places", |s| {
                let one = s.rank("?i") == Some(1) && s.extent("?i", 0) == s.extent("?v", 0);
                Verdict::when(one, || "there is not one place for each row".into())
            })
            .becomes("(index_put ?o ?v ?i axes:0 flag:true)")?,
        scatter_by_token()?,
        interleaved()?,
        rule("halves-added", Exact, "two parts padded with zeros and added are the parts side by side")
            .from(format!("(add (cat ?a {FULL} ?dim) (cat (full ?qs ?y ?qd) ?b ?dim))"))
            .from(format!("(add (cat (full ?qs ?y ?qd) ?b ?dim) (cat ?a {FULL} ?dim))"))
            .when("zeros", zeros)
            .when("other-zeros", |s| Verdict::when(is_zero(s, "?y"), || "the other part is padded with something else".into()))
            .when("parts-meet", |s| {
                let dim: usize = s.attr("?dim").unwrap_or(usize::MAX);
                let sum = s.extent("?a", dim).zip(s.extent("?b", dim)).map(|(a, b)| a + b);
                let all = s.result().and_then(|ty| ty.shape.get(dim).cloned());
                Verdict::when(sum.is_some() && sum == all && s.dtype("?a") == s.dtype("?b"), || {
                    "the parts overlap or leave a gap".into()
                })
            })
            .builds(|s| {
                let dim = s.attr("?dim").ok_or_else(|| Refusal::new("types", "no dim"))?;
                let (a, b) = (s.id("?a"), s.id("?b"));
                s.call(Cat { dim }, &[a, b])
            })?,
    ])
}

/// `[FULL]` is of zeros.
pub fn zeros(site: &Site<'_>) -> Verdict {
    Verdict::when(is_zero(site, "?z"), || "it adds to something other than zeros".into())
}

fn is_zero(site: &Site<'_>, var: &str) -> bool {
    site.attr::<Scalar>(var).is_some_and(|z| z.as_f64() == 0.0)
}

/// The permutation that `p` is known to be the inverse of.
fn inverse_of(site: &Site<'_>, p: Id) -> Option<Id> {
    site.egraph[p].nodes.iter().find_map(|node| match node.call() {
        Some((OpCode::InversePermutation, &[of], _)) => Some(site.egraph.find(of)),
        _ => None,
    })
}

/// `k` of an index `floor_divide(iota, k)` of n positions, which picks each row of `rows` k times in a row.
pub fn repeats(site: &Site<'_>, rows: &str) -> Result<usize, String> {
    let k = site.scalar("?k").filter(|k| matches!(k, Scalar::Int(k) if *k > 0)).map(Scalar::as_i64);
    let k = k.ok_or("positions are divided by no positive integer")?;
    let (n, have) = (site.attr::<Dim>("?n"), site.extent(rows, 0));
    match (n, have) {
        (Some(n), Some(have)) if n == have.clone() * Dim::from(k) => Ok(k as usize),
        (Some(n), Some(have)) => Err(format!("{n} positions divided by {k} are not all of {have} rows, {k} times each")),
        _ => Err("positions are no constant of the graph".into()),
    }
}

/// Rows of x picked by `floor_divide(iota, ?k)`, as a pattern.
pub fn repeated(x: &str) -> String {
    format!("(index {x} (floor_divide (iota ?n int:0 int:1 ?it) ?k) axes:0)")
}

fn repeat_by_expand() -> Result<Rule, RuleError> {
    rule("rows-repeated-by-expand", Exact, "rows expanded along a new dim are each row several times")
        .from("(reshape (expand (reshape ?x ?s) ?e) ?t)")
        .when("new-dim-after-rows", |s| expanded(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
        .builds(|s| {
            let (rows, k, features) = expanded(s).map_err(|why| Refusal::new("new-dim-after-rows", why))?;
            let x = s.id("?x");
            let x = s.call(Reshape { shape: Shape::from_iter([rows.clone(), features]) }, &[x])?;
            let len = rows * Dim::from(k);
            let positions = s.call(Iota { len, start: 0, step: 1, dtype: DType::I64 }, &[])?;
            let by = s.leaf(Head::Scalar(Scalar::Int(k)));
            let tokens = s.call(Pointwise::FloorDiv, &[positions, by])?;
            let picked = s.call(Index { axes: Axes::from_slice(&[0]) }, &[x, tokens])?;
            let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
            s.call(Reshape { shape }, &[picked])
        })
}

/// Rows, times that each is repeated, and features of `[T, 1, H]` expanded to `[T, k, H]` and seen as `[T·k, …]`.
fn expanded(site: &Site<'_>) -> Result<(Dim, i64, Dim), String> {
    let refuse = || "it does not expand a new dim behind the rows".to_string();
    let shape = |var: &str| site.attr::<Shape>(var).ok_or_else(refuse);
    let (from, to, seen) = (shape("?s")?, shape("?e")?, shape("?t")?);
    let ([rows, one, features], [_, k, _]) = (&from[..], &to[..]) else { return Err(refuse()) };
    let k = k.as_const().filter(|&k| k > 1).ok_or_else(refuse)?;
    let fits = one.is(1) && to[0] == *rows && to[2] == *features && seen.len() >= 2;
    let flat = seen.first() == Some(&(rows.clone() * Dim::from(k)));
    if fits && flat { Ok((rows.clone(), k, features.clone())) } else { Err(refuse()) }
}

fn scatter_by_token() -> Result<Rule, RuleError> {
    rule("scatter-by-token", SameAccumulator, "rows added up where each token's rows come from are sums over the token's choices")
        .from(format!("(index_put {FULL} ?v (floor_divide (iota ?n int:0 int:1 ?it) ?k) axes:0 flag:true)"))
        .when("zeros", zeros)
        .when("whole-tokens", |s| token_rows(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
        .builds(|s| {
            let shape = token_rows(s).map_err(|why| Refusal::new("whole-tokens", why))?;
            let v = s.id("?v");
            let dtype = s.dtype("?v").ok_or_else(|| Refusal::new("types", "no tensor"))?;
            let split = s.call(Reshape { shape }, &[v])?;
            s.call(Reduce { kind: ReduceKind::Sum, dims: Axes::from_slice(&[1]), keepdim: false, dtype }, &[split])
        })
}

/// The shape `[T, k, …]` of the values.
fn token_rows(site: &Site<'_>) -> Result<Shape, String> {
    let result = site.result().ok_or("it is no tensor")?;
    let k = site.scalar("?k").filter(|k| matches!(k, Scalar::Int(k) if *k > 0)).map(|k| Dim::from(k.as_i64()));
    let k = k.ok_or("positions are divided by no positive integer")?;
    let (v, rows) = (site.shape("?v"), result.shape[0].clone());
    let all = rows.clone() * k.clone();
    if v.first() != Some(&all) || site.attr::<Dim>("?n") != Some(all) || v[1..] != result.shape[1..] {
        return Err(format!("rows of {v:?} are not {k} for each of {rows}"));
    }
    Ok([rows, k].into_iter().chain(v[1..].iter().cloned()).collect())
}

/// `a` written to the even columns of zeros and `b` to the odd ones, and both added.
fn interleaved() -> Result<Rule, RuleError> {
    let lane =
        |x: &str, zeros: &str, start: &str| format!("(index_put {zeros} {x} (iota ?n {start} int:2 ?it) axes:1 flag:false)");
    let (even, odd) = (lane("?a", FULL, "int:0"), lane("?b", "(full ?qs ?y ?qd)", "int:1"));
    rule("lanes-interleaved", Exact, "even and odd columns written apart and added are the two lanes interleaved")
        .from_all(either("add", &even, &odd))
        .when("zeros", zeros)
        .when("other-zeros", |s| Verdict::when(is_zero(s, "?y"), || "the other lane is written over something else".into()))
        .when("all-columns", |s| {
            let (a, b) = (s.shape("?a"), s.shape("?b"));
            let columns = s.result().filter(|ty| ty.rank() == 2).map(|ty| ty.shape[1].clone());
            let all = a.len() == 2 && a == b && columns == Some(a[1].clone() * Dim::from(2)) && s.dtype("?a") == s.dtype("?b");
            Verdict::when(all, || format!("lanes of {a:?} and {b:?} are not all columns"))
        })
        .builds(|s| {
            let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
            let lanes = ["?a", "?b"].map(|var| (s.id(var), s.shape(var)));
            let mut apart = Vec::new();
            for (lane, shape) in lanes {
                let shape = shape.into_iter().chain([Dim::from(1)]).collect();
                apart.push(s.call(Reshape { shape }, &[lane])?);
            }
            let joined = s.call(Cat { dim: 2 }, &apart)?;
            s.call(Reshape { shape }, &[joined])
        })
}

/// The value as `dtype`, cast where it is not.
pub fn as_dtype(site: &mut Site<'_>, x: Id, dtype: DType) -> Result<Id, Refusal> {
    if site.ty_of(x).is_some_and(|ty| ty.dtype == dtype) { Ok(x) } else { site.call(Cast { dtype }, &[x]) }
}

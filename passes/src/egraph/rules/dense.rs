//! Gated units of two linear layers.

use super::either;
use crate::egraph::{
    language::Head,
    rule::{
        Numerics::{Exact, SameAccumulator},
        Refusal, Rule, RuleError, Site, Verdict, rule,
    },
    rules::{choice::ops, experts::slice, gating, glu},
};
use egg::Id;
use eglu_ir::{
    Op,
    ops::{Axes, DenseGlu, Permute, Reshape},
};
use std::sync::Arc;

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let mut rules = vec![
        rule("slice-of-product", Exact, "some columns of a product need only those columns of the weight")
            .from("(slice (matmul ?x (permute ?w axes:1,0)) ?dim ?start ?end ?step)")
            .when("last-dim", last_dim)
            .builds(|s| {
                let (x, w) = (s.id("?x"), s.id("?w"));
                let rows = slice(s, 0)?;
                let w = s.call(rows, &[w])?;
                let w = s.call(Permute { dims: Axes::from_slice(&[1, 0]) }, &[w])?;
                s.call(eglu_ir::ops::MatMul {}, &[x, w])
            })?,
        rule("slice-of-any-product", Exact, "some columns of a product need only those columns of the right matrix")
            .from("(slice (matmul ?x ?w) ?dim ?start ?end ?step)")
            .when("last-dim", last_dim)
            .when("a-matrix", |s| {
                let turned = ops(s, s.id("?w")).iter().any(|(op, _)| matches!(op, Op::Permute(_)));
                Verdict::when(s.rank("?w") == Some(2) && s.rank("?x") > Some(1) && !turned, || {
                    "the right side is no matrix as it is stored".into()
                })
            })
            .builds(|s| {
                let (x, w) = (s.id("?x"), s.id("?w"));
                let columns = slice(s, 1)?;
                let w = s.call(columns, &[w])?;
                s.call(eglu_ir::ops::MatMul {}, &[x, w])
            })?,
        rule("slice-of-biased-product", Exact, "some columns of a linear layer need only those of its bias")
            .from_all(either("add", "(matmul ?x ?w)", "?b").map(|sum| format!("(slice {sum} ?dim ?start ?end ?step)")))
            .when("last-dim", last_dim)
            .when("bias", |s| Verdict::when(s.rank("?b") == Some(1), || "what is added is no bias".into()))
            .builds(|s| {
                let (x, w, b) = (s.id("?x"), s.id("?w"), s.id("?b"));
                let dim = s.attr("?dim").ok_or_else(|| Refusal::new("types", "no dim"))?;
                let (of_product, of_bias) = (slice(s, dim)?, slice(s, 0)?);
                let product = s.call(eglu_ir::ops::MatMul {}, &[x, w])?;
                let product = s.call(of_product, &[product])?;
                let bias = s.call(of_bias, &[b])?;
                s.call(eglu_ir::ops::Pointwise::Add, &[product, bias])
            })?,
    ];
    rules.push(any_activation()?);
    for gate_bias in [false, true] {
        for up_bias in [false, true] {
            rules.push(dense_glu(gate_bias, up_bias)?);
        }
    }
    Ok(rules)
}

fn last_dim(site: &Site<'_>) -> Verdict {
    let last = site.result().map(|ty| ty.rank() - 1);
    Verdict::when(site.attr::<usize>("?dim") == last, || "it slices another dim than the last".into())
}

fn dense_glu(gate_bias: bool, up_bias: bool) -> Result<Rule, RuleError> {
    let linear = |x: &str, w: &str, b: &str, biased: bool| {
        let product = format!("(matmul {x} {w})");
        if biased { either("add", &product, b).to_vec() } else { vec![product] }
    };
    let ups = linear("?x", "?wu", "?bu", up_bias);
    let patterns = linear("?x", "?wg", "?bg", gate_bias)
        .into_iter()
        .flat_map(move |gate| ups.clone().into_iter().map(move |up| format!("(glu {gate} {up} ?program)")));
    let name = match (gate_bias, up_bias) {
        (false, false) => "dense-gated-unit",
        (true, true) => "dense-gated-unit-biased",
        (true, false) => "dense-gated-unit-gate-biased",
        (false, true) => "dense-gated-unit-up-biased",
    };
    let unit = rule(name, SameAccumulator, "two linear layers of the same rows and their gating are one kernel")
        .from_all(patterns)
        .fuses()
        .when("weights-are-matrices", |s| {
            Verdict::when(s.rank("?wg") == Some(2) && s.rank("?wu") == Some(2), || "a weight is no matrix".into())
        });
    let rows = move |s: &Site<'_>| {
        let fits = |var: &str, given: bool| !given || s.rank(var) == Some(1);
        Verdict::when(fits("?bg", gate_bias) && fits("?bu", up_bias), || "what is added is no bias".into())
    };
    let unit = if gate_bias || up_bias { unit.when("biases-are-rows", rows) } else { unit };
    unit.builds(move |s| {
        let x = s.id("?x");
        let program = s.attr("?program").ok_or_else(|| Refusal::new("types", "no program"))?;
        let gate = transposed(s, "?wg")?;
        let up = transposed(s, "?wu")?;
        let none = s.leaf(Head::Absent);
        let gate_bias = if gate_bias { s.id("?bg") } else { none };
        let up_bias = if up_bias { s.id("?bu") } else { none };
        s.call(DenseGlu { program }, &[x, gate, gate_bias, up, up_bias])
    })
}

/// Two products of the same rows that any pointwise program gates, if it multiplies them in the end and has no name of its own.
fn any_activation() -> Result<Rule, RuleError> {
    rule(
        "dense-gated-unit-of-any-activation",
        SameAccumulator,
        "two products of the same rows are gated by any activation in one kernel",
    )
    .from("(mul ?a ?b)")
    .when("two-products", |s| gated_products(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
    .when("activation-without-name", |s| {
        let named = gated_products(s).is_ok_and(|gating| glu::has_name(&gating.program));
        Verdict::when(!named, || "rules of its own are there for this activation".into())
    })
    .builds(|s| {
        let gating = gated_products(s).map_err(|why| Refusal::new("two-products", why))?;
        let [[x, gate, _], [_, up, _]] = gating.products[..] else { return Err(Refusal::new("two-products", "one product")) };
        let none = s.leaf(Head::Absent);
        let turned = Permute { dims: Axes::from_slice(&[1, 0]) };
        let (gate, up) = (s.call(turned.clone(), &[gate])?, s.call(turned, &[up])?);
        let unit = s.call(DenseGlu { program: Arc::new(gating.program) }, &[x, gate, none, up, none])?;
        let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
        s.call(Reshape { shape }, &[unit])
    })
}

/// The two products that a matched product of two factors gates, one in each factor.
fn gated_products(site: &Site<'_>) -> Result<gating::Gating, String> {
    let refuse = || "it is no activation of one product times another".to_string();
    let plain = |factor: &str| gating::is_product(site, site.id(factor));
    let activated = |factor: &str| gating::of_matrices(site, site.id(factor)).is_some_and(|gating| gating.products.len() == 1);
    if !(plain("?b") && activated("?a") || plain("?a") && activated("?b")) {
        return Err(refuse());
    }
    let gating = gating::of_matrices(site, site.class).ok_or_else(refuse)?;
    match gating.products[..] {
        [[x, gate, _], [y, up, _]] if x == y && site.ty_of(gate) == site.ty_of(up) => Ok(gating),
        _ => Err("the products are of different rows".into()),
    }
}

fn transposed(site: &mut Site<'_>, weight: &str) -> Result<Id, Refusal> {
    let w = site.id(weight);
    site.call(Permute { dims: Axes::from_slice(&[1, 0]) }, &[w])
}

//! Routers, recognised where their ids and weights meet: at the block.

use crate::egraph::rule::{
    Numerics::{Exact, SameAccumulator},
    Refusal, Rule, RuleError, Site, Verdict, rule,
};
use eglu_ir::{
    DType,
    ops::{Moe, Route, RouteScore},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let mut rules = Vec::new();
    for score in [RouteScore::Softmax, RouteScore::Sigmoid] {
        for renormalize in [false, true] {
            rules.push(scored(score, renormalize)?);
        }
    }
    rules.push(chosen()?);
    rules.push(
        rule("route-of-upcast", Exact, "a router computes in f32, so widening its logits first changes nothing")
            .from("(route (cast ?l dtype:f32) ?score ?k ?norm ?d)")
            .when("widened", |s| {
                let from = s.dtype("?l");
                Verdict::when(
                    from.is_some_and(|from| from.is_float() && from != DType::F32 && from.opmath() == DType::F32),
                    || "the cast does not widen a 16-bit float".into(),
                )
            })
            .becomes("(route ?l ?score ?k ?norm ?d)")?,
    );
    Ok(rules)
}

fn block(ids: &str, weights: &str) -> String {
    format!("(moe ?x ?wg ?bg ?wu ?bu ?wd ?bd {ids} {weights} ?program ?dt)")
}

/// Scores of all experts, the best k of them, perhaps divided by their sum, perhaps cast.
fn scored(score: RouteScore, renormalize: bool) -> Result<Rule, RuleError> {
    let (name, scores) = match score {
        RouteScore::Sigmoid => ("sigmoid", "(sigmoid ?l)"),
        _ => ("softmax", "(softmax ?l int:1 flag:false ?sd)"),
    };
    let top = format!("(topk {scores} ?k int:1 flag:true)");
    let weights = match renormalize {
        false => format!("(out0 {top})"),
        true => format!("(div (out0 {top}) (reduce (out0 {top}) reduce:sum axes:1 flag:true ?rd))"),
    };
    let ids = format!("(out1 {top})");
    let suffix = if renormalize { "-renormalized" } else { "" };
    rule(format!("route-{name}{suffix}"), SameAccumulator, format!("{name} scores, the best k, their weights: one router"))
        .from(block(&ids, &weights))
        .from(block(&ids, &format!("(cast {weights} ?cast)")))
        .fuses()
        .when("scores-in-accumulator", move |s| {
            let dtype = if score == RouteScore::Sigmoid { s.dtype("?l") } else { s.attr("?sd") };
            Verdict::when(dtype == Some(DType::F32), || "scores are not computed in f32, so the choice may differ".into())
        })
        .builds(move |s| routed(s, score, renormalize))
}

/// The best k logits, then a softmax over them.
fn chosen() -> Result<Rule, RuleError> {
    let top = "(topk ?l ?k int:1 flag:true)";
    let weights = format!("(softmax (out0 {top}) int:1 flag:false ?sd)");
    let ids = format!("(out1 {top})");
    rule("route-top-k-softmax", SameAccumulator, "the best k logits, weighted by their softmax: one router")
        .from(block(&ids, &weights))
        .from(block(&ids, &format!("(cast {weights} ?cast)")))
        .fuses()
        .when("logits-by-token", |s| Verdict::when(s.rank("?l") == Some(2), || "logits are not [tokens, experts]".into()))
        .builds(|s| routed(s, RouteScore::TopKSoftmax, true))
}

fn routed(site: &mut Site<'_>, score: RouteScore, renormalize: bool) -> Result<egg::Id, Refusal> {
    let refuse = |what: &str| Refusal::new("types", what);
    let k = site.attr("?k").ok_or_else(|| refuse("no k"))?;
    let program = site.attr("?program").ok_or_else(|| refuse("no program"))?;
    let moe_dtype = site.attr("?dt").ok_or_else(|| refuse("no dtype"))?;
    let dtype = weights_dtype(site).ok_or_else(|| refuse("the weights have no type"))?;
    let l = site.id("?l");
    let route = site.call(Route { score, k, renormalize, dtype }, &[l])?;
    let (weights, ids) = (site.output(route, 0), site.output(route, 1));
    let mut operands: Vec<egg::Id> = super::moe::OPERANDS[..7].iter().map(|var| site.id(var)).collect();
    operands.extend([ids, weights]);
    site.call(Moe { program, dtype: moe_dtype }, &operands)
}

/// The dtype of the weights that the matched block reads: that of the final cast, else of what it casts.
fn weights_dtype(site: &Site<'_>) -> Option<DType> {
    use egg::Var;
    let bound = |var: &str| var.parse::<Var>().ok().is_some_and(|var| site.subst.get(var).is_some());
    if bound("?cast") {
        return site.attr("?cast");
    }
    if bound("?rd") || !bound("?sd") {
        return Some(DType::F32);
    }
    site.attr("?sd")
}

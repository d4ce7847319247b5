//! Ops that facts prove to do nothing: masks that are always false, bounds that are never reached.

use super::same_type;
use crate::egraph::{
    range::of_scalar,
    rule::{Numerics::Exact, Rule, RuleError, Site, Verdict, rule},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let always = |name: &str, value: i64, doc: &str, right: &'static str| {
        rule(name, Exact, doc)
            .from("(where ?m ?a ?b)")
            .when("mask-known", move |s| {
                let range = s.fact(s.id("?m")).map(|fact| fact.range);
                Verdict::when(range.and_then(|range| range.as_const()) == Some(value), || "the mask may hold either value".into())
            })
            .when("same-type", move |s| same_type(s, s.id(right), s.class))
            .becomes(right)
    };
    Ok(vec![
        always("mask-never", 0, "a mask that facts prove false everywhere selects nothing", "?b")?,
        always("mask-always", 1, "a mask that facts prove true everywhere selects all", "?a")?,
        rule("bound-above-reached-never", Exact, "integers never above a bound need no clamping to it")
            .from("(minimum ?x ?c)")
            .from("(minimum ?c ?x)")
            .when("within", |s| within(s, |range, bound| range.hi <= bound))
            .when("same-type", |s| same_type(s, s.id("?x"), s.class))
            .becomes("?x")?,
        rule("bound-below-reached-never", Exact, "integers never below a bound need no clamping to it")
            .from("(maximum ?x ?c)")
            .from("(maximum ?c ?x)")
            .when("within", |s| within(s, |range, bound| range.lo >= bound))
            .when("same-type", |s| same_type(s, s.id("?x"), s.class))
            .becomes("?x")?,
    ])
}

fn within(site: &Site<'_>, holds: impl Fn(crate::egraph::range::Range, i64) -> bool) -> Verdict {
    let (fact, bound) = (site.fact(site.id("?x")), site.scalar("?c").and_then(|c| of_scalar(c).as_const()));
    let (Some(fact), Some(bound)) = (fact, bound) else { return Verdict::Refused("the bound is no whole number".into()) };
    Verdict::when(fact.ty.dtype.is_int() && holds(fact.range, bound), || {
        format!("values of {} are {}, the bound is {bound}", fact.ty, fact.range)
    })
}

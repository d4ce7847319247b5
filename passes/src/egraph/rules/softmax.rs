//! Softmax from its parts.

use super::either;
use crate::egraph::rule::{Numerics::SameAccumulator, Refusal, Rule, RuleError, Site, Verdict, rule};
use egg::Id;
use eglu_ir::ops::{Axes, Softmax};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let shifted = "(sub ?x (reduce ?x reduce:amax ?dims flag:true ?md))";
    let exp = format!("(exp {shifted})");
    let sum = format!("(reduce {exp} reduce:sum ?dims flag:true ?sd)");
    Ok(vec![
        rule("softmax-from-parts", SameAccumulator, "exponentials above the largest, divided by their sum, are softmax")
            .from(format!("(div {exp} {sum})"))
            .from_all(either("mul", &exp, &format!("(reciprocal {sum})")))
            .fuses()
            .when("one-dim", one_dim)
            .when("accumulates", accumulates)
            .builds(|s| softmax(s, false))?,
        rule("log-softmax-from-parts", SameAccumulator, "elements less the largest, less the logarithm of the exponentials' sum")
            .from(format!("(sub {shifted} (log {sum}))"))
            .fuses()
            .when("one-dim", one_dim)
            .when("accumulates", accumulates)
            .builds(|s| softmax(s, true))?,
    ])
}

fn one_dim(site: &Site<'_>) -> Verdict {
    let dims: Axes = site.attr("?dims").unwrap_or_default();
    Verdict::when(dims.len() == 1, || format!("it is over dims {dims:?}"))
}

fn accumulates(site: &Site<'_>) -> Verdict {
    let dtype = site.dtype("?x");
    let same = site.attr("?sd") == dtype && site.result().map(|ty| ty.dtype) == dtype;
    Verdict::when(same && dtype.is_some_and(|dtype| dtype.is_float() && dtype.opmath() == dtype), || {
        "exponentials are rounded to 16 bits before they are added".into()
    })
}

fn softmax(site: &mut Site<'_>, log: bool) -> Result<Id, Refusal> {
    let dims: Axes = site.attr("?dims").unwrap_or_default();
    let (Some(&dim), Some(dtype)) = (dims.first(), site.dtype("?x")) else { return Err(Refusal::new("types", "no dim")) };
    let x = site.id("?x");
    site.call(Softmax { dim, log, dtype }, &[x])
}

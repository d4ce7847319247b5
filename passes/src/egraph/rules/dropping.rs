//! Masks for rows of no expert: an expert product drops rows whose id is E or more by itself, so masks that say so are absorbed.

use super::either;
use crate::egraph::{
    range::{Range, of_scalar},
    rule::{Numerics, Rule, RuleError, Site, Verdict, rule},
};

const DROPPED: &str = "(reshape (ge ?ids ?e) ?ms)";

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let biased = either("add", "(expert_matmul ?x ?w none ?ids)", "(index ?b (minimum ?ids ?last) axes:0)");
    Ok(vec![
        rule("dropped-rows-read", Numerics::Exact, "what a dropped row holds does not matter")
            .from(format!("(expert_matmul (where {DROPPED} ?z ?x) ?w ?b ?ids)"))
            .fuses()
            .when("mask-of-no-expert", mask_of_no_expert)
            .when("same-type", |s| {
                Verdict::when(s.dtype("?x") == s.dtype("?w") && s.rank("?x") == Some(2), || "masking changes the dtype".into())
            })
            .becomes("(expert_matmul ?x ?w ?b ?ids)")?,
        rule("dropped-rows-zeroed", Numerics::Exact, "dropped rows are zero already")
            .from(format!("(where {DROPPED} ?z (expert_matmul ?x ?w ?b ?ids))"))
            .fuses()
            .when("mask-of-no-expert", mask_of_no_expert)
            .when("zero", zero)
            .becomes("(expert_matmul ?x ?w ?b ?ids)")?,
        rule("dropped-rows-biased", Numerics::SameAccumulator, "a bias by expert, zero where dropped")
            .from_all(biased.map(|sum| format!("(where {DROPPED} ?z {sum})")))
            .fuses()
            .when("mask-of-no-expert", mask_of_no_expert)
            .when("zero", zero)
            .when("clamped-to-last", |s| {
                let last = s.scalar("?last").and_then(|last| of_scalar(last).as_const());
                let experts = s.extent("?w", 0).and_then(|e| e.as_const());
                Verdict::when(last.is_some() && last == experts.map(|e| e - 1), || {
                    "ids for the bias are clamped to another expert than the last".into()
                })
            })
            .when("bias-by-expert", |s| {
                let (w, b) = (s.shape("?w"), s.shape("?b"));
                let fits = w.len() == 3 && b.len() == 2 && b[0] == w[0] && b[1] == w[1] && s.dtype("?b") == s.dtype("?w");
                Verdict::when(fits, || format!("the bias {b:?} does not match the weight {w:?}"))
            })
            .becomes("(expert_matmul ?x ?w ?b ?ids)")?,
    ])
}

fn mask_of_no_expert(site: &Site<'_>) -> Verdict {
    let bound = site.scalar("?e").and_then(|e| of_scalar(e).as_const());
    let experts = site.extent("?w", 0).and_then(|e| e.as_const());
    let mask: Option<eglu_ir::Shape> = site.attr("?ms");
    let rows = site.extent("?ids", 0);
    let by_row = mask.is_some_and(|mask| mask.len() == 2 && Some(&mask[0]) == rows.as_ref() && mask[1].is(1));
    match (bound, experts) {
        (Some(bound), Some(experts)) if bound != experts => {
            let known = site.fact(site.id("?ids")).map_or(Range::ANY, |fact| fact.range);
            let known = if known.hi == i64::MAX { "no bound known".to_string() } else { format!("known is {known}") };
            let why = format!("the mask starts at id {bound}, but there are {experts} experts, and ids may exceed {}", bound - 1);
            Verdict::Refused(format!("{why}: {known}"))
        }
        (Some(_), Some(_)) => Verdict::when(by_row, || "the mask is not one for each row".into()),
        _ => Verdict::Refused("the mask or the number of experts is not constant".into()),
    }
}

fn zero(site: &Site<'_>) -> Verdict {
    let zero = site.scalar("?z").is_some_and(|z| z.as_f64() == 0.0);
    Verdict::when(zero, || "masked rows become something other than zero".into())
}

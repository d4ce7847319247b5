//! From weighted sums over the chosen experts to the whole block.

use super::{
    choice::{self, ops},
    either, gating,
};
use crate::egraph::{
    language::Head,
    rule::{Numerics::SameAccumulator, Refusal, Rule, RuleError, Site, Verdict, rule},
};
use egg::Id;
use eglu_ir::{
    DType, Dim, Op, Scalar, Shape,
    ops::{Combine, Iota, Moe, Pointwise, Reshape},
};
use std::sync::Arc;

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let flat = either("mul", "?y", "(reshape ?w ?ws)")
        .map(|product| format!("(reduce (reshape {product} ?s) reduce:sum axes:1 flag:false ?dt)"));
    let column =
        either("mul", "?y", "?w").map(|product| format!("(reduce (reshape {product} ?s) reduce:sum axes:1 flag:false ?dt)"));
    let split = either("mul", "(reshape ?y ?s)", "(reshape ?w ?ws)")
        .map(|product| format!("(reduce {product} reduce:sum axes:1 flag:false ?dt)"));
    let block = |x: &str| {
        format!(
            "(combine (expert_matmul (glu (expert_matmul {x} ?wg ?bg ?ids) (expert_matmul {x} ?wu ?bu ?ids) ?program) ?wd ?bd ?ids) ?weights ?dt)"
        )
    };
    Ok(vec![
        rule("weighted-sum", SameAccumulator, "rows times their weights, summed over each token's choices")
            .from_all(flat)
            .from_all(split)
            .from_all(column)
            .nearly_all(
                either("mul", "(index ?y ?p axes:0)", "(reshape ?w ?ws)"),
                "weights-permuted-alike",
                weights_in_other_order,
            )
            .fuses()
            .when("one-weight-each", |s| choices(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
            .when("sum-of-floats", sum_of_floats)
            .builds(|s| {
                let shape = choices(s).map_err(|why| Refusal::new("one-weight-each", why))?;
                let (y, w) = (s.id("?y"), s.id("?w"));
                let dtype = s.attr("?dt").ok_or_else(|| Refusal::new("types", "no dtype"))?;
                let weights = s.call(Reshape { shape }, &[w])?;
                s.call(Combine { dtype }, &[y, weights])
            })?,
        rule("weighted-sum-rounded", SameAccumulator, "a sum rounded afterwards may be stored rounded")
            .from("(cast (combine ?y ?weights ?dt) ?d)")
            .when("narrower", |s| {
                let (from, to): (Option<DType>, Option<DType>) = (s.attr("?dt"), s.attr("?d"));
                let narrower = matches!((from, to), (Some(from), Some(to)) if to.is_float() && to != from && to.opmath() == from);
                Verdict::when(narrower, || "the cast does not merely round the accumulator".into())
            })
            .becomes("(combine ?y ?weights ?d)")?,
        rule("mixture-of-experts", SameAccumulator, "gate, up, gating, down and weighted sum over the same ids are one block")
            .from(block("(index ?x (floor_divide (iota ?n int:0 int:1 ?it) ?k) axes:0)"))
            .fuses()
            .when("rows-by-token", |s| {
                let k = s.extent("?weights", 1).and_then(|k| k.as_const());
                let by = s.scalar("?k").map(|k| k.as_i64());
                let (tokens, rows) = (s.extent("?weights", 0), s.extent("?x", 0));
                if k.is_none() || k != by {
                    let show = |number: Option<i64>| number.map_or("an unknown number".into(), |n: i64| n.to_string());
                    let (by, k) = (show(by), show(k));
                    return Verdict::Refused(format!("rows are picked by position / {by}, but each token has {k} weights"));
                }
                let all = s.attr::<Dim>("?n") == s.extent("?ids", 0);
                Verdict::when(all && tokens == rows, || "there are not k rows for each token".into())
            })
            .builds(block_of)?,
        rule("mixture-of-one-expert", SameAccumulator, "a block that gives each token one expert")
            .from(block("?x"))
            .when("one-choice", |s| {
                let single = s.extent("?weights", 1).is_some_and(|k| k.is(1));
                Verdict::when(single && s.extent("?weights", 0) == s.extent("?x", 0), || "tokens have several choices".into())
            })
            .builds(block_of)?,
        rule("mixture-of-other-experts", SameAccumulator, "experts of any activation, with a gate or without, are one block")
            .from("(combine (expert_matmul ?h ?wd ?bd ?ids) ?weights ?dt)")
            .when("no-gated-unit", |s| {
                let product = |&id: &Id| ops(s, id).iter().any(|(op, _)| matches!(op, Op::ExpertMatmul(_)));
                let gated = |(op, operands): &(Op, Vec<Id>)| matches!(op, Op::Glu(_)) && operands.iter().all(product);
                let unit = ops(s, s.id("?h")).iter().any(gated);
                Verdict::when(!unit, || "it is a block of gated units already".into())
            })
            .when("rows-by-token", |s| other_block(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
            .when("symmetric-limits", |s| {
                let limits = other_block(s).ok().and_then(|(_, gating)| gating.asymmetric());
                Verdict::when(limits.is_none(), || format!("a product is clamped to {}", limits.unwrap_or_default()))
            })
            .builds(|s| {
                let (x, gating) = other_block(s).map_err(|why| Refusal::new("rows-by-token", why))?;
                let none = s.leaf(Head::Absent);
                let lane = |i: usize| gating.products.get(i).map_or([none; 2], |&[_, w, b]| [w, b]);
                let ([wg, bg], [wu, bu]) = (lane(0), lane(1));
                let shape = s.shape("?weights");
                let ids = s.id("?ids");
                let ids = s.call(Reshape { shape }, &[ids])?;
                let dtype = s.attr("?dt").ok_or_else(|| Refusal::new("types", "no dtype"))?;
                let (wd, bd, weights) = (s.id("?wd"), s.id("?bd"), s.id("?weights"));
                s.call(Moe { program: Arc::new(gating.program), dtype }, &[x, wg, bg, wu, bu, wd, bd, ids, weights])
            })?,
    ])
}

/// The tokens that a block of any activation reads, and what it computes between its products.
fn other_block(site: &Site<'_>) -> Result<(Id, gating::Gating), String> {
    let ids = site.id("?ids");
    let gating =
        gating::of_experts(site, site.id("?h"), ids).ok_or("nothing pointwise stands between products by the same experts")?;
    let rows = gating.products[0][0];
    if gating.products.iter().any(|product| product[0] != rows) {
        return Err("the products are of different rows".into());
    }
    let weights = site.shape("?weights");
    let k = weights.get(1).and_then(Dim::as_const).ok_or("the number of choices is not known")?;
    let tokens = weights.first().cloned();
    let of = |class: Id| site.ty_of(class).and_then(|ty| ty.shape.first().cloned());
    if k == 1 && of(rows) == tokens {
        return Ok((rows, gating));
    }
    let picked = ops(site, rows).into_iter().filter(|(op, _)| matches!(op, Op::Index(index) if index.axes[..] == [0]));
    let by_token = |index: Id| {
        ops(site, index).iter().any(|(op, operands)| {
            let by = operands.get(1).and_then(|&by| choice::number(site, by));
            let all = |(op, _): &(Op, Vec<Id>)| matches!(op, Op::Iota(Iota { start: 0, step: 1, len, .. }) if Some(len) == of(ids).as_ref());
            *op == Op::Pointwise(Pointwise::FloorDiv) && by == Some(Scalar::Int(k)) && ops(site, operands[0]).iter().any(all)
        })
    };
    let mut tokens = picked.filter_map(|(_, operands)| match operands[..] {
        [x, index] if of(x) == tokens && by_token(index) => Some(x),
        _ => None,
    });
    tokens.next().map(|x| (x, gating)).ok_or("there are not k rows for each token".into())
}

/// A block of any operands.
pub fn block() -> String {
    format!("(moe {} ?program ?dt)", OPERANDS.join(" "))
}

/// Variables of a block's operands, in order.
const OPERANDS: [&str; 9] = ["?x", "?wg", "?bg", "?wu", "?bu", "?wd", "?bd", "?ids", "?weights"];

/// Why rows in the order of a permutation are multiplied by weights that are not theirs; `None` where the weights are in the same order.
fn weights_in_other_order(site: &Site<'_>) -> Option<String> {
    let (p, w) = (site.id("?p"), site.id("?w"));
    let rows = site.fact(p).filter(|fact| fact.permutation).map(|fact| fact.ty.shape[0].clone())?;
    let by_expert = ops(site, site.id("?y")).iter().any(|(op, _)| matches!(op, Op::ExpertMatmul(_)));
    if !by_expert || site.ty("?w").map(|ty| ty.numel()) != Some(rows) || site.gathered_by(w, p).is_some() {
        return None;
    }
    let picked = ops(site, w).into_iter().find_map(|(op, operands)| match (op, &operands[..]) {
        (Op::Index(index), &[_, by]) if index.axes[..] == [0] => Some(by),
        _ => None,
    });
    let permuted = picked.is_some_and(|by| site.fact(by).is_some_and(|fact| fact.permutation));
    let order = if permuted { "in that of another permutation" } else { "not" };
    Some(format!(
        "rows are in the order of a permutation, but their weights are {order}: pick the weights by the same index as the rows"
    ))
}

fn sum_of_floats(site: &Site<'_>) -> Verdict {
    let dtype: Option<DType> = site.attr("?dt");
    Verdict::when(dtype.is_some_and(DType::is_float), || "the products are made whole numbers before they are summed".into())
}

/// The shape `[T, k]` of the weights, if the product is reshaped to `[T, k, H]` with one weight for each row.
fn choices(site: &Site<'_>) -> Result<Shape, String> {
    let (y, split) = (site.shape("?y"), site.attr::<Shape>("?s").unwrap_or_default());
    let weights = if site.binds("?ws") { site.attr("?ws").unwrap_or_default() } else { site.shape("?w") };
    let refuse = || "what is summed is not rows split as [tokens, choices, features]".to_string();
    if y.len() != 2 || split.len() != 3 || split[2] != y[1] {
        return Err(refuse());
    }
    let by_row = weights.len() == 2 && weights[0] == y[0] && weights[1].is(1);
    let by_choice = weights.len() == 3 && weights[..2] == split[..2] && weights[2].is(1);
    if !(by_row || by_choice) {
        return Err(format!("weights of shape {weights:?} are not one for each row"));
    }
    Ok(split[..2].iter().cloned().collect())
}

fn block_of(site: &mut Site<'_>) -> Result<Id, Refusal> {
    let refuse = || Refusal::new("types", "no block");
    let shape = site.shape("?weights");
    let ids = site.id("?ids");
    let ids = site.call(Reshape { shape }, &[ids])?;
    let mut operands = OPERANDS.map(|var| site.id(var));
    operands[7] = ids;
    let program = site.attr("?program").ok_or_else(refuse)?;
    let dtype = site.attr("?dt").ok_or_else(refuse)?;
    site.call(Op::from(Moe { program, dtype }), &operands)
}

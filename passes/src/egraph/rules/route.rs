//! Routers: the choice of experts becomes a `route` that hands out the chosen values; then whatever is computed of these values and their
//! sum moves into its weighing, one op at a time.

use super::{
    choice::{self, ops, output_of},
    either,
};
use crate::egraph::rule::{
    Numerics::{Exact, SameAccumulator},
    Refusal, Rule, RuleError, Site, Verdict, rule,
};
use egg::Id;
use eglu_ir::{
    DType, Op, Program, Ref, Scalar,
    ops::{Axes, Pointwise, Reshape, Route, RouteScore, TopK},
    program::InstrOp,
};
use std::sync::Arc;

/// More experts than this are no experts: a router's kernel walks them once for each choice.
const MOST_EXPERTS: i64 = 4096;

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let sum = |keep: &str| format!("(reduce (out0 ?r) reduce:sum axes:1 flag:{keep} ?rd)");
    let totals = [sum("true"), format!("(reshape {} ?rs)", sum("false"))];
    let shares = |total: fn(&str) -> Vec<String>| {
        totals.iter().flat_map(move |sum| total(sum)).map(|total| format!("(div (out0 ?r) {total})")).collect::<Vec<_>>()
    };
    Ok(vec![
        rule(
            "router",
            SameAccumulator,
            "the k best experts by softmax or sigmoid scores, perhaps biased, perhaps of the best groups alone",
        )
        .from("(topk ?c ?k int:1 flag:true)")
        .nearly(super::moe::block(), "routed-by-scores", unrouted)
        .when("few-experts", |s| few_experts(s, "?c"))
        .when("scores", |s| choice::read(s, s.id("?c")).map_or_else(|refusal| Verdict::Refused(refusal.why), |_| Verdict::Holds))
        .builds(|s| {
            let choice = choice::read(s, s.id("?c"))?;
            let k = s.attr("?k").ok_or_else(|| Refusal::new("types", "no k"))?;
            let dtype = s.dtype("?c").ok_or_else(|| Refusal::new("types", "no scores"))?;
            let operands = operands_of(s, choice.scores.logits, choice.bias)?;
            s.call(choice.route(k, false, value(dtype)), &operands)
        })?,
        rule(
            "router-gathered-weights",
            Exact,
            "the weights are the scores of the chosen experts, without what else they were chosen by",
        )
        .from("(gather ?s (out1 ?r) int:1)")
        .when("own-scores", |s| own_scores(s).map_or_else(|refusal| Verdict::Refused(refusal.why), |_| Verdict::Holds))
        .builds(|s| {
            let (route, operands) = own_scores(s)?;
            let weigh = value(route.scores).into();
            reweighed(s, Route { gathered: true, weigh, ..route }, &operands)
        })?,
        chosen_logits("router-top-k-softmax", RouteScore::TopKSoftmax, |logits| {
            format!("(softmax {logits} int:1 flag:false ?sd)")
        })?,
        chosen_logits("router-top-k-sigmoid", RouteScore::TopKSigmoid, |logits| format!("(sigmoid {logits})"))?,
        rule("router-ids", Exact, "which experts are chosen does not depend on how they are weighed")
            .from("(out1 ?r)")
            .when("weighed", |s| {
                let weighed =
                    routes(s).into_iter().any(|(route, _)| *route.weigh != plain(&route) || route.gathered || by_logits(&route));
                Verdict::when(weighed, || "it weighs nothing".into())
            })
            .builds(plain_ids)?,
        renormalized("router-renormalized", "weights divided by their sum", shares(|sum| vec![sum.into()]), None)?,
        renormalized(
            "router-renormalized-above",
            "weights divided by their sum and a little more",
            shares(|sum| either("add", sum, "?eps").to_vec()),
            Some(Pointwise::Add),
        )?,
        renormalized(
            "router-renormalized-bounded",
            "weights divided by their sum, but by no less than a bound",
            shares(|sum| either("maximum", sum, "?eps").to_vec()),
            Some(Pointwise::Maximum),
        )?,
        scaled("router-scaled", Pointwise::Mul, &either("mul", "(out0 ?r)", "?c"))?,
        scaled("router-divided", Pointwise::Div, &["(div (out0 ?r) ?c)".into()])?,
        rule("router-rounded", SameAccumulator, "weights cast to another dtype are handed out in it")
            .from("(cast (out0 ?r) ?d)")
            .when("a-router", a_router)
            .builds(|s| {
                let to: DType = s.attr("?d").ok_or_else(|| Refusal::new("types", "no dtype"))?;
                extended(s, |weigh, result, _| (weigh.push(InstrOp::Cast, [result], to), to))
            })?,
        rule("route-of-upcast", Exact, "a router computes in f32, so widening its logits first changes nothing")
            .from("(route (cast ?l dtype:f32) ?b ?score ?scores ?k ?groups ?masked ?gathered ?weigh)")
            .when("widened", |s| {
                let from = s.dtype("?l");
                Verdict::when(
                    from.is_some_and(|from| from.is_float() && from != DType::F32 && from.opmath() == DType::F32),
                    || "the cast does not widen a 16-bit float".into(),
                )
            })
            .becomes("(route ?l ?b ?score ?scores ?k ?groups ?masked ?gathered ?weigh)")?,
    ])
}

/// Hands out the value as it is.
fn value(dtype: DType) -> Program {
    let mut program = Program::new([dtype; 2]);
    program.results.push((Ref::Param(0), dtype));
    program
}

fn plain(route: &Route) -> Program {
    value(route.weigh.params.first().copied().unwrap_or(DType::F32))
}

fn by_logits(route: &Route) -> bool {
    matches!(route.score, RouteScore::TopKSoftmax | RouteScore::TopKSigmoid)
}

fn few_experts(site: &Site<'_>, scores: &str) -> Verdict {
    let experts = site.extent(scores, 1).and_then(|e| e.as_const());
    Verdict::when(site.rank(scores) == Some(2) && experts.is_some_and(|e| e <= MOST_EXPERTS), || {
        format!("scores are not [tokens, experts] of up to {MOST_EXPERTS} experts")
    })
}

/// Logits and bias as operands.
fn operands_of(site: &mut Site<'_>, logits: Id, bias: Option<Id>) -> Result<[Id; 2], Refusal> {
    let Some(bias) = bias else { return Ok([logits, site.leaf(crate::egraph::language::Head::Absent)]) };
    match site.ty_of(bias).map(|ty| (ty.rank(), ty.shape.last().cloned())) {
        Some((rank, Some(experts))) if rank > 1 => {
            let flat = site.call(Reshape { shape: [experts].into_iter().collect() }, &[bias])?;
            Ok([logits, flat])
        }
        _ => Ok([logits, bias]),
    }
}

/// The routers in the class of `?r`, with their operands.
fn routes(site: &Site<'_>) -> Vec<(Route, Vec<Id>)> {
    let routers = ops(site, site.id("?r")).into_iter();
    let route = |(op, operands)| match op {
        Op::Route(route) => Some((route, operands)),
        _ => None,
    };
    routers.filter_map(route).collect()
}

fn a_router(site: &Site<'_>) -> Verdict {
    Verdict::when(!routes(site).is_empty(), || "the values are no router's".into())
}

/// The router of `?r` whose scores are `?s`.
fn own_scores(site: &Site<'_>) -> Result<(Route, Vec<Id>), Refusal> {
    let scores = choice::scores(site, site.id("?s"));
    let refuse = || Refusal::new("own-scores", "the values picked are not the scores that the experts were chosen by");
    let scores = scores.ok_or_else(refuse)?;
    let own = |(route, operands): &(Route, Vec<Id>)| {
        let logits = operands.first().copied();
        !route.gathered
            && (route.score, route.scores, logits) == (scores.score, scores.dtype, Some(site.egraph.find(scores.logits)))
    };
    routes(site).into_iter().find(own).ok_or_else(refuse)
}

/// The weights of a router that weighs otherwise.
fn reweighed(site: &mut Site<'_>, route: Route, operands: &[Id]) -> Result<Id, Refusal> {
    let route = site.call(route, operands)?;
    // Its ids are the same as before, which another rule tells.
    site.output(route, 1);
    Ok(site.output(route, 0))
}

/// The weights of `?r` with more ops in the weighing: `more` appends them to the result so far, in the given dtype.
fn extended(site: &mut Site<'_>, more: impl FnOnce(&mut Program, Ref, DType) -> (Ref, DType)) -> Result<Id, Refusal> {
    let (route, operands) =
        routes(site).into_iter().next().ok_or_else(|| Refusal::new("a-router", "the values are no router's"))?;
    let mut weigh = (*route.weigh).clone();
    let (mut result, dtype) = weigh.results.pop().ok_or_else(|| Refusal::new("types", "no result"))?;
    if weigh.dtype_of(result) != dtype {
        result = weigh.push(InstrOp::Cast, [result], dtype);
    }
    let result = more(&mut weigh, result, dtype);
    weigh.results.push(result);
    reweighed(site, Route { weigh: Arc::new(weigh), ..route }, &operands)
}

/// An op as PyTorch runs it alone: rounded to what it is stored as.
fn rounding(program: &mut Program, op: Pointwise, args: [Ref; 2], dtype: DType) -> Ref {
    let result = program.push(InstrOp::Pointwise(op), args, dtype);
    if dtype.opmath() == dtype { result } else { program.push(InstrOp::Cast, [result], dtype) }
}

fn renormalized(name: &str, doc: &str, patterns: Vec<String>, with: Option<Pointwise>) -> Result<Rule, RuleError> {
    let share = rule(name, SameAccumulator, format!("{doc} are weighed by the router"))
        .from_all(patterns)
        .when("a-router", a_router)
        .when("values-as-they-are", |s| {
            let bare = routes(s).iter().any(|(route, _)| *route.weigh == plain(route));
            Verdict::when(bare, || "the weights were changed before they are summed".into())
        })
        .when("sum-as-stored", |s| {
            let dtype = routes(s).first().map(|(route, _)| plain(route).params[0]);
            Verdict::when(s.attr("?rd") == dtype, || "the weights are summed in another dtype than theirs".into())
        });
    let constant = |s: &Site<'_>| Verdict::when(s.scalar("?eps").is_some(), || "ε is no constant".into());
    let share = if with.is_some() { share.when("constant", constant) } else { share };
    share.builds(move |s| {
        let epsilon = with.and_then(|op| Some((op, s.scalar("?eps")?)));
        extended(s, |weigh, value, dtype| {
            let total = match epsilon {
                Some((op, number)) => rounding(weigh, op, [Ref::Param(1), Ref::Scalar(number)], dtype),
                None => Ref::Param(1),
            };
            (rounding(weigh, Pointwise::Div, [value, total], dtype), dtype)
        })
    })
}

fn scaled(name: &str, op: Pointwise, patterns: &[String]) -> Result<Rule, RuleError> {
    rule(name, SameAccumulator, "weights times or by a constant are weighed by the router")
        .from_all(patterns.iter().cloned())
        .when("a-router", a_router)
        .when("constant", |s| Verdict::when(s.scalar("?c").is_some(), || "the factor is no constant".into()))
        .builds(move |s| {
            let number: Scalar = s.scalar("?c").ok_or_else(|| Refusal::new("constant", "no constant"))?;
            extended(s, |weigh, value, dtype| (rounding(weigh, op, [value, Ref::Scalar(number)], dtype), dtype))
        })
}

/// The best k logits, perhaps widened, then a function of them.
fn chosen_logits(name: &str, score: RouteScore, weights: fn(&str) -> String) -> Result<Rule, RuleError> {
    let top = "(out0 (topk ?l ?k int:1 flag:true))";
    rule(name, SameAccumulator, "the best k logits and their weights are one router")
        .from(weights(top))
        .from(weights(&format!("(cast {top} dtype:f32)")))
        .when("few-experts", |s| few_experts(s, "?l"))
        .builds(move |s| {
            let k = s.attr("?k").ok_or_else(|| Refusal::new("types", "no k"))?;
            let scores = s.result().map(|ty| ty.dtype).ok_or_else(|| Refusal::new("types", "no scores"))?;
            let (groups, masked, weigh) = (Axes::new(), Scalar::Int(0), Arc::new(value(scores)));
            let operands = operands_of(s, s.id("?l"), None)?;
            reweighed(s, Route { score, scores, k, groups, masked, gathered: true, weigh }, &operands)
        })
}

/// The ids of the router of `?r`, from the plainest form that chooses alike.
fn plain_ids(site: &mut Site<'_>) -> Result<Id, Refusal> {
    let weighed = |(route, _): &(Route, Vec<Id>)| *route.weigh != plain(route) || route.gathered || by_logits(route);
    let found = routes(site).into_iter().find(weighed);
    let (route, operands) = found.ok_or_else(|| Refusal::new("weighed", "it weighs nothing"))?;
    let top = if by_logits(&route) {
        site.call(TopK { k: route.k, dim: 1, largest: true }, &operands[..1])?
    } else {
        let types: Vec<Option<DType>> = operands.iter().map(|&id| site.ty_of(id).map(|ty| ty.dtype)).collect();
        let logits = types[0].ok_or_else(|| Refusal::new("types", "no logits"))?;
        let weigh = Arc::new(value(route.choice_dtype(logits, types[1])));
        site.call(Route { gathered: false, weigh, ..route }, &operands)?
    };
    Ok(site.output(top, 1))
}

/// Why the ids and weights of a block are not one router's, in words; `None` where they are, or where they come from outside.
fn unrouted(site: &Site<'_>) -> Option<String> {
    let (ids, weights) = (site.id("?ids"), site.id("?weights"));
    let of_route = |class: Id, index: u32| {
        output_of(site, class, index).into_iter().any(|id| ops(site, id).iter().any(|(op, _)| matches!(op, Op::Route(_))))
    };
    let tops = output_of(site, ids, 1).into_iter().flat_map(|id| ops(site, id)).filter_map(|(op, operands)| match op {
        Op::TopK(_) => operands.first().copied(),
        _ => None,
    });
    match (of_route(ids, 1), of_route(weights, 0)) {
        (true, true) => None,
        (true, false) => {
            Some("the weights are more than scores of the chosen experts, perhaps divided by their sum and scaled".into())
        }
        (false, _) => match tops.into_iter().find_map(|scores| choice::read(site, scores).err()) {
            Some(refusal) => Some(refusal.why),
            None => choice::other_ids(site, ids),
        },
    }
}

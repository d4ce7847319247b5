//! RMSNorm and LayerNorm from their parts.

use super::either;
use crate::egraph::{
    language::Head,
    rule::{
        Numerics::{Exact, SameAccumulator},
        Refusal, Rule, RuleError, Site, Verdict, rule,
    },
};
use eglu_ir::{
    DType, Scalar,
    ops::{Axes, LayerNorm, RmsNorm},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let norm = |square: &str| {
        either("add", &format!("(reduce {square} reduce:mean ?dims flag:true ?rd)"), "?eps")
            .into_iter()
            .flat_map(|sum| {
                let [a, b] = either("mul", "?x", &format!("(rsqrt {sum})"));
                [a, b, format!("(div ?x (sqrt {sum}))")]
            })
            .collect::<Vec<_>>()
    };
    let mut rules = vec![
        rule("mean-from-sum", SameAccumulator, "a sum divided by how many were added is their mean")
            .from("(div (reduce ?x reduce:sum ?dims ?keep ?d) ?n)")
            .when("count", |s| {
                let dims: Axes = s.attr("?dims").unwrap_or_default();
                let shape = s.shape("?x");
                let count = dims.iter().try_fold(1.0, |count, &dim| Some(count * shape.get(dim)?.as_const()? as f64));
                let by = s.scalar("?n").map(Scalar::as_f64);
                Verdict::when(!dims.is_empty() && count.is_some() && by == count, || "it is divided by another number".into())
            })
            .when("accumulates", accumulates)
            .when("same-type", |s| {
                Verdict::when(s.result().map(|ty| ty.dtype) == s.attr("?d"), || "dividing changes the dtype".into())
            })
            .becomes("(reduce ?x reduce:mean ?dims ?keep ?d)")?,
        rule("inverse-root", SameAccumulator, "one over a root is one function")
            .from("(reciprocal (sqrt ?x))")
            .from("(pow ?x -0.5)")
            .when("same-type", |s| super::same_type(s, s.id("?x"), s.class))
            .when("accumulates", accumulates)
            .becomes("(rsqrt ?x)")?,
        rule("rms-norm-of-product", SameAccumulator, "x / √(mean(x·x) + ε) is one pass over rows")
            .from_all(norm("(mul ?x ?x)"))
            .fuses()
            .when("last-dim", last_dim)
            .when("constant-epsilon", constant_epsilon)
            .when("accumulates", accumulates)
            .builds(bare)?,
        rule("rms-norm-of-power", SameAccumulator, "x / √(mean(x²) + ε) is one pass over rows")
            .from_all(norm("(pow ?x ?two)"))
            .fuses()
            .when("squares", |s| {
                Verdict::when(s.scalar("?two").is_some_and(|two| two.as_f64() == 2.0), || "the power is not 2".into())
            })
            .when("last-dim", last_dim)
            .when("constant-epsilon", constant_epsilon)
            .when("accumulates", accumulates)
            .builds(bare)?,
        rule("rms-norm-of-upcast", Exact, "the norm computes in f32, so widening its operand first changes nothing")
            .from("(rms_norm (cast ?x dtype:f32) ?w ?eps ?d)")
            .when("widened", |s| {
                let from = s.dtype("?x");
                Verdict::when(
                    from.is_some_and(|from| from.is_float() && from != DType::F32 && from.opmath() == DType::F32),
                    || "the cast does not widen a 16-bit float".into(),
                )
            })
            .becomes("(rms_norm ?x ?w ?eps ?d)")?,
        rule("rms-norm-rounded", Exact, "a norm rounded afterwards may be stored rounded")
            .from("(cast (rms_norm ?x ?w ?eps dtype:f32) ?d)")
            .when("narrower", |s| {
                let to: Option<DType> = s.attr("?d");
                Verdict::when(to.is_some_and(|to| to.is_float() && to != DType::F32 && to.opmath() == DType::F32), || {
                    "the cast does not merely round".into()
                })
            })
            .becomes("(rms_norm ?x ?w ?eps ?d)")?,
        rule("rms-norm-weighted", SameAccumulator, "the norm's weight multiplies in the same pass")
            .from_all(either("mul", "?w", "(rms_norm ?x none ?eps ?d)"))
            .fuses()
            .when("weight-of-last-dim", |s| {
                let (weight, last) = (s.extent("?w", 0), s.shape("?x").last().cloned());
                Verdict::when(s.rank("?w") == Some(1) && weight == last, || "the factor is no weight of the last dim".into())
            })
            .builds(|s| {
                let (x, w) = (s.id("?x"), s.id("?w"));
                let eps = s.attr("?eps").ok_or_else(|| Refusal::new("types", "no epsilon"))?;
                let dtype = s.result().map(|ty| ty.dtype).ok_or_else(|| Refusal::new("types", "no tensor"))?;
                s.call(RmsNorm { eps, dtype }, &[x, w])
            })?,
    ];
    rules.extend(layer_norm()?);
    Ok(rules)
}

/// LayerNorm: an RMSNorm of what is above and below the mean.
fn layer_norm() -> Result<Vec<Rule>, RuleError> {
    let widened = |var: &'static str| {
        move |s: &Site<'_>| {
            let from = s.dtype(var);
            let widens = from.is_some_and(|from| from.is_float() && from != DType::F32 && from.opmath() == DType::F32);
            Verdict::when(widens, || "the cast does not widen a 16-bit float".into())
        }
    };
    let upcast = |name: &str, from: &str, var: &'static str| {
        rule(name, Exact, "the norm computes in f32, so widening what it reads first changes nothing")
            .from(from)
            .when("widened", widened(var))
            .becomes("(out0 (layer_norm ?x ?w ?b ?eps ?d))")
    };
    let factor = |site: &Site<'_>, var: &str| {
        let (factor, last) = (site.extent(var, 0), site.shape("?x").last().cloned());
        Verdict::when(site.rank(var) == Some(1) && factor == last, || format!("what joins is no row of the last dim, {last:?}"))
    };
    Ok(vec![
        rule("layer-norm", SameAccumulator, "the RMSNorm of a row less its mean is LayerNorm")
            .from("(rms_norm (sub ?x (reduce ?x reduce:mean ?dims flag:true ?rd)) ?w ?eps ?d)")
            .fuses()
            .when("last-dim", last_dim)
            .when("accumulates", accumulates)
            .builds(centered)?,
        rule("layer-norm-widened", SameAccumulator, "the mean that is taken off may be that of the 16-bit row, added up in f32")
            .from("(rms_norm (sub (cast ?x dtype:f32) (reduce ?x reduce:mean ?dims flag:true dtype:f32)) ?w ?eps ?d)")
            .fuses()
            .when("last-dim", last_dim)
            .when("widened", widened("?x"))
            .builds(centered)?,
        rule("layer-norm-biased", SameAccumulator, "the norm's bias is added in the same pass")
            .from_all(either("add", "?b", "(out0 (layer_norm ?x ?w none ?eps ?d))"))
            .fuses()
            .when("bias-of-last-dim", move |s| factor(s, "?b"))
            .builds(|s| {
                let (x, w, b) = (s.id("?x"), s.id("?w"), s.id("?b"));
                let eps = s.attr("?eps").ok_or_else(|| Refusal::new("types", "no epsilon"))?;
                let dtype = s.result().map(|ty| ty.dtype).ok_or_else(|| Refusal::new("types", "no tensor"))?;
                let norm = s.call(LayerNorm { eps, dtype }, &[x, w, b])?;
                Ok(s.output(norm, 0))
            })?,
        upcast("layer-norm-of-upcast", "(out0 (layer_norm (cast ?x dtype:f32) ?w ?b ?eps ?d))", "?x")?,
        upcast("layer-norm-of-upcast-weight", "(out0 (layer_norm ?x (cast ?w dtype:f32) ?b ?eps ?d))", "?w")?,
        upcast("layer-norm-of-upcast-bias", "(out0 (layer_norm ?x ?w (cast ?b dtype:f32) ?eps ?d))", "?b")?,
        rule("layer-norm-rounded", Exact, "a norm rounded afterwards may be stored rounded")
            .from("(cast (out0 (layer_norm ?x ?w ?b ?eps dtype:f32)) ?d)")
            .when("narrower", |s| {
                let to: Option<DType> = s.attr("?d");
                Verdict::when(to.is_some_and(|to| to.is_float() && to != DType::F32 && to.opmath() == DType::F32), || {
                    "the cast does not merely round".into()
                })
            })
            .becomes("(out0 (layer_norm ?x ?w ?b ?eps ?d))")?,
    ])
}

fn centered(site: &mut Site<'_>) -> Result<egg::Id, Refusal> {
    let (x, w) = (site.id("?x"), site.id("?w"));
    let eps = site.attr("?eps").ok_or_else(|| Refusal::new("types", "no epsilon"))?;
    let dtype = site.attr("?d").ok_or_else(|| Refusal::new("types", "no dtype"))?;
    let none = site.leaf(Head::Absent);
    let norm = site.call(LayerNorm { eps, dtype }, &[x, w, none])?;
    Ok(site.output(norm, 0))
}

fn last_dim(site: &Site<'_>) -> Verdict {
    let dims: Axes = site.attr("?dims").unwrap_or_default();
    let rank = site.rank("?x").unwrap_or(0);
    Verdict::when(rank > 0 && dims[..] == [rank - 1], || format!("the mean is over dims {dims:?} of {rank}"))
}

fn constant_epsilon(site: &Site<'_>) -> Verdict {
    Verdict::when(site.scalar("?eps").is_some(), || "ε is no constant".into())
}

fn accumulates(site: &Site<'_>) -> Verdict {
    let dtype = site.dtype("?x");
    Verdict::when(dtype.is_some_and(|dtype| dtype.is_float() && dtype.opmath() == dtype), || {
        "the squares are rounded to 16 bits before they are summed".into()
    })
}

fn bare(site: &mut Site<'_>) -> Result<egg::Id, Refusal> {
    let x = site.id("?x");
    let eps: Scalar = site.scalar("?eps").ok_or_else(|| Refusal::new("constant-epsilon", "no epsilon"))?;
    let dtype = site.result().map(|ty| ty.dtype).ok_or_else(|| Refusal::new("types", "no tensor"))?;
    let none = site.leaf(Head::Absent);
    site.call(RmsNorm { eps, dtype }, &[x, none])
}

//! Weight gradients by expert.

use super::{
    either,
    experts::{bins_of, counts_fit, few_enough, ids_not_negative},
    permutes_rows,
    scatter::{FULL, repeated, repeats, zeros},
};
use crate::egraph::{
    language::Head,
    rule::{
        Numerics::{Exact, Reassociating},
        Refusal, Rule, RuleError, Site, Verdict, rule,
    },
};
use egg::Id;
use eglu_ir::{
    DType, Dim, OpCode, Scalar, Shape,
    ops::{ExpertOuter, Full, Reshape},
};

/// A dispatch orders rows for fewer experts than this; scatters to more rows are embeddings' gradients.
const MOST_EXPERTS: i64 = 1023;

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let outer = |a: &str, b: &str, ids: &str| format!("(expert_outer {a} {b} {ids} none ?e ?ra ?rb ?d)");
    let permuted = |x: &str| format!("(index {x} ?p axes:0)");
    let dropped = |x: &str| format!("(where (reshape (ge ?ids ?bound) ?ms) ?z {x})");
    Ok(vec![
        outer_by_id()?,
        bias_gradient()?,
        grouped_outer()?,
        rule("outer-of-permuted", Reassociating, "sums over an expert's rows do not depend on the order of the rows")
            .from(outer(&permuted("?a"), &permuted("?b"), &permuted("?ids")))
            .when("a-permutation", |s| permutes_rows(s, "?p", "?ids"))
            .becomes(&outer("?a", "?b", "?ids"))?,
        of_repeated("outer-of-repeated-rows", &outer(&repeated("?x"), "?y", "?ids"), "?x", |k, [_, b]| [k, b])?,
        of_repeated("outer-with-repeated-rows", &outer("?y", &repeated("?x"), "?ids"), "?x", |k, [a, _]| [a, k])?,
        rule("outer-transposed", Exact, "transposed outer products are those of the operands in the other order")
            .from(format!("(permute {} axes:0,2,1)", outer("?a", "?b", "?ids")))
            .becomes("(expert_outer ?b ?a ?ids none ?e ?rb ?ra ?d)")?,
        rule("outer-of-dropped-rows", Exact, "what a dropped row holds does not matter to the sums")
            .from(outer(&dropped("?a"), "?b", "?ids"))
            .when("mask-of-no-expert", mask_of_no_expert)
            .when("type-kept", |s| type_kept(s, "?a", "?b"))
            .becomes(&outer("?a", "?b", "?ids"))?,
        rule("outer-with-dropped-rows", Exact, "what a dropped row holds does not matter to the sums")
            .from(outer("?a", &dropped("?b"), "?ids"))
            .when("mask-of-no-expert", mask_of_no_expert)
            .when("type-kept", |s| type_kept(s, "?b", "?a"))
            .becomes(&outer("?a", "?b", "?ids"))?,
        rule("outer-rounded", Exact, "sums rounded afterwards may be stored rounded")
            .from("(cast (expert_outer ?a ?b ?ids none ?e ?ra ?rb dtype:f32) ?d)")
            .when("narrower", |s| {
                let to: Option<DType> = s.attr("?d");
                let narrower = to.is_some_and(|to| to.is_float() && to != DType::F32 && to.opmath() == DType::F32);
                Verdict::when(narrower, || "the cast does not merely round the sums".into())
            })
            .becomes(&outer("?a", "?b", "?ids"))?,
    ])
}

fn single_rows(site: &Site<'_>) -> Verdict {
    let once = |var: &str| site.attr::<usize>(var) == Some(1);
    Verdict::when(once("?ra") && once("?rb"), || "rows of an operand are read several times".into())
}

/// Dropping the mask changes neither shape nor dtype.
fn type_kept(site: &Site<'_>, masked: &str, other: &str) -> Verdict {
    let fits = site.rank(masked) == Some(2) && site.dtype(masked) == site.dtype(other);
    Verdict::when(fits, || "masking changes the shape or dtype".into())
}

fn mask_of_no_expert(site: &Site<'_>) -> Verdict {
    let bound = site.scalar("?bound").map(Scalar::as_i64);
    let experts = site.attr::<Dim>("?e").and_then(|e| e.as_const());
    let by_row = site
        .attr::<Shape>("?ms")
        .is_some_and(|mask| mask.len() == 2 && Some(&mask[0]) == site.extent("?ids", 0).as_ref() && mask[1].is(1));
    Verdict::when(bound.is_some() && bound == experts && by_row && single_rows(site) == Verdict::Holds, || {
        "the mask is not one of rows without expert".into()
    })
}

/// Outer products `[S, N, 1] · [S, 1, K]` added up at ids.
fn outer_by_id() -> Result<Rule, RuleError> {
    let put = |product: &str| format!("(index_put {FULL} {product} ?ids axes:0 flag:true)");
    rule("outer-by-id", Reassociating, "outer products of rows added up by expert are one product for each expert")
        .from(put("(matmul ?a ?b)"))
        .from_all(either("mul", "?a", "?b").map(|product| put(&product)))
        .fuses()
        .when("zeros", zeros)
        .when("outer-products", |s| outer_operands(s).map_or_else(Verdict::Refused, |_| Verdict::Holds))
        .when("ids-not-negative", ids_not_negative)
        .builds(|s| {
            let [left, right] = outer_operands(s).map_err(|why| Refusal::new("outer-products", why))?;
            let ids = s.id("?ids");
            let experts = experts_of(s)?;
            let dtype = s.result().map(|ty| ty.dtype).ok_or_else(|| Refusal::new("types", "no tensor"))?;
            let (a, b) = (rows_of(s, left)?, rows_of(s, right)?);
            let none = s.leaf(Head::Absent);
            s.call(ExpertOuter { experts, a_repeat: 1, b_repeat: 1, dtype }, &[a, b, ids, none])
        })
}

fn experts_of(site: &Site<'_>) -> Result<Dim, Refusal> {
    let first = site.result().and_then(|ty| ty.shape.first().cloned());
    first.ok_or_else(|| Refusal::new("types", "no tensor"))
}

/// The variables of the column on the left and the row on the right, whichever way a broadcast product is written.
fn outer_operands(site: &Site<'_>) -> Result<[&'static str; 2], String> {
    let (a, b) = (site.shape("?a"), site.shape("?b"));
    let result = site.result().ok_or("it is no tensor")?;
    let rows = site.extent("?ids", 0);
    let per_id = [&a, &b].iter().all(|x| x.len() == 3 && x.first() == rows.as_ref()) && site.rank("?ids") == Some(1);
    if !per_id || result.rank() != 3 {
        return Err(format!("{a:?} and {b:?} are not a column and a row for each id"));
    }
    if site.dtype("?a") != site.dtype("?b") || site.dtype("?a") != Some(result.dtype) {
        return Err("column and row have different dtypes".into());
    }
    let outer = |column: &Shape, row: &Shape| {
        column[2].is(1) && row[1].is(1) && column[1] == result.shape[1] && row[2] == result.shape[2]
    };
    match (outer(&a, &b), outer(&b, &a)) {
        (true, _) => Ok(["?a", "?b"]),
        (_, true) => Ok(["?b", "?a"]),
        _ => Err(format!("{a:?} and {b:?} are not a column and a row for each id")),
    }
}

/// `[S, N, 1]` or `[S, 1, N]` as `[S, N]`.
fn rows_of(site: &mut Site<'_>, var: &str) -> Result<Id, Refusal> {
    let (x, shape) = (site.id(var), site.shape(var));
    let width = if shape[1].is(1) { shape[2].clone() } else { shape[1].clone() };
    site.call(Reshape { shape: Shape::from_iter([shape[0].clone(), width]) }, &[x])
}

/// Rows added up at ids that choose experts elsewhere: outer products with ones.
fn bias_gradient() -> Result<Rule, RuleError> {
    rule("rows-by-id", Reassociating, "rows added up by expert are their outer products with ones")
        .from(format!("(index_put {FULL} ?v ?ids axes:0 flag:true)"))
        .when("zeros", zeros)
        .when("rows", |s| {
            let (v, rows) = (s.shape("?v"), s.extent("?ids", 0));
            let fits = v.len() == 2
                && s.rank("?ids") == Some(1)
                && v.first() == rows.as_ref()
                && s.result().map(|ty| ty.rank()) == Some(2);
            Verdict::when(fits && s.dtype("?v").is_some_and(DType::is_float), || {
                "it does not add a row of floats for each id".into()
            })
        })
        .when("ids-of-experts", |s| {
            let few = s.result().and_then(|ty| ty.shape[0].as_const()).is_some_and(|e| e <= MOST_EXPERTS);
            Verdict::when(few && choose_experts(s), || "the ids choose no experts".into())
        })
        .when("ids-not-negative", ids_not_negative)
        .builds(|s| {
            let (v, ids) = (s.id("?v"), s.id("?ids"));
            let dtype = s.dtype("?v").ok_or_else(|| Refusal::new("types", "no tensor"))?;
            let (experts, rows) = (experts_of(s)?, s.shape("?v")[0].clone());
            let one = if dtype.is_float() { Scalar::Float(1.0) } else { Scalar::Int(1) };
            let ones = s.call(Full { shape: Shape::from_iter([rows, Dim::from(1)]), value: one, dtype }, &[])?;
            let none = s.leaf(Head::Absent);
            let sums = s.call(ExpertOuter { experts, a_repeat: 1, b_repeat: 1, dtype }, &[v, ones, ids, none])?;
            let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
            s.call(Reshape { shape }, &[sums])
        })
}

/// The ids choose the experts of a product somewhere.
fn choose_experts(site: &Site<'_>) -> bool {
    let ids = site.id("?ids");
    site.egraph[ids].parents().any(|parent| {
        let node = site.egraph.id_to_node(parent);
        let chosen = match node.call() {
            Some((OpCode::ExpertMatmul, operands, _)) => operands.get(3),
            Some((OpCode::ExpertOuter, operands, _)) => operands.get(2),
            _ => None,
        };
        chosen.is_some_and(|&id| site.egraph.find(id) == ids)
    })
}

/// A product ragged in K whose groups are the rows sorted by expert, delimited by their counts.
fn grouped_outer() -> Result<Rule, RuleError> {
    let sorted = |x: &str| format!("(index {x} (out1 (sort ?ids int:0 flag:false)) axes:0)");
    let counted = ["(cast ?ids ?hd)", "?ids"].into_iter().flat_map(|ids| {
        let counts = format!("(histc {ids} ?bins ?min ?max)");
        [format!("(cast {counts} ?cd)"), counts]
    });
    let patterns = counted.map(|counts| {
        let groups = format!(
            "(reduce (ge (iota ?n int:0 int:1 ?it) (reshape (cumsum {counts} int:0 ?ct) ?s)) reduce:sum axes:0 flag:false ?gd)"
        );
        format!("(expert_outer {} {} {groups} none ?e ?ra ?rb ?d)", sorted("?a"), sorted("?b"))
    });
    rule("grouped-outer-by-expert", Reassociating, "sums over groups of rows sorted by expert are sums by expert")
        .from_all(patterns)
        .fuses()
        .when("rows-and-ids", |s| {
            let rows = s.extent("?ids", 0);
            let each = s.rank("?ids") == Some(1) && s.extent("?a", 0) == rows && s.attr::<Dim>("?n") == rows;
            Verdict::when(each && single_rows(s) == Verdict::Holds, || "there is not one id for each row".into())
        })
        .when("one-bin-each", |s| bins_of(s, s.attr::<Dim>("?e")))
        .when("counts-fit", counts_fit)
        .when("experts-few", |s| few_enough(s.attr::<Dim>("?e")))
        .when("ids-not-negative", ids_not_negative)
        .becomes("(expert_outer ?a ?b ?ids none ?e ?ra ?rb ?d)")
}

/// An operand whose rows are each read `?k` times in a row is read so by the product itself.
fn of_repeated(
    name: &str,
    pattern: &str,
    rows: &'static str,
    repeat: impl Fn(usize, [usize; 2]) -> [usize; 2] + Send + Sync + 'static,
) -> Result<Rule, RuleError> {
    rule(name, Exact, "rows that repeat need not be written out to be summed")
        .from(pattern)
        .when("whole-rows", move |s| repeats(s, rows).map_or_else(Verdict::Refused, |_| Verdict::Holds))
        .builds(move |s| {
            let k = repeats(s, rows).map_err(|why| Refusal::new("whole-rows", why))?;
            let refuse = || Refusal::new("types", "an attribute is no constant");
            let (a, b) = (s.attr("?ra").ok_or_else(refuse)?, s.attr("?rb").ok_or_else(refuse)?);
            let of_left = repeat(0, [a, b])[0] == 0;
            if (if of_left { a } else { b }) != 1 {
                return Err(Refusal::new("whole-rows", "the rows are repeated already"));
            }
            let [a_repeat, b_repeat] = repeat(k, [a, b]);
            let (x, y, ids, none) = (s.id(rows), s.id("?y"), s.id("?ids"), s.leaf(Head::Absent));
            let operands = if of_left { [x, y, ids, none] } else { [y, x, ids, none] };
            let experts = s.attr("?e").ok_or_else(refuse)?;
            let dtype = s.attr("?d").ok_or_else(refuse)?;
            s.call(ExpertOuter { experts, a_repeat, b_repeat, dtype }, &operands)
        })
}

//! Matrix products by expert: grouped or gathered, with biases, and slices of them.

use super::{either, permutes_rows};
use crate::egraph::{
    facts::Source,
    language::{ENode, Head},
    range::of_scalar,
    rule::{Numerics, Refusal, Rule, RuleError, Site, Verdict, rule},
};
use egg::Id;
use eglu_ir::{
    DType, Dim, OpCode,
    ops::{Axes, ExpertMatmul, Permute, Reshape, Slice},
};

/// `histc` in f32 puts every id in its own bin up to this many experts (checked against PyTorch 2.11 to 2.15; 5000 fail).
const MOST_EXPERTS: i64 = 4096;

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let grouped = ["(cast ?ids ?hd)", "?ids"].into_iter().flat_map(|ids| {
        let counts = format!("(histc {ids} ?bins ?min ?max)");
        [format!("(cast {counts} ?cd)"), counts].map(|counts| {
            let rows = "(index ?x (out1 (sort ?ids int:0 flag:false)) axes:0)";
            format!("(grouped_mm {rows} ?w (cumsum {counts} int:0 ?ct))")
        })
    });
    Ok(vec![
        rule(
            "grouped-by-expert",
            Numerics::Exact,
            "a grouped product of rows sorted by expert is each row times its expert's matrix, sorted",
        )
        .from_all(grouped)
        .nearly("(grouped_mm ?rows ?w (cumsum ?c int:0 ?ct))", "rows-sorted-by-expert", unsorted)
        .fuses()
        .when("rows-and-ids", |s| {
            let (rows, ids) = (s.extent("?x", 0), s.extent("?ids", 0));
            Verdict::when(rows == ids && s.rank("?ids") == Some(1), || "there is not one id for each row".into())
        })
        .when("one-bin-each", |s| bins_of(s, s.extent("?w", 0)))
        .when("counts-fit", counts_fit)
        .when("experts-few", |s| few_enough(s.extent("?w", 0)))
        .when("ids-not-negative", ids_not_negative)
        .becomes("(index (expert_matmul ?x (permute ?w axes:0,2,1) none ?ids) (out1 (sort ?ids int:0 flag:false)) axes:0)")?,
        gathered(
            "gathered-matrix-times-column",
            "(matmul (index ?w ?ids axes:0) ?v)",
            "a batch of picked matrices times columns is each row times its expert's matrix",
            Side::Left,
        )?,
        gathered(
            "row-times-gathered-matrix",
            "(matmul ?v (index ?w ?ids axes:0))",
            "a batch of rows times picked matrices is each row times its expert's transposed matrix",
            Side::Right,
        )?,
        rule("expert-bias", Numerics::SameAccumulator, "a bias picked by the same ids joins the product")
            .from_all(either("add", "(expert_matmul ?x ?w none ?ids)", "(index ?b ?ids axes:0)"))
            .fuses()
            .when("bias-by-expert", |s| {
                let (w, b) = (s.shape("?w"), s.shape("?b"));
                let fits = w.len() == 3 && b.len() == 2 && b[0] == w[0] && b[1] == w[1] && s.dtype("?b") == s.dtype("?w");
                Verdict::when(fits, || format!("the bias {b:?} does not match the weight {w:?}, or its dtype differs"))
            })
            .becomes("(expert_matmul ?x ?w ?b ?ids)")?,
        rule("matrices-picked-twice", Numerics::Exact, "picking from picked matrices is picking by the picked ids")
            .from("(index (index ?w ?ids axes:0) ?p axes:0)")
            .when("matrices", |s| {
                let rows = s.rank("?ids") == Some(1) && s.rank("?p") == Some(1);
                Verdict::when(s.rank("?w") == Some(3) && rows, || "it does not pick whole matrices".into())
            })
            .becomes("(index ?w (index ?ids ?p axes:0) axes:0)")?,
        rule(
            "permutation-through-expert-matmul",
            Numerics::Exact,
            "rows and their ids permuted alike give the same products, permuted",
        )
        .from("(expert_matmul (index ?x ?p axes:0) ?w ?b (index ?ids ?p axes:0))")
        .when("a-permutation", |s| permutes_rows(s, "?p", "?ids"))
        .becomes("(index (expert_matmul ?x ?w ?b ?ids) ?p axes:0)")?,
        rule("slice-of-expert-product", Numerics::Exact, "some columns of the product need only those rows of the weight")
            .from("(slice (expert_matmul ?x ?w ?b ?ids) int:1 ?start ?end ?step)")
            .builds(|s| {
                let (x, w, b, ids) = (s.id("?x"), s.id("?w"), s.id("?b"), s.id("?ids"));
                let slice = slice(s, 1)?;
                let w = s.call(slice.clone(), &[w])?;
                let b = if s.absent("?b") { b } else { s.call(slice, &[b])? };
                s.call(ExpertMatmul {}, &[x, w, b, ids])
            })?,
    ])
}

/// Why the rows of a grouped product are not sorted by the ids whose counts delimit the groups; `None` if they are.
fn unsorted(site: &Site<'_>) -> Option<String> {
    let nodes = |id: Id| site.egraph[id].nodes.iter();
    let operand = |node: &ENode, code: OpCode, at: usize| match node.call() {
        Some((found, operands, _)) if found == code => operands.get(at).map(|&id| site.egraph.find(id)),
        _ => None,
    };
    let under = |id: Id, code: OpCode| nodes(id).filter_map(move |node| operand(node, code, 0));
    let and_cast = |id: Id| std::iter::once(id).chain(under(id, OpCode::Cast));
    let counted: Vec<Id> = and_cast(site.id("?c")).flat_map(|c| under(c, OpCode::Histc)).flat_map(and_cast).collect();
    let orders: Vec<Id> = nodes(site.id("?rows")).filter_map(|node| operand(node, OpCode::Index, 1)).collect();
    let permutations = orders.iter().filter(|&&id| site.fact(id).is_some_and(|fact| fact.permutation));
    let sorted: Vec<Id> = permutations
        .flat_map(|&id| {
            nodes(id).filter(|node| node.head == Head::Output(1)).flat_map(|node| under(node.children[0], OpCode::Sort))
        })
        .collect();
    match (orders.is_empty(), sorted.is_empty()) {
        (true, _) => Some("the rows are not picked by an index, so nothing tells which belong to which expert".into()),
        (_, true) => {
            Some("the rows are picked by an index that is not known to be a permutation that sorts them by expert".into())
        }
        _ if sorted.iter().any(|ids| counted.contains(ids)) => None,
        _ => Some("the rows are sorted by other ids than those that are counted".into()),
    }
}

/// The slice that `?start ?end ?step` describe, along `dim`.
pub fn slice(site: &Site<'_>, dim: usize) -> Result<Slice, Refusal> {
    match (site.attr("?start"), site.attr("?end"), site.attr("?step")) {
        (Some(start), Some(end), Some(step)) => Ok(Slice { dim, start, end, step }),
        _ => Err(Refusal::new("types", "the bounds of the slice are no constants of the graph")),
    }
}

/// `histc` counts each of the experts in a bin of its own.
pub fn bins_of(site: &Site<'_>, experts: Option<Dim>) -> Verdict {
    let experts = experts.and_then(|e| e.as_const());
    let bins: Option<i64> = site.attr("?bins");
    let bound = |var: &str| site.attr(var).and_then(|number| of_scalar(number).as_const());
    let (min, max) = (bound("?min"), bound("?max"));
    Verdict::when(experts.is_some() && bins == experts && min == Some(0) && max == experts.map(|e| e - 1), || {
        let show = |value: Option<i64>| value.map_or("?".into(), |v| v.to_string());
        format!("histc counts in {} bins over {}..{}, but there are {} experts", show(bins), show(min), show(max), show(experts))
    })
}

/// `histc` counts them exactly.
pub fn few_enough(experts: Option<Dim>) -> Verdict {
    let experts = experts.and_then(|e| e.as_const());
    Verdict::when(experts.is_some_and(|e| e <= MOST_EXPERTS), || {
        let found = experts.map_or("how many experts there are is not known".into(), |e| format!("there are {e} experts"));
        format!("{found}, but histc in f32 counts exactly only up to {MOST_EXPERTS}")
    })
}

/// Ends of groups are stored in 32 bits at least, so that they do not wrap.
pub fn counts_fit(site: &Site<'_>) -> Verdict {
    let dtype: Option<DType> = site.attr("?ct");
    Verdict::when(matches!(dtype, Some(DType::I32 | DType::I64)), || "ends of groups are stored in fewer than 32 bits".into())
}

/// Ids are at least 0: proved, or a claim on a user input that they are a view of. (Sorted, negative ids come first, yet histc does
/// not count them: every other row would be multiplied by a wrong matrix. PyTorch's own code has no meaning for them either.)
pub fn ids_not_negative(site: &Site<'_>) -> Verdict {
    let ids = site.id("?ids");
    let Some(fact) = site.fact(ids) else { return Verdict::Refused("the ids are no tensor".into()) };
    if !fact.ty.dtype.is_int() {
        return Verdict::Refused(format!("ids must be integers, not {}", fact.ty));
    }
    if fact.range.lo >= 0 {
        return Verdict::Holds;
    }
    match given(site, ids) {
        Some(source) => Verdict::Assumed(format!("expert ids are not negative ({source})")),
        None => Verdict::Refused(format!("ids may be negative: all that is known is that they are {}", fact.range)),
    }
}

/// The placeholder of the user input that a class is a mere view of, or of the model's table that it is looked up in.
fn given(site: &Site<'_>, class: Id) -> Option<String> {
    let (mut seen, mut stack) = (Vec::new(), vec![class]);
    while let Some(id) = stack.pop().map(|id| site.egraph.find(id)) {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        for node in &site.egraph[id].nodes {
            match &node.head {
                Head::Value(index) => match site.egraph.analysis.entries.get(*index as usize).map(|entry| entry.source) {
                    Some(Source::User) => return Some(format!("input %{index}")),
                    Some(Source::Weight) => return Some(format!("weight %{index}")),
                    Some(Source::Graph) | None => {}
                },
                Head::Op(OpCode::Reshape | OpCode::Permute | OpCode::Slice | OpCode::Cast | OpCode::Index) => {
                    stack.extend(node.children.first());
                }
                _ => {}
            }
        }
    }
    None
}

/// On which side of the product the picked matrices stand.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// `w[ids] · v[S, K, 1]`.
    Left,
    /// `v[S, 1, K] · w[ids]`.
    Right,
}

fn gathered(name: &str, pattern: &str, doc: &str, side: Side) -> Result<Rule, RuleError> {
    let (inner, single) = if side == Side::Left { (1, 2) } else { (2, 1) };
    rule(name, Numerics::Exact, doc)
        .from(pattern)
        .fuses()
        .when("whole-matrices", |s| {
            Verdict::when(s.rank("?w") == Some(3) && s.rank("?ids") == Some(1) && s.rank("?v") == Some(3), || {
                "it does not pick one matrix for each row".into()
            })
        })
        .when("one-row-each", move |s| {
            let one = s.extent("?v", single).is_some_and(|n| n.is(1));
            Verdict::when(one, || "each matrix multiplies several rows".into())
        })
        .when("ids-not-negative", ids_not_negative)
        .builds(move |s| {
            let (mut w, ids, v) = (s.id("?w"), s.id("?ids"), s.id("?v"));
            let (Some(rows), Some(k)) = (s.extent("?ids", 0), s.extent("?v", inner)) else {
                return Err(Refusal::new("types", "no matrices"));
            };
            if s.extent("?v", 0) != Some(rows.clone()) {
                return Err(Refusal::new("rows-and-ids", "there is not one id for each row"));
            }
            if side == Side::Right {
                w = s.call(Permute { dims: Axes::from_slice(&[0, 2, 1]) }, &[w])?;
            }
            let x = s.call(Reshape { shape: [rows, k].into_iter().collect() }, &[v])?;
            let none = s.leaf(Head::Absent);
            let product = s.call(ExpertMatmul {}, &[x, w, none, ids])?;
            let shape = s.result().map(|ty| ty.shape.clone()).unwrap_or_default();
            s.call(Reshape { shape }, &[product])
        })
}

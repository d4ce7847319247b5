//! Permutations of rows move outward through every op that treats rows alike: one rule for each op and operand, generated from the table.

use super::permutes_rows;
use crate::egraph::{
    facts::{EGraph, op_of},
    language::{ENode, Head},
    rule::{Numerics::Exact, Refusal, Rule, RuleError, Site, Verdict, rule},
};
use egg::{Id, Subst};
use eglu_ir::{
    Op, OpCode,
    ops::{Axes, Cat, Expand, Index, Permute, Reduce, Reshape, RmsNorm, Slice, Softmax},
};

/// The rules.
pub fn rules() -> Result<Vec<Rule>, RuleError> {
    let mut rules = Vec::new();
    for code in OpCode::all() {
        let operands = match code {
            OpCode::Pointwise(op) => op.arity(),
            OpCode::Cast
            | OpCode::Slice
            | OpCode::Reshape
            | OpCode::Permute
            | OpCode::Expand
            | OpCode::Softmax
            | OpCode::Reduce => 1,
            OpCode::RmsNorm | OpCode::Cat | OpCode::Glu => 2,
            _ => continue,
        };
        rules.push(through(code, operands)?);
    }
    rules.push(permuted_matrices()?);
    Ok(rules)
}

/// `f(…, index(a, p), …)` is `index(f(…, a, …), p)`.
fn through(code: OpCode, operands: usize) -> Result<Rule, RuleError> {
    let anchored = match code {
        OpCode::RmsNorm => 1,
        _ => operands,
    };
    let patterns = (0..anchored).map(|at| {
        let operand = |i: usize| if i == at { "(index ?a ?p axes:0)".into() } else { format!("?o{i}") };
        let words: Vec<String> = (0..operands).map(operand).chain((0..code.fields().len()).map(|i| format!("?f{i}"))).collect();
        format!("({} {})", code.name(), words.join(" "))
    });
    let doc = format!("`{}` treats rows alike, so a permutation of rows may come after it", code.name());
    rule(format!("permutation-through-{}", code.name()), Exact, doc)
        .from_all(patterns)
        .when("a-permutation", |s| permutes_rows(s, "?p", "?a"))
        .builds(move |s| push(s, code))
}

/// Every node of the matched class that is `code` and reads rows permuted by `?p`, with the permutation taken off.
fn push(site: &mut Site<'_>, code: OpCode) -> Result<Id, Refusal> {
    let p = site.id("?p");
    let nodes: Vec<ENode> = site.egraph[site.class].nodes.iter().filter(|node| node.head == Head::Op(code)).cloned().collect();
    let mut refused = Refusal::new("rows-alike", format!("`{}` reads no permuted rows", code.name()));
    for node in nodes {
        match unpermuted(site, &node, p) {
            Ok((op, operands)) => {
                let inner = site.call(op, &operands)?;
                return site.call(Index { axes: Axes::from_slice(&[0]) }, &[inner, p]);
            }
            Err(refusal) => refused = refusal,
        }
    }
    Err(refused)
}

/// Why a permutation of rows of an operand stays before the ops of this class, and by which condition; `None` where none does.
pub fn stuck(egraph: &mut EGraph, class: Id) -> Option<Refusal> {
    let permuted = |id: Id| {
        egraph[id].nodes.iter().find_map(|node| match node.call() {
            Some((OpCode::Index, &[_, by], _)) if egraph[by].data.outputs.first().is_some_and(|fact| fact.permutation) => {
                Some(by)
            }
            _ => None,
        })
    };
    let by_node = egraph[class].nodes.iter().filter_map(|node| {
        let (_, operands, _) = node.call()?;
        Some((node.clone(), operands.iter().find_map(|&operand| permuted(operand))?))
    });
    let nodes: Vec<(ENode, Id)> = by_node.collect();
    let site = Site { egraph, class, subst: &Subst::default() };
    nodes.into_iter().find_map(|(node, p)| unpermuted(&site, &node, site.egraph.find(p)).err())
}

/// The op and its operands before the permutation.
fn unpermuted(site: &Site<'_>, node: &ENode, p: Id) -> Result<(Op, Vec<Id>), Refusal> {
    let op = op_of(site.egraph, node).map_err(|why| Refusal::new("types", why))?;
    let (_, operands, _) = node.call().ok_or_else(|| Refusal::new("types", "no op"))?;
    let result = site.result().ok_or_else(|| Refusal::new("types", "no tensor"))?;
    let rows = site.ty_of(p).and_then(|ty| ty.shape.first());
    if result.shape.first() != rows {
        return Err(Refusal::new("rows-alike", format!("`{}` changes the number of rows", op.name())));
    }
    rows_alike(site, &op, operands).map_err(|why| Refusal::new("rows-alike", why))?;
    let rank = result.rank();
    let mut permuted = false;
    let inner: Vec<Id> = operands
        .iter()
        .enumerate()
        .map(|(i, &operand)| {
            if let Some(a) = site.gathered_by(operand, p) {
                permuted = true;
                return Ok(a);
            }
            let broadcast = matches!(op, Op::Pointwise(_) | Op::Glu(_))
                && site.ty_of(operand).is_none_or(|ty| ty.rank() < rank || ty.shape[0].is(1));
            let weight = matches!(op, Op::RmsNorm(_)) && i == 1;
            if broadcast || weight || site.holds(operand, &Head::Op(OpCode::Full)) {
                return Ok(operand);
            }
            Err(Refusal::new("same-permutation", format!("operand {i} of `{}` is not permuted in the same way", op.name())))
        })
        .collect::<Result<_, _>>()?;
    if !permuted {
        return Err(Refusal::new("rows-alike", "no operand is permuted"));
    }
    Ok((op, inner))
}

/// The op never mixes rows, nor asks which row it is at.
fn rows_alike(site: &Site<'_>, op: &Op, operands: &[Id]) -> Result<(), String> {
    let first = operands.first().and_then(|&id| site.ty_of(id));
    let rank = first.map_or(0, |ty| ty.rank());
    let alike = match op {
        Op::Pointwise(_) | Op::Cast(_) | Op::Glu(_) => true,
        Op::Slice(Slice { dim, .. }) | Op::Softmax(Softmax { dim, .. }) | Op::Cat(Cat { dim }) => *dim > 0,
        Op::Reduce(Reduce { dims, .. }) => !dims.contains(&0),
        Op::Permute(Permute { dims }) => dims.first() == Some(&0),
        Op::RmsNorm(RmsNorm { .. }) => rank > 1,
        Op::Reshape(Reshape { shape }) | Op::Expand(Expand { shape }) => {
            let rows = first.and_then(|ty| ty.shape.first());
            rows.is_some() && shape.first() == rows && (matches!(op, Op::Reshape(_)) || shape.len() == rank)
        }
        _ => false,
    };
    if alike { Ok(()) } else { Err(format!("`{}` works across rows", op.name())) }
}

/// Matrices picked by any index and then transposed are the transposed matrices, picked: the transposition moves to the weights.
fn permuted_matrices() -> Result<Rule, RuleError> {
    rule("transposition-of-picked", Exact, "transposing picked matrices is picking from transposed ones")
        .from("(permute (index ?w ?ids axes:0) axes:0,2,1)")
        .when("matrices", |s| {
            Verdict::when(s.rank("?w") == Some(3) && s.rank("?ids") == Some(1), || "it does not pick whole matrices".into())
        })
        .becomes("(index (permute ?w axes:0,2,1) ?ids axes:0)")
}

//! What a router chooses experts by, read from the e-graph: scores of logits, perhaps with a bias, perhaps of the best groups alone.

use crate::egraph::{
    facts::{Source, op_of},
    language::Head,
    range::of_scalar,
    rule::{Refusal, Site},
};
use egg::Id;
use eglu_ir::{
    DType, Op, Scalar, Shape,
    ops::{Axes, Iota, Pointwise, Reduce, ReduceKind, Route, RouteGroups, RouteScore, Softmax, TopK},
};

/// Logits and how they become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// Softmax or sigmoid.
    pub score: RouteScore,
    /// What the scores are stored as.
    pub dtype: DType,
    /// `[T, E]`.
    pub logits: Id,
}

/// What the best experts are chosen by.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The scores.
    pub scores: Scores,
    /// `[E]`, or the same as `[1, E]`.
    pub bias: Option<Id>,
    /// Groups of which only the best stay, and what experts of the others count as.
    pub groups: Option<(RouteGroups, Scalar)>,
}

impl Choice {
    /// The router's attributes but for how it weighs.
    pub fn route(self, k: usize, gathered: bool, weigh: eglu_ir::Program) -> Route {
        let groups = self.groups.map_or_else(Axes::new, |(g, _)| Axes::from_slice(&[g.count, g.best, g.kept]));
        let masked = self.groups.map_or(Scalar::Int(0), |(_, masked)| masked);
        Route { score: self.scores.score, scores: self.scores.dtype, k, groups, masked, gathered, weigh: weigh.into() }
    }
}

/// Ops of a class with their operands.
pub fn ops(site: &Site<'_>, class: Id) -> Vec<(Op, Vec<Id>)> {
    let op = |node| op_of(site.egraph, node).ok();
    let nodes = site.egraph[class].nodes.iter();
    let find = |ids: &[Id]| ids.iter().map(|&id| site.egraph.find(id)).collect();
    nodes.filter_map(|node| Some((op(node)?, find(node.call()?.1)))).collect()
}

/// The op with several outputs of which the class is output `index`.
pub fn output_of(site: &Site<'_>, class: Id, index: u32) -> Vec<Id> {
    let nodes = site.egraph[class].nodes.iter().filter(|node| node.head == Head::Output(index));
    nodes.map(|node| site.egraph.find(node.children[0])).collect()
}

/// The scores that a class is.
pub fn scores(site: &Site<'_>, class: Id) -> Option<Scores> {
    let dtype = site.ty_of(class)?.dtype;
    ops(site, class).into_iter().find_map(|(op, operands)| match op {
        Op::Softmax(Softmax { dim: 1, log: false, dtype }) => {
            Some(Scores { score: RouteScore::Softmax, dtype, logits: *operands.first()? })
        }
        Op::Pointwise(Pointwise::Sigmoid) => Some(Scores { score: RouteScore::Sigmoid, dtype, logits: *operands.first()? }),
        _ => None,
    })
}

/// What a class `[T, E]` chooses by.
pub fn read(site: &Site<'_>, class: Id) -> Result<Choice, Refusal> {
    if site.ty_of(class).is_none_or(|ty| ty.rank() != 2) {
        return Err(Refusal::new("scores", "scores are not [tokens, experts]"));
    }
    let masked = ops(site, class).into_iter().find_map(|(op, operands)| match (op, &operands[..]) {
        (Op::Pointwise(Pointwise::Where), &[mask, a, b]) => match (number(site, a), number(site, b)) {
            (Some(fill), None) => Some((mask, false, fill, b)),
            (None, Some(fill)) => Some((mask, true, fill, a)),
            _ => None,
        },
        _ => None,
    });
    let Some((mask, stays, fill, inner)) = masked else {
        let (scores, bias) = biased(site, class)?;
        return Ok(Choice { scores, bias, groups: None });
    };
    let (scores, bias) = biased(site, inner)?;
    let refuse = |why: &str| Refusal::new("best-groups", why);
    let (index, keeps) =
        kept(site, mask, true).ok_or_else(|| refuse("a mask limits the choice, but not to groups of experts"))?;
    if keeps != stays {
        return Err(refuse("the experts of the chosen groups are masked, not the others"));
    }
    let groups = ranked(site, index, inner).ok_or_else(|| refuse("groups are not ranked by their best scores"))?;
    Ok(Choice { scores, bias, groups: Some((groups, fill)) })
}

/// The number that a class is.
pub fn number(site: &Site<'_>, class: Id) -> Option<Scalar> {
    match &site.egraph[class].data.leaf {
        Some(Head::Scalar(scalar)) => Some(*scalar),
        _ => None,
    }
}

/// Scores, and the bias that may be added to them.
fn biased(site: &Site<'_>, class: Id) -> Result<(Scores, Option<Id>), Refusal> {
    if let Some(found) = scores(site, class) {
        return Ok((found, None));
    }
    let experts = site.ty_of(class).and_then(|ty| ty.shape.last().cloned());
    let of_experts = |id: Id| site.ty_of(id).is_some_and(|ty| ty.shape.last() == experts.as_ref() && Some(ty.numel()) == experts);
    let sums = ops(site, class).into_iter().filter(|(op, _)| *op == Op::Pointwise(Pointwise::Add));
    let found = sums.flat_map(|(_, operands)| match operands[..] {
        [a, b] => vec![(a, b), (b, a)],
        _ => Vec::new(),
    });
    let mut found = found.filter_map(|(a, b)| Some((scores(site, a)?, b)));
    match found.next() {
        Some((scores, bias)) if of_experts(bias) => Ok((scores, Some(bias))),
        Some(_) => Err(Refusal::new("bias-by-expert", "what is added to the scores is not one number for each expert")),
        None => Err(Refusal::new(
            "scores",
            format!("experts are not chosen by a softmax or sigmoid of logits{}", instead(site, class)),
        )),
    }
}

/// What scores are instead, in words, as far as their last op tells: a bias that is added is looked through.
fn instead(site: &Site<'_>, class: Id) -> String {
    let nodes = ops(site, class);
    let added = nodes.iter().find_map(|(op, operands)| match (op, &operands[..]) {
        (Op::Pointwise(Pointwise::Add), &[a, _]) => Some(a),
        _ => None,
    });
    let computed = |op: &Op| !matches!(op, Op::Reshape(_) | Op::Cast(_) | Op::Expand(_));
    match (added, nodes.iter().find(|(op, _)| computed(op))) {
        (Some(scores), _) => instead(site, scores),
        (None, Some((op, _))) => format!(", but by `{}`", op.name()),
        (None, None) => String::new(),
    }
}

/// What the ids of a block are, in words, where no top-k of scores gives them; `None` where they come from outside.
pub fn other_ids(site: &Site<'_>, class: Id) -> Option<String> {
    let (mut seen, mut stack) = (vec![], vec![site.egraph.find(class)]);
    while let Some(id) = stack.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        for (op, operands) in ops(site, id) {
            match op {
                Op::Reduce(Reduce { kind: ReduceKind::Argmax, .. }) => {
                    let why = "experts are chosen one at a time, each as the largest of what is left (argmax): no top-k of one set of scores";
                    return Some(why.into());
                }
                Op::Pointwise(Pointwise::Where) if operands.first().is_some_and(|&mask| is_open(site, mask)) => {
                    return Some("chosen ids are replaced by others (`where`), as where one choice is to use no expert".into());
                }
                Op::Index(_) if operands.first().is_some_and(|&table| is_table(site, table)) => {
                    return Some("experts are looked up in a table, not chosen by scores".into());
                }
                Op::Reshape(_) | Op::Cast(_) | Op::Cat(_) | Op::Expand(_) | Op::Permute(_) | Op::Slice(_) | Op::Index(_) => {
                    stack.extend(operands);
                }
                Op::Pointwise(Pointwise::Minimum | Pointwise::Maximum) => stack.extend(operands),
                _ => {}
            }
        }
    }
    None
}

/// Nothing is known of what a mask holds.
fn is_open(site: &Site<'_>, mask: Id) -> bool {
    site.fact(mask).is_none_or(|fact| fact.range.as_const().is_none())
}

/// Integers that enter the graph as a weight.
fn is_table(site: &Site<'_>, class: Id) -> bool {
    let entered = site.egraph[class].nodes.iter().any(|node| match node.head {
        Head::Value(index) => {
            site.egraph.analysis.entries.get(index as usize).is_some_and(|entry| entry.source == Source::Weight)
        }
        _ => false,
    });
    entered && site.ty_of(class).is_some_and(|ty| ty.dtype.is_int())
}

/// The positions of the groups that a mask `[T, E]` is true for, or false if the second is.
fn kept(site: &Site<'_>, class: Id, holds: bool) -> Option<(Id, bool)> {
    let shape = site.ty_of(class)?.shape.clone();
    ops(site, class).into_iter().find_map(|(op, operands)| {
        let (&x, second) = (operands.first()?, operands.get(1).and_then(|&id| number(site, id)));
        let zero = second.is_some_and(|second| second.as_f64() == 0.0);
        let from = site.ty_of(x).map(|ty| ty.shape.clone()).unwrap_or_default();
        match op {
            Op::Cast(_) => kept(site, x, holds),
            Op::Pointwise(Pointwise::BitNot | Pointwise::LogicalNot) if site.ty_of(x)?.dtype == DType::Bool => {
                kept(site, x, !holds)
            }
            Op::Pointwise(Pointwise::LogicalNot) => kept(site, x, !holds),
            Op::Pointwise(Pointwise::Eq) if zero => kept(site, x, !holds),
            Op::Pointwise(Pointwise::Ne | Pointwise::Gt) if zero => kept(site, x, holds),
            Op::Reshape(_) if spreads(&from, &shape) => kept(site, x, holds),
            Op::Expand(_) if from.len() == 3 && shape.len() == 3 && from[..2] == shape[..2] && from[2].is(1) => {
                kept(site, x, holds)
            }
            Op::Index(index) if index.axes[..] == [1] && repeats(site, *operands.get(1)?, &from, &shape) => kept(site, x, holds),
            Op::IndexPut(put) if put.axes[..] == [0, 1] && !put.accumulate => match operands[..] {
                [zeros, ones, rows, index] if filled(site, zeros, 0) && filled(site, ones, 1) && counts(site, rows) => {
                    Some((index, holds))
                }
                _ => None,
            },
            _ => None,
        }
    })
}

/// `[T, G, W]` seen as `[T, E]`, or `[T, G]` as `[T, G, 1]`.
fn spreads(from: &Shape, to: &Shape) -> bool {
    match (&from[..], &to[..]) {
        ([t, _, _], [rows, _]) => t == rows,
        ([t, g], [rows, groups, one]) => (t, g) == (rows, groups) && one.is(1),
        _ => false,
    }
}

/// The index picks each of the G columns E / G times in a row.
fn repeats(site: &Site<'_>, index: Id, from: &Shape, to: &Shape) -> bool {
    let width = match (from.get(1).and_then(|d| d.as_const()), to.get(1).and_then(|d| d.as_const())) {
        (Some(groups), Some(experts)) if groups > 0 && experts % groups == 0 => experts / groups,
        _ => return false,
    };
    ops(site, index).into_iter().any(|(op, operands)| {
        let by = operands.get(1).and_then(|&id| number(site, id));
        op == Op::Pointwise(Pointwise::FloorDiv)
            && by == Some(Scalar::Int(width))
            && ops(site, operands[0]).iter().any(|(op, _)| matches!(op, Op::Iota(Iota { start: 0, step: 1, .. })))
    })
}

/// All elements are that number.
fn filled(site: &Site<'_>, class: Id, value: i64) -> bool {
    let same = |scalar: Scalar| of_scalar(scalar).as_const() == Some(value);
    number(site, class).is_some_and(same)
        || ops(site, class).into_iter().any(|(op, operands)| match op {
            Op::Full(full) => same(full.value),
            Op::Expand(_) | Op::Reshape(_) | Op::Cast(_) => filled(site, operands[0], value),
            _ => false,
        })
}

/// 0, 1, …, as a column.
fn counts(site: &Site<'_>, class: Id) -> bool {
    site.ty_of(class).is_some_and(|ty| ty.rank() == 2 && ty.shape[1].is(1)) && counted(site, class)
}

/// 0, 1, …, in any shape.
fn counted(site: &Site<'_>, class: Id) -> bool {
    ops(site, class).into_iter().any(|(op, operands)| match op {
        Op::Iota(Iota { start: 0, step: 1, .. }) => true,
        Op::Reshape(_) => counted(site, operands[0]),
        _ => false,
    })
}

/// How groups are ranked, if `index` are the positions of those whose best `choice` sum up to most.
fn ranked(site: &Site<'_>, index: Id, choice: Id) -> Option<RouteGroups> {
    let tops = output_of(site, index, 1).into_iter().flat_map(|top| ops(site, top));
    let mut ranked = tops.filter_map(|(op, operands)| match op {
        Op::TopK(TopK { k, dim: 1, largest: true }) => Some((k, *operands.first()?)),
        _ => None,
    });
    ranked.find_map(|(kept, sums)| {
        ops(site, sums).into_iter().find_map(|(op, operands)| {
            let Op::Reduce(Reduce { kind, dims, keepdim: false, dtype }) = op else { return None };
            let &of = operands.first().filter(|_| dims[..] == [2])?;
            site.ty_of(choice).filter(|ty| ty.dtype == dtype)?;
            let grouped = |class: Id| {
                let split =
                    ops(site, class).into_iter().any(|(op, x)| matches!(op, Op::Reshape(_)) && x.first() == Some(&choice));
                site.ty_of(class).filter(|ty| split && ty.rank() == 3).and_then(|ty| ty.shape[1].as_const())
            };
            let (best, count) = match kind {
                ReduceKind::Amax => (1, grouped(of)?),
                ReduceKind::Sum => {
                    let tops = output_of(site, of, 0).into_iter().flat_map(|top| ops(site, top));
                    let mut tops = tops.filter_map(|(op, x)| match op {
                        Op::TopK(TopK { k, dim: 2, largest: true }) => Some((k, grouped(*x.first()?)?)),
                        _ => None,
                    });
                    tops.next()?
                }
                _ => return None,
            };
            Some(RouteGroups { count: usize::try_from(count).ok()?, best, kept })
        })
    })
}

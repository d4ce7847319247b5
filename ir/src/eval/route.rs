//! Routers: scores of experts, the choice of the best, and the weights of the chosen.

use super::{
    Call, EvalError,
    element::{decode, encode},
    norm::softmax_line,
    order::ranked,
    program::run,
    values::{Column, Values},
};
use crate::{
    DType, Tensor,
    ops::{Route, RouteGroups, RouteScore},
};

/// The numbers rounded to a dtype, in f32 again.
fn rounded(values: &[f32], dtype: DType) -> Result<Vec<f32>, EvalError> {
    match dtype {
        DType::F32 => Ok(values.to_vec()),
        _ => Ok(decode::<f32>(&encode(dtype, &[values.len()], values)?).into_owned()),
    }
}

fn scores(op: &Route, logits: &[f32]) -> Result<Vec<f32>, EvalError> {
    let mut scores = logits.to_vec();
    match op.score {
        RouteScore::Softmax => softmax_line(&mut scores, false),
        RouteScore::Sigmoid => scores.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        RouteScore::TopKSoftmax | RouteScore::TopKSigmoid => return Ok(scores),
    }
    rounded(&scores, op.scores)
}

/// Experts of groups that are not among the best count as masked.
fn keep_groups(op: &Route, choice: &mut [f32], groups: RouteGroups, dtype: DType) -> Result<(), EvalError> {
    let width = groups.width(choice.len()).unwrap_or(0).max(1);
    let best = |group: &[f32]| ranked(group, true).into_iter().take(groups.best).map(|i| f64::from(group[i])).sum::<f64>() as f32;
    let sums: Vec<f32> = choice.chunks_exact(width).map(best).collect();
    for &group in &ranked(&rounded(&sums, dtype)?, true)[groups.kept..] {
        choice[group * width..(group + 1) * width].fill(op.masked.as_f64() as f32);
    }
    Ok(())
}

pub(super) fn route(op: &Route, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let (logits, bias) = (call.tensor(0)?, call.optional(1));
    let experts = logits.shape()[1];
    let chosen_by = op.choice_dtype(logits.dtype(), bias.map(Tensor::dtype));
    let value_dtype = op.value_dtype(logits.dtype(), bias.map(Tensor::dtype));
    let bias = bias.map(|bias| decode::<f32>(bias).into_owned());
    let (mut values, mut totals, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for row in decode::<f32>(logits).chunks_exact(experts.max(1)) {
        let scores = scores(op, row)?;
        let mut choice = match &bias {
            Some(bias) => rounded(&scores.iter().zip(bias).map(|(score, bias)| score + bias).collect::<Vec<_>>(), chosen_by)?,
            None => scores.clone(),
        };
        if let Some(groups) = op.groups() {
            keep_groups(op, &mut choice, groups, chosen_by)?;
        }
        let chosen = &ranked(&choice, true)[..op.k];
        let from = if op.gathered { &scores } else { &choice };
        let mut best: Vec<f32> = chosen.iter().map(|&id| from[id]).collect();
        match op.score {
            RouteScore::TopKSoftmax => softmax_line(&mut best, false),
            RouteScore::TopKSigmoid => best.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            RouteScore::Softmax | RouteScore::Sigmoid => {}
        }
        let best = rounded(&best, value_dtype)?;
        totals.extend(std::iter::repeat_n(best.iter().sum::<f32>(), op.k));
        values.extend(best);
        ids.extend(chosen.iter().map(|&id| id as i64));
    }
    let params: [Values<'_>; 2] = [f32::values(values), f32::values(rounded(&totals, value_dtype)?)];
    let mut weights = run(&op.weigh, &params, call.shape())?;
    weights.push(encode(DType::I64, call.shape(), &ids)?);
    Ok(weights)
}

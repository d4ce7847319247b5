//! Two reductions of the same lines, of which the second reads what the first gave (variance, logsumexp): one kernel that keeps the lines.

use super::{
    Chain, Source, chain_of, emit,
    walk::{Walk, at_most, more_than},
};
use crate::{
    Arg, Layout, Plan, Source as Origin, Step, TensorRef,
    cuda::{emitter::Emitter, error::Emit},
};
use eglu_ir::{Dim, types::numel};

/// Lines of at least this many elements are not kept by one block.
const LONG: i64 = 1 << 14;

/// Which steps of a plan are emitted together.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Pairs(Vec<(usize, usize)>);

impl Pairs {
    /// Every step is in one pair at most.
    pub fn find(plan: &Plan) -> Pairs {
        let mut pairs = Pairs::default();
        for second in 0..plan.steps.len() {
            let free = |first: &usize| !pairs.0.iter().any(|&(a, b)| a == *first || b == *first);
            let candidates = (0..second).rev().filter(|&first| feeds(&plan.steps[first], &plan.steps[second])).filter(free);
            let found =
                candidates.into_iter().find(|&first| may_wait(plan, first, second) && joined(plan, first, second).is_some());
            if let Some(first) = found {
                pairs.0.push((first, second));
            }
        }
        pairs
    }

    /// The first step of the pair that `step` is the second of.
    pub fn first(&self, step: usize) -> Option<usize> {
        self.0.iter().find(|pair| pair.1 == step).map(|pair| pair.0)
    }

    /// True for the first step of a pair.
    pub fn waits(&self, step: usize) -> bool {
        self.0.iter().any(|pair| pair.0 == step)
    }
}

fn tensors(step: &Step) -> impl Iterator<Item = &TensorRef> {
    step.inputs.iter().filter_map(|arg| match arg {
        Arg::Tensor(tensor) => Some(tensor),
        _ => None,
    })
}

/// True if the second reads a result of the first.
fn feeds(first: &Step, second: &Step) -> bool {
    first.outputs.iter().any(|output| tensors(second).any(|tensor| tensor.buffer == output.buffer))
}

/// True if the first step's work may be done as late as the second's: nobody between needs it, and what it reads is still there.
fn may_wait(plan: &Plan, first: usize, second: usize) -> bool {
    let (a, b) = (&plan.steps[first], &plan.steps[second]);
    let stays = |tensor: &TensorRef| {
        !matches!(plan.buffers[tensor.buffer].source, Origin::Step) || tensors(b).any(|other| other.buffer == tensor.buffer)
    };
    !plan.steps[first + 1..second].iter().any(|step| feeds(a, step)) && tensors(a).all(stays)
}

/// The chain of both; `None` where they do not walk the same lines.
fn joined(plan: &Plan, first: usize, second: usize) -> Option<Chain> {
    let (step, a) = (&plan.steps[first], chain_of(&plan.steps[first])?.ok()?);
    let b = chain_of(&plan.steps[second])?.ok()?;
    if a.passes() > 1 || b.passes() > 1 {
        return None;
    }
    if a.full != b.full || a.dims != b.dims || Walk::single(&a).goes_across(&a) || !a.lines.is_empty() || a.rounds() || b.rounds()
    {
        return None;
    }
    let ones = |i: usize| if a.dims.contains(&i) { Dim::from(1) } else { a.full[i].clone() };
    let kept = Layout::dense((0..a.full.len()).map(ones).collect());
    // A result of the first, one value for each line.
    let stat = |tensor: &TensorRef| -> Option<Option<usize>> {
        let Some(at) = step.outputs.iter().position(|output| output.buffer == tensor.buffer) else { return Some(None) };
        let same = tensor.layout.shape == kept.shape && tensor.layout.offset.is(0);
        let mut dims = kept.shape.iter().zip(&kept.strides).zip(&tensor.layout.strides);
        (same && dims.all(|((extent, want), got)| extent.is(1) || want == got)).then_some(Some(at))
    };
    let mut chain = Chain { name: format!("{}_then_{}", a.name, b.name), ..a };
    let mut stage = b.stages.into_iter().next()?;
    let mut of_input = Vec::new();
    for tensor in &b.inputs {
        of_input.push(match stat(tensor)? {
            Some(stat) => Source::Stat(stat),
            None => Source::Element(chain.inputs.iter().position(|other| other == tensor).unwrap_or_else(|| {
                chain.inputs.push(tensor.clone());
                chain.inputs.len() - 1
            })),
        });
    }
    let mut of_line = Vec::new();
    for tensor in &b.lines {
        of_line.push(match stat(tensor)? {
            Some(stat) => Source::Stat(stat),
            None => {
                chain.lines.push(tensor.clone());
                Source::Line(chain.lines.len() - 1)
            }
        });
    }
    let renamed = |source: &Source| match *source {
        Source::Element(i) => of_input[i],
        Source::Line(i) => of_line[i],
        stat => stat,
    };
    stage.args = stage.args.iter().map(renamed).collect();
    stage.captures = stage.captures.iter().map(renamed).collect();
    chain.stages.push(stage);
    // It pays where what both read is kept.
    (0..chain.inputs.len()).any(|input| chain.keeps(input)).then_some(chain)
}

/// Emits both steps: as one kernel, or one after the other where lines are few and long.
pub(in super::super) fn emit_pair(emitter: &mut Emitter, plan: &Plan, first: usize, second: usize) -> Emit<()> {
    let Some(chain) = joined(plan, first, second) else { return Ok(()) };
    let walk = Walk::along_lines(&chain);
    let (rows, length) = (numel(&walk.kept.shape), numel(&walk.reduced.shape));
    let few = at_most(&rows, i64::from(emitter.target.multiprocessors()) - 1) * more_than(&length, LONG - 1);
    emitter.only(Dim::from(1) - few.clone(), |emitter| emit(emitter, &chain))?;
    emitter.only(few, |emitter| {
        super::reduce(emitter, &plan.steps[first])?;
        super::reduce(emitter, &plan.steps[second])
    })
}

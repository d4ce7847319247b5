//! Intermediate values whose rows stay in expert order: those that only products of the same ids read. Their rows are then neighbours, for the
//! copy engine to move.

use super::super::loops::Loop;
use crate::{Arg, BufferId, Plan, Source, Step, TensorRef};
use eglu_ir::{Dim, Op};
use std::collections::{HashMap, HashSet};

/// What decides an order: where the ids lie, and the number of experts.
pub(super) type Key = (BufferId, Dim, Loop, i64);

/// The order that rows with these ids are put in.
pub(super) fn key(ids: &TensorRef, experts: i64) -> Key {
    (ids.buffer, ids.layout.offset.clone(), Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]), experts)
}

/// The buffers of a plan that lie in expert order.
pub(in super::super) fn find(plan: &Plan) -> HashSet<BufferId> {
    let mut writers: HashMap<BufferId, (Key, Dim)> = HashMap::new();
    for step in &plan.steps {
        let Some((key, rows)) = order_of(step) else { continue };
        // Sums of rows stay where their ids stand.
        let sums = if let Op::ExpertContract(op) = &step.op { op.folds.len() } else { 0 };
        for output in step.outputs[..step.outputs.len() - sums]
            .iter()
            .filter(|output| output.layout.shape.len() == 2 && output.layout.shape[0] == rows)
        {
            writers.insert(output.buffer, (key.clone(), rows.clone()));
        }
    }
    let mut found: HashSet<BufferId> = writers.keys().copied().filter(|&id| plan.buffers[id].source == Source::Step).collect();
    for output in &plan.outputs {
        found.remove(&output.tensor.buffer);
    }
    for step in &plan.steps {
        let own = order_of(step);
        for (i, arg) in step.inputs.iter().enumerate() {
            let Arg::Tensor(tensor) = arg else { continue };
            let fits = writers.get(&tensor.buffer).is_some_and(|(key, rows)| {
                own.as_ref().is_some_and(|(other, _)| other == key) && reads_rows(step, i) && whole_rows(tensor, rows)
            });
            if !fits {
                found.remove(&tensor.buffer);
            }
        }
    }
    found
}

/// The order of a step's rows, and their number, if it is a product by expert.
fn order_of(step: &Step) -> Option<(Key, Dim)> {
    let tensor = |i: usize| match step.inputs.get(i) {
        Some(Arg::Tensor(tensor)) => Some(tensor),
        _ => None,
    };
    let (ids, experts) = match &step.op {
        Op::ExpertMatmul(_) => (tensor(3)?, tensor(1)?.layout.shape[0].as_const()?),
        Op::ExpertContract(op) if !op.grouped => (tensor(1)?, tensor(2)?.layout.shape[0].as_const()?),
        Op::ExpertOuter(op) => (tensor(2)?, op.experts.as_const()?),
        _ => return None,
    };
    Some((key(ids, experts), eglu_ir::types::numel(&ids.layout.shape)))
}

/// True if operand `i` of a product by expert is read row by row, each where its id stands.
fn reads_rows(step: &Step, i: usize) -> bool {
    match &step.op {
        Op::ExpertMatmul(_) => i == 0,
        Op::ExpertContract(op) => i >= 2 + op.lanes + op.tables || (i == 0 && op.repeat == 1),
        Op::ExpertOuter(op) => (i == 0 && op.a_repeat == 1) || (i == 1 && op.b_repeat == 1),
        _ => false,
    }
}

/// A view of neighbouring columns, or some apart, of all rows.
fn whole_rows(tensor: &TensorRef, rows: &Dim) -> bool {
    tensor.layout.shape.len() == 2 && tensor.layout.shape[0] == *rows
}

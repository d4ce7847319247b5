//! What a graph's own facts say about its integer inputs.

use super::{InputError, Spec};
use eglu_codegen::{Arg, BufferId, Plan, Step, TensorRef};
use eglu_ir::{Bindings, DType, Dim, Op, Scalar, ops::Pointwise};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What one use of an integer input says of its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// They are from 0 to below this.
    pub below: Dim,
    /// True if they choose experts: then a row's ids differ.
    pub experts: bool,
}

/// What the uses of each input say, in signature order. An unfused plan knows most: fusing leaves out what it has no use for.
pub fn bounds(plan: &Plan) -> Vec<Vec<Bound>> {
    plan.inputs.iter().map(|input| if input.ty.dtype.is_int() { of_buffer(plan, input.buffer) } else { vec![] }).collect()
}

/// What each input holds where nobody says: floats are normal, masks true, integers below what they index.
pub fn defaults(plan: &Plan, bounds: &[Vec<Bound>], bindings: &Bindings) -> Result<Vec<Spec>, InputError> {
    plan.inputs
        .iter()
        .enumerate()
        .map(|(i, input)| {
            if input.ty.dtype == DType::Bool {
                return Ok(Spec::RandInt(1, 2));
            }
            if !input.ty.dtype.is_int() {
                return Ok(Spec::Normal);
            }
            let shape = input.ty.concrete(bindings)?;
            let last = shape.last().copied().unwrap_or(1) as i64;
            let (mut least, mut experts) = (None, false);
            for bound in bounds.get(i).into_iter().flatten() {
                let below = bound.below.eval(bindings)?;
                if below > 0 {
                    least = Some(least.map_or(below, |least: i64| least.min(below)));
                    experts |= bound.experts;
                }
            }
            Ok(match least {
                Some(below) if experts && last <= below => Spec::TopK(below),
                Some(below) => Spec::RandInt(0, below.max(1)),
                // Positions, or lengths: within the sequence.
                None => Spec::RandInt(0, last.max(1)),
            })
        })
        .collect()
}

/// What the uses of a buffer say, and of those that hold the same values.
fn of_buffer(plan: &Plan, buffer: BufferId) -> Vec<Bound> {
    let mut same = BTreeSet::from([buffer]);
    let mut bounds: Vec<Bound> = vec![];
    for step in &plan.steps {
        let reads: Vec<usize> = (0..step.inputs.len())
            .filter(|&i| matches!(&step.inputs[i], Arg::Tensor(tensor) if same.contains(&tensor.buffer)))
            .collect();
        for &i in &reads {
            bounds.extend(at_use(step, i).filter(|bound| !bounds.contains(bound)));
        }
        if !reads.is_empty() && keeps_values(&step.op) {
            same.extend(step.outputs.first().map(|output| output.buffer));
        }
    }
    bounds
}

/// What operand `i` of a step must be below.
fn at_use(step: &Step, i: usize) -> Option<Bound> {
    let extent = |operand: usize, dim: usize| tensor(step, operand)?.layout.shape.get(dim).cloned();
    let rank = |operand: usize| tensor(step, operand).map_or(0, |tensor| tensor.layout.shape.len());
    let (below, experts) = match &step.op {
        // A stack of matrices, chosen by id, is experts; a matrix's rows are an embedding.
        Op::Index(op) if i >= 1 => (op.axes.get(i - 1).and_then(|&axis| extent(0, axis)), rank(0) >= 3),
        Op::IndexPut(op) if i >= 2 => (op.axes.get(i - 2).and_then(|&axis| extent(0, axis)), false),
        Op::Gather(op) if i == 1 => (extent(0, op.dim), false),
        Op::ScatterAdd(op) if i == 1 => (extent(0, op.dim), false),
        Op::Histc(op) if i == 0 => (Some(Dim::from(op.bins as i64)), true),
        Op::ExpertMatmul(_) if i == 3 => (extent(1, 0), true),
        Op::ExpertContract(_) if i == 1 => (extent(2, 0), true),
        Op::ExpertOuter(op) if i == 2 => (Some(op.experts.clone()), true),
        Op::Moe(_) if i == 7 => (extent(1, 0), true),
        // `ids >= E` tells experts of other ranks apart.
        Op::Pointwise(Pointwise::Ge) if i == 0 => match step.inputs.get(1) {
            Some(Arg::Scalar(Scalar::Int(limit))) => (Some(Dim::from(*limit)), false),
            _ => (None, false),
        },
        _ => (None, false),
    };
    Some(Bound { below: below?, experts })
}

fn tensor(step: &Step, operand: usize) -> Option<&TensorRef> {
    match step.inputs.get(operand) {
        Some(Arg::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// True if the first output's values are among the operands', or closer to 0.
fn keeps_values(op: &Op) -> bool {
    match op {
        Op::Cast(_) | Op::Sort(_) | Op::Index(_) | Op::Cat(_) => true,
        Op::Map(op) => op.program.instrs.is_empty(),
        Op::Pointwise(op) => matches!(op, Pointwise::Minimum | Pointwise::Maximum | Pointwise::Where),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_codegen::lower;
    use eglu_ir::{Graph, OutputKind, Shape, TensorType, ops};

    #[test]
    fn ids_of_an_embedding_and_of_experts() {
        let mut graph = Graph::new("model");
        let tokens = graph.add_input("tokens", TensorType::fixed(DType::I64, &[2, 8]));
        let ids = graph.add_input("ids", TensorType::fixed(DType::I64, &[16, 2]));
        let table = graph.add_weight("table", "table", TensorType::fixed(DType::F32, &[100, 4]));
        let experts = graph.add_weight("experts", "experts", TensorType::fixed(DType::F32, &[6, 4, 4]));
        let mut call = |op: Op, operands: Vec<eglu_ir::Operand>| graph.add_call("n", op, operands).expect("infers");
        let axes = ops::Axes::from_slice(&[0]);
        let rows = call(ops::Index { axes: axes.clone() }.into(), vec![table.into(), tokens.into()]);
        let flat = call(ops::Reshape { shape: Shape::from_iter([Dim::from(32)]) }.into(), vec![ids.into()]);
        let clamped = call(Pointwise::Minimum.into(), vec![flat.into(), Scalar::Int(5).into()]);
        let picked = call(ops::Index { axes }.into(), vec![experts.into(), clamped.into()]);
        for node in [rows, picked] {
            graph.add_output(node.into(), OutputKind::User);
        }
        let plan = lower(&graph).expect("lowers");
        let specs = defaults(&plan, &bounds(&plan), &Bindings::new()).expect("bounds");
        assert_eq!(specs, [Spec::RandInt(0, 100), Spec::TopK(6)]);
    }
}

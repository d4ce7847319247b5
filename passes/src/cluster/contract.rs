//! Matmuls take in the pointwise ops behind them: bias, activation, residual, casts.

use super::{
    absorb::next_exit,
    inline::Inliner,
    partition::{Kind, Partition},
};
use crate::{cost, pipeline::Context, rebuild::Rebuild};
use eglu_ir::{GraphError, NodeId, Op, Operand, ops::Contract};
use std::sync::Arc;

/// Groups every matmul with its epilogue, where that pays on the device.
pub(crate) fn group(partition: &mut Partition<'_>, context: &Context<'_>) {
    for id in partition.order.clone() {
        let node = partition.graph.node(id);
        // Accumulators are real numbers: integer products wrap at every step, which no epilogue could make good.
        if !matches!(node.op(), Some(Op::MatMul(_))) || !node.outputs[0].dtype.is_float() {
            continue;
        }
        let (mut exit, mut members) = (id, vec![id]);
        while let Some(taken) = next_exit(partition, exit) {
            exit = *taken.last().unwrap_or(&exit);
            members.extend(taken);
        }
        if members.len() > 1 && cost::fusing_pays(partition.graph, &members, context.profile) {
            partition.join(&members, Kind::Contract);
        }
    }
}

/// Emits a group as one contraction.
pub(crate) fn emit(rebuild: &mut Rebuild<'_>, members: &[NodeId]) -> Result<(), GraphError> {
    let graph = rebuild.old;
    let (matmul, epilogue) = members.split_at(1);
    let mut program = Inliner::new(graph);
    program.seed(matmul[0].into());
    for &id in epilogue {
        program.node(id)?;
    }
    let exit = members[members.len() - 1];
    program.result(exit.into());
    let operands: Vec<Operand> =
        graph.node(matmul[0]).operands.iter().copied().chain(program.captures.iter().map(|&v| v.into())).collect();
    let operands: Vec<Operand> = operands.into_iter().map(|operand| rebuild.operand(operand)).collect();
    let op = Contract { lanes: 1, program: Arc::new(program.finish()) };
    let new = rebuild.call(&graph.node(exit).name, op.into(), operands, super::origins(graph, members))?;
    rebuild.bind(exit.into(), new.into());
    Ok(())
}

//! Casts that only say in which dtype a kernel stores its result.

use crate::rebuild::Rebuild;
use eglu_ir::{
    DType, Graph, GraphError, NodeId, Op, Value,
    ops::{Cast, Combine, Moe, RmsNorm, Softmax},
};

/// `cast(softmax(x))` becomes a softmax of the cast's dtype, where the kernel computes in the opmath of both and nothing else reads the wide
/// result; likewise row norms, combines and mixture-of-experts blocks. The result is rounded once, as before.
pub(crate) fn absorb_casts(graph: &mut Graph) -> Result<bool, GraphError> {
    if !graph.node_ids().any(|id| absorbed(graph, id).is_some()) {
        return Ok(false);
    }
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in graph.topological()? {
        match absorbed(graph, id) {
            Some((source, op)) => {
                changed = true;
                let (node, from) = (graph.node(id), graph.node(source));
                let operands = rebuild.operands(source);
                let origins = super::origins(graph, &[source, id]);
                let new = rebuild.call(&from.name, op, operands, origins)?;
                debug_assert_eq!(rebuild.new.ty(new.into()), &node.outputs[0]);
                rebuild.bind(id.into(), new.into());
            }
            None => rebuild.copy(id)?,
        }
    }
    if changed {
        *graph = rebuild.finish();
        graph.remove_dead();
    }
    Ok(changed)
}

fn absorbed(graph: &Graph, id: NodeId) -> Option<(NodeId, Op)> {
    let Some(Op::Cast(Cast { dtype })) = graph.node(id).op() else { return None };
    let source: Value = graph.node(id).operands.first()?.value()?;
    let narrows = graph.ty(source).dtype == DType::F32 && dtype.opmath() == DType::F32;
    if !narrows || graph.use_count(source) != 1 {
        return None;
    }
    let dtype = *dtype;
    let op = match graph.node(source.node).op()? {
        Op::Softmax(softmax) => Softmax { dtype, ..softmax.clone() }.into(),
        Op::RmsNorm(norm) => RmsNorm { dtype, ..norm.clone() }.into(),
        Op::Combine(_) => Combine { dtype }.into(),
        Op::Moe(moe) => Moe { dtype, ..moe.clone() }.into(),
        _ => return None,
    };
    Some((source.node, op))
}

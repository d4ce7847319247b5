//! One element of each line put into zeros is a comparison with each element's position: elementwise, where a scatter takes its turns.

use crate::rebuild::Rebuild;
use eglu_ir::{
    DType, Dim, Graph, GraphError, NodeId, Op, Operand, Scalar, Shape,
    ops::{Full, Iota, Pointwise, ScatterAdd},
};

/// `scatter_add(zeros, index, src)` with one index for each line becomes `where(position == index, src, 0)`.
pub(crate) fn compare(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in graph.topological()? {
        match placed(graph, id) {
            Some(dim) => {
                changed = true;
                emit(&mut rebuild, id, dim)?;
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

/// The dim along which a node puts one element into zeros; it is the last.
fn placed(graph: &Graph, id: NodeId) -> Option<usize> {
    let node = graph.node(id);
    let Some(Op::ScatterAdd(ScatterAdd { dim })) = node.op() else { return None };
    let [zeros, index, src] = [0, 1, 2].map(|i| node.operands.get(i).and_then(|o| o.value()));
    let (zeros, index, src) = (zeros?, index?, src?);
    let is_zero = matches!(graph.node(zeros.node).op(), Some(Op::Full(Full { value, .. })) if value.as_f64() == 0.0);
    let full = &node.outputs[0].shape;
    let one: Shape = full.iter().enumerate().map(|(i, extent)| if i == *dim { Dim::from(1) } else { extent.clone() }).collect();
    let alike = graph.ty(index).shape == one && graph.ty(src).shape == one;
    let real = !node.outputs[0].dtype.is_complex();
    (is_zero && alike && real && dim + 1 == full.len()).then_some(*dim)
}

fn emit(rebuild: &mut Rebuild<'_>, id: NodeId, dim: usize) -> Result<(), GraphError> {
    let node = rebuild.old.node(id);
    let ty = node.outputs[0].clone();
    let operands = rebuild.operands(id);
    let (name, origins) = (node.name.clone(), node.origins.clone());
    let call = |rebuild: &mut Rebuild<'_>, what: &str, op: Op, operands: &[Operand]| -> Result<Operand, GraphError> {
        let new = rebuild.call(&format!("{name}{what}"), op, operands.iter().copied(), origins.iter().cloned())?;
        Ok(Operand::Value(new.into()))
    };
    let positions = Iota { len: ty.shape[dim].clone(), start: 0, step: 1, dtype: DType::I64 };
    let positions = call(rebuild, ".position", positions.into(), &[])?;
    let here = call(rebuild, ".here", Pointwise::Eq.into(), &[positions, operands[1]])?;
    let zero = if ty.dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
    let result = call(rebuild, "", Pointwise::Where.into(), &[here, operands[2], zero.into()])?;
    debug_assert_eq!(result.value().map(|value| rebuild.new.ty(value).clone()), Some(ty));
    if let Some(value) = result.value() {
        rebuild.bind(id.into(), value);
    }
    Ok(())
}

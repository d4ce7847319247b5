//! Gradients that are added to those of earlier steps.

use crate::rebuild::Rebuild;
use eglu_ir::{Graph, GraphError, NodeId, Op, Operand, Value, ops::Pointwise};

/// `add(g, expert_outer(a, b, ids))` becomes `expert_outer(a, b, ids, g)` where nothing else reads the sums: they are added as they were, rounded
/// first, while they are in registers.
pub(crate) fn accumulate(graph: &mut Graph) -> Result<bool, GraphError> {
    let mut rebuild = Rebuild::new(graph);
    let mut changed = false;
    for id in graph.topological()? {
        match found(graph, id) {
            Some((sums, onto)) => {
                changed = true;
                let (node, op) = (graph.node(sums), graph.node(sums).op().cloned());
                let Some(op) = op else { continue };
                let mut operands = rebuild.operands(sums);
                operands.truncate(3);
                operands.push(rebuild.value(onto).into());
                let new = rebuild.call(&node.name, op, operands, super::origins(graph, &[sums, id]))?;
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

/// The sums by expert that an addition adds, and what to.
fn found(graph: &Graph, id: NodeId) -> Option<(NodeId, Value)> {
    let node = graph.node(id);
    let Some(Op::Pointwise(Pointwise::Add)) = node.op() else { return None };
    let ty = &node.outputs[0];
    let sums = |operand: &Operand| {
        let value = operand.value()?;
        let outer = graph.node(value.node);
        let alone = matches!(outer.op(), Some(Op::ExpertOuter(_)))
            && outer.operands.get(3).is_none_or(|onto| *onto == Operand::None)
            && graph.use_count(value) == 1;
        (alone && graph.ty(value) == ty && ty.dtype.is_float()).then_some(value.node)
    };
    let [left, right] = [&node.operands[0], &node.operands[1]];
    let onto = |operand: &Operand| operand.value().filter(|&value| graph.ty(value) == ty);
    sums(right).zip(onto(left)).or_else(|| sums(left).zip(onto(right)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eglu_ir::text;

    /// The ops after accumulation of a graph with sums `%y` and an older gradient `%g`.
    fn ops(tail: &str) -> Vec<&'static str> {
        let text = format!(
            "graph \"t\"\n%a: bf16[6, 4] = input\n%b: bf16[6, 8] = input\n%ids: i64[6] = input\n%g: bf16[3, 4, 8] = input\n%row: bf16[8] = input\n\
             %y: bf16[3, 4, 8] = expert_outer(%a, %b, %ids) {{experts=3, a_repeat=1, b_repeat=1, dtype=bf16}}\n{tail}"
        );
        let mut graph = text::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        accumulate(&mut graph).expect("it is valid");
        let order = graph.topological().expect("no cycles");
        order.into_iter().filter_map(|id| graph.node(id).op().map(Op::name)).collect()
    }

    #[test]
    fn sums_are_added_where_nothing_else_reads_them() {
        let add = |left: &str, right: &str| format!("%z: bf16[3, 4, 8] = add({left}, {right})\noutput %z\n");
        assert_eq!(ops(&add("%g", "%y")), ["expert_outer"]);
        assert_eq!(ops(&add("%y", "%g")), ["expert_outer"]);
        // Sums that are read by others, gradients that broadcast, and sums of themselves.
        assert_eq!(ops(&format!("{}output %y\n", add("%g", "%y"))), ["expert_outer", "add"]);
        assert_eq!(ops(&add("%row", "%y")), ["expert_outer", "add"]);
        assert_eq!(ops(&add("%y", "%y")), ["expert_outer", "add"]);
    }
}

//! What must hold for every row of the op table, on a graph that calls each.

mod gallery;

use eglu_ir::{
    Graph, NodeKind, OpCode,
    eval::eval_graph,
    json::{from_json, to_json},
    ops::Lowering,
    text::{parse, print},
    verify::verify,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn the_gallery_is_complete() {
    let graph = gallery::graph();
    let called: BTreeSet<OpCode> = graph.node_ids().filter_map(|id| graph.node(id).op()).map(|op| op.code()).collect();
    let missing: Vec<&str> = OpCode::all().filter(|code| !called.contains(code)).map(OpCode::name).collect();
    assert!(missing.is_empty(), "not in the gallery: {missing:?}");
}

#[test]
fn the_verifier_accepts_it() {
    assert_eq!(verify(&gallery::graph()), Ok(()));
}

#[test]
fn text_round_trips_exactly() {
    let graph = gallery::graph();
    let text = print(&graph);
    let again = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    same(&graph, &again);
    assert_eq!(print(&again), text);
}

#[test]
fn json_round_trips_exactly() {
    let graph = gallery::graph();
    let json = to_json(&graph).expect("serializes");
    let again = from_json(&json).unwrap_or_else(|e| panic!("{e}\n{json}"));
    same(&graph, &again);
    assert_eq!(to_json(&again).expect("serializes"), json);
}

/// Compares two graphs node by node, by name.
fn same(a: &Graph, b: &Graph) {
    assert_eq!((&a.name, &a.symbols, a.len()), (&b.name, &b.symbols, b.len()));
    for id in a.node_ids() {
        let node = a.node(id);
        let other = b.node(b.find(&node.name).unwrap_or_else(|| panic!("{} is lost", node.name)));
        assert_eq!((&node.outputs, &node.origins), (&other.outputs, &other.origins), "{}", node.name);
        match (&node.kind, &other.kind) {
            (NodeKind::Call(x), NodeKind::Call(y)) => assert_eq!(x, y, "{}", node.name),
            (NodeKind::Constant(x), NodeKind::Constant(y)) => assert!(x == y, "{}", node.name),
            (NodeKind::Weight(x), NodeKind::Weight(y)) => assert_eq!(x, y, "{}", node.name),
            (NodeKind::Input, NodeKind::Input) => {}
            (x, y) => panic!("{}: {x:?} became {y:?}", node.name),
        }
    }
    let names = |graph: &Graph| -> Vec<_> {
        let inputs = graph.inputs().iter().map(|&id| (graph.node(id).name.clone(), 0, None));
        let outputs =
            graph.outputs().iter().map(|o| (graph.node(o.value.node).name.clone(), o.value.index, Some(o.kind.clone())));
        inputs.chain(outputs).collect()
    };
    assert_eq!(names(a), names(b));
}

#[test]
fn evaluation_agrees_with_inference() {
    let graph = gallery::graph();
    let outputs = eval_graph(&graph, &gallery::weights(&graph), &gallery::inputs()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outputs.len(), graph.outputs().len());
}

#[test]
fn views_are_free_and_the_rest_is_not() {
    let graph = gallery::graph();
    for id in graph.node_ids() {
        let Some(op) = graph.node(id).op() else { continue };
        let operands: Vec<_> = graph
            .node(id)
            .operands
            .iter()
            .map(|operand| match operand {
                eglu_ir::Operand::Value(value) => eglu_ir::ops::OperandType::Tensor(graph.ty(*value)),
                eglu_ir::Operand::Scalar(scalar) => eglu_ir::ops::OperandType::Scalar(*scalar),
                eglu_ir::Operand::None => eglu_ir::ops::OperandType::None,
            })
            .collect();
        let cost = op.cost(&operands, &graph.node(id).outputs);
        let bindings = [("s0".into(), 5)].into_iter().collect();
        let bytes = cost.bytes.eval(&bindings).unwrap_or_else(|e| panic!("{}: {e}", op.name()));
        assert_eq!(bytes == 0, op.code().lowering() == Lowering::View, "{}: {bytes} bytes", op.name());
        assert!(cost.flops.eval(&bindings).is_ok_and(|flops| flops >= 0), "{}", op.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,3}"), 1..6)) {
        let mut text = print(&gallery::graph());
        for (at, insert) in edits {
            let at = at.index(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..at + 1, &insert);
            }
        }
        if let Err(e) = parse(&text) {
            prop_assert!(e.line <= text.lines().count() + 1, "{}", e);
        }
    }

    #[test]
    fn no_json_makes_the_reader_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), "[0-9a-z\"\\-]{0,2}"), 1..4)) {
        let mut json = to_json(&gallery::graph()).expect("serializes");
        for (at, insert) in edits {
            let at = at.index(json.len());
            if json.is_char_boundary(at) && json.is_char_boundary(at + 1) {
                json.replace_range(at..at + 1, &insert);
            }
        }
        if let Ok(graph) = from_json(&json) {
            prop_assert_eq!(verify(&graph), Ok(()));
        }
    }
}

//! Faults that fuzzing and real archives showed, as programs built here.

use super::*;

/// What fuzzing found: cross-entropy inserted a dim where targets had none to insert it at.
#[test]
fn targets_of_another_rank_are_an_error() {
    let loss = node("aten.cross_entropy_loss.default", &[("self", tensor("x")), ("target", tensor("w"))], "relu");
    let error = load_changed(|p| {
        graph(p)["nodes"] = json!([loss]);
        graph(p)["tensor_values"]["w"] = tensor_meta(&[]);
        graph(p)["tensor_values"]["w"]["dtype"] = 5.into();
    })
    .unwrap_err();
    assert!(matches!(error, ImportError::Node { .. }) && error.to_string().contains("must have one dim less"), "{error}");
}

fn symbol(name: &str) -> Json {
    json!({"as_expr": {"expr_str": format!("Symbol('{name}', positive=True, integer=True)")}})
}

/// What fuzzing found: such graphs imported, and failed the verifier.
#[test]
fn a_symbol_without_a_range_is_an_error() {
    let error = load_changed(|p| {
        for name in ["x", "relu", "add"] {
            graph(p)["tensor_values"][name]["sizes"][0] = symbol("s7");
        }
        graph(p)["tensor_values"]["w"]["sizes"][0] = json!({"as_int": 1});
    })
    .unwrap_err();
    assert!(matches!(error, ImportError::Verify(_)) && error.to_string().contains("`s7`"), "{error}");
}

#[test]
fn a_tensor_is_not_taken_into_more_parts_than_a_graph_has() {
    let parts = json!({"target": "torch.ops.aten.unbind.int", "inputs": [{"name": "self", "arg": tensor("x"), "kind": 1}],
        "outputs": [{"as_tensors": [{"name": "add"}]}], "metadata": {}});
    let error = load_changed(|p| {
        graph(p)["nodes"] = json!([parts]);
        graph(p)["tensor_values"]["x"]["sizes"][0] = json!({"as_int": 1i64 << 40});
    })
    .unwrap_err();
    assert!(matches!(error, ImportError::Unsupported(_)), "{error}");
}

/// `(1 + s) // 2 == s - (1 + s) // 2` says that s is even: its halves are then the same size.
#[test]
fn halves_of_a_size_that_a_guard_makes_even_agree() {
    let text = "FloorDiv(Add(Symbol('s0', positive=True, integer=True), Integer(1)), Integer(2))";
    let first = json!({"as_expr": {"expr_str": text}});
    let second =
        json!({"as_expr": {"expr_str": format!("Add(Symbol('s0', positive=True, integer=True), Mul(Integer(-1), {text}))")}});
    let chunk = json!({"target": "torch.ops.aten.chunk.default", "inputs": [
        {"name": "self", "arg": tensor("x"), "kind": 1}, {"name": "chunks", "arg": {"as_int": 2}, "kind": 1},
        {"name": "dim", "arg": {"as_int": 0}, "kind": 1}], "outputs": [{"as_tensors": [{"name": "a"}, {"name": "b"}]}], "metadata": {}});
    let Imported { graph, .. } = load_changed(|p| {
        graph(p)["nodes"] = json!([chunk, node("aten.add.Tensor", &[("self", tensor("a")), ("other", tensor("b"))], "add")]);
        for (name, size) in [("x", symbol("s0")), ("a", first.clone()), ("b", second), ("add", first)] {
            graph(p)["tensor_values"][name] = tensor_meta(&[2, 3]);
            graph(p)["tensor_values"][name]["sizes"][0] = size;
        }
        p["range_constraints"] = json!({"s0": {"min_val": 2, "max_val": null}});
        p["guards_code"] = json!(["((1 + L['x'].size()[0]) // 2) == (L['x'].size()[0] + (-1)*((1 + L['x'].size()[0]) // 2))"]);
    })
    .unwrap();
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[_s0, 3]");
    assert_eq!(graph.ty(graph.inputs()[0].into()).to_string(), "f32[2*_s0, 3]");
}

/// Embedding refuses what indexing takes from the end.
#[test]
fn negative_ids_of_an_embedding_are_refused() {
    let Imported { graph, .. } = load_changed(|p| {
        graph(p)["nodes"] = json!([node("aten.embedding.default", &[("weight", tensor("w")), ("indices", tensor("x"))], "add")]);
        graph(p)["tensor_values"]["x"] = tensor_meta(&[2]);
        graph(p)["tensor_values"]["x"]["dtype"] = 5.into();
    })
    .unwrap();
    let weight = crate::Tensor::from_slice(crate::DType::F32, &[2, 3], &[0f32, 1., 2., 3., 4., 5.]).unwrap();
    let rows = |ids: [i64; 2]| {
        let ids = crate::Tensor::from_slice(crate::DType::I64, &[2], &ids).unwrap();
        crate::eval::eval_graph(&graph, &|_| Some(weight.clone()), &[ids])
    };
    assert_eq!(rows([1, 0]).unwrap()[0].as_slice::<f32>(), [3., 4., 5., 0., 1., 2.]);
    assert!(rows([1, -1]).unwrap_err().to_string().contains("out of range"));
}

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

/// One storage under two names, one of which nothing reads.
#[test]
fn names_of_one_storage_show_the_same_weight() {
    let entry = config(tensor_meta(&[2, 3]))["config"]["m.w"].clone();
    let both = json!({"config": {"m.w": entry, "m.tied": entry}});
    let mut tied = program();
    graph(&mut tied)["inputs"].as_array_mut().unwrap().insert(1, tensor("tied"));
    graph(&mut tied)["tensor_values"]["tied"] = tensor_meta(&[2, 3]);
    let specs = tied["graph_module"]["signature"]["input_specs"].as_array_mut().unwrap();
    specs.insert(1, json!({"parameter": {"arg": {"name": "tied"}, "parameter_name": "m.tied"}}));
    let entries = [(MODEL, tied.to_string().into()), (CONFIG, both.to_string().into()), (STORAGE, weight_bytes())];
    let Imported { weights, graph, .. } = load_entries(&entries).unwrap();
    assert_eq!(weights.get("m.w").unwrap().as_slice::<f32>(), weights.get("m.tied").unwrap().as_slice::<f32>());
    assert!(weights.missing(&graph).is_empty());
}

/// JSON has no infinity and no NaN: the archive writes them as text.
#[test]
fn arguments_may_be_infinite_or_no_number() {
    let filled = |value: Json| {
        let Imported { graph, .. } = load_changed(|p| {
            graph(p)["nodes"] = json!([node(
                "aten.full_like.default",
                &[("self", tensor("x")), ("fill_value", json!({"as_float": value}))],
                "add"
            )]);
        })
        .unwrap();
        let zeros = crate::Tensor::zeros(crate::DType::F32, &[2, 3]).unwrap();
        crate::eval::eval_graph(&graph, &|_| Some(zeros.clone()), std::slice::from_ref(&zeros)).unwrap()[0].as_slice::<f32>()[0]
    };
    assert_eq!(filled(json!("Infinity")), f32::INFINITY);
    assert_eq!(filled(json!("-Infinity")), f32::NEG_INFINITY);
    assert!(filled(json!("NaN")).is_nan());
    assert_eq!(filled(json!(1e30)), 1e30);
}

/// The signature says how many inputs there are, whether the graph reads them or not.
#[test]
fn inputs_that_nothing_reads_stay_inputs() {
    let Imported { graph, .. } = load_changed(|p| {
        let twice = json!([tensor("w"), tensor("x"), tensor("y")]);
        graph(p)["inputs"] = twice;
        graph(p)["tensor_values"]["y"] = tensor_meta(&[4]);
        let specs = p["graph_module"]["signature"]["input_specs"].as_array_mut().unwrap();
        specs.push(json!({"user_input": {"arg": tensor("y")}}));
    })
    .unwrap();
    let types: Vec<String> = graph.inputs().iter().map(|&id| graph.ty(id.into()).to_string()).collect();
    assert_eq!(types, ["f32[2, 3]", "f32[4]"]);
}

/// Results of one operator that nothing reads leave no trace, and uneven parts have the sizes that PyTorch gives them.
#[test]
fn results_that_nothing_reads_are_dropped() {
    let chunk = json!({"target": "torch.ops.aten.chunk.default", "inputs": [
        {"name": "self", "arg": tensor("x"), "kind": 1}, {"name": "chunks", "arg": {"as_int": 3}, "kind": 1}],
        "outputs": [{"as_tensors": [{"name": "a"}, {"name": "b"}, {"name": "add"}]}], "metadata": {}});
    let Imported { mut graph, .. } = load_changed(|p| {
        graph(p)["nodes"] = json!([chunk]);
        for (name, rows) in [("x", 7), ("a", 3), ("b", 3), ("add", 1)] {
            graph(p)["tensor_values"][name] = tensor_meta(&[rows, 2]);
        }
    })
    .unwrap();
    graph.remove_dead();
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "f32[1, 2]");
    let slices = graph.node_ids().filter(|&id| graph.node(id).op().is_some()).count();
    assert_eq!(slices, 1);
}

//! One plan runs at every size that its symbols may have.

use eglu_codegen::lower;
use eglu_ir::{
    DType, Dim, Graph, OutputKind, Scalar, Shape, SymbolRange, Tensor, TensorType, Weights,
    ops::{Pointwise, Reshape},
};
use eglu_runtime::{Device, Executable};

fn load(graph: &Graph) -> Executable {
    Executable::load(lower(graph).expect("lowers"), &Weights::default(), &Device::Cpu).expect("loads")
}

#[test]
fn one_plan_serves_every_size() {
    let mut graph = Graph::new("dynamic");
    let s = Dim::symbol("s");
    let x = graph.add_input("x", TensorType::new(DType::F32, [s.clone(), Dim::from(2)]));
    graph.symbols.insert("s".into(), SymbolRange { min: 1, max: None });
    let flat =
        graph.add_call("flat", Reshape { shape: Shape::from_iter([s * Dim::from(2)]) }.into(), [x.into()]).expect("infers");
    let doubled = graph.add_call("doubled", Pointwise::Mul.into(), [flat.into(), Scalar::Int(2).into()]).expect("infers");
    graph.add_output(doubled.into(), OutputKind::User);
    let executable = load(&graph);
    for rows in [3, 40_000, 1] {
        let values: Vec<f32> = (0..rows * 2).map(|i| i as f32).collect();
        let out = executable.run(&[Tensor::from_slice(DType::F32, &[rows, 2], &values).expect("fits")]).expect("runs");
        assert_eq!(out[0].as_slice::<f32>()[rows * 2 - 1], 2.0 * (rows * 2 - 1) as f32);
    }
    let error = executable.run(&[]).expect_err("an input is missing").to_string();
    assert!(error.contains('x'), "{error}");
}

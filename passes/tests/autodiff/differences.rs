//! Finite differences.

use eglu_ir::{DType, Graph, OutputKind, Tensor, eval::eval_graph};
use eglu_passes::{Gradients, autodiff::differentiate};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Σ outputs · tangents; of outputs without elements of their own, the outputs.
fn total(outputs: &[Tensor], tangents: &[Tensor]) -> f64 {
    let mut tangents = tangents.iter();
    let mut sum = 0.0;
    for output in outputs.iter().filter(|output| output.dtype() == DType::F64) {
        if output.shape().is_empty() {
            sum += output.as_slice::<f64>()[0];
            continue;
        }
        let tangent = tangents.next().expect("a tangent for each output");
        sum += output.as_slice::<f64>().iter().zip(tangent.as_slice::<f64>()).map(|(x, t)| x * t).sum::<f64>();
    }
    sum
}

/// Compares the gradients of all outputs by all float inputs with central differences, element by element. Panics with `what` where they differ.
pub fn agree(what: &str, graph: &Graph, inputs: &[Tensor], seed: u64) {
    let joint = differentiate(graph, &Gradients::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
    eglu_ir::verify::verify(&joint).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut rng = StdRng::seed_from_u64(seed);
    let tangents: Vec<Tensor> = joint.inputs()[inputs.len()..]
        .iter()
        .map(|&id| {
            let shape: Vec<usize> = joint.node(id).outputs[0].concrete(&Default::default()).expect("fixed extents");
            let numbers: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
            Tensor::from_slice(DType::F64, &shape, &numbers).expect("a tensor")
        })
        .collect();
    let none = |_: &str| None;
    let all: Vec<Tensor> = inputs.iter().chain(&tangents).cloned().collect();
    let results = eval_graph(&joint, &none, &all).unwrap_or_else(|error| panic!("{what}: {error}"));
    let value = |inputs: &[Tensor]| total(&eval_graph(graph, &none, inputs).expect("the graph evaluates"), &tangents);
    let mut compared = 0;
    for (result, output) in results.iter().zip(joint.outputs()) {
        let OutputKind::Gradient(of) = &output.kind else { continue };
        let at = graph.inputs().iter().position(|&id| graph.node(id).name == *of).expect("an input of that name");
        assert_eq!(result.shape(), inputs[at].shape(), "{what}: the gradient by {of}");
        for (i, &gradient) in result.as_slice::<f64>().iter().enumerate() {
            let moved = |by: f64| {
                let mut inputs = inputs.to_vec();
                inputs[at].as_mut_slice::<f64>()[i] += by;
                value(&inputs)
            };
            const STEP: f64 = 1e-5;
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let bound = 2e-7 * (1.0 + gradient.abs().max(difference.abs()));
            assert!((gradient - difference).abs() <= bound, "{what}: by {of}[{i}] {gradient}, differences say {difference}");
            compared += 1;
        }
    }
    assert!(compared > 0, "{what}: nothing was compared");
}

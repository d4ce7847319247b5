//! Whole models in f64: the gradient by all parameters, along a random direction, is what differences along it say.

use crate::joint::{fixture, load};
use eglu_ir::profile::H200;
use eglu_ir::{
    DType, Graph, NodeKind, Op, Operand, OutputKind, Tensor, TensorType, Value,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::{Attr, Cast},
    reference::read_tensors,
};
use eglu_passes::{Gradients, Options, Pipeline, autodiff::PARAMETERS};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;

fn wide(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

fn widened(tensor: &Tensor) -> Tensor {
    let cast = Cast { dtype: wide(tensor.dtype()) }.into();
    eval_op(&cast, &[EvalOperand::Tensor(tensor)], &Default::default()).expect("a cast").remove(0)
}

/// The same graph with f64 for all floats, so that differences mean something.
fn in_f64(graph: &Graph) -> Graph {
    let mut new = Graph::new(graph.name.clone());
    new.symbols = graph.symbols.clone();
    let mut values: BTreeMap<Value, Value> = BTreeMap::new();
    let ty = |ty: &TensorType| TensorType { dtype: wide(ty.dtype), shape: ty.shape.clone() };
    for &id in graph.inputs() {
        let node = graph.node(id);
        values.insert(id.into(), new.add_input(&node.name, ty(&node.outputs[0])));
    }
    for id in graph.topological().expect("no cycle") {
        let node = graph.node(id);
        let made = match &node.kind {
            NodeKind::Input => continue,
            NodeKind::Weight(path) => new.add_weight(&node.name, path, ty(&node.outputs[0])).node,
            NodeKind::Constant(tensor) => new.add_constant(&node.name, widened(tensor)).node,
            NodeKind::Call(op) => {
                let attrs: Vec<Attr> = op
                    .attrs()
                    .into_iter()
                    .map(|(_, attr)| match attr {
                        Attr::DType(dtype) => Attr::DType(wide(dtype)),
                        other => other,
                    })
                    .collect();
                let op: Op = op.code().build(&attrs).expect("the same op");
                let operands = node.operands.iter().map(|operand| match operand {
                    Operand::Value(value) => values[value].into(),
                    other => *other,
                });
                new.add_call(&node.name, op, operands.collect::<Vec<_>>()).expect("it applies")
            }
        };
        for index in 0..node.outputs.len() as u32 {
            values.insert(Value { node: id, index }, Value { node: made, index });
        }
    }
    for output in graph.outputs() {
        new.add_output(values[&output.value], output.kind.clone());
    }
    new
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.as_slice::<f64>().iter().zip(b.as_slice::<f64>()).map(|(x, y)| x * y).sum()
}

fn random(rng: &mut StdRng, shape: &[usize], scale: f64) -> Tensor {
    let numbers: Vec<f64> = (0..shape.iter().product()).map(|_| scale * rng.random_range(-1.0..1.0)).collect();
    Tensor::from_slice(DType::F64, shape, &numbers).expect("a tensor")
}

#[test]
fn language_models_agree_with_finite_differences() {
    for name in ["mixtral-grouped_mm.lm", "mixtral-batched_mm.lm", "llama.lm"] {
        let imported = load(name);
        let graph = in_f64(&imported.graph);
        let gradients = Gradients { by: vec![PARAMETERS.into()], buffers: imported.buffers.clone(), ..Gradients::default() };
        let options = Options { gradients, ..Options::new(H200) };
        let joint = Pipeline::parse("autodiff,dce").expect("passes").run_with(graph.clone(), &options).expect("it runs").graph;
        let tensors = read_tensors(&fixture(&format!("{name}.io.safetensors"))).expect("the reference tensors load");
        let input = tensors["input.0"].clone();
        let weight = |path: &str| imported.weights.get(path).ok().map(|tensor| widened(&tensor));
        let mut rng = StdRng::seed_from_u64(3);
        let logits = eval_graph(&graph, &weight, std::slice::from_ref(&input)).expect("the graph evaluates").remove(0);
        let tangent = random(&mut rng, logits.shape(), 1.0);
        let results = eval_graph(&joint, &weight, &[input.clone(), tangent.clone()]).expect("the joint graph evaluates");
        let mut direction: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut slope = 0.0;
        for (result, output) in results.iter().zip(joint.outputs()) {
            let OutputKind::Gradient(path) = &output.kind else { continue };
            let along = random(&mut rng, result.shape(), 1.0);
            slope += dot(result, &along);
            direction.insert(path.to_string(), along);
        }
        assert!(direction.len() > 10 && !direction.keys().any(|path| path.contains("inv_freq")), "{:?}", direction.keys());
        let moved = |by: f64| {
            let weight = |path: &str| {
                let mut tensor = weight(path)?;
                if let Some(along) = direction.get(path) {
                    for (x, step) in tensor.as_mut_slice::<f64>().iter_mut().zip(along.as_slice::<f64>()) {
                        *x += by * step;
                    }
                }
                Some(tensor)
            };
            dot(&eval_graph(&graph, &weight, std::slice::from_ref(&input)).expect("the graph evaluates")[0], &tangent)
        };
        const STEP: f64 = 1e-6;
        let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert!((slope - difference).abs() <= 1e-6 * slope.abs(), "{name}: {slope}, differences say {difference}");
    }
}

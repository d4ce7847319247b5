//! Certification: the graph before and after, evaluated on the same random inputs.

mod sample;

use eglu_ir::{
    Graph, NodeId, OutputKind, Tensor, Value,
    eval::{EvalError, EvalOperand, eval_graph, eval_op},
    ops::Cast,
    {Bindings, DType},
};
use indexmap::IndexMap;
use std::sync::Arc;

pub use sample::{Sizes, sample_inputs};

/// How far a rewritten graph is from its original on random inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// The sizes that the symbols had.
    pub sizes: Bindings,
    /// The outputs, in order.
    pub outputs: Vec<Deviation>,
    /// Fused nodes that keep the name and type of an original node, in topological order.
    pub nodes: Vec<Deviation>,
}

/// The error of one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// Name of the node in the original graph.
    pub name: Arc<str>,
    /// `max|after - before| / max|before|`; 0 for equal tensors, NaN and infinities included, and infinite where only one side is finite.
    pub error: f64,
}

impl Certificate {
    /// The largest error of all outputs.
    pub fn max_error(&self) -> f64 {
        self.outputs.iter().fold(0.0, |max, deviation| if deviation.error > max { deviation.error } else { max })
    }
}

/// Evaluates both graphs on random inputs of random sizes within range; where the original has no value for sizes drawn one by one, on equal
/// sizes.
///
/// `weights` gives parameters and buffers; those it does not have are drawn at random. The same `seed` gives the same numbers.
pub fn certify(
    before: &Graph,
    after: &Graph,
    weights: &dyn Fn(&str) -> Option<Tensor>,
    seed: u64,
) -> Result<Certificate, EvalError> {
    let drawn = sample::sample_weights(before, weights, seed)?;
    let weights = |path: &str| weights(path).or_else(|| drawn.get(path).cloned());
    let (mut before, mut after) = (before.clone(), after.clone());
    let count = before.outputs().len();
    let pairs = same_values(&before, &after);
    for &(original, fused) in &pairs {
        before.add_output(original, OutputKind::User);
        after.add_output(fused, OutputKind::User);
    }
    let evaluate = |sizes: Sizes| {
        let (sizes, inputs) = sample_inputs(&before, sizes, seed)?;
        let want = eval_graph(&before, &weights, &inputs)?;
        Ok::<_, EvalError>((sizes, inputs, want))
    };
    let (sizes, inputs, want) = evaluate(Sizes::Independent).or_else(|_| evaluate(Sizes::Equal))?;
    let got = eval_graph(&after, &weights, &inputs)?;
    let deviations = want.iter().zip(&got).zip(before.outputs()).map(|((want, got), output)| {
        let name = before.node(output.value.node).name.clone();
        Ok(Deviation { name, error: relative_error(got, want)? })
    });
    let mut outputs: Vec<Deviation> = deviations.collect::<Result<_, EvalError>>()?;
    let nodes = outputs.split_off(count);
    Ok(Certificate { sizes, outputs, nodes })
}

/// Calls of the new graph that stand for several nodes, with the value they compute in the old graph: that of the same name and type.
fn same_values(before: &Graph, after: &Graph) -> Vec<(Value, Value)> {
    let named: IndexMap<&str, NodeId> = before.node_ids().map(|id| (&*before.node(id).name, id)).collect();
    let order = after.topological().unwrap_or_default();
    let pair = |id: NodeId| {
        let node = after.node(id);
        let original = *named.get(&*node.name)?;
        let alike = before.node(original).outputs == node.outputs && before.node(original).op().is_some();
        let several = node.op().is_some() && node.origins.len() > 1 && node.outputs.len() == 1;
        (alike && several).then_some((Value::from(original), Value::from(id)))
    };
    order.into_iter().filter_map(pair).collect()
}

/// `max|got - want| / max|want|` over finite elements.
pub fn relative_error(got: &Tensor, want: &Tensor) -> Result<f64, EvalError> {
    if got.shape() != want.shape() {
        return Err(EvalError::Data(format!("shapes {:?} and {:?} cannot be compared", got.shape(), want.shape())));
    }
    let (got, want) = (widened(got)?, widened(want)?);
    let (mut difference, mut scale) = (0f64, 0f64);
    for (&x, &y) in got.iter().zip(&want) {
        if x == y || (x.is_nan() && y.is_nan()) {
            scale = scale.max(if y.is_finite() { y.abs() } else { 0.0 });
            continue;
        }
        if !x.is_finite() || !y.is_finite() {
            return Ok(f64::INFINITY);
        }
        difference = difference.max((x - y).abs());
        scale = scale.max(y.abs());
    }
    Ok(if difference == 0.0 { 0.0 } else { difference / scale })
}

/// The elements as f64; complex numbers as pairs.
fn widened(tensor: &Tensor) -> Result<Vec<f64>, EvalError> {
    let dtype = if tensor.dtype().is_complex() { DType::C128 } else { DType::F64 };
    let wide = eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(tensor)], &Bindings::new())?;
    Ok(match dtype {
        DType::F64 => wide[0].as_slice::<f64>().to_vec(),
        _ => wide[0].as_slice::<[f64; 2]>().iter().flatten().copied().collect(),
    })
}

//! No pass takes an identity of real numbers for one of floats: every elementwise op with every special number, on special values, gives
//! the same values before and after the standard pipeline.

use eglu_ir::{
    Bindings, DType, Graph, Op, Operand, OutputKind, Scalar, Tensor, TensorType, Value,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::{Cast, MatMul, Pointwise, Reduce, ReduceKind},
    profile::H200,
};
use eglu_passes::{Options, Pipeline};

const SPECIAL: [f64; 12] = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-42];
const NUMBERS: [Scalar; 8] = [
    Scalar::Int(0),
    Scalar::Int(1),
    Scalar::Int(2),
    Scalar::Int(-1),
    Scalar::Float(-0.0),
    Scalar::Float(0.5),
    Scalar::Float(f64::INFINITY),
    Scalar::Float(f64::NAN),
];

fn special(dtype: DType) -> Tensor {
    let wide = Tensor::from_slice(DType::F64, &[SPECIAL.len()], &SPECIAL).unwrap();
    eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).unwrap().remove(0)
}

/// The bits of the elements. All NaN are one, and so are both zeros without `signs`.
fn bits(tensor: &Tensor, signs: bool) -> Vec<u64> {
    if !tensor.dtype().is_float() {
        return tensor.bytes().iter().map(|&byte| byte.into()).collect();
    }
    let wide = eval_op(&Cast { dtype: DType::F64 }.into(), &[EvalOperand::Tensor(tensor)], &Bindings::new()).unwrap().remove(0);
    let bits = |x: &f64| match x.is_nan() {
        true => f64::NAN.to_bits(),
        false => if signs { *x } else { x + 0.0 }.to_bits(),
    };
    wide.as_slice::<f64>().iter().map(bits).collect()
}

/// Checks a graph on these inputs; graphs without a value there, such as a division by zero in integers, are left out.
#[track_caller]
fn same(graph: Graph, inputs: &[Tensor], signs: bool, what: &str) -> bool {
    let Ok(want) = eval_graph(&graph, &|_| None, inputs) else { return false };
    let optimized = Pipeline::standard().run_with(graph, &Options::new(H200)).unwrap().graph;
    let got = eval_graph(&optimized, &|_| None, inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
    let all = |tensors: &[Tensor]| tensors.iter().map(|tensor| bits(tensor, signs)).collect::<Vec<_>>();
    assert_eq!(all(&want), all(&got), "{what}");
    true
}

/// A graph of one input that `build` makes the outputs of.
fn graph(dtype: DType, build: impl FnOnce(&mut Graph, Value)) -> Graph {
    let mut graph = Graph::new("identity");
    let x = graph.add_input("x", TensorType::fixed(dtype, &[SPECIAL.len() as i64]));
    build(&mut graph, x);
    graph
}

#[test]
fn special_numbers_keep_their_meaning() {
    let mut tried = 0;
    for dtype in [DType::F32, DType::F16, DType::F64, DType::I64, DType::Bool] {
        for &op in Pointwise::ALL.iter().filter(|op| op.arity() == 2) {
            let built = graph(dtype, |graph, x| {
                let mut pairs: Vec<[Operand; 2]> = vec![[x.into(), x.into()]];
                for number in NUMBERS {
                    pairs.extend([[x.into(), number.into()], [number.into(), x.into()]]);
                }
                for operands in pairs {
                    if let Ok(node) = graph.add_call("y", op.into(), operands) {
                        graph.add_output(node.into(), OutputKind::User);
                    }
                }
            });
            // Which of two zeros is larger, no maximum promises.
            let signs = !matches!(op, Pointwise::Maximum | Pointwise::Minimum);
            tried +=
                usize::from(!built.outputs().is_empty() && same(built, &[special(dtype)], signs, &format!("{op:?} of {dtype}")));
        }
    }
    assert!(tried > 100, "only {tried} tables of values");
}

#[test]
fn chains_of_identities_keep_their_meaning() {
    // Fused ops of halves round once, at the end; only wide ones have the same bits.
    for dtype in [DType::F32, DType::F64] {
        for &outer in Pointwise::ALL.iter().filter(|op| op.arity() == 1) {
            for inner in [Pointwise::Sub, Pointwise::Mul, Pointwise::Div, Pointwise::Pow] {
                let built = graph(dtype, |graph, x| {
                    for number in [Scalar::Int(0), Scalar::Int(1), Scalar::Float(-0.0)] {
                        let inside = graph.add_call("a", inner.into(), [x.into(), number.into()]).unwrap();
                        let same = graph.add_call("b", inner.into(), [inside.into(), inside.into()]).unwrap();
                        let Ok(node) = graph.add_call("y", outer.into(), [same.into()]) else { continue };
                        graph.add_output(node.into(), OutputKind::User);
                    }
                });
                same(built, &[special(dtype)], true, &format!("{outer:?} of {inner:?} of {dtype}"));
            }
        }
    }
}

/// A matrix product has one product for many sums; a sum of products of the same shape is none, and becomes none.
#[test]
fn rounded_products_are_no_matrix_product() {
    let mut graph = Graph::new("products");
    let [a, b] = ["a", "b"].map(|name| graph.add_input(name, TensorType::fixed(DType::Bf16, &[4, 64])));
    let product = graph.add_call("mul", Pointwise::Mul.into(), [a.into(), b.into()]).unwrap();
    let sum = Reduce { kind: ReduceKind::Sum, dims: [1].into_iter().collect(), keepdim: false, dtype: DType::Bf16 };
    let sum = graph.add_call("sum", sum.into(), [product.into()]).unwrap();
    graph.add_output(sum.into(), OutputKind::User);
    let values = |seed: usize| -> Tensor {
        let values: Vec<f64> = (0..256).map(|i| ((i * 37 + seed) % 113) as f64 / 31.0 - 1.7).collect();
        let wide = Tensor::from_slice(DType::F64, &[4, 64], &values).unwrap();
        eval_op(&Cast { dtype: DType::Bf16 }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).unwrap().remove(0)
    };
    let inputs = [values(5), values(11)];
    let optimized = Pipeline::standard().run_with(graph.clone(), &Options::new(H200)).unwrap().graph;
    let is_product = |op: &Op| matches!(op, Op::MatMul(MatMul {}) | Op::Contract(_) | Op::DenseGlu(_));
    assert!(!optimized.node_ids().any(|id| optimized.node(id).op().is_some_and(is_product)));
    let run = |graph: &Graph| {
        eval_graph(graph, &|_| None, &inputs).unwrap().iter().map(|tensor| bits(tensor, true)).collect::<Vec<_>>()
    };
    let (want, got) = (run(&graph), run(&optimized));
    for (want, got) in want[0].iter().zip(&got[0]).map(|(&want, &got)| (f64::from_bits(want), f64::from_bits(got))) {
        assert!((want - got).abs() <= 2f64.powi(-7) * want.abs(), "{got}, not {want}");
    }
}

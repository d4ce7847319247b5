//! Properties that hold for any graph: random ones are built op by op.

use eglu_ir::{
    Bindings, DType, Dim, Graph, NodeId, Op, Operand, OutputKind, Scalar, Shape, SymbolRange, Tensor, TensorType, Value,
    eval::{EvalError, EvalOperand, eval_graph, eval_op},
    json::{from_json, to_json},
    ops::*,
    text::{parse, print},
    verify::verify,
};
use proptest::prelude::*;
use std::collections::HashMap;

/// Random numbers for one op.
type Draw = [u16; 8];

/// A graph, and the value of everything in it for one choice of `s0`.
struct Builder {
    graph: Graph,
    bindings: Bindings,
    pool: Vec<Value>,
    tensors: HashMap<Value, Tensor>,
    inputs: Vec<Tensor>,
}

fn pick<T: Clone>(items: &[T], at: u16) -> T {
    items[usize::from(at) % items.len()].clone()
}

/// Small integers: every dtype holds them, and sums of them are exact.
fn small(dtype: DType, shape: &[usize], seed: u16) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product::<usize>()).map(|i| (i * 7 + usize::from(seed)) as i64 % 7 - 3).collect();
    let integers = Tensor::from_slice(DType::I64, shape, &values).expect("small");
    eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&integers)], &Bindings::new()).expect("casts").remove(0)
}

impl Builder {
    fn new(rows: i64, inputs: &[Draw]) -> Builder {
        let mut graph = Graph::new("random");
        graph.symbols.insert("s0".into(), SymbolRange { min: 2, max: Some(6) });
        let bindings = Bindings::from([("s0".into(), rows)]);
        let (pool, tensors) = (Vec::new(), HashMap::new());
        let mut builder = Builder { graph, bindings, pool, tensors, inputs: Vec::new() };
        let dtypes: Vec<DType> = DType::all().collect();
        for (i, draw) in inputs.iter().enumerate() {
            // Three in four are f32, so that ops find operands which fit.
            let dtype = if draw[0] % 4 == 0 { pick(&dtypes, draw[1]) } else { DType::F32 };
            let extents = [Dim::symbol("s0"), Dim::from(1), Dim::from(2), Dim::from(3)];
            let shape: Shape = (0..draw[2] % 4).map(|dim| pick(&extents, draw[3 + usize::from(dim)])).collect();
            let ty = TensorType { dtype, shape };
            let tensor = small(dtype, &ty.concrete(&builder.bindings).expect("bound"), draw[7]);
            let value = builder.graph.add_input(&format!("in.{i}"), ty);
            builder.pool.push(value);
            builder.tensors.insert(value, tensor.clone());
            builder.inputs.push(tensor);
        }
        builder
    }

    /// Adds and evaluates an op if its operands fit. What inference accepts must evaluate to the inferred types; only the elements
    /// themselves, or an op that a dtype lacks, may be an error.
    fn call(&mut self, op: impl Into<Op>, operands: &[Operand]) -> Result<(), TestCaseError> {
        let op = op.into();
        let Ok(node) = self.graph.add_call(op.name(), op.clone(), operands.iter().copied()) else { return Ok(()) };
        let given: Vec<EvalOperand<'_>> = operands
            .iter()
            .map(|operand| match operand {
                Operand::Value(value) => EvalOperand::Tensor(&self.tensors[value]),
                Operand::Scalar(scalar) => EvalOperand::Scalar(*scalar),
                Operand::None => EvalOperand::None,
            })
            .collect();
        match eval_op(&op, &given, &self.bindings) {
            Ok(results) => self.keep(node, results),
            Err(EvalError::Data(_) | EvalError::Unsupported { .. }) => Ok(()),
            // Whether an extent fits can only be known once it has a value.
            Err(EvalError::Infer(_)) if operands.iter().any(|operand| self.is_symbolic(operand)) => Ok(()),
            Err(e) => Err(TestCaseError::fail(format!("{op:?} of {given:?}: {e}"))),
        }
    }

    fn is_symbolic(&self, operand: &Operand) -> bool {
        let shape = operand.value().map(|value| self.graph.ty(value).shape.clone()).unwrap_or_default();
        shape.iter().any(|extent| extent.as_const().is_none())
    }

    fn keep(&mut self, node: NodeId, results: Vec<Tensor>) -> Result<(), TestCaseError> {
        let types = self.graph.node(node).outputs.clone();
        prop_assert_eq!(results.len(), types.len());
        for (index, (tensor, ty)) in results.into_iter().zip(&types).enumerate() {
            let shape = ty.concrete(&self.bindings).expect("bound");
            prop_assert_eq!((tensor.dtype(), tensor.shape()), (ty.dtype, shape.as_slice()));
            let value = Value { node, index: index as u32 };
            self.pool.push(value);
            self.tensors.insert(value, tensor);
        }
        Ok(())
    }

    fn step(&mut self, draw: Draw) -> Result<(), TestCaseError> {
        let x = pick(&self.pool, draw[1]);
        let ty = self.graph.ty(x).clone();
        let dim = usize::from(draw[2]) % ty.rank().max(1);
        let y = pick(&self.pool, draw[3]);
        match draw[0] % 12 {
            0..=2 => self.pointwise(x, y, draw),
            3 => {
                let dtypes: Vec<DType> = DType::all().collect();
                self.call(Cast { dtype: pick(&dtypes, draw[2]) }, &[x.into()])
            }
            4 => self.view(x, &ty, dim, draw),
            5 => {
                let kind = pick(ReduceKind::ALL, draw[3]);
                let dtype = match kind {
                    ReduceKind::Any | ReduceKind::All => DType::Bool,
                    ReduceKind::Argmax | ReduceKind::Argmin => DType::I64,
                    _ => ty.dtype,
                };
                let dims = (0..ty.rank()).filter(|i| draw[4] >> i & 1 == 1).collect();
                self.call(Reduce { kind, dims, keepdim: draw[5].is_multiple_of(2), dtype }, &[x.into()])
            }
            6 => {
                let dtype = pick(&[DType::F32, DType::F64, DType::Bf16], draw[3]);
                self.call(Softmax { dim, log: draw[4].is_multiple_of(2), dtype }, &[x.into()])?;
                self.call(Cumsum { dim, dtype: ty.dtype }, &[x.into()])?;
                self.call(LayerNorm { eps: Scalar::Float(1e-6), dtype }, &[x.into(), Operand::None, Operand::None])?;
                self.call(RmsNorm { eps: Scalar::Float(1e-6), dtype }, &[x.into(), Operand::None])
            }
            7 => self.product(x, &ty),
            8 => {
                let largest = draw[3].is_multiple_of(2);
                self.call(Sort { dim, descending: largest }, &[x.into()])?;
                self.call(TopK { k: usize::from(ty.rank() > 0), dim, largest }, &[x.into()])
            }
            9 => self.call(Cat { dim }, &[x.into(), y.into(), x.into()]),
            10 => {
                let axes = Axes::from_slice(&[dim]);
                self.call(Index { axes: axes.clone() }, &[x.into(), y.into()])?;
                self.call(IndexPut { axes, accumulate: draw[4].is_multiple_of(2) }, &[x.into(), x.into(), y.into()])
            }
            _ => {
                self.call(Gather { dim }, &[x.into(), y.into()])?;
                self.call(ScatterAdd { dim }, &[x.into(), y.into(), x.into()])?;
                self.call(Histc { bins: 3, min: Scalar::Int(-1), max: Scalar::Int(2) }, &[x.into()])
            }
        }
    }

    fn pointwise(&mut self, x: Value, y: Value, draw: Draw) -> Result<(), TestCaseError> {
        let op = pick(Pointwise::ALL, draw[2]);
        let number = pick(&[Scalar::Int(2), Scalar::Float(-0.5), Scalar::Bool(true)], draw[4]);
        let second = if draw[5].is_multiple_of(3) { Operand::Scalar(number) } else { y.into() };
        let operands = [x.into(), second, pick(&self.pool, draw[6]).into()];
        self.call(op, &operands[..op.arity()])
    }

    fn view(&mut self, x: Value, ty: &TensorType, dim: usize, draw: Draw) -> Result<(), TestCaseError> {
        let mut rotated: Axes = (0..ty.rank()).collect();
        rotated.rotate_left(dim);
        self.call(Permute { dims: rotated }, &[x.into()])?;
        self.call(Reshape { shape: Shape::from_iter([ty.numel()]) }, &[x.into()])?;
        let wider = [Dim::from(2)].into_iter().chain(ty.shape.iter().cloned()).collect();
        self.call(Expand { shape: wider }, &[x.into()])?;
        let Some(extent) = ty.shape.get(dim).cloned() else { return Ok(()) };
        let start = Dim::from(i64::from(draw[3] % 2).min(extent.as_const().unwrap_or(1)));
        self.call(Slice { dim, start, end: extent, step: 1 + i64::from(draw[4] % 2) }, &[x.into()])
    }

    /// `x · xᵀ` over the last two dims.
    fn product(&mut self, x: Value, ty: &TensorType) -> Result<(), TestCaseError> {
        let Some(last) = ty.rank().checked_sub(2) else { return Ok(()) };
        let mut dims: Axes = (0..ty.rank()).collect();
        dims.swap(last, last + 1);
        let before = self.pool.len();
        self.call(Permute { dims }, &[x.into()])?;
        match self.pool.get(before).copied() {
            Some(transposed) => self.call(MatMul {}, &[x.into(), transposed.into()]),
            None => Ok(()),
        }
    }
}

fn built(rows: i64, inputs: &[Draw], steps: &[Draw]) -> Result<Builder, TestCaseError> {
    let mut builder = Builder::new(rows, inputs);
    for &draw in steps {
        builder.step(draw)?;
    }
    for &value in &builder.pool {
        builder.graph.add_output(value, OutputKind::User);
    }
    builder.graph.remove_dead();
    Ok(builder)
}

fn draws(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Draw>> {
    prop::collection::vec(any::<Draw>(), count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_inference_accepts_evaluates_to_its_types(rows in 2i64..=6, inputs in draws(1..5), steps in draws(1..24)) {
        let builder = built(rows, &inputs, &steps)?;
        prop_assert_eq!(verify(&builder.graph), Ok(()));
        let outputs = eval_graph(&builder.graph, &|_| None, &builder.inputs);
        let outputs = outputs.map_err(|e| TestCaseError::fail(e.to_string()))?;
        for (output, tensor) in builder.graph.outputs().iter().zip(&outputs) {
            prop_assert!(*tensor == builder.tensors[&output.value], "the graph and its ops disagree");
        }
    }

    #[test]
    fn text_and_json_round_trip(inputs in draws(1..5), steps in draws(1..24)) {
        let graph = built(3, &inputs, &steps)?.graph;
        let text = print(&graph);
        let from_text = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(print(&from_text), text.as_str());
        let json = to_json(&graph).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let from_json = from_json(&json).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(print(&from_json), text.as_str());
        prop_assert_eq!(to_json(&from_text).ok(), Some(json));
    }
}

#[test]
fn random_graphs_are_not_trivial() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..400u16 {
        let draw =
            |i: u16| std::array::from_fn(|j| seed.wrapping_mul(31).wrapping_add(i * 977 + j as u16 * 131).wrapping_mul(40503));
        let inputs: Vec<Draw> = (0..3).map(draw).collect();
        let steps: Vec<Draw> = (3..20).map(draw).collect();
        let graph = built(3, &inputs, &steps).unwrap_or_else(|e| panic!("{e}")).graph;
        seen.extend(graph.node_ids().filter_map(|id| graph.node(id).op().map(|op| op.name())));
    }
    assert!(seen.len() > 50, "only {} ops were reached: {seen:?}", seen.len());
}

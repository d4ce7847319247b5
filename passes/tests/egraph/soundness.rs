//! Every term of every class has the same value.

use crate::{
    backward,
    blocks::{Dress, MIXTRAL, Sizes, Variant, block, dense, experts_only},
    single,
};
use eglu_ir::{
    Bindings, DType, Graph, NodeKind, Operand, Program, Tensor, TensorType, Value,
    eval::{EvalOperand, eval_graph, eval_op},
    ops::{Attr, Cast, Pointwise},
    profile::H200,
};
use eglu_passes::certify::relative_error;
use eglu_passes::egraph::{
    rule::{Numerics, Rule},
    soundness::{Checked, check, costliest},
};
use std::{collections::BTreeMap, sync::Arc};

/// Repeatable numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// The signs of the 16-bit values that graphs are tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signs {
    /// Sums of positive numbers do not cancel, which would show what rules may leave out: roundings to 16 bits.
    Positive,
    /// What cancels shows roundings; a wrong sign or a term left out is off by more.
    Both,
}

/// A value for an input or weight: noise, in 16 bits of positive numbers, and ids from 0 to `ids` for integers.
pub fn random(graph: &Graph, value: Value, seed: u64, ids: i64) -> Tensor {
    signed(graph, value, seed, ids, Signs::Positive)
}

fn signed(graph: &Graph, value: Value, seed: u64, ids: i64, signs: Signs) -> Tensor {
    let ty = graph.ty(value);
    let shape = ty.concrete(&Bindings::new()).unwrap();
    let mut noise = Noise(seed ^ (value.node.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (0..4).for_each(|_| {
        noise.next();
    });
    let count = shape.iter().product();
    if ty.dtype.is_int() {
        let ids: Vec<i64> = (0..count).map(|_| ((noise.next() + 1.0) / 2.0 * ids as f64) as i64).collect();
        return Tensor::from_slice(ty.dtype, &shape, &ids).unwrap();
    }
    let sign = |x: f64| if ty.dtype == DType::Bf16 && signs == Signs::Positive { x.abs() } else { x };
    let numbers: Vec<f64> = (0..count).map(|_| sign(noise.next())).collect();
    let wide = Tensor::from_slice(DType::F64, &shape, &numbers).unwrap();
    eval_op(&Cast { dtype: ty.dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).unwrap().remove(0)
}

/// What 16-bit values of both signs may differ by.
const CANCELLED: f64 = 0.5;

/// What values may differ by, relative to the largest. Rules change no value in real arithmetic; what they may change are roundings, so that the
/// narrowest float of a graph decides, in whichever dtype a value is stored:
/// - [`Numerics::Exact`]: no rounding either, so the same bits; of f64 some last bits, as the evaluator has no wider accumulator for products of it;
/// - [`Numerics::SameAccumulator`]: roundings of intermediate values to 16 bits may be left out; 3e-2 is some steps of bf16 (2⁻⁸) after a chain of such
///   ops. Where all is f32 or f64 there are none, but for functions that are computed in one op instead of several;
/// - [`Numerics::Reassociating`]: sums of up to some dozens of terms in another order, 2e-5 in f32 (2⁻²⁴ each).
///
/// In graphs of f64 alone both are below 1e-9: a rule that is wrong in real arithmetic by more would show.
fn tolerance(dtype: DType, narrowest: DType, rules: Numerics) -> f64 {
    match narrowest {
        _ if !dtype.is_float() => 0.0,
        DType::F64 if rules == Numerics::Exact => 1e-14,
        _ if rules == Numerics::Exact => 0.0,
        DType::Bf16 => 3e-2,
        DType::F64 => 1e-9,
        _ => 2e-5,
    }
}

/// What the rules do to a graph, and every difference between the terms of a class.
pub fn checked(graph: &Graph, table: &[Rule], seed: u64, ids: i64) -> Checked {
    let narrowest = narrowest(graph);
    let value = |value| random(graph, value, seed, ids);
    let mut found = check(graph, table, &Bindings::new(), &value, &|dtype, rules| tolerance(dtype, narrowest, rules)).unwrap();
    if narrowest == DType::Bf16 {
        let value = |value| signed(graph, value, seed, ids, Signs::Both);
        let wide = |dtype, rules| match tolerance(dtype, narrowest, rules) {
            exact if exact == 0.0 => exact,
            _ => CANCELLED,
        };
        found.differences.extend(check(graph, table, &Bindings::new(), &value, &wide).unwrap().differences);
    }
    found
}

const ACTIVATIONS: [Pointwise; 5] =
    [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::GeluErf, Pointwise::Relu, Pointwise::Sigmoid];

/// Every graph that the rules are tried on, for so many rows of single rules and blocks of these sizes.
pub fn graphs(rows: i64, sizes: Sizes) -> Vec<Graph> {
    let mut graphs = Vec::new();
    for dress in [Dress::Grouped, Dress::Batched] {
        for gpt_oss in [false, true] {
            for dtype in [DType::F32, DType::Bf16] {
                let variant = Variant { dress, gpt_oss, dtype, sizes, ..MIXTRAL };
                graphs.extend([block(variant), experts_only(variant)]);
            }
        }
    }
    graphs.push(block(Variant { swapped: true, sizes, ..MIXTRAL }));
    for (one_weight, biased) in [(false, false), (false, true), (true, true)] {
        for dtype in [DType::F32, DType::Bf16] {
            graphs.extend(ACTIVATIONS.map(|act| dense(dtype, act, one_weight, biased)));
        }
    }
    graphs.extend([true, false].map(|gate| single::half_biased(rows, gate)));
    graphs.extend(single::graphs(rows, sizes));
    graphs.extend(backward::graphs(rows, sizes));
    graphs
}

/// One instance of every graph.
pub fn corpus() -> Vec<Graph> {
    graphs(6, MIXTRAL.sizes)
}

/// The largest error of the costliest terms against the graph, if it is more than its dtypes may show.
pub fn costliest_error(graph: &Graph, table: &[Rule], seed: u64) -> Option<f64> {
    let costliest = costliest(graph, &H200, table).unwrap();
    let inputs: Vec<Tensor> = graph.inputs().iter().map(|&id| random(graph, id.into(), seed, 1)).collect();
    let weights = |path: &str| graph.find(path).map(|id| random(graph, id.into(), seed, 1));
    let want = eval_graph(graph, &weights, &inputs).unwrap();
    let got = eval_graph(&costliest, &weights, &inputs).unwrap();
    let errors = want.iter().zip(&got).map(|(want, got)| relative_error(got, want).unwrap());
    let worst = errors.fold(0.0, f64::max);
    (worst > tolerance(DType::F32, narrowest(graph), Numerics::SameAccumulator)).then_some(worst)
}

/// The float of a graph that holds least.
fn narrowest(graph: &Graph) -> DType {
    let floats =
        graph.node_ids().flat_map(|id| graph.node(id).outputs.iter().map(|ty| ty.dtype)).filter(|dtype| dtype.is_float());
    floats.min_by_key(|dtype| (dtype.size(), *dtype != DType::Bf16)).unwrap_or(DType::F64)
}

/// The graph with f64 in place of every float.
pub fn in_f64(graph: &Graph) -> Graph {
    let wide = |dtype: DType| if dtype.is_float() { DType::F64 } else { dtype };
    let mut new = Graph::new(format!("{}.f64", graph.name));
    let mut values: BTreeMap<Value, Value> = BTreeMap::new();
    for id in graph.inputs().iter().copied().chain(graph.topological().unwrap()) {
        let node = graph.node(id);
        let ty = TensorType { dtype: wide(node.outputs[0].dtype), ..node.outputs[0].clone() };
        let made = match &node.kind {
            _ if values.contains_key(&id.into()) => continue,
            NodeKind::Input => new.add_input(&node.name, ty).node,
            NodeKind::Weight(path) => new.add_weight(&node.name, path, ty).node,
            NodeKind::Constant(tensor) => new.add_constant(&node.name, tensor.clone()).node,
            NodeKind::Call(op) => {
                let attrs = op.attrs().into_iter().map(|(_, attr)| match attr {
                    Attr::DType(dtype) => Attr::DType(wide(dtype)),
                    Attr::Program(program) => Attr::Program(Arc::new(in_wide(&program, wide))),
                    other => other,
                });
                let op = op.code().build(&attrs.collect::<Vec<_>>()).unwrap();
                let operands = node.operands.iter().map(|operand| match operand {
                    Operand::Value(value) => values[value].into(),
                    other => *other,
                });
                new.add_call(&node.name, op, operands.collect::<Vec<_>>()).unwrap()
            }
        };
        for index in 0..new.node(made).outputs.len() as u32 {
            values.insert(Value { node: id, index }, Value { node: made, index });
        }
    }
    for output in graph.outputs() {
        new.add_output(values[&output.value], output.kind.clone());
    }
    new
}

fn in_wide(program: &Program, wide: impl Fn(DType) -> DType) -> Program {
    let mut program = program.clone();
    program.params.iter_mut().for_each(|dtype| *dtype = wide(*dtype));
    program.instrs.iter_mut().for_each(|instr| instr.dtype = wide(instr.dtype));
    program.results.iter_mut().for_each(|(_, dtype)| *dtype = wide(*dtype));
    program
}

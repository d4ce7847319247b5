//! Reductions on a device: every case of `fixtures/reductions` against PyTorch's results, and random shapes, dims, strides and offsets against
//! the reference evaluator.

use crate::device::is_missing;
use eglu::{
    DType, Device, Executable, Graph, Tensor, TensorType,
    compare::compare,
    ir::{
        Bindings, Dim, NodeKind, Operand, OutputKind, Value, Weights,
        eval::{EvalOperand, eval_graph, eval_op},
        ops::{Axes, Cast, Permute, Pointwise, Reduce, ReduceKind, RmsNorm, Slice, Softmax},
    },
    lower,
};
use eglu_tests::reductions::{Case, cases};
use indexmap::IndexMap;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Adds the nodes of a graph of one input to `graph`, with `x` for that input; returns its outputs.
fn append(graph: &mut Graph, part: &Graph, x: Value) -> Vec<Value> {
    let mut values = std::collections::HashMap::new();
    for id in part.topological().expect("no cycles") {
        let node = part.node(id);
        let to = match &node.kind {
            NodeKind::Input => x.node,
            NodeKind::Weight(path) => graph.add_weight(&node.name, path, node.outputs[0].clone()).node,
            NodeKind::Constant(tensor) => graph.add_constant(&node.name, tensor.clone()).node,
            NodeKind::Call(op) => {
                let operands: Vec<Operand> = node
                    .operands
                    .iter()
                    .map(|operand| match operand {
                        Operand::Value(value) => Value { node: values[&value.node], index: value.index }.into(),
                        other => *other,
                    })
                    .collect();
                graph.add_call(&node.name, op.clone(), operands).unwrap_or_else(|error| panic!("{error}"))
            }
        };
        values.insert(id, to);
    }
    part.outputs().iter().map(|output| Value { node: values[&output.value.node], index: output.value.index }).collect()
}

fn run(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let plan = lower(graph).map_err(|error| error.to_string())?;
    let executable = Executable::load(plan, &Weights::default(), &Device::Cuda(0)).map_err(|error| error.to_string())?;
    executable.run(inputs).map_err(|error| error.to_string())
}

#[test]
fn every_case_agrees_with_pytorch() {
    if is_missing() {
        return;
    }
    let (cases, tensors) = cases();
    // Cases of one input are one graph: its kernels compile side by side.
    let mut groups: IndexMap<_, Vec<&Case>> = IndexMap::new();
    for case in cases.iter().filter(|case| case.error.is_none()) {
        groups.entry((case.dtype.clone(), case.shape.clone(), case.input.clone())).or_default().push(case);
    }
    let groups: Vec<_> = groups.into_iter().collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<String, (usize, String)>::new()));
    // Several graphs at once: while one runs, the compiler works on others.
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some((of, cases)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for (case, why) in disagreements(cases, &tensors) {
                        let detail = format!("{of:?}, dim {:?}, keepdim {}: {why}", case.dim, case.keepdim);
                        let key = format!("{} of {}", case.op, case.dtype);
                        wrong.lock().unwrap().entry(key).or_insert((0, detail)).0 += 1;
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let lines: Vec<String> = wrong.iter().map(|(key, (count, first))| format!("{count:4} × {key}, first {first}")).collect();
    assert!(wrong.is_empty(), "{} kinds of disagreement:\n{}", wrong.len(), lines.join("\n"));
}

/// The cases of one input that do not agree with PyTorch, and why.
fn disagreements<'a>(cases: &[&'a Case], tensors: &IndexMap<String, Tensor>) -> Vec<(&'a Case, String)> {
    let input = cases[0].input(tensors);
    let mut graph = Graph::new("cases");
    let dims: Vec<i64> = cases[0].shape.iter().map(|&extent| extent as i64).collect();
    let x = graph.add_input("x", TensorType::fixed(input.dtype(), &dims));
    let mut counts = Vec::new();
    for case in cases {
        let part = case.graph().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let outputs = append(&mut graph, &part, x);
        outputs.iter().for_each(|&output| graph.add_output(output, OutputKind::User));
        counts.push(outputs.len());
    }
    let mut results = match run(&graph, &[input]) {
        Ok(results) => results.into_iter(),
        Err(why) => return vec![(cases[0], format!("all of this input: {why}"))],
    };
    let checked = cases.iter().zip(&counts).map(|(case, &count)| {
        let own = results.by_ref().take(count).collect();
        (*case, case.check(Ok(own), tensors))
    });
    checked.filter_map(|(case, result)| Some((case, result.err()?))).collect()
}

/// Numbers that do not repeat soon, of both signs, with some NaN among floats if asked for.
fn numbers(dtype: DType, len: usize, seed: u64, nan: bool) -> Tensor {
    let value = |i: usize| {
        let hash =
            (i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        if nan && hash.is_multiple_of(1009) { f64::NAN } else { (hash % 4001) as f64 / 1000.0 - 2.0 }
    };
    let values: Vec<f64> = (0..len).map(value).collect();
    let wide = Tensor::from_slice(DType::F64, &[len], &values).expect("as many as the shape says");
    eval_op(&Cast { dtype }.into(), &[EvalOperand::Tensor(&wide)], &Bindings::new()).expect("numbers cast").remove(0)
}

/// A view of memory, and reductions of it.
#[derive(Clone, Debug)]
struct Sample {
    dtype: DType,
    /// Extents of what is reduced, in the order of memory.
    shape: Vec<i64>,
    /// Elements before the view along each dim of memory, and beyond it.
    margins: Vec<(i64, i64)>,
    /// The order of the view's dims.
    order: Vec<usize>,
    reduced: Vec<bool>,
    seed: u64,
    nan: bool,
}

fn sample() -> impl Strategy<Value = Sample> {
    use DType::*;
    let dtypes = vec![
        F32, Bf16, F16, F64, F8E4M3Fn, F8E5M2, F8E4M3FnUz, F8E5M2FnUz, I8, U8, I16, U16, I32, U32, I64, U64, Bool, C64, C128,
    ];
    let extents = prop_oneof![
        prop::collection::vec(1i64..70, 1..=4),
        (1i64..20, 200i64..5000).prop_map(|(a, b)| vec![a, b]),
        (200i64..5000, 1i64..20).prop_map(|(a, b)| vec![a, b]),
        (1i64..4, 1i64..(1 << 20)).prop_map(|(a, b)| vec![a, b]),
    ];
    (prop::sample::select(dtypes), extents, any::<u64>(), any::<bool>()).prop_flat_map(|(dtype, shape, seed, nan)| {
        let rank = shape.len();
        let order: Vec<usize> = (0..rank).collect();
        let margins = prop::collection::vec((0i64..3, 0i64..3), rank);
        let reduced = prop::collection::vec(any::<bool>(), rank);
        (Just((dtype, shape, seed, nan)), margins, Just(order).prop_shuffle(), reduced).prop_map(
            |(fixed, margins, order, reduced)| {
                let (dtype, shape, seed, nan) = fixed;
                Sample { dtype, shape, margins, order, reduced, seed, nan }
            },
        )
    })
}

/// Factors up to which the order of a product is that of the elements, whatever the rounding.
const IN_ORDER: i64 = 128;

/// -1 where `x` is negative or NaN, else 1: products of them are exact in any order, and never leave the range.
fn signs(graph: &mut Graph, x: Value) -> Value {
    let dtype = graph.ty(x).dtype;
    let one = |value| Operand::from(eglu::ir::Scalar::Float(value));
    let is_positive = graph.add_call("is_positive", Pointwise::Ge.into(), [x.into(), one(0.0)]).expect("ordered");
    let signs = [Value::from(is_positive).into(), one(1.0), one(-1.0)];
    let signs = graph.add_call("signs", Pointwise::Where.into(), signs).expect("numbers");
    graph.add_call("factors", Cast { dtype }.into(), [Value::from(signs).into()]).expect("a float").into()
}

impl Sample {
    /// All reductions of the view, and row norms along its last dim where it is a float; with symbols for extents if `dynamic`.
    fn graph(&self) -> (Graph, Vec<usize>) {
        let mut graph = Graph::new("sample");
        let memory: Vec<i64> = self.shape.iter().zip(&self.margins).map(|(n, (a, b))| n + a + b).collect();
        let mut x: Value = graph.add_input("x", TensorType::fixed(self.dtype, &memory));
        for (dim, (before, _)) in self.margins.iter().enumerate() {
            let (start, end) = (Dim::from(*before), Dim::from(before + self.shape[dim]));
            x = graph.add_call("slice", Slice { dim, start, end, step: 1 }.into(), [x.into()]).expect("fits").into();
        }
        x = graph.add_call("view", Permute { dims: Axes::from_slice(&self.order) }.into(), [x.into()]).expect("fits").into();
        let mut dims: Axes = (0..self.shape.len()).filter(|&i| self.reduced[i]).collect();
        if dims.is_empty() {
            dims = (0..self.shape.len()).collect();
        }
        let length: i64 = dims.iter().map(|&dim| self.shape[self.order[dim]]).product();
        for &kind in ReduceKind::ALL {
            let arg = matches!(kind, ReduceKind::Argmax | ReduceKind::Argmin);
            let dims = if arg { Axes::from_slice(&dims[..1]) } else { dims.clone() };
            let long = length > IN_ORDER && self.dtype.is_float();
            // Their rounding errors add up, and there is no factor that leaves them out.
            if kind == ReduceKind::Prod && length > IN_ORDER && self.dtype.is_complex() {
                continue;
            }
            let dtype = match kind {
                ReduceKind::Any | ReduceKind::All => DType::Bool,
                ReduceKind::Argmax | ReduceKind::Argmin => DType::I64,
                ReduceKind::Sum | ReduceKind::Prod if !self.dtype.is_float() && !self.dtype.is_complex() => DType::I64,
                ReduceKind::Sum | ReduceKind::Mean if self.dtype.size() == 1 => DType::F32,
                _ => self.dtype,
            };
            let operand = if kind == ReduceKind::Prod && long { signs(&mut graph, x) } else { x };
            if let Ok(id) = graph.add_call(kind.name(), Reduce { kind, dims, keepdim: false, dtype }.into(), [operand.into()]) {
                graph.add_output(id.into(), OutputKind::User);
            }
        }
        if self.dtype.is_float() && self.dtype.size() > 1 {
            let (dim, dtype) = (dims[0], self.dtype);
            let eps = eglu::ir::Scalar::Float(1e-5);
            let softmax = |log| Softmax { dim, log, dtype }.into();
            for op in [softmax(false), softmax(true), RmsNorm { eps, dtype }.into()] {
                let id = graph.add_call("norm", op, [x.into(), Operand::None].into_iter().take(1)).or_else(|_| {
                    let op = RmsNorm { eps, dtype };
                    graph.add_call("norm", op.into(), [x.into(), Operand::None])
                });
                graph.add_output(id.expect("fits").into(), OutputKind::User);
            }
        }
        (graph, memory.iter().map(|&n| n as usize).collect())
    }
}

/// Row norms of `rows` lines of `length` elements, `skip` elements into each line of memory.
fn norms(dtype: DType, rows: i64, length: i64, skip: i64) -> (Graph, Vec<usize>) {
    let mut graph = Graph::new("norms");
    let memory = [rows, length + skip];
    let mut x: Value = graph.add_input("x", TensorType::fixed(dtype, &memory));
    if skip > 0 {
        let op = Slice { dim: 1, start: Dim::from(skip), end: Dim::from(skip + length), step: 1 };
        x = graph.add_call("view", op.into(), [x.into()]).expect("fits").into();
    }
    let softmax = |log| Softmax { dim: 1, log, dtype };
    let rms = RmsNorm { eps: eglu::ir::Scalar::Float(1e-5), dtype };
    let calls = [
        graph.add_call("softmax", softmax(false).into(), [x.into()]),
        graph.add_call("log_softmax", softmax(true).into(), [x.into()]),
        graph.add_call("rms_norm", rms.into(), [x.into(), Operand::None]),
    ];
    for call in calls {
        graph.add_output(call.expect("fits").into(), OutputKind::User);
    }
    (graph, memory.map(|n| n as usize).to_vec())
}

#[test]
fn row_norms_of_every_length() {
    if is_missing() {
        return;
    }
    // Some for each form: a few threads, a warp, blocks, a cluster, and what does not fit into it; whole and ragged lines.
    for (length, skip) in [
        (4, 0),
        (9, 1),
        (64, 0),
        (250, 3),
        (1024, 0),
        (2050, 0),
        (4099, 5),
        (8192, 0),
        (16384, 0),
        (50_001, 2),
        (131_072, 0),
        (300_000, 1),
    ] {
        for dtype in [DType::F32, DType::Bf16] {
            // Warps, blocks and clusters each take several lines.
            let rows = match length {
                ..2000 => 4000,
                2000..5000 => 701,
                5000..20_000 => 300,
                _ => 20,
            };
            let (graph, memory) = norms(dtype, rows, length, skip);
            let input = numbers(dtype, memory.iter().product(), 7, false).reshaped(&memory);
            let want = eval_graph(&graph, &|_| None, std::slice::from_ref(&input)).unwrap_or_else(|error| panic!("{error}"));
            let got = run(&graph, &[input]).unwrap_or_else(|error| panic!("{length} of {dtype}: {error}"));
            for ((got, want), output) in got.iter().zip(&want).zip(graph.outputs()) {
                let name = &graph.node(output.value.node).name;
                let difference = compare(name, got, want).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(difference.within, "{length} + {skip} of {dtype}: {difference:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 12, ..ProptestConfig::default() })]
    #[test]
    fn views_reduce_as_the_evaluator_says(sample in sample()) {
        if is_missing() {
            return Ok(());
        }
        let (graph, memory) = sample.graph();
        let flat = numbers(sample.dtype, memory.iter().product(), sample.seed, sample.nan);
        let input = flat.reshaped(&memory);
        let want = eval_graph(&graph, &|_| None, std::slice::from_ref(&input)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let got = run(&graph, &[input]).map_err(TestCaseError::fail)?;
        for ((got, want), output) in got.iter().zip(&want).zip(graph.outputs()) {
            let difference = compare(&graph.node(output.value.node).name, got, want).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(difference.within, "{difference:?}");
        }
    }
}

//! Every row of the op table on a device, against the reference evaluator: kernels that no fixture runs.

#[path = "../../../codegen/tests/samples/mod.rs"]
mod samples;

use crate::device::is_missing;
use eglu::{
    DType, Device, Executable, Graph, Tensor, TensorType,
    compare::compare,
    ir::{
        Bindings, Dim, OpCode, OutputKind, Weights,
        eval::{EvalOperand, eval_graph, eval_op},
        ops::{Axes, Cast, Cumsum, IndexPut, MatMul, Pointwise, ScatterAdd, Sort, TopK, TypeRule},
    },
    lower,
};
use samples::{Sample, sample};

/// Whole numbers `0..limit` in a scrambled, fixed order.
fn scrambled(len: usize, limit: i64) -> Vec<i64> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as i64 % limit).collect()
}

fn cast(tensor: &Tensor, dtype: DType) -> Tensor {
    let op = Cast { dtype }.into();
    eval_op(&op, &[EvalOperand::Tensor(tensor)], &Bindings::new()).expect("numbers cast").remove(0)
}

/// A tensor of small numbers, not ordered, of both signs where the dtype has them; floats are no whole numbers.
fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    let values: Vec<f64> = scrambled(len, 997).into_iter().map(|x| x as f64 / 249.0 - 2.0).collect();
    cast(&Tensor::from_slice(DType::F64, shape, &values).expect("as many as the shape says"), dtype)
}

fn integers(dtype: DType, shape: &[usize], values: &[i64]) -> Tensor {
    cast(&Tensor::from_slice(DType::I64, shape, values).expect("as many as the shape says"), dtype)
}

/// Runs the graph node by node on the device, and compares every output with the evaluator's.
fn check(graph: &Graph, inputs: &[Tensor]) -> Result<(), String> {
    let want = eval_graph(graph, &|_| None, inputs).map_err(|error| format!("evaluator: {error}"))?;
    let plan = lower(graph).map_err(|error| error.to_string())?;
    let executable = Executable::load(plan, &Weights::default(), &Device::Cuda(0)).map_err(|error| error.to_string())?;
    let got = executable.run(inputs).map_err(|error| error.to_string())?;
    for ((got, want), output) in got.iter().zip(&want).zip(graph.outputs()) {
        let name = &graph.node(output.value.node).name;
        let difference = compare(name, got, want).map_err(|error| error.to_string())?;
        if !difference.within {
            return Err(format!("{difference:?}"));
        }
    }
    Ok(())
}

/// Inputs of a sample: indices stay within what they index (4 and more), offsets ascend, permutations are ones.
fn sample_inputs(code: OpCode, graph: &Graph, rows: i64) -> Vec<Tensor> {
    let bindings = Bindings::from([("s0".into(), rows)]);
    let inputs = graph.inputs().iter().map(|&id| {
        let ty = &graph.node(id).outputs[0];
        let shape = ty.concrete(&bindings).expect("one symbol");
        let len: usize = shape.iter().product();
        match (code, ty.dtype) {
            (OpCode::GroupedMm, DType::I32) => {
                let offsets: Vec<i64> = (1..=4).map(|i| if i == 3 { rows / 2 } else { rows * i / 4 }).collect();
                integers(ty.dtype, &shape, &offsets)
            }
            (OpCode::InversePermutation, _) => {
                let mut order: Vec<i64> = (0..len as i64).collect();
                order.sort_by_key(|&i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
                integers(ty.dtype, &shape, &order)
            }
            (OpCode::Pointwise(_), DType::I64) => {
                integers(ty.dtype, &shape, &scrambled(len, 9).iter().map(|x| x + 1).collect::<Vec<_>>())
            }
            (_, DType::Bool) => integers(ty.dtype, &shape, &scrambled(len, 2)),
            (_, dtype) if dtype.is_int() => integers(dtype, &shape, &scrambled(len, 4)),
            (_, dtype) => numbers(dtype, &shape),
        }
    });
    inputs.collect()
}

#[test]
fn every_row_computes_what_the_evaluator_does() {
    if is_missing() {
        return;
    }
    let mut wrong = vec![];
    for code in OpCode::all() {
        let Sample::Graph(mut graph) = sample(code) else { continue };
        if graph.inputs().is_empty() {
            // Something must give the symbol its value.
            graph.add_input("x", TensorType::new(DType::F32, [Dim::symbol("s0")]));
        }
        for rows in [1, 7, 130] {
            if let Err(why) = check(&graph, &sample_inputs(code, &graph, rows)) {
                wrong.push(format!("{} at {rows}: {why}", code.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_elementwise_row_computes_in_every_arithmetic() {
    if is_missing() {
        return;
    }
    let mut wrong = vec![];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64, DType::I32, DType::U8, DType::I8, DType::Bool] {
        let mut graph = Graph::new("elementwise");
        let x = graph.add_input("x", TensorType::fixed(dtype, &[3, 37]));
        let y = graph.add_input("y", TensorType::fixed(dtype, &[3, 37]));
        let mask = graph.add_input("mask", TensorType::fixed(DType::Bool, &[3, 37]));
        for &op in Pointwise::ALL {
            let operand = |i: usize| match i {
                0 if op.rule() == TypeRule::Select => mask.into(),
                i if i % 2 == 0 => x.into(),
                _ => y.into(),
            };
            if let Ok(id) = graph.add_call(op.name(), op.into(), (0..op.arity()).map(operand)) {
                graph.add_output(id.into(), OutputKind::User);
            }
        }
        // Positive where whole numbers divide and shift.
        let whole = |limit: i64| integers(dtype, &[3, 37], &scrambled(111, limit).iter().map(|x| x + 1).collect::<Vec<_>>());
        let (x, y) = match dtype {
            DType::Bool => (integers(dtype, &[3, 37], &scrambled(111, 2)), integers(dtype, &[3, 37], &[1; 111])),
            dtype if dtype.is_int() => (whole(100), whole(6)),
            dtype => (numbers(dtype, &[3, 37]), integers(dtype, &[3, 37], &scrambled(111, 5))),
        };
        let mask = integers(DType::Bool, &[3, 37], &scrambled(111, 2));
        if let Err(why) = check(&graph, &[x, y, mask]) {
            wrong.push(format!("{dtype}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn long_and_odd_extents() {
    if is_missing() {
        return;
    }
    let mut graph = Graph::new("long");
    let long = Dim::symbol("s0");
    let x = graph.add_input("x", TensorType::new(DType::F32, [long.clone()]));
    let ids = graph.add_input("ids", TensorType::new(DType::I64, [long.clone()]));
    let rows = graph.add_input("rows", TensorType::new(DType::F16, [long.clone(), Dim::from(33)]));
    let table = graph.add_input("table", TensorType::fixed(DType::F32, &[77]));
    let w = graph.add_input("w", TensorType::fixed(DType::F16, &[33, 71]));
    let mut call = |name: &str, op: eglu::Op, operands: &[eglu::ir::Operand]| {
        let id = graph.add_call(name, op, operands.iter().copied()).unwrap_or_else(|error| panic!("{error}"));
        for index in 0..graph.node(id).outputs.len() as u32 {
            graph.add_output(eglu::ir::Value { node: id, index }, OutputKind::User);
        }
    };
    call("up", Sort { dim: 0, descending: false }.into(), &[x.into()]);
    call("down", Sort { dim: 0, descending: true }.into(), &[ids.into()]);
    call("sum", Cumsum { dim: 0, dtype: DType::I64 }.into(), &[ids.into()]);
    call("best", TopK { k: 5, dim: 1, largest: true }.into(), &[rows.into()]);
    call("put", IndexPut { axes: Axes::from_slice(&[0]), accumulate: true }.into(), &[table.into(), x.into(), ids.into()]);
    call("scatter", ScatterAdd { dim: 0 }.into(), &[table.into(), ids.into(), x.into()]);
    call("product", MatMul {}.into(), &[rows.into(), w.into()]);
    for len in [5, 1025, 4097, 70_001] {
        let ids = integers(DType::I64, &[len], &scrambled(len, 77));
        let (x, rows) = (numbers(DType::F32, &[len]), numbers(DType::F16, &[len, 33]));
        let inputs = [x, ids, rows, numbers(DType::F32, &[77]), numbers(DType::F16, &[33, 71])];
        check(&graph, &inputs).unwrap_or_else(|why| panic!("{len}: {why}"));
    }
}

//! Dense products in every layout and at odd sizes: on Hopper they compile to warpgroup products without spills, and a device computes what
//! the CPU does.

use crate::{compiles::PERFORMANCE_NOTES, device, machine_code, nvrtc};
use eglu::{
    DType, Device, Dim, Executable, Graph, Plan, TensorType,
    codegen::cuda::{Module, Target, emit},
    compare::compare,
    ir::{
        Bindings, NodeId, OutputKind, Program, Ref, SymbolRange, Value, Weights,
        ops::{Contract, DenseGlu, MatMul, Permute, Pointwise, Slice},
        program::InstrOp,
    },
    lower,
    runtime::{
        cuda::compile,
        inputs::{Routing, generate},
    },
};
use std::sync::Arc;

/// Extents of a product: rows, columns, K.
type Sizes = [i64; 3];

/// Where a matrix has its elements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    /// As it is multiplied.
    Plain,
    /// With its dims swapped.
    Transposed,
}

/// How the two matrices of a gated unit are stored.
#[derive(Clone, Copy, Debug)]
enum Gating {
    Separate,
    Concatenated,
    Interleaved,
}

struct Case {
    graph: Graph,
    /// The value of `s0`.
    rows: i64,
}

fn matrix(graph: &mut Graph, name: &str, dtype: DType, [rows, columns]: [Dim; 2], stored: Stored) -> Value {
    match stored {
        Stored::Plain => graph.add_input(name, TensorType::new(dtype, [rows, columns])),
        Stored::Transposed => {
            let x = graph.add_input(name, TensorType::new(dtype, [columns, rows]));
            graph.add_call(&format!("{name}_t"), Permute { dims: vec![1, 0].into() }.into(), [x.into()]).expect("a matrix").into()
        }
    }
}

fn finish(mut graph: Graph, id: NodeId, rows: i64) -> Case {
    for index in 0..graph.node(id).outputs.len() as u32 {
        graph.add_output(Value { node: id, index }, OutputKind::User);
    }
    Case { graph, rows }
}

/// The extent of the rows: the symbol `s0` where they are dynamic.
fn rows_of(graph: &mut Graph, rows: i64, dynamic: bool) -> Dim {
    if !dynamic {
        return Dim::from(rows);
    }
    graph.symbols.insert("s0".into(), SymbolRange { min: 1, max: None });
    Dim::symbol("s0")
}

fn matmul(dtype: DType, [m, n, k]: Sizes, stored: [Stored; 2], dynamic: bool) -> Case {
    let mut graph = Graph::new(format!("matmul_{dtype}_{m}x{n}x{k}_{:?}_{:?}", stored[0], stored[1]));
    let rows = rows_of(&mut graph, m, dynamic);
    let a = matrix(&mut graph, "a", dtype, [rows, k.into()], stored[0]);
    let b = matrix(&mut graph, "b", dtype, [k.into(), n.into()], stored[1]);
    let y = graph.add_call("y", MatMul {}.into(), [a.into(), b.into()]).expect("fits");
    finish(graph, y, m)
}

fn batched(dtype: DType, batch: i64, [m, n, k]: Sizes) -> Case {
    let mut graph = Graph::new(format!("bmm_{dtype}_{batch}x{m}x{n}x{k}"));
    let a = graph.add_input("a", TensorType::fixed(dtype, &[batch, m, k]));
    let b = graph.add_input("b", TensorType::fixed(dtype, &[batch, k, n]));
    let y = graph.add_call("y", MatMul {}.into(), [a.into(), b.into()]).expect("fits");
    finish(graph, y, m)
}

/// `silu(a · b + bias) · scale[M, 1] + residual`, and the sum before the product with `scale` in f32.
fn contract(dtype: DType, [m, n, k]: Sizes, dynamic: bool) -> Case {
    let mut graph = Graph::new(format!("contract_{dtype}_{m}x{n}x{k}"));
    let rows = rows_of(&mut graph, m, dynamic);
    let a = graph.add_input("a", TensorType::new(dtype, [rows.clone(), k.into()]));
    let b = matrix(&mut graph, "b", dtype, [k.into(), n.into()], Stored::Transposed);
    let bias = graph.add_input("bias", TensorType::fixed(dtype, &[n]));
    let scale = graph.add_input("scale", TensorType::new(dtype, [rows.clone(), Dim::from(1)]));
    let residual = graph.add_input("residual", TensorType::new(dtype, [rows, Dim::from(n)]));
    let mut program = Program::new([dtype; 4]);
    let sum = program.push(InstrOp::Pointwise(Pointwise::Add), [Ref::Param(0), Ref::Param(1)], dtype);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [sum], dtype);
    let scaled = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(2)], dtype);
    let out = program.push(InstrOp::Pointwise(Pointwise::Add), [scaled, Ref::Param(3)], dtype);
    program.results.extend([(out, dtype), (sum, DType::F32)]);
    let op = Contract::new(1, program);
    let operands = [a, b, bias, scale, residual].map(Into::into);
    let y = graph.add_call("y", op.into(), operands).expect("fits");
    finish(graph, y, m)
}

fn glu(dtype: DType, [m, n, k]: Sizes, gating: Gating, stored: Stored, biased: bool) -> Case {
    let mut graph = Graph::new(format!("glu_{dtype}_{m}x{n}x{k}_{gating:?}_{stored:?}"));
    let x = graph.add_input("x", TensorType::fixed(dtype, &[m, k]));
    let slice = |graph: &mut Graph, from: Value, name: &str, start: i64, end: i64, step: i64| {
        let op = Slice { dim: 0, start: start.into(), end: end.into(), step };
        Value::from(graph.add_call(name, op.into(), [from.into()]).expect("within"))
    };
    let [gate, up] = match gating {
        Gating::Separate => ["gate", "up"].map(|name| matrix(&mut graph, name, dtype, [n.into(), k.into()], stored)),
        Gating::Concatenated | Gating::Interleaved => {
            let both = matrix(&mut graph, "gate_up", dtype, [(2 * n).into(), k.into()], stored);
            match gating {
                Gating::Interleaved => [slice(&mut graph, both, "gate", 0, 2 * n, 2), slice(&mut graph, both, "up", 1, 2 * n, 2)],
                _ => [slice(&mut graph, both, "gate", 0, n, 1), slice(&mut graph, both, "up", n, 2 * n, 1)],
            }
        }
    };
    let mut bias = |name: &str| match biased {
        true => graph.add_input(name, TensorType::fixed(dtype, &[n])).into(),
        false => eglu::ir::Operand::None,
    };
    let biases = [bias("gate_bias"), bias("up_bias")];
    let mut program = Program::new([dtype; 2]);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [Ref::Param(0)], dtype);
    let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(1)], dtype);
    program.results.push((product, dtype));
    let op = DenseGlu { program: Arc::new(program) };
    let y = graph.add_call("y", op.into(), [x.into(), gate.into(), biases[0], up.into(), biases[1]]).expect("fits");
    finish(graph, y, m)
}

fn cases() -> Vec<Case> {
    use DType::{Bf16, F16, F32};
    use Stored::{Plain, Transposed};
    let mut cases = vec![];
    for stored in [[Plain, Plain], [Plain, Transposed], [Transposed, Plain], [Transposed, Transposed]] {
        // Large tiles, few rows, and rows that do not start on 16 bytes.
        for sizes in [[2056, 2880, 1032], [40, 2880, 520], [33, 96, 264], [100, 99, 33]] {
            cases.push(matmul(Bf16, sizes, stored, false));
        }
        cases.push(matmul(F16, [1300, 1304, 72], stored, false));
        cases.push(matmul(F32, [133, 130, 67], stored, false));
    }
    for rows in [1, 16, 17, 40, 100, 300, 4100] {
        cases.push(matmul(Bf16, [rows, 520, 200], [Plain, Transposed], true));
        cases.push(contract(F16, [rows, 264, 136], true));
    }
    // Wide enough for large tiles, at every number of rows beyond the few.
    cases.push(matmul(F16, [4100, 1320, 200], [Plain, Transposed], true));
    cases.push(contract(Bf16, [2100, 1320, 136], true));
    cases.push(contract(Bf16, [700, 2049, 64], false));
    cases.push(batched(Bf16, 30, [200, 328, 136]));
    cases.push(batched(F16, 3, [20, 96, 1000]));
    for stored in [Plain, Transposed] {
        for gating in [Gating::Separate, Gating::Concatenated, Gating::Interleaved] {
            for (i, (rows, depth)) in [(3, 96), (48, 96), (1500, 1032)].into_iter().enumerate() {
                cases.push(glu(Bf16, [rows, 2880, depth], gating, stored, i == 1));
            }
            cases.push(glu(F16, [65, 96, 2880], gating, stored, true));
            cases.push(glu(F32, [65, 96, 100], gating, stored, false));
        }
    }
    cases
}

fn planned(case: &Case) -> Plan {
    lower(&case.graph).unwrap_or_else(|error| panic!("{}: {error}", case.graph.name))
}

#[test]
fn dense_products_compile_to_warpgroup_products() {
    if nvrtc::is_missing() {
        return;
    }
    let (mut wgmma, mut streams) = (0, 0);
    for (arch, name) in [(80, "sm_80"), (90, "sm_90a")] {
        let (mut modules, mut threads): (Vec<Module>, Vec<u32>) = (vec![], vec![]);
        for case in cases() {
            let emitted = emit(&planned(&case), Target { arch }).unwrap_or_else(|error| panic!("{}: {error}", case.graph.name));
            for launch in &emitted.launches {
                let module = &emitted.modules[launch.module];
                if !modules.iter().any(|other| other.source == module.source) {
                    modules.push(module.clone());
                    threads.push(launch.block.iter().product());
                }
            }
        }
        let cubins = compile(&modules, name).unwrap_or_else(|error| panic!("{error}"));
        for ((module, cubin), threads) in modules.iter().zip(cubins).zip(threads) {
            if module.source.contains("wgmma.mma_async") {
                assert_eq!(machine_code::faults(&cubin, threads), [""; 0], "{}:\n{}", module.name, cubin.log);
            } else {
                assert_eq!(machine_code::warpgroup_products(&cubin), 0, "{}", module.name);
                assert_eq!(
                    PERFORMANCE_NOTES.iter().find(|note| cubin.log.contains(**note)),
                    None,
                    "{}:\n{}",
                    module.name,
                    cubin.log
                );
            }
            wgmma += usize::from(module.name.contains("_wgmma_"));
            streams += usize::from(module.name.contains("_stream_"));
        }
    }
    assert!(wgmma >= 8 && streams >= 8, "{wgmma} with large tiles, {streams} for few rows");
}

#[test]
fn dense_products_agree_with_the_cpu() {
    if device::is_missing() {
        return;
    }
    for (seed, case) in cases().iter().enumerate() {
        let (plan, weights) = (planned(case), Weights::default());
        let bindings = Bindings::from([("s0".into(), case.rows)]);
        let inputs = generate(&plan, &bindings, &Default::default(), Routing::Uniform, seed as u64);
        let inputs = inputs.unwrap_or_else(|error| panic!("{}: {error}", case.graph.name));
        let run = |device| {
            let executable = Executable::load(plan.clone(), &weights, &device);
            executable
                .and_then(|executable| executable.run(&inputs))
                .unwrap_or_else(|error| panic!("{}: {error}", case.graph.name))
        };
        for (cuda, cpu) in run(Device::Cuda(0)).iter().zip(&run(Device::Cpu)) {
            let name = format!("{} with {} rows", case.graph.name, case.rows);
            let difference = compare(&name, cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
            assert!(difference.within, "{difference:?}");
        }
    }
}

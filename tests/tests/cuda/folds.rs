//! Products whose results are packed or reduced, and products of rows that lie by expert.

use super::{compiles::PERFORMANCE_NOTES, device, nvrtc};
use eglu::{
    DType, Device, Executable, Graph, Plan, TensorType,
    codegen::cuda::{Module, Target, emit},
    compare::compare,
    ir::{
        Bindings, Dim, OutputKind, Program, Ref, SymbolRange, Tensor, Value, Weights,
        ops::{Axes, Contract, ExpertContract, Pointwise, ReduceKind},
        program::InstrOp,
    },
    lower,
    runtime::{
        cuda::compile,
        inputs::{Routing, generate},
    },
};

struct Case {
    graph: Graph,
    rows: i64,
}

fn finish(mut graph: Graph, node: eglu::ir::NodeId, rows: i64) -> Case {
    for index in 0..graph.node(node).outputs.len() as u32 {
        graph.add_output(Value { node, index }, OutputKind::User);
    }
    Case { graph, rows }
}

/// `gate · up` and both lanes packed, with these reductions of `gate · up · scale[M, 1]`.
fn folded(dtype: DType, batch: &[i64], [m, n, k]: [i64; 3], folds: &[(ReduceKind, i64)], packed: usize, dynamic: bool) -> Case {
    let mut graph = Graph::new(format!("folded_{dtype}_{batch:?}_{m}x{n}x{k}_{folds:?}_{packed}"));
    let rows = if dynamic { Dim::symbol("s0") } else { Dim::from(m) };
    if dynamic {
        graph.symbols.insert("s0".into(), SymbolRange { min: 1, max: None });
    }
    let lead = || batch.iter().map(|&extent| Dim::from(extent));
    let input = |graph: &mut Graph, name: &str, dims: Vec<Dim>| graph.add_input(name, TensorType::new(dtype, dims));
    let a = input(&mut graph, "a", lead().chain([rows.clone(), k.into()]).collect());
    let [gate, up] = ["gate", "up"].map(|name| input(&mut graph, name, vec![k.into(), n.into()]));
    let scale = input(&mut graph, "scale", lead().chain([rows, 1.into()]).collect());
    let mut program = Program::new([dtype; 3]);
    let both = program.push(InstrOp::Pointwise(Pointwise::Mul), [Ref::Param(0), Ref::Param(1)], dtype);
    let scaled = program.push(InstrOp::Pointwise(Pointwise::Mul), [both, Ref::Param(2)], dtype);
    if packed > 0 {
        program.results.extend([(Ref::Param(0), dtype), (Ref::Param(1), dtype)]);
    }
    program.results.push((both, dtype));
    folds.iter().for_each(|_| program.results.push((scaled, dtype)));
    let (kinds, groups) = folds.iter().map(|&(kind, group)| (kind, group as usize)).unzip::<_, _, Vec<_>, Axes>();
    let op = Contract { lanes: 2, packed, interleaved: packed > 0 && n % 3 == 0, folds: kinds, groups, program: program.into() };
    let node = graph.add_call("y", op.into(), [a, gate, up, scale].map(Into::into)).expect("fits");
    finish(graph, node, m)
}

/// `silu(gate) · up` of rows that lie by expert, with gate and up packed beside.
fn grouped(dtype: DType, [m, n, k]: [i64; 3], ends: &[i32]) -> Case {
    let mut graph = Graph::new(format!("grouped_{dtype}_{m}x{n}x{k}"));
    let experts = ends.len() as i64;
    let x = graph.add_input("x", TensorType::fixed(dtype, &[m, k]));
    let ends = graph.add_constant("ends", Tensor::from_slice(DType::I32, &[ends.len()], ends).expect("as many"));
    let [gate, up] = ["gate", "up"].map(|name| graph.add_input(name, TensorType::fixed(dtype, &[experts, n, k])));
    let mut program = Program::new([dtype; 2]);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [Ref::Param(0)], dtype);
    let gated = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(1)], dtype);
    program.results.extend([(Ref::Param(0), dtype), (Ref::Param(1), dtype), (gated, dtype)]);
    let (packed, grouped, program) = (2, true, program.into());
    let (folds, groups) = (vec![], Axes::new());
    let op = ExpertContract { lanes: 2, tables: 0, repeat: 1, packed, interleaved: false, grouped, folds, groups, program };
    let node = graph.add_call("y", op.into(), [x, ends, gate, up].map(Into::into)).expect("fits");
    finish(graph, node, m)
}

fn cases() -> Vec<Case> {
    use DType::{Bf16, F16, F32, F64};
    use ReduceKind::{Amax, Amin, Mean, Sum};
    let mut cases = vec![];
    for dtype in [Bf16, F32] {
        for (m, n) in [(3, 48), (40, 96), (300, 520), (1030, 2048)] {
            cases.push(folded(dtype, &[], [m, n, 72], &[(Sum, n), (Amax, 0)], 0, false));
            cases.push(folded(dtype, &[], [m, n, 72], &[(Mean, 0)], 2, false));
            cases.push(folded(dtype, &[], [m, n, 72], &[(Amin, 8), (Sum, 2)], 2, true));
        }
        cases.push(folded(dtype, &[3], [70, 256, 40], &[(Mean, 256), (Sum, 128), (Sum, 0)], 0, false));
        cases.push(folded(dtype, &[2, 3], [33, 1024, 64], &[(Sum, 256), (Amax, 1024)], 2, true));
    }
    cases.push(folded(F64, &[], [70, 130, 33], &[(Sum, 130), (Sum, 0)], 0, false));
    cases.push(folded(F16, &[], [5000, 64, 64], &[(Mean, 0), (Mean, 64)], 0, true));
    // More lines of tiles than there are counters.
    cases.push(folded(F32, &[], [300_000, 130, 8], &[(Sum, 130)], 0, true));
    for dtype in [Bf16, F32] {
        cases.push(grouped(dtype, [70, 96, 64], &[10, 10, 63, 70]));
        cases.push(grouped(dtype, [600, 264, 200], &[0, 400, 599]));
    }
    cases
}

fn planned(case: &Case) -> Plan {
    lower(&case.graph).unwrap_or_else(|error| panic!("{}: {error}", case.graph.name))
}

#[test]
fn products_with_reductions_compile() {
    if nvrtc::is_missing() {
        return;
    }
    for (arch, name) in [(80, "sm_80"), (90, "sm_90a")] {
        let mut modules: Vec<Module> = vec![];
        for case in cases() {
            let emitted = emit(&planned(&case), Target { arch }).unwrap_or_else(|error| panic!("{}: {error}", case.graph.name));
            for module in emitted.modules {
                if !modules.iter().any(|other| other.source == module.source) {
                    modules.push(module);
                }
            }
        }
        let cubins = compile(&modules, name).unwrap_or_else(|error| panic!("{error}"));
        for (module, cubin) in modules.iter().zip(cubins) {
            let slow = PERFORMANCE_NOTES.iter().find(|note| cubin.log.contains(**note));
            assert_eq!(slow, None, "{}:\n{}", module.name, cubin.log);
        }
    }
}

#[test]
fn products_with_reductions_agree_with_the_cpu_in_every_run() {
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
            let runs = executable.and_then(|executable| Ok([executable.run(&inputs)?, executable.run(&inputs)?]));
            runs.unwrap_or_else(|error| panic!("{}: {error}", case.graph.name))
        };
        let ([cuda, again], [cpu, _]) = (run(Device::Cuda(0)), run(Device::Cpu));
        for ((cuda, again), cpu) in cuda.iter().zip(&again).zip(&cpu) {
            assert_eq!(cuda.bytes(), again.bytes(), "{} differs from run to run", case.graph.name);
            let difference = compare(&case.graph.name, cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
            assert!(difference.within, "{difference:?}");
        }
    }
}

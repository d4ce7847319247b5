//! Blocks with their routers, for numbers of experts and choices and in schedules that no fixture has.

use crate::{compiles::PERFORMANCE_NOTES, device, nvrtc};
use eglu::{
    DType, Device, Dim, Executable, Graph, Plan, Tensor, TensorType,
    codegen::cuda::{Choices, Schedule, Target, emit_with},
    compare::compare,
    ir::{
        OutputKind, Program, Ref, Scalar, Weights,
        ops::{Axes, MatMul, Moe, Permute, Pointwise, Route, RouteScore},
        program::InstrOp,
    },
    lower,
    runtime::{Phases, cuda::Selection, cuda::compile},
};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    experts: i64,
    choices: usize,
    score: RouteScore,
    /// Experts in groups of so many, of which half may be used.
    groups: usize,
}

/// Experts fill pieces of 64 wholly, in part, and all that there are.
const CASES: [Sizes; 6] = [
    Sizes { experts: 8, choices: 1, score: RouteScore::Softmax, groups: 0 },
    Sizes { experts: 60, choices: 4, score: RouteScore::TopKSoftmax, groups: 0 },
    Sizes { experts: 128, choices: 8, score: RouteScore::Softmax, groups: 0 },
    Sizes { experts: 160, choices: 6, score: RouteScore::TopKSigmoid, groups: 0 },
    Sizes { experts: 256, choices: 8, score: RouteScore::Sigmoid, groups: 8 },
    Sizes { experts: 512, choices: 16, score: RouteScore::Sigmoid, groups: 0 },
];
const HIDDEN: i64 = 128;
const INNER: i64 = 64;

/// `x [s0, H]`, the router's weights `[E, H]`, gate, up and down.
fn block(sizes: Sizes) -> Plan {
    let Sizes { experts, choices, score, groups } = sizes;
    let mut graph = Graph::new("block");
    let x = graph.add_input("x", TensorType::new(DType::Bf16, [Dim::symbol("s0"), Dim::from(HIDDEN)]));
    let input = |graph: &mut Graph, name: &str, shape: &[i64]| graph.add_input(name, TensorType::fixed(DType::Bf16, shape));
    let router = input(&mut graph, "router", &[experts, HIDDEN]);
    let gate = input(&mut graph, "gate", &[experts, INNER, HIDDEN]);
    let up = input(&mut graph, "up", &[experts, INNER, HIDDEN]);
    let down = input(&mut graph, "down", &[experts, HIDDEN, INNER]);
    let call = |graph: &mut Graph, name: &str, op: eglu::Op, operands: Vec<eglu::ir::Operand>| {
        graph.add_call(name, op, operands).unwrap_or_else(|error| panic!("{sizes:?}: {error}"))
    };
    let across = call(&mut graph, "across", Permute { dims: Axes::from_slice(&[1, 0]) }.into(), vec![router.into()]);
    let logits = call(&mut graph, "logits", MatMul {}.into(), vec![x.into(), across.into()]);
    let mut weigh = Program::new([DType::F32; 2]);
    let share = weigh.push(InstrOp::Pointwise(Pointwise::Div), [Ref::Param(0), Ref::Param(1)], DType::F32);
    let rounded = weigh.push(InstrOp::Cast, [share], DType::Bf16);
    weigh.results.push((rounded, DType::Bf16));
    let groups = if groups > 0 { Axes::from_slice(&[groups, 2, groups / 2]) } else { Axes::new() };
    let route = Route {
        score,
        scores: DType::F32,
        k: choices,
        groups,
        masked: Scalar::Float(f64::NEG_INFINITY),
        gathered: true,
        weigh: weigh.into(),
    };
    let route = call(&mut graph, "route", route.into(), vec![logits.into(), eglu::ir::Operand::None]);
    let (scores, ids) = (eglu::ir::Value { node: route, index: 0 }, eglu::ir::Value { node: route, index: 1 });
    let mut program = Program::new([DType::Bf16; 2]);
    let silu = program.push(InstrOp::Pointwise(Pointwise::Silu), [Ref::Param(0)], DType::Bf16);
    let product = program.push(InstrOp::Pointwise(Pointwise::Mul), [silu, Ref::Param(1)], DType::Bf16);
    program.results.push((product, DType::Bf16));
    let moe = Moe { program: program.into(), dtype: DType::Bf16 };
    let none = eglu::ir::Operand::None;
    let operands = vec![x.into(), gate.into(), none, up.into(), none, down.into(), none, ids.into(), scores.into()];
    let y = call(&mut graph, "y", moe.into(), operands);
    graph.add_output(y.into(), OutputKind::User);
    lower(&graph).unwrap_or_else(|error| panic!("{sizes:?}: {error}"))
}

/// Numbers of the router are whole and so few that logits are exact: then every sum chooses alike.
fn inputs(sizes: Sizes, tokens: i64) -> Vec<Tensor> {
    let scrambled =
        |len: i64, seed: u64| (0..len as u64).map(move |i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed << 7) >> 40);
    let tensor = |shape: &[i64], seed: u64, scale: f32, limit: u64| {
        let values = scrambled(shape.iter().product(), seed).map(|x| ((x % limit) as f32 - (limit / 2) as f32) * scale);
        // The upper half of an f32 is a bf16.
        let bytes: Vec<u8> = values.flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        Tensor::from_bytes(DType::Bf16, &shape, &bytes).unwrap()
    };
    let Sizes { experts, .. } = sizes;
    vec![
        tensor(&[tokens, HIDDEN], 1, 1.0, 5),
        tensor(&[experts, HIDDEN], 2, 0.125, 5),
        tensor(&[experts, INNER, HIDDEN], 3, 0.02, 9),
        tensor(&[experts, INNER, HIDDEN], 4, 0.02, 9),
        tensor(&[experts, HIDDEN, INNER], 5, 0.02, 9),
    ]
}

#[test]
fn every_schedule_compiles_without_spills() {
    if nvrtc::is_missing() {
        return;
    }
    // Each has a piece of experts, two for each warpgroup, or as many as there are; schedules differ in the block alone.
    for (sizes, schedules) in
        [(CASES[0], &Schedule::NAMES[..2]), (CASES[4], &Schedule::NAMES[..1]), (CASES[5], &Schedule::NAMES[..1])]
    {
        for &(_, schedule) in schedules {
            let choices = Choices { schedule, ..Choices::default() };
            let plan =
                emit_with(&block(sizes), Target { arch: 90 }, &choices).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
            let cubins = compile(&plan.modules, "sm_90a").unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
            for (module, cubin) in plan.modules.iter().zip(&cubins) {
                let slow = PERFORMANCE_NOTES.iter().find(|note| cubin.log.contains(**note));
                let spills: u32 = cubin.uses().iter().map(|kernel| kernel.spill_bytes).sum();
                assert!(slow.is_none() && spills == 0, "{sizes:?} {schedule}: {}:\n{}", module.name, cubin.log);
            }
        }
    }
}

#[test]
fn every_schedule_agrees_with_the_cpu_in_every_run() {
    if device::is_missing() {
        return;
    }
    for sizes in CASES {
        let plan = block(sizes);
        let cpu = Executable::load(plan.clone(), &Weights::default(), &Device::Cpu).unwrap();
        let schedules = Schedule::NAMES.map(|(name, schedule)| {
            let selection = Selection { schedule, tune: false };
            let executable =
                Executable::load_selecting(plan.clone(), &Weights::default(), &Device::Cuda(0), (selection, &Phases::default()));
            (name, executable.unwrap_or_else(|error| panic!("{sizes:?} {name}: {error}")))
        });
        for tokens in [1, 9, 17, 130, 1025] {
            let inputs = inputs(sizes, tokens);
            let want = cpu.run(&inputs).unwrap().remove(0);
            for (name, executable) in &schedules {
                let run = || executable.run(&inputs).unwrap_or_else(|error| panic!("{sizes:?} {name}: {error}")).remove(0);
                let (got, again) = (run(), run());
                assert_eq!(got.bytes(), again.bytes(), "{sizes:?} {name} at {tokens}: another run differs");
                let difference = compare(&format!("{sizes:?} {name} at {tokens}"), &got, &want).unwrap();
                assert!(difference.within, "{difference:?}");
            }
        }
    }
}

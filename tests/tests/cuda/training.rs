//! A training step of experts, forward and backward: values in expert order between its products, ragged sums, experts without rows, and ids
//! that no expert has.

use super::{compiles::PERFORMANCE_NOTES, device, nvrtc};
use eglu::{
    Device, Executable, Plan,
    codegen::cuda::{Target, emit},
    compare::compare,
    ir::{Bindings, DType, Tensor, Weights, text},
    lower,
    runtime::{
        cuda::compile,
        inputs::{Routing, generate},
    },
};

/// Tokens, experts a token, experts, hidden and intermediate size.
pub type Sizes = [usize; 5];

/// `dtype` and that of the weight gradients, whether gate and up take turns in matrices that have K first, and whether the backward product's
/// epilogue takes its sums rounded.
fn step(dtype: DType, gradient: DType, [t, k, e, h, i]: Sizes, [paired, rounded]: [bool; 2]) -> Plan {
    let (s, both) = (t * k, 2 * i);
    let (stored, gate, up) = match paired {
        true => (format!("{e}, {h}, {both}"), format!("start=0, end={both}, step=2"), format!("start=1, end={both}, step=2")),
        false => (format!("{e}, {both}, {h}"), format!("start=0, end={i}, step=1"), format!("start={i}, end={both}, step=1")),
    };
    // The matrices as [E, N, K], and as [E, K, N].
    let (by_row, by_k) = match paired {
        true => (format!("%rows: {dtype}[{e}, {both}, {h}] = permute(%gate_up) {{dims=[0, 2, 1]}}\n"), ("%rows", "%gate_up")),
        false => {
            (format!("%columns: {dtype}[{e}, {h}, {both}] = permute(%gate_up) {{dims=[0, 2, 1]}}\n"), ("%gate_up", "%columns"))
        }
    };
    let (rows, columns) = by_k;
    // Half of the forms add gradients to those of an earlier step.
    let (old, old_column) = if paired == rounded { (", %old", ", %old_column") } else { ("", "") };
    let d = dtype;
    let (sums, sum) = if rounded { (format!("v0: {d} = cast(p0); "), "v0") } else { (String::new(), "p0") };
    let [v0, v1, v2, v3, v4] = [0, 1, 2, 3, 4].map(|i| format!("v{}", i + usize::from(rounded)));
    let text = format!(
        "graph \"step\"\n%x: {d}[{t}, {h}] = input\n%dy: {d}[{t}, {h}] = input\n%scale: {d}[{s}, 1] = input\n%ids: i64[{s}] = input\n\
         %gate_up: {d}[{stored}] = input\n%down: {d}[{e}, {h}, {i}] = input\n\
         %old: {gradient}[{e}, {both}, {h}] = input\n%old_column: {gradient}[{e}, {both}, 1] = input\n{by_row}\
         %gate: {d}[{e}, {i}, {h}] = slice({rows}) {{dim=1, {gate}}}\n%up: {d}[{e}, {i}, {h}] = slice({rows}) {{dim=1, {up}}}\n\
         %fwd: ({d}[{s}, {both}], {d}[{s}, {i}]) = expert_contract(%x, %ids, %gate, %up) {{lanes=2, tables=0, repeat={k}, packed=2, \
         interleaved={paired}, grouped=false, folds=[], groups=[], program={{(p0: {d}, p1: {d}) v0: {d} = silu(p0); v1: {d} = mul(v0, p1); return (p0: {d}, p1: {d}, v1: {d})}}}}\n\
         %y: {d}[{s}, {h}] = expert_matmul(%fwd#1, %down, none, %ids)\n\
         %g: {d}[{s}, {i}] = slice(%fwd) {{dim=1, {gate}}}\n%u: {d}[{s}, {i}] = slice(%fwd) {{dim=1, {up}}}\n\
         %down_by_k: {d}[{e}, {i}, {h}] = permute(%down) {{dims=[0, 2, 1]}}\n\
         %back: ({d}[{s}, {both}], {d}[{s}, {i}], {d}[{s}, 1]) = expert_contract(%dy, %ids, %down_by_k, %g, %u, %scale) {{lanes=1, tables=0, repeat={k}, \
         packed=2, interleaved={paired}, grouped=false, folds=[sum], groups=[{i}], program={{(p0: {d}, p1: {d}, p2: {d}, p3: {d}) {sums}{v0}: {d} = mul({sum}, p3); \
         {v1}: {d} = mul({v0}, p2); {v2}: {d} = mul({v0}, p1); {v3}: {d} = mul(p1, p3); {v4}: {d} = mul({sum}, p1); return ({v1}: {d}, {v2}: {d}, {v3}: {d}, {v4}: {d})}}}}\n\
         %dx: {d}[{s}, {h}] = expert_matmul(%back, {columns}, none, %ids)\n\
         %dw: {gradient}[{e}, {both}, {h}] = expert_outer(%back, %x, %ids{old}) {{experts={e}, a_repeat=1, b_repeat={k}, dtype={gradient}}}\n\
         %dd: {gradient}[{e}, {h}, {i}] = expert_outer(%dy, %back#1, %ids) {{experts={e}, a_repeat={k}, b_repeat=1, dtype={gradient}}}\n\
         %db: {gradient}[{e}, {both}, 1] = expert_outer(%back, %scale, %ids{old_column}) {{experts={e}, a_repeat=1, b_repeat=1, dtype={gradient}}}\n\
         output %y\noutput %dx\noutput %dw\noutput %dd\noutput %db\noutput %back#2\n"
    );
    let graph = text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    lower(&graph).unwrap_or_else(|error| panic!("{error}"))
}

/// Steps at several sizes, which are in the second place.
pub fn cases() -> Vec<(Plan, Sizes)> {
    use DType::{Bf16, F16, F32};
    let mut cases = vec![];
    for (dtype, gradient, sizes, form) in [
        (Bf16, Bf16, [300, 2, 5, 200, 136], [false, false]),
        (Bf16, Bf16, [300, 2, 5, 200, 144], [true, true]),
        (Bf16, F32, [1100, 4, 3, 128, 264], [false, true]),
        (Bf16, Bf16, [1100, 4, 3, 128, 320], [false, true]),
        (F16, F32, [700, 3, 4, 72, 520], [true, false]),
        (F16, F16, [700, 3, 4, 72, 512], [true, true]),
        (Bf16, Bf16, [7, 2, 4, 200, 144], [false, true]),
        // Rows that do not start on 16 bytes, and no 16 bits.
        (Bf16, Bf16, [90, 2, 3, 70, 33], [false, true]),
        (F32, F32, [90, 2, 3, 72, 40], [true, false]),
    ] {
        cases.push((step(dtype, gradient, sizes, form), sizes));
    }
    cases
}

/// Ids of every expert but 1, and some that none has.
fn ids([t, k, e, ..]: Sizes) -> Tensor {
    let ids: Vec<i64> =
        (0..t * k).map(|s| (s * 7 + s / 5) as i64 % (e as i64 + 1)).map(|id| if id == 1 { 0 } else { id }).collect();
    Tensor::from_slice(DType::I64, &[t * k], &ids).expect("as many")
}

#[test]
fn training_steps_compile() {
    if nvrtc::is_missing() {
        return;
    }
    for (plan, sizes) in cases() {
        for (arch, name) in [(80, "sm_80"), (90, "sm_90a")] {
            let plan = emit(&plan, Target { arch }).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
            let cubins = compile(&plan.modules, name).unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
            for (module, cubin) in plan.modules.iter().zip(&cubins) {
                let slow = PERFORMANCE_NOTES.iter().find(|note| cubin.log.contains(**note));
                assert_eq!(slow, None, "{}:\n{}", module.name, cubin.log);
            }
        }
    }
}

#[test]
fn training_steps_agree_with_the_cpu_in_every_run() {
    if device::is_missing() {
        return;
    }
    for (seed, (plan, sizes)) in cases().into_iter().enumerate() {
        let inputs = generate(&plan, &Bindings::default(), &Default::default(), Routing::Uniform, seed as u64);
        let mut inputs = inputs.unwrap_or_else(|error| panic!("{sizes:?}: {error}"));
        inputs[3] = ids(sizes);
        let run = |device| {
            let executable = Executable::load(plan.clone(), &Weights::default(), &device);
            let runs = executable.and_then(|executable| Ok([executable.run(&inputs)?, executable.run(&inputs)?]));
            runs.unwrap_or_else(|error| panic!("{sizes:?}: {error}"))
        };
        let ([cuda, again], [cpu, _]) = (run(Device::Cuda(0)), run(Device::Cpu));
        for (i, ((cuda, again), cpu)) in cuda.iter().zip(&again).zip(&cpu).enumerate() {
            assert_eq!(cuda.bytes(), again.bytes(), "{sizes:?}: output {i} differs from run to run");
            // f32 gradients are sums of products of 16-bit values that were rounded on the way.
            let difference = compare(&format!("{sizes:?}, output {i}"), cuda, cpu).unwrap_or_else(|error| panic!("{error}"));
            assert!(difference.within || difference.relative < 1e-2 && inputs[0].dtype().size() == 2, "{difference:?}");
        }
    }
}

//! How long the standard pipeline takes on deep graphs: layers of many experts written out one by one, 8 ops for each expert.
//!
//! `cargo bench -p eglu-passes`. Before it measures, it checks that every expert of the large graphs fuses, and prints the time of each pass and the
//! peak memory up to there.

// criterion_group! writes a public function without documentation.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use eglu_ir::{
    DType, Graph, Op, Operand, OutputKind, TensorType, Value,
    ops::{Axes, MatMul, Permute, Pointwise},
    profile::H200,
};
use eglu_passes::{Optimized, Options, Pipeline, report::Kind};
use std::time::Duration;

/// Hidden and inner features, and tokens.
const SIZES: (i64, i64, i64) = (1024, 512, 64);

fn call(graph: &mut Graph, op: impl Into<Op>, operands: &[Operand]) -> Value {
    let op: Op = op.into();
    let name = op.name();
    graph.add_call(name, op, operands.iter().copied()).unwrap_or_else(|e| panic!("{e}")).into()
}

fn linear(graph: &mut Graph, x: Value, name: &str, dims: [i64; 2]) -> Value {
    let w = graph.add_weight(name, name, TensorType::fixed(DType::Bf16, &dims));
    let w = call(graph, Permute { dims: Axes::from_slice(&[1, 0]) }, &[w.into()]);
    call(graph, MatMul {}, &[x.into(), w.into()])
}

/// A residual network; each layer adds all of its experts, each a gated unit with weights of its own.
fn synthetic(layers: usize, experts: usize) -> Graph {
    let (h, i, t) = SIZES;
    let mut graph = Graph::new("synthetic");
    let mut x = graph.add_input("x", TensorType::fixed(DType::Bf16, &[t, h]));
    for layer in 0..layers {
        let mut sum = x;
        for expert in 0..experts {
            let name = |part: &str| format!("layers.{layer}.experts.{expert}.{part}");
            let gate = linear(&mut graph, x, &name("gate"), [i, h]);
            let up = linear(&mut graph, x, &name("up"), [i, h]);
            let gate = call(&mut graph, Pointwise::Silu, &[gate.into()]);
            let gated = call(&mut graph, Pointwise::Mul, &[gate.into(), up.into()]);
            let down = linear(&mut graph, gated, &name("down"), [h, i]);
            sum = call(&mut graph, Pointwise::Add, &[sum.into(), down.into()]);
        }
        x = sum;
    }
    graph.add_output(x, OutputKind::User);
    graph
}

fn optimize(graph: Graph) -> Optimized {
    Pipeline::standard().run_with(graph, &Options::new(H200)).unwrap_or_else(|e| panic!("{e}"))
}

/// Peak resident memory of this process in MiB, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn every_block_fuses(layers: usize, experts: usize) {
    let graph = synthetic(layers, experts);
    let nodes = graph.len();
    let Optimized { report, .. } = optimize(graph);
    let fused = report.sites.iter().filter(|site| site.kind == Kind::Glu).count();
    assert_eq!(fused, layers * experts, "every expert fuses");
    assert_eq!(report.stops, Vec::<String>::new());
    println!("{layers} layers of {experts} experts: {nodes} nodes, {fused} gated units, {:?} MiB at the peak", peak_memory());
    println!("{:?}", report.time_ms);
}

fn benches(criterion: &mut Criterion) {
    for layers in [15, 61, 64] {
        every_block_fuses(layers, 128);
    }
    let mut group = criterion.benchmark_group("optimize");
    group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(5));
    for (layers, experts) in [(15, 8), (61, 8), (15, 128), (61, 128), (64, 128)] {
        let graph = synthetic(layers, experts);
        let id = BenchmarkId::new("layers x experts", format!("{layers} x {experts}"));
        group.bench_with_input(id, &graph, |b, graph| b.iter(|| optimize(graph.clone())));
    }
    group.finish();
}

criterion_group!(optimizing, benches);
criterion_main!(optimizing);

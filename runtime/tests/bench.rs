//! The benchmark's figures and its JSON, on a small graph.

use eglu_codegen::lower;
use eglu_ir::{DType, Dim, Graph, OutputKind, SymbolRange, TensorType, ops::*, profile::CPU, weights::Weights};
use eglu_runtime::{
    Device, Executable, bench,
    inputs::{Routing, generate, sizes},
};
use indexmap::IndexMap;
use std::time::Duration;

/// `silu(x) · x`, as two steps or as one.
fn graph(fused: bool) -> Graph {
    let mut graph = Graph::new("gate");
    let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::symbol("tokens"), Dim::from(256)]));
    graph.symbols.insert("tokens".into(), SymbolRange { min: 1, max: None });
    let silu = Pointwise::Silu;
    let out = if fused {
        let mut program = eglu_ir::Program::new([DType::F32]);
        let op = eglu_ir::program::InstrOp::Pointwise;
        let gate = program.push(op(silu), [eglu_ir::Ref::Param(0)], DType::F32);
        let out = program.push(op(Pointwise::Mul), [gate, eglu_ir::Ref::Param(0)], DType::F32);
        program.results.push((out, DType::F32));
        graph.add_call("both", Map { program: program.into() }.into(), [x.into()]).expect("infers")
    } else {
        let gate = graph.add_call("silu", silu.into(), [x.into()]).expect("infers");
        graph.add_call("mul", Pointwise::Mul.into(), [gate.into(), x.into()]).expect("infers")
    };
    graph.add_output(out.into(), OutputKind::User);
    graph
}

#[test]
fn fused_and_unfused_side_by_side() {
    let load = |fused| Executable::load(lower(&graph(fused)).expect("lowers"), &Weights::default(), &Device::Cpu).expect("loads");
    let (unfused, fused) = (load(false), load(true));
    let bindings = sizes(unfused.plan(), Some(300), &[]).expect("sizes");
    let inputs = generate(unfused.plan(), &bindings, &IndexMap::new(), Routing::Uniform, 1).expect("inputs");
    let options = bench::Options { budget: Duration::from_millis(20), ..bench::Options::default() };
    let mut last = 0.0;
    let comparison = bench::side_by_side((&unfused, &fused), &inputs, (&CPU, false), &options, &mut |share| {
        assert!((0.0..=1.0).contains(&share));
        last = share;
    })
    .expect("measures");
    assert_eq!(last, 1.0);
    assert_eq!((comparison.unfused.kernels, comparison.fused.kernels), (2, 1));
    assert!(comparison.max_error < 1e-6, "{}", comparison.max_error);
    // Each element is read once and written once by the fused plan; the unfused one moves five.
    let bytes = (300 * 256 * 4) as f64;
    assert_eq!((comparison.unfused.bytes, comparison.fused.bytes), (5.0 * bytes, 2.0 * bytes));

    let json = serde_json::to_value(&comparison).expect("serialises");
    for key in ["device", "model", "dims", "speedup", "roofline_ms", "share_of_roofline", "host_us", "max_error"] {
        assert!(!json[key].is_null(), "{key}");
    }
    for plan in ["unfused", "fused"] {
        for key in ["kernels", "ms", "ms_min", "ms_max", "bytes"] {
            assert!(json[plan][key].is_number(), "{plan}.{key}");
        }
        for key in ["name", "kind", "ms", "ms_min", "ms_max", "bytes", "flops", "share_of_roofline"] {
            assert!(!json[plan]["each"][0][key].is_null(), "{plan}.each.{key}");
        }
        assert_eq!(json[plan]["runs_ms"].as_array().map(Vec::len), json[plan]["runs"].as_u64().map(|n| n as usize));
        let timeline = json[plan]["timeline"].as_array().expect("a list");
        assert_eq!(timeline.len() as u64, json[plan]["kernels"].as_u64().expect("a number"));
        let starts: Vec<f64> = timeline.iter().map(|kernel| kernel["start_ms"].as_f64().expect("a number")).collect();
        assert!(starts.is_sorted(), "{starts:?}");
    }
    assert_eq!(json["dims"]["tokens"], 300);
    let table = comparison.table(5);
    assert!(table.contains("gate (tokens=300) on cpu") && table.contains("silu"), "{table}");
}

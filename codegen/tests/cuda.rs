//! CUDA emission: every op has a kernel, for every architecture; text and launches agree; equal work shares a module.

mod samples;

use eglu_codegen::{
    cuda::{CudaPlan, KernelArg, Launch, Target, emit},
    lower,
};
use eglu_ir::{Bindings, DType, Dim, Graph, OpCode, OutputKind, TensorType, import::import, ops::*};
use samples::{Sample, sample};
use std::{collections::HashSet, path::Path};

const TARGETS: [Target; 4] = [Target { arch: 80 }, Target { arch: 86 }, Target { arch: 89 }, Target { arch: 90 }];

fn emitted(graph: &Graph, target: Target) -> CudaPlan {
    emit(&lower(graph).unwrap(), target).unwrap()
}

/// The parameters that a launch's kernel declares.
fn parameters<'a>(plan: &'a CudaPlan, launch: &Launch) -> Vec<&'a str> {
    let source = &plan.modules[launch.module].source;
    let head = source.split(&format!(" {}(", launch.entry)).nth(1).unwrap();
    let list = head.split(") {").next().unwrap();
    list.split(", ").filter(|p| !p.is_empty()).collect()
}

fn check(plan: &CudaPlan, target: Target) {
    let sources: HashSet<&str> = plan.modules.iter().map(|m| m.source.as_str()).collect();
    let names: HashSet<&str> = plan.modules.iter().map(|m| m.name.as_str()).collect();
    assert_eq!((sources.len(), names.len()), (plan.modules.len(), plan.modules.len()), "modules repeat");
    let most = if target.arch >= 90 {
        227 << 10
    } else if target.arch == 80 {
        163 << 10
    } else {
        99 << 10
    };
    for launch in &plan.launches {
        let parameters = parameters(plan, launch);
        assert_eq!(parameters.len(), launch.args.len(), "{}: {parameters:?}", launch.entry);
        for (parameter, arg) in parameters.iter().zip(&launch.args) {
            let pointer = matches!(arg, KernelArg::Pointer { .. });
            assert_eq!(parameter.contains('*'), pointer, "{}: {parameter} against {arg:?}", launch.entry);
        }
        // Or the compiler may move reads before the wait.
        let source = &plan.modules[launch.module].source;
        let body = source.split(&format!(" {}(", launch.entry)).nth(1).unwrap();
        assert!(!launch.overlaps || body.contains("read_from_here("), "{}", launch.entry);
        assert!(launch.shared_bytes <= most, "{} wants {} bytes of shared memory", launch.entry, launch.shared_bytes);
        assert!(launch.block.iter().product::<u32>() <= 1024, "{}", launch.entry);
    }
}

#[test]
fn every_op_has_kernels() {
    for code in OpCode::all() {
        let Sample::Graph(graph) = sample(code) else { continue };
        for target in TARGETS {
            let plan = emitted(&graph, target);
            assert!(!plan.launches.is_empty(), "{}", code.name());
            assert!(plan.launches.iter().all(|launch| launch.step < plan.plan.steps.len()), "{}", code.name());
            check(&plan, target);
        }
    }
}

#[test]
fn every_fixture_has_kernels_and_equal_text_each_time() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pt2") {
            continue;
        }
        let graph = import(&path).unwrap().graph;
        let (first, second) = (emitted(&graph, TARGETS[3]), emitted(&graph, TARGETS[3]));
        assert_eq!((&first.modules, &first.launches), (&second.modules, &second.launches), "{}", path.display());
        check(&first, TARGETS[3]);
        seen += 1;
    }
    assert!(seen > 10);
}

#[test]
fn equal_layers_share_modules() {
    let mut graph = Graph::new("layers");
    let mut x = graph.add_input("x", TensorType::fixed(DType::Bf16, &[64, 256]));
    for layer in 0..3 {
        let w = graph.add_weight("w", &format!("w{layer}"), TensorType::fixed(DType::Bf16, &[256, 256]));
        let y = graph.add_call("y", MatMul {}.into(), [x.into(), w.into()]).unwrap();
        x = graph.add_call("z", Pointwise::Silu.into(), [y.into()]).unwrap().into();
    }
    graph.add_output(x, OutputKind::User);
    let plan = emitted(&graph, TARGETS[3]);
    assert_eq!((plan.launches.len(), plan.modules.len()), (6, 2));
}

/// How many of the launches whose entry starts so run at this extent.
fn running(plan: &CudaPlan, entry: &str, tokens: i64) -> usize {
    let bindings = Bindings::from([("s0".into(), tokens)]);
    let blocks = |grid: &[Dim; 3]| grid.iter().map(|dim| dim.eval(&bindings).unwrap()).product::<i64>();
    let launches = plan.launches.iter().filter(|launch| launch.entry.starts_with(entry));
    let counts: Vec<i64> = launches.map(|launch| blocks(&launch.grid)).collect();
    assert!(counts.iter().all(|&count| count >= 0), "{entry} at {tokens}: {counts:?}");
    counts.into_iter().filter(|&count| count > 0).count()
}

#[test]
fn one_tile_runs_at_every_number_of_rows() {
    let Sample::Graph(moe) = sample(OpCode::Moe) else { panic!("a block has a kernel") };
    let Sample::Graph(matmul) = sample(OpCode::MatMul) else { panic!("a product has a kernel") };
    let (moe, matmul) = (emitted(&moe, TARGETS[3]), emitted(&matmul, TARGETS[3]));
    for tokens in [1, 7, 8, 9, 15, 16, 17, 33, 64, 65, 255, 4096, 1 << 20] {
        let ran = |entry: &str| running(&moe, entry, tokens);
        // A few tokens find their experts by themselves, and are a block in one launch.
        assert_eq!(ran("moe_bf16_few_tokens"), usize::from(tokens <= 16), "at {tokens}");
        for entry in ["expert_dispatch", "moe_combine"] {
            assert_eq!(ran(entry), usize::from(tokens > 16), "{entry} at {tokens}");
        }
        // Both projections are one launch up to 16 rows for each of 8 experts, which two choices of 64 tokens are.
        let few = usize::from((17..=64).contains(&tokens));
        let each = usize::from(tokens > 64);
        assert_eq!([ran("moe_bf16_few_rows"), ran("moe_up"), ran("moe_down")], [few, each, each], "at {tokens}");
        assert_eq!(running(&matmul, "matmul", tokens), 1, "matmul at {tokens}");
    }
    assert_eq!(running(&matmul, "matmul", 0), 0);
}

#[test]
fn what_was_widened_for_a_product_multiplies_as_it_was() {
    let launched = |read_again: bool| -> Vec<String> {
        let mut graph = Graph::new("router");
        let x = graph.add_input("x", TensorType::fixed(DType::Bf16, &[64, 256]));
        let w = graph.add_weight("w", "w", TensorType::fixed(DType::Bf16, &[256, 32]));
        let [wide, table] =
            [x, w].map(|value| graph.add_call("wide", Cast { dtype: DType::F32 }.into(), [value.into()]).unwrap());
        let y = graph.add_call("y", MatMul {}.into(), [wide.into(), table.into()]).unwrap();
        graph.add_output(y.into(), OutputKind::User);
        if read_again {
            graph.add_output(wide.into(), OutputKind::User);
        }
        emitted(&graph, TARGETS[3]).launches.iter().map(|launch| launch.entry.chars().take(11).collect()).collect()
    };
    assert_eq!(launched(false), ["matmul_bf16"]);
    assert_eq!(launched(true), ["cast_f32", "matmul_bf16"]);
}

/// A grid has 2³¹ blocks along x, and 65,535 along y and z: what grows with the tokens stays off those.
#[test]
fn no_number_of_rows_leaves_the_grid() {
    for code in OpCode::all() {
        let Sample::Graph(graph) = sample(code) else { continue };
        let plan = emitted(&graph, TARGETS[3]);
        for rows in [65_537, 1 << 20] {
            let bindings = Bindings::from([("s0".into(), rows)]);
            for launch in &plan.launches {
                let [x, y, z] = launch.grid.each_ref().map(|dim| dim.eval(&bindings).unwrap());
                let fits = x < 1 << 31 && y <= 65_535 && z <= 65_535;
                assert!(fits, "{} of {} for {rows} rows: {x} × {y} × {z} blocks", launch.entry, code.name());
            }
        }
    }
}

#[test]
fn few_rows_stream_and_many_take_large_tiles() {
    let mut graph = Graph::new("layer");
    let rows = Dim::symbol("s0");
    let x = graph.add_input("x", TensorType::new(DType::Bf16, [rows.clone(), Dim::from(4096)]));
    let w = graph.add_weight("w", "w", TensorType::fixed(DType::Bf16, &[4096, 4096]));
    let y = graph.add_call("y", MatMul {}.into(), [x.into(), w.into()]).unwrap();
    graph.add_output(y.into(), OutputKind::User);
    let plan = emitted(&graph, TARGETS[3]);
    for tokens in [1, 16, 17, 64, 65, 128, 129, 256, 257, 300, 512, 513, 1000, 1024, 1025, 2048, 2049, 1 << 20] {
        let [all, streams, large] =
            ["matmul_", "matmul_bf16_stream", "matmul_bf16_wgmma"].map(|entry| running(&plan, entry, tokens));
        assert_eq!((all, streams + large), (1, 1), "at {tokens}");
        assert!(tokens > 128 || streams == 1, "at {tokens}");
        assert!(tokens < 4096 || large == 1, "at {tokens}");
    }
    // Elsewhere mma.sync does.
    assert_eq!(running(&emitted(&graph, TARGETS[0]), "matmul_bf16_1", 300), 1);
}

#[test]
fn a_kernel_reads_as_the_graph_does() {
    let mut graph = Graph::new("scale");
    let x = graph.add_input("x", TensorType::new(DType::F16, [Dim::symbol("s0"), Dim::from(6)]));
    let y = graph.add_call("y", Pointwise::Mul.into(), [x.into(), eglu_ir::Scalar::Float(0.5).into()]).unwrap();
    graph.add_output(y.into(), OutputKind::User);
    let plan = emitted(&graph, TARGETS[0]);
    let source = &plan.modules[0].source;
    let kernel = &source[source.find("DEVICE void apply").unwrap()..];
    assert_eq!(kernel, include_str!("golden/scale.cu"), "if the change is meant, replace tests/golden/scale.cu by:\n{kernel}");
}

#[test]
fn errors_name_the_step_and_say_why() {
    let mut graph = Graph::new("complex");
    let x = graph.add_input("x", TensorType::fixed(DType::C64, &[4]));
    let y = graph.add_call("wave", Pointwise::Sin.into(), [x.into()]).unwrap();
    graph.add_output(y.into(), OutputKind::User);
    let error = emit(&lower(&graph).unwrap(), TARGETS[3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "step `wave` (sin) has no CUDA kernel: sin of complex numbers is not supported on CUDA yet: run on the CPU"
    );
}

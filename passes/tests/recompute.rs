//! What a joint graph keeps of its forward part: the flag decides, the results stay, and no product is computed twice.

use eglu_ir::{
    DType, Graph, Op, Tensor,
    eval::eval_graph,
    import::{Imported, import},
    profile::H200,
    reference::read_tensors,
    text::{parse, print},
};
use eglu_passes::{
    Gradients, Optimized, Options, Pipeline, Recompute, autodiff::PARAMETERS, certify::relative_error, recompute::kept,
};
use std::path::PathBuf;

const ALL: [Recompute; 3] = [Recompute::None, Recompute::Auto, Recompute::All];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures")).join(name)
}

fn load(name: &str) -> Imported {
    import(&fixture(&format!("{name}.pt2"))).expect("the fixture imports")
}

fn options(recompute: Recompute, imported: &Imported) -> Options {
    let gradients = Gradients { by: vec![PARAMETERS.into()], buffers: imported.buffers.clone(), ..Gradients::default() };
    Options { recompute, gradients, ..Options::new(H200) }
}

fn count(graph: &Graph, wanted: impl Fn(&Op) -> bool) -> usize {
    graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| wanted(op)).count()
}

/// Products of matrices; a fused one counts each of its lanes.
fn products(graph: &Graph) -> usize {
    let lanes = |op: &Op| match op {
        Op::MatMul(_) | Op::GroupedMm(_) | Op::ExpertMatmul(_) | Op::ExpertOuter(_) => 1,
        Op::Contract(op) => op.lanes,
        // Lanes of one weight are one product.
        Op::ExpertContract(_) => 1,
        Op::DenseGlu(_) => 2,
        Op::Moe(_) => 2,
        _ => 0,
    };
    graph.node_ids().filter_map(|id| graph.node(id).op()).map(lanes).sum()
}

fn agrees(name: &str, imported: &Imported, graph: &Graph) {
    let tensors = read_tensors(&fixture(&format!("{name}.io.safetensors"))).expect("the reference tensors load");
    let all = |kind: &str| -> Vec<Tensor> { (0..).map_while(|i| tensors.get(&format!("{kind}.{i}")).cloned()).collect() };
    let results = eval_graph(graph, &|path| imported.weights.get(path).ok(), &all("input")).expect("the graph evaluates");
    for (got, want) in results.iter().zip(&all("output")) {
        let tolerance = if want.dtype() == DType::Bf16 { 2e-2 } else { 1e-5 };
        assert!(relative_error(got, want).expect("equal shapes") < tolerance, "{name}");
    }
}

#[test]
fn joint_graphs_keep_less_and_compute_no_product_twice() {
    for name in ["qwen3_moe-batched_mm.joint", "qwen3_moe-grouped_mm.joint.bf16"] {
        let imported = load(name);
        let fused: Vec<Optimized> = ALL
            .iter()
            .map(|&recompute| {
                let options = options(recompute, &imported);
                Pipeline::standard().run_with(imported.graph.clone(), &options).expect("the pipeline runs")
            })
            .collect();
        for (recompute, optimized) in ALL.iter().zip(&fused) {
            agrees(name, &imported, &optimized.graph);
            // Router, gate and up, down; then the router and both products once by rows and once by weights.
            assert_eq!(products(&optimized.graph), 3 + 6, "{name} {recompute:?}");
            assert_eq!(optimized.report.kept, kept(&optimized.graph));
        }
        let bytes: Vec<u64> = fused.iter().map(|optimized| optimized.report.kept.expect("a joint graph").bytes).collect();
        // The activation, of a row for each token and choice, is made of the pre-activations again.
        let activation = 16 * 2 * 32 * if name.ends_with("bf16") { 2 } else { 4 };
        // Clustering may round a router's weights before or behind the boundary: a few bytes either way.
        assert!(bytes[0] >= bytes[1] + activation && bytes[2] <= bytes[1] + bytes[1] / 50, "{name}: {bytes:?}");
    }
}

/// With the scores behind the products, the rows of the output's gradient are read as they are; the scored activation leaves the kernel of the
/// gating's derivative, and the gradient of the scores, a sum along its rows.
#[test]
fn scores_move_behind_the_products() {
    let imported = load("qwen3_moe-batched_mm.joint");
    let graph = Pipeline::standard().run_with(imported.graph.clone(), &Options::new(H200)).expect("the pipeline runs").graph;
    let repeats: Vec<[usize; 2]> = graph
        .node_ids()
        .filter_map(|id| match graph.node(id).op() {
            Some(Op::ExpertOuter(op)) => Some([op.a_repeat, op.b_repeat]),
            _ => None,
        })
        .collect();
    assert_eq!(repeats.iter().flatten().filter(|&&repeat| repeat == 2).count(), 2, "{repeats:?}");
    let results: Vec<[usize; 3]> = graph
        .node_ids()
        .filter_map(|id| match graph.node(id).op() {
            Some(Op::ExpertContract(op)) if op.repeat == 2 => Some(op.results().map(<[_]>::len)),
            _ => None,
        })
        .collect();
    assert_eq!(results, [[2, 1, 0], [2, 1, 1]], "forward and backward read rows that repeat: {}", print(&graph));
    // Nothing of [choices, hidden] is copied, nor is what the experts made read again.
    assert_eq!(count(&graph, |op| matches!(op, Op::Expand(_))), 0, "{}", print(&graph));
    let made = graph.node_ids().find(|&id| matches!(graph.node(id).op(), Some(Op::Combine(_)))).expect("a combine");
    let rows = graph.node(made).operands[0].value().expect("rows of experts");
    assert_eq!(graph.users(rows.node), [made], "{}", print(&graph));
}

/// Where the backward part computes a gated unit's products again, as prices advise in small graphs, the unit is taken apart to share them.
#[test]
fn products_of_a_fused_unit_are_shared() {
    let text = "graph \"g\"\n%x: f32[16, 64] = input\n%t: f32[16, 96] = input\n%u: f32[96, 64] = weight \"u\"\n\
        %v: f32[96, 64] = weight \"v\"\n%b: f32[96] = weight \"b\"\n\
        %h: f32[16, 96] = dense_glu(%x, %u, none, %v, %b) {program={(p0: f32, p1: f32) v0: f32 = silu(p0); v1: f32 = mul(v0, p1); return (v1: f32)}}\n\
        %ut: f32[64, 96] = permute(%u) {dims=[1, 0]}\n%g: f32[16, 96] = matmul(%x, %ut)\n%s: f32[16, 96] = silu(%g)\n\
        %d: f32[16, 96] = mul(%s, %t)\n%dt: f32[96, 16] = permute(%d) {dims=[1, 0]}\n%dv: f32[96, 64] = matmul(%dt, %x)\n\
        output %h\noutput %dv gradient \"v\"\n";
    let graph = parse(text).expect("the text parses");
    let inputs: Vec<Tensor> = [64usize, 96]
        .iter()
        .map(|&n| Tensor::from_slice(DType::F32, &[16, n], &vec![0.25f32; 16 * n]).expect("a tensor"))
        .collect();
    let weights = |path: &str| {
        let shape: &[usize] = if path == "b" { &[96] } else { &[96, 64] };
        let numbers: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i % 7) as f32 * 0.125 - 0.25).collect();
        Tensor::from_slice(DType::F32, shape, &numbers).ok()
    };
    assert_eq!(products(&graph), 4);
    for recompute in ALL {
        let options = Options { recompute, ..Options::new(H200) };
        let done = Pipeline::parse("recompute,dce").expect("passes").run_with(graph.clone(), &options).expect("it runs").graph;
        assert_eq!(products(&done), 3, "{}", print(&done));
        let (got, want) = (eval_graph(&done, &weights, &inputs), eval_graph(&graph, &weights, &inputs));
        for (got, want) in got.expect("it evaluates").iter().zip(&want.expect("it evaluates")) {
            assert!(relative_error(got, want).expect("equal shapes") < 1e-6);
        }
    }
}

#[test]
fn a_dense_gated_unit_is_not_computed_twice() {
    let imported = load("llama.block.bf16");
    for recompute in ALL {
        let options = options(recompute, &imported);
        let optimized =
            Pipeline::standard().differentiated().run_with(imported.graph.clone(), &options).expect("the pipeline runs");
        assert_eq!(products(&optimized.graph), 3 + 4, "{recompute:?}");
    }
}

fn chain(rows: i64) -> Graph {
    parse(&format!(
        "graph \"g\"\n%x: f32[{rows}, 64] = input\n%w: f32[64, 64] = weight \"w\"\n%a: f32[{rows}, 64] = matmul(%x, %w)\n\
         %b: f32[{rows}, 64] = exp(%a)\n%c: f32[{rows}, 64] = tanh(%b)\n%d: f32[{rows}, 64] = matmul(%c, %w)\n\
         %s: f32[] = reduce(%d) {{kind=sum, dims=[0, 1], keepdim=false, dtype=f32}}\noutput %s\n"
    ))
    .expect("the text parses")
}

/// Each mode keeps what it says, in a chain whose middle is cheap.
#[test]
fn a_chain_keeps_its_pre_activation() {
    let passes = "autodiff,canonicalize,fold,cse,dce,recompute,dce";
    let rows = 1 << 16;
    let kept = |recompute| {
        let options = Options { recompute, ..Options::new(H200) };
        let graph = Pipeline::parse(passes).expect("passes").run_with(chain(rows), &options).expect("it runs").graph;
        (kept(&graph).expect("a joint graph"), graph)
    };
    let one = rows as u64 * 64 * 4;
    let (none, _) = kept(Recompute::None);
    // exp's and tanh's results are in their derivatives.
    assert_eq!((none.tensors, none.bytes), (2, 2 * one));
    let (all, graph) = kept(Recompute::All);
    assert_eq!((all.tensors, all.bytes), (1, one), "{}", print(&graph));
    assert_eq!(count(&graph, |op| matches!(op, Op::MatMul(_))), 2 + 4, "{}", print(&graph));
}

/// A constant and a weight that only the gradient reads, beside a value to compute again.
#[test]
fn what_only_gradients_read_is_kept() {
    let graph = parse(
        "graph \"g\"\n%x: f32[65536, 2] = input\n%w: f32[65536, 2] = weight \"w\"\n%c: f32[2] = constant [1, 2]\n%a: f32[65536, 2] = exp(%x)\n\
         %s: f32[] = reduce(%a) {kind=sum, dims=[0, 1], keepdim=false, dtype=f32}\n%b: f32[65536, 2] = mul(%a, %c)\n\
         %g: f32[65536, 2] = mul(%b, %w)\noutput %s\noutput %g gradient \"x\"\n",
    )
    .expect("the text parses");
    let options = Options { recompute: Recompute::All, ..Options::new(H200) };
    let done = Pipeline::parse("recompute").expect("passes").run_with(graph, &options).expect("it runs");
    assert_eq!(count(&done.graph, |op| op.name() == "exp"), 2, "{}", print(&done.graph));
}

#[test]
fn forward_graphs_are_left_alone() {
    let graph = chain(16);
    let done = Pipeline::parse("recompute").expect("passes").run_with(graph.clone(), &Options::new(H200)).expect("it runs");
    assert_eq!(print(&done.graph), print(&graph));
    assert_eq!(done.report.kept, None);
}

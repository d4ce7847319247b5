//! What products by expert take in behind them: gating, its derivative, and rows that repeat.

use eglu_ir::{Graph, Op, profile::H200, text};
use eglu_passes::{Options, Pipeline, certify};

/// Clusters a graph in textual form, and checks that it still computes the same on random inputs.
fn clustered(source: &str) -> Graph {
    let graph = text::parse(source).expect("the graph parses");
    let pipeline = Pipeline::parse("cluster,dce").expect("there are such passes");
    let optimized = pipeline.run_with(graph, &Options::new(H200)).expect("the passes run");
    let certificate = certify(optimized.report.before(), &optimized.graph, &|_| None, 7).expect("both graphs have a value");
    assert!(certificate.max_error() < 1e-6, "{}", certificate.max_error());
    optimized.graph
}

/// The contracts of a graph: lanes, repeat, packed, interleaved, and how many outputs there are.
fn contracts(graph: &Graph) -> Vec<(usize, usize, usize, bool, usize)> {
    let order = graph.topological().expect("no cycle");
    let nodes = order.into_iter().map(|id| graph.node(id));
    let contract = |node: &eglu_ir::Node| match node.op() {
        Some(Op::ExpertContract(op)) => Some((op.lanes, op.repeat, op.packed, op.interleaved, node.outputs.len())),
        _ => None,
    };
    nodes.filter_map(contract).collect()
}

fn launches(graph: &Graph) -> usize {
    graph.node_ids().filter_map(|id| graph.node(id).op()).filter(|op| eglu_passes::cost::launches(op)).count()
}

/// Rows of 3 tokens twice each, gate and up in one weight, and ids that may name no expert.
fn forward(lanes: [&str; 2], outputs: &str) -> String {
    format!(
        "graph \"t\"\n%x: f32[3, 8] = input\n%ids: i64[6] = input\n%w: f32[2, 10, 8] = input\n%b: f32[2, 10] = input\n\
         %d: f32[2, 8, 5] = input\n%i: i64[6] = iota() {{len=6, start=0, step=1, dtype=i64}}\n%t: i64[6] = floor_divide(%i, 2)\n\
         %r: f32[6, 8] = index(%x, %t) {{axes=[0]}}\n%m: f32[6, 10] = expert_matmul(%r, %w, %b, %ids)\n\
         %g: f32[6, 5] = slice(%m) {{dim=1, {}}}\n%u: f32[6, 5] = slice(%m) {{dim=1, {}}}\n%s: f32[6, 5] = silu(%g)\n\
         %h: f32[6, 5] = mul(%s, %u)\n%y: f32[6, 8] = expert_matmul(%h, %d, none, %ids)\n{outputs}",
        lanes[0], lanes[1]
    )
}

const HALVES: [&str; 2] = ["start=0, end=5, step=1", "start=5, end=10, step=1"];
const TURNS: [&str; 2] = ["start=0, end=10, step=2", "start=1, end=10, step=2"];

#[test]
fn gating_joins_the_product_and_leaves_with_the_pre_activations() {
    for (lanes, interleaved) in [(HALVES, false), (TURNS, true)] {
        // Nothing else reads gate and up: they are not written.
        let alone = clustered(&forward(lanes, "output %y\n"));
        assert_eq!(contracts(&alone), [(2, 2, 0, false, 1)]);
        let kept = clustered(&forward(lanes, "output %y\noutput %u\n"));
        assert_eq!(contracts(&kept), [(2, 2, 2, interleaved, 2)]);
        assert_eq!(launches(&kept), 2);
    }
}

/// The derivative of the gating, its halves joined, behind the product that makes `d`; silu(gate) is computed again.
fn backward(joined: &str, outputs: &str) -> String {
    let tail = format!(
        "%dy: f32[6, 8] = input\n%dt: f32[2, 5, 8] = permute(%d) {{dims=[0, 2, 1]}}\n\
         %p: f32[6, 5] = expert_matmul(%dy, %dt, none, %ids)\n%du: f32[6, 5] = mul(%p, %s)\n%pu: f32[6, 5] = mul(%p, %u)\n\
         %sg: f32[6, 5] = sigmoid(%g)\n%dg: f32[6, 5] = mul(%pu, %sg)\n{joined}output %y\noutput %dgu\n{outputs}"
    );
    forward(HALVES, &tail)
}

const SIDE_BY_SIDE: &str = "%dgu: f32[6, 10] = cat(%dg, %du) {dim=1}\n";

#[test]
fn the_derivative_of_the_gating_is_packed_behind_its_product() {
    let graph = clustered(&backward(SIDE_BY_SIDE, ""));
    assert_eq!(contracts(&graph), [(2, 2, 2, false, 2), (1, 1, 2, false, 1)]);
    assert_eq!(launches(&graph), 3);
    let turns = "%a: f32[6, 5, 1] = reshape(%dg) {shape=[6, 5, 1]}\n%c: f32[6, 5, 1] = reshape(%du) {shape=[6, 5, 1]}\n\
        %j: f32[6, 5, 2] = cat(%a, %c) {dim=2}\n%dgu: f32[6, 10] = reshape(%j) {shape=[6, 10]}\n";
    let graph = clustered(&backward(turns, ""));
    assert_eq!(contracts(&graph)[1], (1, 1, 2, true, 1));
}

#[test]
fn what_else_is_read_leaves_too() {
    // The product itself, and one of the halves.
    let graph = clustered(&backward(SIDE_BY_SIDE, "output %p\noutput %du\n"));
    assert_eq!(contracts(&graph)[1], (1, 1, 2, false, 2));
    assert_eq!(launches(&graph), 3);
    // A product of the gradient that is only summed leaves as its sum along the rows.
    let score =
        "%ph: f32[6, 5] = mul(%p, %h)\n%sum: f32[6] = reduce(%ph) {kind=sum, dims=[1], keepdim=false, dtype=f32}\noutput %sum\n";
    let graph = clustered(&backward(SIDE_BY_SIDE, score));
    assert_eq!(contracts(&graph)[1], (1, 1, 2, false, 2));
    assert_eq!(launches(&graph), 3);
}

#[test]
fn gating_of_other_slices_stays_apart() {
    let lanes = ["start=0, end=5, step=1", "start=4, end=9, step=1"];
    let graph = clustered(&forward(lanes, "output %y\n"));
    assert_eq!(contracts(&graph), [(1, 2, 0, false, 1)]);
}

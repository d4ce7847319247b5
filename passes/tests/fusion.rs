//! Canonical forms and clusters on small graphs written out.

use eglu_ir::{Graph, OpCode, profile::H200, text};
use eglu_passes::{Optimized, Options, Pipeline, certify};

/// Runs passes over a graph in textual form.
fn run(source: &str, passes: &str) -> Optimized {
    let graph = text::parse(source).expect("the graph parses");
    Pipeline::parse(passes).and_then(|pipeline| pipeline.run_with(graph, &Options::new(H200))).expect("the passes run")
}

/// Names of the ops, in order.
fn ops(graph: &Graph) -> Vec<&'static str> {
    let order = graph.topological().expect("no cycle");
    order.into_iter().filter_map(|id| graph.node(id).op().map(|op| op.name())).collect()
}

/// Ops after the passes, and the error on random inputs.
fn fused(source: &str, passes: &str) -> (Vec<&'static str>, f64) {
    let optimized = run(source, passes);
    let certificate = certify(optimized.report.before(), &optimized.graph, &|_| None, 7).expect("both graphs have a value");
    (ops(&optimized.graph), certificate.max_error())
}

fn canonical(source: &str) -> Vec<&'static str> {
    let (ops, error) = fused(source, "canonicalize,dce");
    assert_eq!(error, 0.0);
    ops
}

const X: &str = "graph \"t\"\n%x: f32[4, 6] = input\n";

#[test]
fn views_of_views_are_one_view() {
    let source = "%a: f32[24] = reshape(%x) {shape=[24]}\n%b: f32[2, 12] = reshape(%a) {shape=[2, 12]}\noutput %b\n";
    assert_eq!(canonical(&format!("{X}{source}")), ["reshape"]);
    let source = "%a: f32[6, 4] = permute(%x) {dims=[1, 0]}\n%b: f32[4, 6] = permute(%a) {dims=[1, 0]}\noutput %b\n";
    assert!(canonical(&format!("{X}{source}")).is_empty());
    let source = "%a: f32[4, 1, 6] = reshape(%x) {shape=[4, 1, 6]}\n%b: f32[1, 4, 6] = permute(%a) {dims=[1, 0, 2]}\noutput %b\n";
    assert_eq!(canonical(&format!("{X}{source}")), ["reshape"]);
}

#[test]
fn only_exact_identities_vanish() {
    for (number, op, vanishes) in [
        ("-0.0", "add", true),
        ("0.0", "add", false),
        ("0.0", "sub", true),
        ("1.0", "mul", true),
        ("1.0", "div", true),
        ("0.0", "mul", false),
    ] {
        let source = format!("{X}%y: f32[4, 6] = {op}(%x, {number})\noutput %y\n");
        assert_eq!(canonical(&source).is_empty(), vanishes, "{op} {number}");
    }
    // An integer tensor times 1.0 becomes a float tensor.
    let source = "graph \"t\"\n%x: i64[4] = input\n%y: f32[4] = mul(%x, 1.0)\noutput %y\n";
    assert_eq!(canonical(source), ["mul"]);
}

#[test]
fn narrowing_and_widening_casts_stay() {
    let source = format!("{X}%a: bf16[4, 6] = cast(%x) {{dtype=bf16}}\n%b: f32[4, 6] = cast(%a) {{dtype=f32}}\noutput %b\n");
    assert_eq!(canonical(&source), ["cast", "cast"]);
    let source = format!("{X}%a: f64[4, 6] = cast(%x) {{dtype=f64}}\n%b: f32[4, 6] = cast(%a) {{dtype=f32}}\noutput %b\n");
    assert!(canonical(&source).is_empty());
}

#[test]
fn constants_are_computed_but_index_maps_stay() {
    let source = "graph \"t\"\n%x: i64[4] = input\n%i: i64[4] = iota() {len=4, start=0, step=1, dtype=i64}\n\
        %half: i64[4] = floor_divide(%i, 2)\n%odd: i64[4] = remainder(%i, 2)\n%a: i64[4] = add(%x, %half)\n\
        %b: i64[4] = mul(%a, %odd)\noutput %b\n";
    assert_eq!(fused(source, "fold,dce"), (vec!["iota", "floor_divide", "add", "mul"], 0.0));
}

#[test]
fn fills_become_numbers_unless_promotion_changes() {
    let fill = |dtype: &str| {
        format!(
            "{X}%f: {dtype}[4, 6] = full() {{shape=[4, 6], value=2.0, dtype={dtype}}}\n%y: {dtype}[4, 6] = mul(%x, %f)\noutput %y\n"
        )
    };
    assert_eq!(fused(&fill("f32"), "fold,dce"), (vec!["mul"], 0.0));
    assert_eq!(fused(&fill("f64"), "fold,dce"), (vec!["full", "mul"], 0.0));
}

const LINEAR: &str = "graph \"t\"\n%x: bf16[4, 6] = input\n%w: bf16[6, 8] = weight \"w\"\n%b: bf16[8] = weight \"b\"\n\
    %r: bf16[4, 8] = input\n%m: bf16[4, 8] = matmul(%x, %w)\n";

#[test]
fn a_matmul_takes_in_bias_activation_and_residual() {
    let source = format!(
        "{LINEAR}%h: bf16[4, 8] = add(%m, %b)\n%s: bf16[4, 8] = sigmoid(%h)\n%a: bf16[4, 8] = mul(%h, %s)\n%y: bf16[4, 8] = add(%a, %r)\noutput %y\n"
    );
    let (ops, error) = fused(&source, "cluster,dce");
    assert_eq!(ops, ["contract"]);
    assert!(error < 1e-2, "{error}");
}

#[test]
fn a_matmul_without_epilogue_stays_and_one_with_a_second_reader_has_two_results() {
    assert_eq!(fused(&format!("{LINEAR}output %m\n"), "cluster,dce"), (vec!["matmul"], 0.0));
    let read_twice = format!("{LINEAR}%h: bf16[4, 8] = silu(%m)\n%c: bf16[8, 8] = cat(%m, %h) {{dim=0}}\noutput %c\n");
    let (ops, error) = fused(&read_twice, "cluster,dce");
    assert_eq!(ops, ["contract", "cat"]);
    assert!(error < 1e-2, "{error}");
}

#[test]
fn a_sum_of_squares_is_made_where_the_residual_stream_is() {
    // The squares themselves are not stored.
    let source = format!(
        "{LINEAR}%h: bf16[4, 8] = add(%m, %r)\n%q: bf16[4, 8] = mul(%h, %h)\n\
         %s: bf16[4] = reduce(%q) {{kind=sum, dims=[1], keepdim=false, dtype=bf16}}\noutput %h\noutput %s\n"
    );
    let (ops, error) = fused(&source, "cluster,dce");
    assert_eq!(ops, ["contract", "reshape"]);
    assert!(error < 1e-2, "{error}");
}

#[test]
fn two_products_of_the_same_rows_share_a_main_loop() {
    let source = |columns: usize| {
        format!(
            "graph \"t\"\n%x: bf16[4, 6] = input\n%w: bf16[6, {columns}] = weight \"w\"\n%v: bf16[6, {columns}] = weight \"v\"\n\
             %m: bf16[4, {columns}] = matmul(%x, %w)\n%n: bf16[4, {columns}] = matmul(%x, %v)\n\
             %a: bf16[4, {columns}] = relu(%n)\n%t: bf16[4, {columns}] = silu(%m)\noutput %t\noutput %a\n"
        )
    };
    let (ops, error) = fused(&source(64), "cluster,dce");
    assert_eq!(ops, ["contract"]);
    assert!(error < 1e-2, "{error}");
    // Narrow ones are summed in an order of their own, which a router's choice may hang on.
    assert_eq!(fused(&source(8), "cluster,dce").0, ["contract", "contract"]);
    // One that needs the other's result cannot.
    let chained = "graph \"t\"\n%x: f32[64, 64] = input\n%w: f32[64, 64] = weight \"w\"\n%m: f32[64, 64] = matmul(%x, %w)\n\
                   %n: f32[64, 64] = matmul(%x, %m)\noutput %m\noutput %n\n";
    assert_eq!(fused(chained, "cluster,dce").0, ["matmul", "matmul"]);
}

#[test]
fn a_gated_unit_takes_in_captures_and_hands_out_several_results() {
    let source = "graph \"t\"\n%x: f32[4, 6] = input\n%w: f32[6, 16] = weight \"w\"\n%b: f32[16] = weight \"b\"\n\
        %c: f32[4, 1] = input\n%f: f32[4, 8] = input\n%m: f32[4, 16] = matmul(%x, %w)\n%y: f32[4, 16] = add(%m, %b)\n\
        %g: f32[4, 8] = slice(%y) {dim=1, start=0, end=16, step=2}\n%u: f32[4, 8] = slice(%y) {dim=1, start=1, end=16, step=2}\n\
        %a: f32[4, 8] = silu(%g)\n%p: f32[4, 8] = mul(%a, %u)\n%q: f32[4, 8] = mul(%p, %c)\n%r: f32[4, 8] = add(%q, %f)\n\
        output %p\noutput %r\n";
    let (ops, error) = fused(source, "canonicalize,egraph,cluster,views,dce");
    assert_eq!(ops.iter().filter(|op| **op == "contract").count(), 1, "{ops:?}");
    assert!(!ops.iter().any(|op| ["dense_glu", "mul", "add", "map", "matmul"].contains(op)), "{ops:?}");
    assert!(error < 1e-5, "{error}");
}

#[test]
fn reductions_of_functions_of_one_tensor_are_one_pass() {
    let source = format!(
        "{X}%q: f32[4, 6] = mul(%x, %x)\n%a: f32[4, 6] = abs(%x)\n%s: f32[4] = reduce(%q) {{kind=sum, dims=[1], keepdim=false, dtype=f32}}\n\
         %m: f32[4] = reduce(%a) {{kind=amax, dims=[1], keepdim=false, dtype=f32}}\n\
         %t: f32[4] = reduce(%x) {{kind=sum, dims=[1], keepdim=false, dtype=f32}}\noutput %s\noutput %m\noutput %t\n"
    );
    let (ops, error) = fused(&source, "cluster,dce");
    assert_eq!(ops, ["map_reduce"]);
    assert!(error < 1e-6, "{error}");
}

#[test]
fn an_epilogue_reaches_through_a_reshape() {
    let source =
        format!("{LINEAR}%v: bf16[2, 2, 8] = reshape(%m) {{shape=[2, 2, 8]}}\n%y: bf16[2, 2, 8] = add(%v, %b)\noutput %y\n");
    let (ops, error) = fused(&source, "cluster,views,dce");
    assert_eq!(ops.iter().filter(|op| **op != "reshape").collect::<Vec<_>>(), [&"contract"]);
    assert!(error < 1e-2, "{error}");
}

/// Upcasting logits for a router must show the rounded numbers, or near-ties would be decided otherwise.
#[test]
fn upcasting_an_accumulator_rounds_it_first() {
    let source = format!("{LINEAR}%y: f32[4, 8] = cast(%m) {{dtype=f32}}\noutput %y\n");
    assert_eq!(fused(&source, "cluster,dce"), (vec!["contract"], 0.0));
}

#[test]
fn passes_over_the_same_lines_are_one_kernel() {
    let source = format!(
        "{X}%e: f32[4, 6] = exp(%x)\n%n: f32[4, 6] = neg(%e)\n%s: f32[4, 1] = reduce(%e) {{kind=sum, dims=[1], keepdim=true, dtype=f32}}\n\
        %t: f32[4, 1] = sqrt(%s)\n%y: f32[4, 6] = div(%n, %t)\noutput %y\n"
    );
    let (ops, error) = fused(&source, "cluster,dce");
    assert_eq!(ops, ["reduce_chain"]);
    assert!(error < 1e-6, "{error}");
    // What reads across lines does not share their passes.
    let across = source
        .replace("[4, 1] = reduce(%e) {kind=sum, dims=[1]", "[1, 6] = reduce(%e) {kind=sum, dims=[0]")
        .replace("f32[4, 1]", "f32[1, 6]");
    let (ops, error) = fused(&across, "cluster,dce");
    assert!(ops.len() > 1 && !ops.contains(&"reduce_chain"), "{ops:?}");
    assert!(error < 1e-6, "{error}");
}

#[test]
fn a_norm_that_nothing_joins_stays_one() {
    let source = format!("{X}%y: f32[4, 6] = softmax(%x) {{dim=1, log=false, dtype=f32}}\noutput %y\n");
    assert_eq!(fused(&source, "cluster,dce"), (vec!["softmax"], 0.0));
    let source =
        format!("{X}%e: f32[4, 6] = mul(%x, 0.5)\n%y: f32[4, 6] = softmax(%e) {{dim=1, log=false, dtype=f32}}\noutput %y\n");
    let (ops, error) = fused(&source, "cluster,dce");
    assert_eq!(ops, ["reduce_chain"]);
    assert!(error < 1e-6, "{error}");
}

#[test]
fn one_element_of_a_line_is_picked_in_its_passes() {
    let source = "graph \"t\"\n%x: f32[4, 6] = input\n%i: i64[4, 1] = constant [0, 5, 2, 3]\n\
        %y: f32[4, 6] = softmax(%x) {dim=1, log=true, dtype=f32}\n%g: f32[4, 1] = gather(%y, %i) {dim=1}\n%n: f32[4, 1] = neg(%g)\noutput %n\n";
    let (ops, error) = fused(source, "cluster,dce");
    assert_eq!(ops, ["reduce_chain"]);
    assert!(error < 1e-6, "{error}");
}

#[test]
fn reductions_of_one_tensor_share_a_pass() {
    let source = format!(
        "{X}%q: f32[4, 6] = mul(%x, %x)\n%s: f32[4] = reduce(%q) {{kind=mean, dims=[1], keepdim=false, dtype=f32}}\n\
        %m: f32[4] = reduce(%q) {{kind=amax, dims=[1], keepdim=false, dtype=f32}}\n%d: f32[4] = sub(%m, %s)\noutput %s\noutput %d\n"
    );
    assert_eq!(fused(&source, "cluster,dce"), (vec!["map_reduce"], 0.0));
}

#[test]
fn a_capture_meets_the_reduced_shape() {
    let source = "graph \"t\"\n%x: f32[4, 2, 6] = input\n%r: f32[4, 6] = input\n%b: f32[6] = weight \"b\"\n\
        %s: f32[4, 6] = reduce(%x) {kind=sum, dims=[1], keepdim=false, dtype=f32}\n%a: f32[4, 6] = add(%s, %r)\n\
        %y: f32[4, 6] = mul(%a, %b)\noutput %y\n";
    let (ops, error) = fused(source, "cluster,dce");
    assert_eq!(ops.iter().filter(|op| **op != "reshape").collect::<Vec<_>>(), [&"map_reduce"]);
    assert_eq!(error, 0.0);
}

#[test]
fn pointwise_chains_and_siblings_become_one_loop() {
    let source =
        format!("{X}%c: f32[4, 6] = cos(%x)\n%s: f32[4, 6] = sin(%x)\n%d: f32[4, 6] = mul(%s, 2.0)\noutput %c\noutput %d\n");
    assert_eq!(fused(&source, "cluster,dce"), (vec!["map"], 0.0));
    let through = format!(
        "{X}%c: f32[4, 6] = cos(%x)\n%t: f32[6, 4] = permute(%c) {{dims=[1, 0]}}\n%y: f32[6, 4] = mul(%t, 2.0)\noutput %y\n"
    );
    assert_eq!(fused(&through, "cluster,dce"), (vec!["permute", "map"], 0.0));
}

#[test]
fn the_unfused_pipeline_keeps_a_kernel_for_each_op() {
    let source = format!("{LINEAR}%h: bf16[4, 8] = add(%m, %b)\n%y: bf16[4, 8] = add(%h, 0)\noutput %y\n");
    let graph = text::parse(&source).expect("the graph parses");
    let optimized = Pipeline::unfused().run_with(graph, &Options::new(H200)).expect("the passes run");
    assert_eq!(ops(&optimized.graph), ["matmul", "add", "add"]);
}

#[test]
fn an_unknown_pass_is_named_with_those_there_are() {
    let Err(error) = Pipeline::parse("cse,frobnicate") else { panic!("there is no such pass") };
    let message = error.to_string();
    assert!(message.contains("frobnicate") && message.contains("canonicalize") && message.contains("cluster"), "{message}");
}

#[test]
fn the_report_counts_what_fusing_saved() {
    let source = format!("{LINEAR}%h: bf16[4, 8] = add(%m, %b)\n%y: bf16[4, 8] = silu(%h)\noutput %y\n");
    let optimized = run(&source, "cluster,dce");
    let json = serde_json::to_value(&optimized.report).expect("the report serialises");
    assert_eq!((&json["nodes_before"], &json["nodes_after"]), (&3.into(), &1.into()));
    let site = &json["sites"][0];
    assert_eq!((&site["kind"], &site["nodes"]), (&"contract".into(), &serde_json::json!(["m", "h", "y"])));
    // Two intermediates of 4·8 bf16, each written and read once.
    assert_eq!(site["saves"], serde_json::json!({"launches": 2, "bytes": 256}));
    assert!(json["time_ms"]["cluster"].is_number());
}

#[test]
fn printing_shows_only_changed_graphs_on_request() {
    let graph = text::parse(&format!("{X}%y: f32[4, 6] = mul(%x, 1.0)\noutput %y\n")).expect("the graph parses");
    let pipeline = Pipeline::parse("canonicalize,cse").expect("known passes");
    let mut out = Vec::new();
    let options = Options { print: eglu_passes::PrintAfter::Changed, ..Options::new(H200) };
    pipeline.run_printing(graph, &options, &mut out).expect("the passes run");
    let text = String::from_utf8(out).expect("text");
    assert!(text.contains("after canonicalize") && !text.contains("after cse"), "{text}");
}

#[test]
fn every_pass_has_a_name_of_its_own_and_a_line_of_doc() {
    let known = Pipeline::known();
    let names: std::collections::HashSet<_> = known.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), known.len());
    assert!(known.iter().all(|(name, doc)| !doc.is_empty() && OpCode::from_name(name).is_err()));
}

#[test]
fn a_few_elements_placed_in_each_line_join_its_loop() {
    // The backward pass of a router: gradients of the scores of the experts that were chosen, through the softmax.
    let source = "graph \"t\"\n%logits: f32[5, 6] = input\n%g: bf16[10] = input\n\
        %top: (f32[5, 2], i64[5, 2]) = topk(%logits) {k=2, dim=1, largest=true}\n\
        %p: f32[5, 6] = softmax(%logits) {dim=1, log=false, dtype=f32}\n%zeros: f32[5, 6] = full() {shape=[5, 6], value=0.0, dtype=f32}\n\
        %wide: f32[10] = cast(%g) {dtype=f32}\n%each: f32[5, 2] = reshape(%wide) {shape=[5, 2]}\n\
        %iota: i64[5] = iota() {len=5, start=0, step=1, dtype=i64}\n%rows: i64[5, 1] = reshape(%iota) {shape=[5, 1]}\n\
        %put: f32[5, 6] = index_put(%zeros, %each, %rows, %top#1) {axes=[0, 1], accumulate=false}\n%m: f32[5, 6] = mul(%p, %put)\n\
        %s: f32[5, 1] = reduce(%m) {kind=sum, dims=[1], keepdim=true, dtype=f32}\n%ps: f32[5, 6] = mul(%p, %s)\n\
        %d: f32[5, 6] = sub(%m, %ps)\noutput %d\n";
    let (ops, error) = fused(source, "cluster,dce");
    let kernels: Vec<&str> = ops.into_iter().filter(|op| !["reshape", "slice"].contains(op)).collect();
    assert_eq!(kernels, ["topk", "reduce_chain"]);
    assert!(error < 1e-6, "{error}");
}

#[test]
fn elements_placed_at_the_same_position_are_the_last_of_them() {
    let source = |k: usize| {
        format!(
            "graph \"t\"\n%at: i64[4, {k}] = input\n%x: f32[4, {k}] = input\n%zeros: f32[4, 3] = full() {{shape=[4, 3], value=0.5, dtype=f32}}\n\
             %iota: i64[4] = iota() {{len=4, start=0, step=1, dtype=i64}}\n%rows: i64[4, 1] = reshape(%iota) {{shape=[4, 1]}}\n\
             %y: f32[4, 3] = index_put(%zeros, %x, %rows, %at) {{axes=[0, 1], accumulate=false}}\noutput %y\n"
        )
    };
    let (ops, error) = fused(&source(7), "cluster,dce");
    assert!(!ops.contains(&"index_put") && error == 0.0, "{ops:?} {error}");
    // Comparing every position with many indices would cost more than another kernel.
    assert!(fused(&source(17), "cluster,dce").0.contains(&"index_put"));
}

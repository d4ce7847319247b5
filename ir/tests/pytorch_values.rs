//! Results that PyTorch gives, op by op, as a user would type them.

use eglu_ir::{
    Graph,
    eval::{EvalError, eval_graph},
    text::{parse, print},
};

fn run(nodes: &str) -> Result<Vec<String>, EvalError> {
    let graph = parse(&format!("graph \"t\"\n{nodes}")).unwrap_or_else(|e| panic!("{e}\n{nodes}"));
    let outputs = eval_graph(&graph, &|_| None, &[])?;
    let shown = outputs.into_iter().map(|tensor| {
        let mut graph = Graph::new("t");
        graph.add_constant("c", tensor);
        // The sign of a NaN that arithmetic makes depends on the machine.
        let text = print(&graph).replace("-nan", "nan");
        text.lines().nth(1).unwrap_or_default().replace("%c: ", "").replace(" = constant", "")
    });
    Ok(shown.collect())
}

/// Checks the outputs of a few nodes.
fn check(nodes: &str, want: &[&str]) {
    let got = run(nodes).unwrap_or_else(|e| panic!("{e}\n{nodes}"));
    assert_eq!(got, want, "{nodes}");
}

/// Checks that evaluation fails, and what it says.
fn fails(nodes: &str, message: &str) {
    let error = run(nodes).map(|got| panic!("{nodes}\ngave {got:?}")).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn integer_division_follows_the_divisor() {
    let nodes = "%a: i64[5] = constant [-7, 7, -7, 7, 6]\n%b: i64[5] = constant [2, -2, -2, 2, -3]\n";
    check(&format!("{nodes}%y: i64[5] = floor_divide(%a, %b)\noutput %y"), &["i64[5] [-4, -4, 3, 3, -2]"]);
    check(&format!("{nodes}%y: i64[5] = remainder(%a, %b)\noutput %y"), &["i64[5] [1, -1, -1, 1, 0]"]);
    check(&format!("{nodes}%y: i64[5] = fmod(%a, %b)\noutput %y"), &["i64[5] [-1, 1, -1, 1, 0]"]);
    check(&format!("{nodes}%y: f32[5] = div(%a, %b)\noutput %y"), &["f32[5] [-3.5, -3.5, 3.5, 3.5, -2.0]"]);
    fails(
        &format!("{nodes}%y: i64[5] = floor_divide(%a, 0)\noutput %y"),
        "node `y` (floor_divide): floor_divide: integer division by zero",
    );
}

#[test]
fn float_division_follows_the_divisor() {
    let nodes = "%a: f32[4] = constant [-7.0, 7.0, 1.0, -0.0]\n%b: f32[4] = constant [2.0, -2.0, 0.1, 5.0]\n";
    check(&format!("{nodes}%y: f32[4] = floor_divide(%a, %b)\noutput %y"), &["f32[4] [-4.0, -4.0, 9.0, -0.0]"]);
    check(&format!("{nodes}%y: f32[4] = remainder(%a, %b)\noutput %y"), &["f32[4] [1.0, -1.0, 0.09999999, -0.0]"]);
}

#[test]
fn halves_round_once_and_to_even() {
    let nodes = "%a: bf16[3] = constant [1.0, 1.0078125, 256.0]\n%b: bf16[3] = constant [0.00390625, 0.00390625, 1.0]\n";
    check(&format!("{nodes}%y: bf16[3] = add(%a, %b)\noutput %y"), &["bf16[3] [1.0, 1.015625, 256.0]"]);
    // 1 + 0.002 + … would stay 1 if every step rounded; a number is not rounded before the sum.
    let number = "%a: bf16[1] = constant [-0.10009765625]\n%y: bf16[1] = add(%a, 0.1)\noutput %y";
    check(number, &["bf16[1] [-9.775162e-5]"]);
    let half = "%a: f16[2] = constant [60000.0, 0.0001]\n%y: f16[2] = mul(%a, %a)\noutput %y";
    check(half, &["f16[2] [inf, 0.0]"]);
}

#[test]
fn comparisons_round_numbers_to_the_operand() {
    check("%a: bf16[1] = constant [0.10009765625]\n%y: bool[1] = eq(%a, 0.1)\noutput %y", &["bool[1] [true]"]);
}

#[test]
fn promotion_follows_categories() {
    let check = |nodes: &str, ty: &str| check(&format!("{nodes}\noutput %y"), &[ty]);
    check("%a: bf16[1] = constant [1.0]\n%b: f64[] = constant [2.0]\n%y: bf16[1] = add(%a, %b)", "bf16[1] [3.0]");
    check("%a: i32[1] = constant [2]\n%y: f32[1] = mul(%a, 2.5)", "f32[1] [5.0]");
    check("%a: i32[] = constant [300]\n%b: i8[1] = constant [1]\n%y: i8[1] = add(%a, %b)", "i8[1] [45]");
    check("%a: bool[2] = constant [true, false]\n%y: i64[2] = add(%a, 2)", "i64[2] [3, 2]");
    check("%a: bool[2] = constant [true, false]\n%y: bool[2] = add(%a, %a)", "bool[2] [true, false]");
    check("%a: u8[1] = constant [200]\n%b: i8[1] = constant [-1]\n%y: i16[1] = add(%a, %b)", "i16[1] [199]");
    check("%a: u8[1] = constant [200]\n%y: u8[1] = add(%a, 100)", "u8[1] [44]");
    check("%a: bool[2] = constant [true, false]\n%y: bool[2] = bitwise_not(%a)", "bool[2] [false, true]");
}

#[test]
fn nan_wins_and_zeros_keep_their_sign() {
    let nodes = "%a: f32[4] = constant [nan, 1.0, -0.0, inf]\n%b: f32[4] = constant [1.0, nan, -0.0, -inf]\n";
    check(&format!("{nodes}%y: f32[4] = maximum(%a, %b)\noutput %y"), &["f32[4] [nan, nan, -0.0, inf]"]);
    check(&format!("{nodes}%y: f32[4] = minimum(%a, %b)\noutput %y"), &["f32[4] [nan, nan, -0.0, -inf]"]);
    check(&format!("{nodes}%y: f32[4] = neg(%a)\n%z: f32[4] = neg(%y)\noutput %z"), &["f32[4] [nan, 1.0, -0.0, inf]"]);
    check(&format!("{nodes}%y: f32[4] = relu(%a)\noutput %y"), &["f32[4] [nan, 1.0, -0.0, inf]"]);
    check(&format!("{nodes}%y: f32[4] = add(%a, %b)\noutput %y"), &["f32[4] [nan, nan, -0.0, nan]"]);
}

#[test]
fn reductions_of_nan_ties_and_nothing() {
    let nodes = "%a: f32[4] = constant [1.0, nan, 3.0, nan]\n%i: i64[3] = constant [3, 7, 7]\n%e: f32[0] = constant []\n";
    let reduce = |source: &str, kind: &str, dtype: &str| {
        let attrs = format!("{{kind={kind}, dims=[0], keepdim=false, dtype={dtype}}}");
        run(&format!("{nodes}%y: {dtype}[] = reduce({source}) {attrs}\noutput %y")).unwrap_or_else(|e| panic!("{e}")).remove(0)
    };
    assert_eq!(reduce("%a", "amax", "f32"), "f32[] [nan]");
    assert_eq!(reduce("%a", "argmax", "i64"), "i64[] [1]");
    assert_eq!(reduce("%a", "argmin", "i64"), "i64[] [1]");
    assert_eq!(reduce("%i", "argmax", "i64"), "i64[] [1]");
    assert_eq!(reduce("%i", "prod", "i64"), "i64[] [147]");
    assert_eq!(reduce("%a", "any", "bool"), "bool[] [true]");
    assert_eq!(reduce("%e", "sum", "f32"), "f32[] [0.0]");
    assert_eq!(reduce("%e", "prod", "f32"), "f32[] [1.0]");
    assert_eq!(reduce("%e", "mean", "f32"), "f32[] [nan]");
    assert_eq!(reduce("%e", "all", "bool"), "bool[] [true]");
}

#[test]
fn sums_widen_integers_and_stay_exact() {
    let bytes =
        "%a: i8[2] = constant [127, 127]\n%y: i64[] = reduce(%a) {kind=sum, dims=[0], keepdim=false, dtype=i64}\noutput %y";
    check(bytes, &["i64[] [254]"]);
    let tenths = "%a: f32[10000] = full() {shape=[10000], value=0.1, dtype=f32}\n\
                  %y: f32[] = reduce(%a) {kind=sum, dims=[0], keepdim=false, dtype=f32}\noutput %y";
    check(tenths, &["f32[] [1000.0]"]);
    let scan = "%a: i8[3] = constant [100, 100, 100]\n%y: i8[3] = cumsum(%a) {dim=0, dtype=i8}\noutput %y";
    check(scan, &["i8[3] [100, -56, 44]"]);
}

#[test]
fn sorting_is_stable_and_nan_is_largest() {
    let nodes = "%a: f32[7] = constant [1.0, nan, -0.0, 0.0, -inf, nan, 1.0]\n";
    let sort = |descending: bool| {
        format!("{nodes}%y: (f32[7], i64[7]) = sort(%a) {{dim=0, descending={descending}}}\noutput %y\noutput %y#1")
    };
    check(&sort(false), &["f32[7] [-inf, -0.0, 0.0, 1.0, 1.0, nan, nan]", "i64[7] [4, 2, 3, 0, 6, 1, 5]"]);
    check(&sort(true), &["f32[7] [nan, nan, 1.0, 1.0, -0.0, 0.0, -inf]", "i64[7] [1, 5, 0, 6, 2, 3, 4]"]);
    let topk = |largest: bool| {
        format!("{nodes}%y: (f32[2], i64[2]) = topk(%a) {{k=2, dim=0, largest={largest}}}\noutput %y\noutput %y#1")
    };
    check(&topk(true), &["f32[2] [nan, nan]", "i64[2] [1, 5]"]);
    check(&topk(false), &["f32[2] [-inf, -0.0]", "i64[2] [4, 2]"]);
}

#[test]
fn histograms_include_the_end() {
    let histc = |values: &str, attrs: &str, ty: &str| {
        run(&format!("%a: {values}\n%y: {ty} = histc(%a) {{{attrs}}}\noutput %y")).unwrap_or_else(|e| panic!("{e}")).remove(0)
    };
    let values = "f32[8] = constant [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, 0.5, nan]";
    assert_eq!(histc(values, "bins=4, min=0, max=4", "f32[4]"), "f32[4] [2.0, 1.0, 1.0, 2.0]");
    let same = "f32[2] = constant [5.0, 5.0]";
    assert_eq!(histc(same, "bins=4, min=0, max=0", "f32[4]"), "f32[4] [0.0, 0.0, 2.0, 0.0]");
    let ids = "i32[6] = constant [3, 0, 1, 1, 3, 4]";
    assert_eq!(histc(ids, "bins=4, min=0, max=3", "i32[4]"), "i32[4] [1, 2, 0, 2]");
}

#[test]
fn softmax_of_masked_rows() {
    let softmax = |values: &str, log: bool| {
        let nodes =
            format!("%a: f32[2] = constant {values}\n%y: f32[2] = softmax(%a) {{dim=0, log={log}, dtype=f32}}\noutput %y");
        run(&nodes).unwrap_or_else(|e| panic!("{e}")).remove(0)
    };
    assert_eq!(softmax("[-inf, -inf]", false), "f32[2] [nan, nan]");
    assert_eq!(softmax("[0.0, -inf]", false), "f32[2] [1.0, 0.0]");
    assert_eq!(softmax("[1000.0, 0.0]", true), "f32[2] [0.0, -1000.0]");
}

#[test]
fn indexing_places_the_picked_dims() {
    let nodes = "%r: f32[24] = iota() {len=24, start=0, step=1, dtype=f32}\n%x: f32[2, 3, 4] = reshape(%r) {shape=[2, 3, 4]}\n\
                 %i: i64[2] = constant [1, -1]\n%j: i64[2, 1] = constant [0, 2]\n";
    let separated = "%y: f32[2, 2, 3] = index(%x, %i, %j) {axes=[0, 2]}\noutput %y";
    let want = "f32[2, 2, 3] [12.0, 16.0, 20.0, 12.0, 16.0, 20.0, 14.0, 18.0, 22.0, 14.0, 18.0, 22.0]";
    check(&format!("{nodes}{separated}"), &[want]);
    let adjacent = "%y: f32[2, 2, 2] = index(%x, %i, %j) {axes=[1, 2]}\noutput %y";
    check(&format!("{nodes}{adjacent}"), &["f32[2, 2, 2] [4.0, 8.0, 6.0, 10.0, 16.0, 20.0, 18.0, 22.0]"]);
    fails(
        &format!("{nodes}%k: i64[1] = constant [-4]\n%y: f32[2, 1, 4] = index(%x, %k) {{axes=[1]}}\noutput %y"),
        "node `y` (index): index -4 is out of range for dim 1, whose extent is 3",
    );
}

#[test]
fn scatters_sum_and_gathers_do_not_wrap() {
    let put = |accumulate: bool| {
        format!(
            "%z: f32[3] = full() {{shape=[3], value=0, dtype=f32}}\n%i: i64[3] = constant [0, -1, 0]\n\
             %v: f32[3] = constant [1.0, 2.0, 3.0]\n\
             %y: f32[3] = index_put(%z, %v, %i) {{axes=[0], accumulate={accumulate}}}\noutput %y"
        )
    };
    check(&put(true), &["f32[3] [4.0, 0.0, 2.0]"]);
    check(&put(false), &["f32[3] [3.0, 0.0, 2.0]"]);
    let nodes = "%z: f32[2, 3] = full() {shape=[2, 3], value=0, dtype=f32}\n%i: i64[2, 3] = constant [0, 1, 1, 0, 0, 1]\n\
                 %r: f32[6] = iota() {len=6, start=0, step=1, dtype=f32}\n%v: f32[2, 3] = reshape(%r) {shape=[2, 3]}\n";
    let scatter = format!("{nodes}%y: f32[2, 3] = scatter_add(%z, %i, %v) {{dim=0}}\noutput %y");
    check(&scatter, &["f32[2, 3] [3.0, 4.0, 0.0, 0.0, 1.0, 7.0]"]);
    let gather = format!("{nodes}%y: f32[2, 3] = gather(%v, %i) {{dim=1}}\noutput %y");
    check(&gather, &["f32[2, 3] [0.0, 1.0, 1.0, 3.0, 3.0, 4.0]"]);
    fails(
        &format!("{nodes}%k: i64[1, 1] = constant [-1]\n%y: f32[1, 1] = gather(%v, %k) {{dim=1}}\noutput %y"),
        "node `y` (gather): index -1 is out of range for dim 1, whose extent is 3",
    );
}

#[test]
fn routing_and_experts() {
    let weighed = |attrs: &str, weigh: &str, more: &str| {
        format!(
            "%l: f32[1, 4] = constant [0.0, 2.0, 1.0, -1.0]\n%b: f32[4] = constant [0.0, -0.5, 0.0, 1.0]\n\
             %y: (f32[1, 2], i64[1, 2]) = route(%l, {more}) {{{attrs}, weigh={{(p0: f32, p1: f32) {weigh}}}}}\noutput %y\noutput %y#1"
        )
    };
    let plain = |score: &str| format!("score={score}, scores=f32, k=2, groups=[], masked=0, gathered=true");
    let weights = |text: String| run(&text).unwrap_or_else(|e| panic!("{e}"));
    let value = "return (p0: f32)";
    let bare = |score: &str| weights(weighed(&plain(score), value, "none"));
    assert_eq!(bare("softmax"), ["f32[1, 2] [0.6439143, 0.23688282]", "i64[1, 2] [1, 2]"]);
    // The softmax over the chosen is that over all, divided by the sum of the chosen.
    assert_eq!(bare("topk_softmax"), ["f32[1, 2] [0.7310586, 0.26894143]", "i64[1, 2] [1, 2]"]);
    assert_eq!(bare("sigmoid"), ["f32[1, 2] [0.880797, 0.7310586]", "i64[1, 2] [1, 2]"]);
    assert_eq!(bare("topk_sigmoid"), bare("sigmoid"));
    let share = "v0: f32 = div(p0, p1); return (v0: f32)";
    assert_eq!(weights(weighed(&plain("softmax"), share, "none"))[0], "f32[1, 2] [0.7310586, 0.26894143]");
    // Chosen by score and bias, weighed by the score alone or by both.
    assert_eq!(weights(weighed(&plain("sigmoid"), value, "%b")), ["f32[1, 2] [0.26894143, 0.7310586]", "i64[1, 2] [3, 2]"]);
    let by_both = plain("sigmoid").replace("gathered=true", "gathered=false");
    assert_eq!(weights(weighed(&by_both, value, "%b"))[0], "f32[1, 2] [1.2689414, 0.7310586]");
    // Of the groups {0, 1} and {2, 3} the better one stays, by the best of each or by their sum.
    let grouped = |best: usize| plain("sigmoid").replace("groups=[]", &format!("groups=[2, {best}, 1]"));
    assert_eq!(weights(weighed(&grouped(1), value, "none"))[1], "i64[1, 2] [1, 0]");
    assert_eq!(weights(weighed(&grouped(2), value, "%b"))[1], "i64[1, 2] [3, 2]");
    let experts = "%x: f32[3, 1] = constant [1.0, 2.0, 3.0]\n%w: f32[2, 1, 1] = constant [10.0, 100.0]\n\
                   %b: f32[2, 1] = constant [0.5, 0.25]\n%ids: i64[3] = constant [1, 7, 0]\n\
                   %y: f32[3, 1] = expert_matmul(%x, %w, %b, %ids)\noutput %y";
    check(experts, &["f32[3, 1] [100.25, 0.0, 30.5]"]);
}

#[test]
fn grouped_rows_past_the_last_offset_are_zero() {
    let nodes = "%x: f32[3, 1] = constant [1.0, 2.0, 3.0]\n%w: f32[2, 1, 1] = constant [10.0, 100.0]\n";
    let product = "%y: f32[3, 1] = grouped_mm(%x, %w, %o)\noutput %y";
    check(&format!("{nodes}%o: i32[2] = constant [1, 2]\n{product}"), &["f32[3, 1] [10.0, 200.0, 0.0]"]);
    fails(
        &format!("{nodes}%o: i32[2] = constant [2, 1]\n{product}"),
        "node `y` (grouped_mm): grouped_mm: offset 1 is 1, but offsets must ascend from 2 and end within the 3 rows",
    );
}

#[test]
fn programs_keep_opmath_until_they_store() {
    // 256 + 1 rounds back to 256 in bf16; within a program only an explicit cast rounds.
    let program = |middle: &str| {
        format!(
            "%x: bf16[1] = constant [256.0]\n%y: bf16[1] = map(%x) {{program={{(p0: bf16) v0: bf16 = add(p0, 1.0); \
             {middle} return (v{}: bf16)}}}}\noutput %y",
            middle.matches(';').count()
        )
    };
    check(&program("v1: bf16 = sub(v0, 256.0);"), &["bf16[1] [1.0]"]);
    check(&program("v1: bf16 = cast(v0); v2: bf16 = sub(v1, 256.0);"), &["bf16[1] [0.0]"]);
}

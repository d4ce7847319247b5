//! Every condition of every rule is seen to refuse: small graphs that match a rule's pattern and fail one condition, beside the altered graphs of
//! [`crate::mutants`].

mod norms;

use crate::soundness::checked;
use eglu_ir::{Graph, text::parse};
use eglu_passes::egraph::rules;

/// A rule, its condition, and a graph on which it refuses. The last value is the output.
struct Refusal {
    rule: String,
    condition: &'static str,
    body: String,
}

fn refusal(rule: impl Into<String>, condition: &'static str, body: impl Into<String>) -> Refusal {
    Refusal { rule: rule.into(), condition, body: body.into() }
}

impl Refusal {
    fn graph(&self) -> Graph {
        let last = self.body.trim().lines().last().and_then(|line| line.trim().split([':', ' ']).next()).unwrap_or_default();
        let text = format!("graph \"{}\"\n{}\noutput {last}\n", self.rule, self.body.trim());
        parse(&text).unwrap_or_else(|why| panic!("{}: {}: {why}\n{text}", self.rule, self.condition))
    }
}

/// `%p`, a permutation of six rows, from sorting noise.
const PERMUTATION: &str = "%noise: f32[6] = input\n%p: (f32[6], i64[6]) = sort(%noise) {dim=0, descending=false}\n";
/// `%i`, positions among four rows that are no permutation, for six places.
const POSITIONS: &str = "%given: i64[6] = input\n%i: i64[6] = remainder(%given, 4)\n";

/// Rules on rows: facts, permutations, scatters.
fn of_rows() -> Vec<Refusal> {
    let permuted = |rest: &str| format!("{PERMUTATION}{rest}");
    let picked = |rest: &str| format!("{POSITIONS}%x: f32[4, 3] = input\n{rest}");
    vec![
        refusal("bound-above-reached-never", "same-type", format!("{POSITIONS}%y: f32[6] = minimum(%i, 3.0)")),
        refusal("bound-below-reached-never", "same-type", format!("{POSITIONS}%y: f32[6] = maximum(%i, 0.0)")),
        refusal(
            "sorted-values",
            "one-dim",
            "%x: f32[6, 4] = input\n%y: (f32[6, 4], i64[6, 4]) = sort(%x) {dim=0, descending=false}",
        ),
        refusal(
            "scattered-positions",
            "all-positions",
            permuted(
                "%o: i64[6] = full() {shape=[6], value=0, dtype=i64}\n%n: i64[1] = iota() {len=1, start=0, step=1, dtype=i64}\n\
                 %y: i64[6] = index_put(%o, %n, %p#1) {axes=[0], accumulate=false}",
            ),
        ),
        refusal(
            "scattered-positions",
            "dtype",
            permuted(
                "%o: i32[6] = full() {shape=[6], value=0, dtype=i32}\n%n: i32[6] = iota() {len=6, start=0, step=1, dtype=i32}\n\
                 %y: i32[6] = index_put(%o, %n, %p#1) {axes=[0], accumulate=false}",
            ),
        ),
        refusal(
            "permuted-and-back",
            "a-permutation",
            permuted(
                "%x: f32[9, 3] = input\n%q: i64[6] = inverse_permutation(%p#1)\n%a: f32[6, 3] = index(%x, %p#1) {axes=[0]}\n\
                 %y: f32[6, 3] = index(%a, %q) {axes=[0]}",
            ),
        ),
        refusal("divided-permutation", "whole-divisor", permuted("%y: f32[6] = floor_divide(%p#1, 1.5)")),
        refusal(
            "index-by-permuted",
            "one-dim",
            permuted(
                "%x: f32[4, 3] = input\n%given: i64[6, 2] = input\n%a: i64[6, 2] = remainder(%given, 4)\n\
                 %b: i64[6, 2] = index(%a, %p#1) {axes=[0]}\n%y: f32[6, 2, 3] = index(%x, %b) {axes=[0]}",
            ),
        ),
        refusal(
            "index-by-permuted",
            "a-permutation",
            picked(
                "%own: i64[4] = input\n%a: i64[4] = remainder(%own, 4)\n%b: i64[6] = index(%a, %i) {axes=[0]}\n\
                 %y: f32[6, 3] = index(%x, %b) {axes=[0]}",
            ),
        ),
        refusal(
            "histogram-of-permuted",
            "a-permutation",
            format!(
                "{POSITIONS}%x: f32[4] = input\n%a: f32[6] = index(%x, %i) {{axes=[0]}}\n%y: f32[3] = histc(%a) {{bins=3, min=0, max=2}}"
            ),
        ),
        refusal(
            "permutation-through-expand",
            "a-permutation",
            format!(
                "{POSITIONS}%x: f32[4, 1] = input\n%a: f32[6, 1] = index(%x, %i) {{axes=[0]}}\n%y: f32[6, 3] = expand(%a) {{shape=[6, 3]}}"
            ),
        ),
        refusal(
            "transposition-of-picked",
            "matrices",
            "%w: f32[4, 5] = input\n%given: i64[6, 2] = input\n%i: i64[6, 2] = remainder(%given, 4)\n\
             %a: f32[6, 2, 5] = index(%w, %i) {axes=[0]}\n%y: f32[6, 5, 2] = permute(%a) {dims=[0, 2, 1]}",
        ),
        refusal(
            "scatter-to-permutation",
            "all-rows",
            permuted(
                "%v: f32[6, 3] = input\n%o: f32[9, 3] = full() {shape=[9, 3], value=0.0, dtype=f32}\n\
                 %y: f32[9, 3] = index_put(%o, %v, %p#1) {axes=[0], accumulate=true}",
            ),
        ),
        refusal(
            "scatter-to-permutation",
            "same-type",
            permuted(
                "%v: f32[6, 1] = input\n%o: f32[6, 3] = full() {shape=[6, 3], value=0.0, dtype=f32}\n\
                 %y: f32[6, 3] = index_put(%o, %v, %p#1) {axes=[0], accumulate=true}",
            ),
        ),
        refusal(
            "scatter-of-permuted",
            "a-permutation",
            picked(
                "%own: i64[4] = input\n%j: i64[4] = remainder(%own, 4)\n%o: f32[4, 3] = full() {shape=[4, 3], value=0.0, dtype=f32}\n\
                 %a: f32[6, 3] = index(%x, %i) {axes=[0]}\n%b: i64[6] = index(%j, %i) {axes=[0]}\n\
                 %y: f32[4, 3] = index_put(%o, %a, %b) {axes=[0], accumulate=true}",
            ),
        ),
        refusal(
            "scatter-of-permuted",
            "rows-and-places",
            permuted(
                "%v: f32[6, 2, 3] = input\n%given: i64[6, 2] = input\n%j: i64[6, 2] = remainder(%given, 4)\n\
                 %o: f32[4, 3] = full() {shape=[4, 3], value=0.0, dtype=f32}\n%a: f32[6, 2, 3] = index(%v, %p#1) {axes=[0]}\n\
                 %b: i64[6, 2] = index(%j, %p#1) {axes=[0]}\n%y: f32[4, 3] = index_put(%o, %a, %b) {axes=[0], accumulate=true}",
            ),
        ),
        refusal(
            "lanes-interleaved",
            "all-columns",
            "%a: f32[4, 3] = input\n%b: f32[4, 3] = input\n%o: f32[4, 7] = full() {shape=[4, 7], value=0.0, dtype=f32}\n\
             %even: i64[3] = iota() {len=3, start=0, step=2, dtype=i64}\n%odd: i64[3] = iota() {len=3, start=1, step=2, dtype=i64}\n\
             %l: f32[4, 7] = index_put(%o, %a, %even) {axes=[1], accumulate=false}\n\
             %r: f32[4, 7] = index_put(%o, %b, %odd) {axes=[1], accumulate=false}\n%y: f32[4, 7] = add(%l, %r)",
        ),
        refusal(
            "halves-added",
            "parts-meet",
            "%a: f32[4, 3] = input\n%b: f32[4, 3] = input\n%o: f32[4, 2] = full() {shape=[4, 2], value=0.0, dtype=f32}\n\
             %l: f32[4, 5] = cat(%a, %o) {dim=1}\n%r: f32[4, 5] = cat(%o, %b) {dim=1}\n%y: f32[4, 5] = add(%l, %r)",
        ),
        refusal(
            "picked-in-a-row",
            "picked-whole",
            "%x: f32[4, 3] = input\n%given: i64[6, 2] = input\n%i: i64[6, 2] = remainder(%given, 4)\n\
             %a: f32[6, 2, 3] = index(%x, %i) {axes=[0]}\n%y: f32[6, 6] = reshape(%a) {shape=[6, 6]}",
        ),
        refusal(
            "slice-of-view",
            "last-dim",
            "%x: f32[6, 4] = input\n%a: f32[2, 3, 4] = reshape(%x) {shape=[2, 3, 4]}\n\
             %y: f32[2, 2, 4] = slice(%a) {dim=1, start=0, end=2, step=1}",
        ),
        refusal(
            "slice-of-view",
            "whole-rows",
            "%x: f32[6, 4] = input\n%a: f32[6, 2, 2] = reshape(%x) {shape=[6, 2, 2]}\n\
             %y: f32[6, 2, 1] = slice(%a) {dim=2, start=0, end=1, step=1}",
        ),
    ]
}

/// `%ids`, of four experts, for six rows.
const IDS: &str = "%given: i64[6] = input\n%ids: i64[6] = remainder(%given, 4)\n";

/// Products by expert and weight gradients.
fn of_experts() -> Vec<Refusal> {
    let ends = |ids: &str, experts: i64, counts: &str, ends: &str| {
        format!(
            "{ids}%sorted: (i64[6], i64[6]) = sort(%ids) {{dim=0, descending=false}}\n%f: f32[6] = cast(%ids) {{dtype=f32}}\n\
             %counts: f32[{experts}] = histc(%f) {{bins={experts}, min=0, max={}}}\n\
             {counts}%ends: {ends}[{experts}] = cumsum(%counts) {{dim=0, dtype={ends}}}\n",
            experts - 1
        )
    };
    let grouped = |ids: &str, rows: i64, experts: i64, dtype: &str| {
        format!(
            "{}%x: f32[{rows}, 3] = input\n%w: f32[{experts}, 3, 2] = input\n%r: f32[6, 3] = index(%x, %sorted#1) {{axes=[0]}}\n\
             %y: f32[6, 2] = grouped_mm(%r, %w, %ends)",
            ends(ids, experts, "", dtype)
        )
    };
    let many = "%given: i64[6] = input\n%ids: i64[6] = remainder(%given, 5000)\n";
    let outer = |rows: i64, ids: &str, experts: i64| {
        format!(
            "{}%a: f32[{rows}, 3] = input\n%b: f32[6, 2] = input\n%n: i64[6] = iota() {{len=6, start=0, step=1, dtype=i64}}\n\
             %e: i32[{experts}, 1] = reshape(%ends) {{shape=[{experts}, 1]}}\n%m: bool[{experts}, 6] = ge(%n, %e)\n\
             %groups: i64[6] = reduce(%m) {{kind=sum, dims=[0], keepdim=false, dtype=i64}}\n\
             %l: f32[6, 3] = index(%a, %sorted#1) {{axes=[0]}}\n%r: f32[6, 2] = index(%b, %sorted#1) {{axes=[0]}}\n\
             %y: f32[{experts}, 3, 2] = expert_outer(%l, %r, %groups, none) {{experts={experts}, a_repeat=1, b_repeat=1, dtype=f32}}",
            ends(ids, experts, "", "i32")
        )
    };
    let biased = "%x: f32[6, 3] = input\n%w: f32[4, 2, 3] = input\n%y: f32[6, 2] = expert_matmul(%x, %w, none, %ids)\n";
    let put = |ids: &str, v: &str, product: &str| {
        format!(
            "{ids}{v}%o: f32[4, 3, 2] = full() {{shape=[4, 3, 2], value=0.0, dtype=f32}}\n{product}%y: f32[4, 3, 2] = index_put(%o, %v, %ids) {{axes=[0], accumulate=true}}"
        )
    };
    let column_and_row = "%a: f32[6, 3, 1] = input\n%b: f32[6, 1, 2] = input\n";
    let unbounded = "%given: i64[6] = input\n%ids: i64[6] = sub(%given, 1)\n";
    vec![
        refusal("grouped-by-expert", "rows-and-ids", grouped(IDS, 9, 4, "i32")),
        refusal("grouped-by-expert", "counts-fit", grouped(IDS, 6, 4, "i16")),
        refusal("grouped-by-expert", "experts-few", grouped(many, 6, 5000, "i32")),
        refusal("grouped-outer-by-expert", "rows-and-ids", outer(9, IDS, 4)),
        refusal("grouped-outer-by-expert", "experts-few", outer(6, many, 5000)),
        refusal(
            "gathered-matrix-times-column",
            "whole-matrices",
            format!(
                "{IDS}%w: f32[4, 3] = input\n%v: f32[3, 1] = input\n%a: f32[6, 3] = index(%w, %ids) {{axes=[0]}}\n%y: f32[6, 1] = matmul(%a, %v)"
            ),
        ),
        refusal(
            "gathered-matrix-times-column",
            "one-row-each",
            format!(
                "{IDS}%w: f32[4, 2, 3] = input\n%v: f32[6, 3, 5] = input\n%a: f32[6, 2, 3] = index(%w, %ids) {{axes=[0]}}\n\
                 %y: f32[6, 2, 5] = matmul(%a, %v)"
            ),
        ),
        refusal(
            "row-times-gathered-matrix",
            "whole-matrices",
            format!(
                "{IDS}%w: f32[4, 3] = input\n%v: f32[2, 6] = input\n%a: f32[6, 3] = index(%w, %ids) {{axes=[0]}}\n%y: f32[2, 3] = matmul(%v, %a)"
            ),
        ),
        refusal(
            "row-times-gathered-matrix",
            "one-row-each",
            format!(
                "{IDS}%w: f32[4, 3, 2] = input\n%v: f32[6, 5, 3] = input\n%a: f32[6, 3, 2] = index(%w, %ids) {{axes=[0]}}\n\
                 %y: f32[6, 5, 2] = matmul(%v, %a)"
            ),
        ),
        refusal(
            "expert-bias",
            "bias-by-expert",
            format!(
                "{IDS}{biased}%b: f32[5, 2] = input\n%c: f32[6, 2] = index(%b, %ids) {{axes=[0]}}\n%z: f32[6, 2] = add(%y, %c)"
            ),
        ),
        refusal(
            "dropped-rows-biased",
            "bias-by-expert",
            format!(
                "%given: i64[6] = input\n%ids: i64[6] = remainder(%given, 6)\n{biased}%b: f32[5, 2] = input\n%l: i64[6] = minimum(%ids, 3)\n\
                 %c: f32[6, 2] = index(%b, %l) {{axes=[0]}}\n%s: f32[6, 2] = add(%y, %c)\n%g: bool[6] = ge(%ids, 4)\n\
                 %m: bool[6, 1] = reshape(%g) {{shape=[6, 1]}}\n%z: f32[6, 2] = where(%m, 0.0, %s)"
            ),
        ),
        refusal(
            "permutation-through-expert-matmul",
            "a-permutation",
            format!(
                "{POSITIONS}%x: f32[4, 3] = input\n%own: i64[4] = input\n%ids: i64[4] = remainder(%own, 4)\n%w: f32[4, 2, 3] = input\n\
                 %r: f32[6, 3] = index(%x, %i) {{axes=[0]}}\n%j: i64[6] = index(%ids, %i) {{axes=[0]}}\n\
                 %y: f32[6, 2] = expert_matmul(%r, %w, none, %j)"
            ),
        ),
        refusal(
            "outer-by-id",
            "outer-products",
            put(IDS, "%a: f32[6, 3, 5] = input\n%b: f32[6, 5, 2] = input\n", "%v: f32[6, 3, 2] = matmul(%a, %b)\n"),
        ),
        refusal("outer-by-id", "ids-not-negative", put(unbounded, column_and_row, "%v: f32[6, 3, 2] = matmul(%a, %b)\n")),
        refusal(
            "rows-by-id",
            "ids-not-negative",
            format!(
                "{unbounded}{biased}%o: f32[4, 2] = full() {{shape=[4, 2], value=0.0, dtype=f32}}\n\
                 %z: f32[4, 2] = index_put(%o, %y, %ids) {{axes=[0], accumulate=true}}"
            ),
        ),
        refusal(
            "outer-of-permuted",
            "a-permutation",
            format!(
                "{POSITIONS}%a: f32[4, 3] = input\n%b: f32[4, 2] = input\n%c: i64[4] = input\n%ids: i64[4] = remainder(%c, 4)\n\
                 %l: f32[6, 3] = index(%a, %i) {{axes=[0]}}\n%r: f32[6, 2] = index(%b, %i) {{axes=[0]}}\n%j: i64[6] = index(%ids, %i) {{axes=[0]}}\n\
                 %y: f32[4, 3, 2] = expert_outer(%l, %r, %j, none) {{experts=4, a_repeat=1, b_repeat=1, dtype=f32}}"
            ),
        ),
    ]
}

/// Gated units and dense layers.
fn of_units() -> Vec<Refusal> {
    let mut all = Vec::new();
    let inputs = |gate: &str, up: &str| format!("%g: {gate} = input\n%u: {up} = input\n");
    for act in ["silu", "gelu_tanh", "gelu_erf", "relu", "sigmoid"] {
        let upcast = |gate: &str, up: &str, d: &str, result: &str| {
            format!(
                "{}%w: f32[6, 4] = cast(%g) {{dtype=f32}}\n%a: f32[6, 4] = {act}(%w)\n%n: {d}[6, 4] = cast(%a) {{dtype={d}}}\n%y: {result} = mul(%n, %u)",
                inputs(gate, up)
            )
        };
        let wide = |gate: &str, up: &str| {
            format!(
                "{}%w: f32[6, 4] = cast(%g) {{dtype=f32}}\n%a: f32[6, 4] = {act}(%w)\n%v: f32{} = cast(%u) {{dtype=f32}}\n\
                 %z: f32[6, 4] = mul(%a, %v)\n%y: bf16[6, 4] = cast(%z) {{dtype=bf16}}",
                inputs(gate, up),
                &up[up.find('[').unwrap_or(0)..]
            )
        };
        all.push(refusal(format!("{act}-gated-upcast"), "gate-and-up", upcast("bf16[6, 4]", "bf16[1, 4]", "bf16", "bf16[6, 4]")));
        all.push(refusal(format!("{act}-gated-upcast"), "upcast", upcast("f64[6, 4]", "f64[6, 4]", "f64", "f64[6, 4]")));
        all.push(refusal(format!("{act}-gated-in-f32"), "gate-and-up", wide("bf16[6, 4]", "bf16[1, 4]")));
        all.push(refusal(format!("{act}-gated-in-f32"), "upcast", wide("f64[6, 4]", "f64[6, 4]")));
    }
    let linear = |name: &str, matrix: &str, result: &str| {
        format!("%{name}w: {matrix} = input\n%{name}: {result} = matmul(%x, %{name}w)\n")
    };
    let matrices = |bias: [bool; 2], stacked: bool, bias_type: &str| {
        let (rows, matrix, result) =
            if stacked { ("f32[2, 6, 4]", "f32[2, 4, 5]", "f32[2, 6, 5]") } else { ("f32[6, 4]", "f32[4, 5]", "f32[6, 5]") };
        let mut body = format!("%x: {rows} = input\n{}{}", linear("g", matrix, result), linear("u", matrix, result));
        let mut names = ["g".to_string(), "u".to_string()];
        for (name, _) in names.iter_mut().zip(bias).filter(|(_, biased)| *biased) {
            body += &format!("%{name}b: {bias_type} = input\n%{name}s: {result} = add(%{name}, %{name}b)\n");
            name.push('s');
        }
        body + &format!("%a: {result} = silu(%{})\n%y: {result} = mul(%a, %{})", names[0], names[1])
    };
    for (rule, bias) in [
        ("dense-gated-unit-biased", [true, true]),
        ("dense-gated-unit-gate-biased", [true, false]),
        ("dense-gated-unit-up-biased", [false, true]),
    ] {
        all.push(refusal(rule, "weights-are-matrices", matrices(bias, true, "f32[5]")));
        all.push(refusal(rule, "biases-are-rows", matrices(bias, false, "f32[6, 1]")));
    }
    let any = |act: &str, left: &str, right: &str| {
        format!(
            "%x: f32[6, 4] = input\n%z: f32[6, 4] = input\n%gw: f32[4, 5] = input\n%uw: f32[4, 5] = input\n%g: f32[6, 5] = matmul(%{left}, %gw)\n\
             %u: f32[6, 5] = matmul(%{right}, %uw)\n%a: f32[6, 5] = {act}(%g)\n%y: f32[6, 5] = mul(%a, %u)"
        )
    };
    let swish = "%s: bf16[6, 4] = sigmoid(%g)\n%a: bf16[6, 4] = mul(%g, %s)\n";
    let product = "%x: f32[6, 4] = input\n%w: f32[5, 4] = input\n%t: f32[4, 5] = permute(%w) {dims=[1, 0]}\n%p: f32[6, 5] = matmul(%x, %t)\n";
    all.extend([
        refusal("dense-gated-unit-of-any-activation", "two-products", any("tanh", "x", "z")),
        refusal("dense-gated-unit-of-any-activation", "activation-without-name", any("silu", "x", "x")),
        refusal("silu-from-parts", "same-type", "%x: i64[6] = input\n%s: f32[6] = sigmoid(%x)\n%y: f32[6] = mul(%x, %s)"),
        // Gates of integers are no gated units either, though a sigmoid of them is a float.
        refusal("sigmoid-gated", "gate-and-up", "%x: i64[6] = input\n%u: i64[6] = input\n%s: f32[6] = sigmoid(%x)\n%y: f32[6] = mul(%s, %u)"),
        refusal("silu-parts-gated", "gate-and-up", inputs("bf16[6, 4]", "bf16[1, 4]") + swish + "%y: bf16[6, 4] = mul(%a, %u)"),
        refusal(
            "clamped-swish-gated",
            "numbers",
            inputs("f32[6, 4]", "f32[6, 4]")
                + "%l: f32[6, 4] = input\n%m: f32[6, 4] = minimum(%g, %l)\n%k: f32[6, 4] = mul(%m, 1.7)\n%s: f32[6, 4] = sigmoid(%k)\n\
                   %a: f32[6, 4] = mul(%m, %s)\n%lo: f32[6, 4] = maximum(%u, -7.0)\n%hi: f32[6, 4] = minimum(%lo, 7.0)\n%o: f32[6, 4] = add(%hi, 1)\n\
                   %y: f32[6, 4] = mul(%o, %a)",
        ),
        refusal("slice-of-product", "last-dim", format!("{product}%y: f32[2, 5] = slice(%p) {{dim=0, start=0, end=2, step=1}}")),
        refusal(
            "slice-of-biased-product",
            "last-dim",
            format!("{product}%b: f32[5] = input\n%s: f32[6, 5] = add(%p, %b)\n%y: f32[2, 5] = slice(%s) {{dim=0, start=0, end=2, step=1}}"),
        ),
        refusal(
            "slice-of-biased-product",
            "bias",
            format!("{product}%b: f32[6, 5] = input\n%s: f32[6, 5] = add(%p, %b)\n%y: f32[6, 2] = slice(%s) {{dim=1, start=0, end=2, step=1}}"),
        ),
    ]);
    all
}

/// Routers.
fn of_routers() -> Vec<Refusal> {
    let mut all = Vec::new();
    let chosen = "%l: f32[6, 4] = input\n%s: f32[6, 4] = softmax(%l) {dim=1, log=false, dtype=f32}\n\
                  %t: (f32[6, 2], i64[6, 2]) = topk(%s) {k=2, dim=1, largest=true}\n";
    let unscored = "%l: f32[6, 4] = input\n%t: (f32[6, 2], i64[6, 2]) = topk(%l) {k=2, dim=1, largest=true}\n";
    let total = |of: &str| format!("%z: f32[6, 1] = reduce(%{of}) {{kind=sum, dims=[1], keepdim=true, dtype=f32}}\n");
    for (rule, with) in [
        ("router-renormalized", None),
        ("router-renormalized-above", Some("add")),
        ("router-renormalized-bounded", Some("maximum")),
    ] {
        let more = |number: &str| with.map_or(String::new(), |op| format!("%m: f32[6, 1] = {op}(%z, {number})\n"));
        let by = if with.is_some() { "m" } else { "z" };
        let scaled =
            format!("{chosen}%v: f32[6, 2] = mul(%t, 2.5)\n{}{}%y: f32[6, 2] = div(%v, %{by})", total("v"), more("0.001"));
        all.push(refusal(rule, "values-as-they-are", scaled));
        if with.is_some() {
            all.push(refusal(
                rule,
                "a-router",
                format!("{unscored}{}{}%y: f32[6, 2] = div(%t, %{by})", total("t"), more("0.001")),
            ));
            let constant =
                format!("%eps: f32[6, 1] = input\n{chosen}{}{}%y: f32[6, 2] = div(%t, %{by})", total("t"), more("%eps"));
            all.push(refusal(rule, "constant", constant));
        }
    }
    let deep = "%l: f32[6, 4, 3] = input\n%t: (f32[6, 2, 3], i64[6, 2, 3]) = topk(%l) {k=2, dim=1, largest=true}\n";
    all.extend([
        refusal("router-top-k-softmax", "few-experts", format!("{deep}%y: f32[6, 2, 3] = softmax(%t) {{dim=1, log=false, dtype=f32}}")),
        refusal("router-top-k-sigmoid", "few-experts", format!("{deep}%y: f32[6, 2, 3] = sigmoid(%t)")),
        refusal(
            "route-of-upcast",
            "widened",
            "%d: f64[6, 4] = input\n%l: f32[6, 4] = cast(%d) {dtype=f32}\n%s: f32[6, 4] = softmax(%l) {dim=1, log=false, dtype=f32}\n\
             %y: (f32[6, 2], i64[6, 2]) = topk(%s) {k=2, dim=1, largest=true}",
        ),
    ]);
    all
}

fn all() -> Vec<Refusal> {
    [of_rows(), of_experts(), of_units(), of_routers(), norms::of_norms()].into_iter().flatten().collect()
}

/// The graphs of all refusals.
pub fn graphs() -> Vec<Graph> {
    all().iter().map(Refusal::graph).collect()
}

#[test]
fn conditions_refuse_what_they_are_for() {
    let table = rules::all().unwrap();
    let mut missing = Vec::new();
    for refusal in all() {
        let found = checked(&refusal.graph(), table, 5, 4);
        missing.extend(
            found
                .differences
                .iter()
                .map(|fault| format!("{}: {}: {fault} by {:?}", refusal.rule, refusal.condition, found.fired)),
        );
        let named = |(rule, condition): &(String, String)| *rule == refusal.rule && condition == refusal.condition;
        if !found.declined.iter().any(named) {
            missing.push(format!("{}: {}, but {:?}", refusal.rule, refusal.condition, found.declined));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

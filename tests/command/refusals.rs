//! What the report says of real exports that were altered in one place, so that they must not fuse as they did: the condition that refused, by name, in
//! words that say what to change.

use super::call::{eglu, fixture};
use eglu::ir::{import::import, json::to_json, text};
use serde_json::Value;
use std::path::Path;

/// The report on an export whose text was altered: each piece, which must be there, in place of another.
fn report(model: &str, alterations: &[(&str, &str)]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let canonical = folder.path().join("canonical.json");
    let path = canonical.to_str().unwrap();
    eglu(["optimize", &fixture(model), "--passes", "canonicalize", "-o", path]).success();
    let graph = import(Path::new(path)).unwrap().graph;
    let mut body = text::print(&graph);
    for (piece, other) in alterations {
        assert!(body.contains(piece), "{piece} is not in\n{body}");
        body = body.replace(piece, other);
    }
    let altered = text::parse(&body).unwrap_or_else(|why| panic!("{why}\n{body}"));
    let (model, report) = (folder.path().join("altered.json"), folder.path().join("report.json"));
    std::fs::write(&model, to_json(&altered).unwrap()).unwrap();
    eglu(["optimize", model.to_str().unwrap(), "--device", "h200", "--report", report.to_str().unwrap()]).success();
    serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap()
}

/// No block is found, and a rule's condition says so.
fn refuses(report: &Value, rule: &str, condition: &str, words: &str) {
    let blocks = report["sites"].as_array().unwrap().iter().filter(|site| site["kind"] == "moe").count();
    assert_eq!(blocks, 0, "{}", report["sites"]);
    let refused = report["refused"].as_array().unwrap();
    let found = refused.iter().find(|miss| miss["rule"] == rule && miss["condition"] == condition);
    let found = found.unwrap_or_else(|| panic!("{rule} is not refused by {condition} in {refused:#?}"));
    assert!(found["why"].as_str().unwrap().contains(words), "{found}");
    assert!(!found["node"].as_str().unwrap().is_empty(), "{found}");
}

const MIXTRAL: &str = "mixtral-grouped_mm.block.pt2";

#[test]
fn ids_that_may_be_negative() {
    let (ids, sort) = ("%reshape_2: i64[32] = reshape(%topk#1) {shape=[32]}", "sort(%reshape_2)");
    let shifted = format!("{ids}\n%shifted: i64[32] = sub(%reshape_2, 1)");
    let report = report(MIXTRAL, &[(ids, &shifted), (sort, "sort(%shifted)")]);
    refuses(&report, "grouped-by-expert", "ids-not-negative", "ids may be negative: all that is known is that they are -1 to 2");
}

#[test]
fn histograms_too_wide_for_f32() {
    let alterations = [
        ("f32[4, 64] = weight", "f32[5000, 64] = weight"),
        ("f32[64, 4] = permute", "f32[64, 5000] = permute"),
        ("f32[16, 4]", "f32[16, 5000]"),
        ("f32[4, 192, 64]", "f32[5000, 192, 64]"),
        ("f32[4, 64, 96]", "f32[5000, 64, 96]"),
        ("f32[4, 64, 192]", "f32[5000, 64, 192]"),
        ("f32[4, 96, 64]", "f32[5000, 96, 64]"),
        ("f32[4] = histc(%to_1) {bins=4, min=0, max=3}", "f32[5000] = histc(%to_1) {bins=5000, min=0, max=4999}"),
        ("i32[4]", "i32[5000]"),
        ("ge(%sort, 4)", "ge(%sort, 5000)"),
        ("minimum(%sort, 3)", "minimum(%sort, 4999)"),
    ];
    let words = "there are 5000 experts, but histc in f32 counts exactly only up to 4096";
    refuses(&report(MIXTRAL, &alterations), "grouped-by-expert", "experts-few", words);
}

#[test]
fn asymmetric_clamps() {
    let report = report("gpt-oss-120b-experts.pt2", &[("maximum(%slice_2, -7.0)", "maximum(%slice_2, -5.0)")]);
    refuses(&report, "clamped-swish-gated", "symmetric-limits", "up is clamped to -5..7 and the gate to 7");
}

#[test]
fn an_index_that_is_no_permutation() {
    let (position, tokens) = ("%floor_divide: i64[32] = floor_divide(%sort#1, 2)", "index(%view, %floor_divide)");
    let halved = format!("%halved: i64[32] = floor_divide(%reshape_2, 2)\n{position}");
    let report = report(MIXTRAL, &[(position, &halved), (tokens, "index(%view, %halved)")]);
    refuses(&report, "grouped-by-expert", "rows-sorted-by-expert", "not known to be a permutation that sorts them by expert");
}

#[test]
fn weights_permuted_otherwise_than_the_rows() {
    let (unsorted, column) = ("%unsqueeze_1: f32[32, 1] = reshape(%index_1)", "%unsqueeze_1: f32[32, 1] = reshape(%reshape_1)");
    let as_they_are = report(MIXTRAL, &[(unsorted, column)]);
    refuses(
        &as_they_are,
        "weighted-sum",
        "weights-permuted-alike",
        "their weights are not: pick the weights by the same index as the rows",
    );

    let (weights, descending) = ("index(%reshape_1, %sort#1)", "index(%reshape_1, %other#1)");
    let sort = "%sort: (i64[32], i64[32]) = sort(%reshape_2) {dim=0, descending=false}";
    let two = format!("{sort}\n%other: (f32[32], i64[32]) = sort(%reshape_1) {{dim=0, descending=true}}");
    let otherwise = report(MIXTRAL, &[(sort, &two), (weights, descending)]);
    refuses(&otherwise, "weighted-sum", "weights-permuted-alike", "their weights are in that of another permutation");
}

#[test]
fn routers_of_other_kinds_are_told_beside_the_block() {
    let (scores, ids) = ("softmax(%linear) {dim=1, log=false, dtype=f32}", "%reshape_2: i64[32] = reshape(%topk#1) {shape=[32]}");
    let table = "%table: i64[128, 2] = weight \"table\"\n%tokens: i64[16] = input\n\
                 %looked_up: i64[16, 2] = index(%table, %tokens) {axes=[0]}\n%reshape_2: i64[32] = reshape(%looked_up) {shape=[32]}";
    let skipped = "%skip: bool[16, 2] = ge(%topk, 0.5)\n%kept: i64[16, 2] = where(%skip, 0, %topk#1)\n\
                   %reshape_2: i64[32] = reshape(%kept) {shape=[32]}";
    for (piece, other, words) in [
        (scores, "exp(%linear)", "experts are not chosen by a softmax or sigmoid of logits, but by `exp`"),
        (ids, table, "experts are looked up in a table, not chosen by scores"),
        (ids, skipped, "chosen ids are replaced by others"),
    ] {
        let report = report(MIXTRAL, &[(piece, other)]);
        assert!(report["sites"].as_array().unwrap().iter().any(|site| site["kind"] == "moe"), "{words}: {}", report["sites"]);
        let refused = report["refused"].as_array().unwrap();
        let named = |miss: &&Value| miss["rule"] == "router" && miss["condition"] == "routed-by-scores";
        let miss = refused.iter().find(named).unwrap_or_else(|| panic!("{words}: {refused:#?}"));
        assert!(miss["why"].as_str().unwrap().contains(words), "{miss}");
    }
}

#[test]
fn the_node_of_a_refusal_can_be_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("canonical.json");
    let canonical = path.to_str().unwrap();
    eglu(["optimize", &fixture(MIXTRAL), "--passes", "canonicalize", "-o", canonical]).success();
    let body = text::print(&import(&path).unwrap().graph).replace("{bins=4, min=0, max=3}", "{bins=4, min=0, max=4}");
    std::fs::write(&path, to_json(&text::parse(&body).unwrap()).unwrap()).unwrap();
    let said = eglu(["optimize", canonical, "--explain", "grouped_mm_fallback"]).success();
    assert!(
        said.stdout.contains("one-bin-each") && said.stdout.contains("4 bins over 0..4, but there are 4 experts"),
        "{}",
        said.stdout
    );
}

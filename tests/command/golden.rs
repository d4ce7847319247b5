//! What `inspect` and `optimize` print, word for word. `UPDATE_EXPECT=1 cargo test` rewrites the texts.

use super::call::{eglu, fixture};
use expect_test::expect;

#[test]
fn inspect_text() {
    let text = eglu(["inspect", &fixture("mixtral-8x7b-grouped_mm.pt2")]).success().stdout;
    expect![[""]].assert_eq(&text);
}

#[test]
fn optimize_summary() {
    let text = eglu(["optimize", &fixture("mixtral-batched_mm.block.pt2"), "--device", "h200"]).success().stdout;
    expect![[""]].assert_eq(&text);
}

#[test]
fn inspect_json_is_json() {
    let text = eglu(["inspect", &fixture("llama.dyn.pt2"), "--format", "json"]).success().stdout;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["inputs"][0]["dtype"], "i64");
    assert_eq!(json["dims"].as_object().unwrap().len(), 2);
    assert!(json["weight_bytes"].as_u64() > Some(0));
}

#[test]
fn drawings_hold_every_node() {
    let model = fixture("llama.block.pt2");
    let dot = eglu(["inspect", &model, "--format", "dot"]).success().stdout;
    let mermaid = eglu(["inspect", &model, "--format", "mermaid"]).success().stdout;
    for name in ["silu", "m.gate_proj.weight", "output 0"] {
        assert!(dot.contains(name) && mermaid.contains(name), "{name}");
    }
    assert!(dot.starts_with("digraph") && mermaid.starts_with("flowchart"));
}

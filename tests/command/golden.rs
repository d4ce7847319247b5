//! What `inspect` and `optimize` print, word for word. `UPDATE_EXPECT=1 cargo test` rewrites the texts.

use super::call::{eglu, fixture};
use expect_test::expect;

#[test]
fn inspect_text() {
    let text = eglu(["inspect", &fixture("mixtral-8x7b-grouped_mm.pt2")]).success().stdout;
    expect![[r#"
        mixtral-8x7b-grouped_mm: 45 nodes, PyTorch 2.11.0+cu130, schema 8.17

        inputs
          0  x  bf16[1, s27, 4096]

        outputs
          0  reshape_3  bf16[1, s27, 4096]

        dims
          s27  1 to 65536

        operators
              7  reshape
              3  cast
              3  index
              3  permute
              3  where
              2  grouped_mm
              2  mul
              2  reduce
              2  slice
              1  cumsum
              1  div
              1  floor_divide
              1  full
              1  ge
              1  histc
              1  index_put
              1  iota
              1  matmul
              1  minimum
              1  silu
              1  softmax
              1  sort
              1  topk

        weights: 2.6 GiB in 3 tensors, none of which the file holds
          m.gate.weight  bf16[8, 4096]  64.0 KiB
          m.experts.gate_up_proj  bf16[8, 28672, 4096]  1.8 GiB
          m.experts.down_proj  bf16[8, 4096, 14336]  896.0 MiB
    "#]]
    .assert_eq(&text);
}

#[test]
fn weights_of_layers_are_one_line() {
    let text = eglu(["inspect", &fixture("llama.lm.pt2")]).success().stdout;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("layers.0-1.")).collect();
    assert!(lines.len() >= 9, "{text}");
    assert!(lines.iter().any(|line| line.contains("layers.0-1.mlp.down_proj.weight  f32[")), "{text}");
    assert!(!text.contains("layers.1."), "{text}");
}

#[test]
fn optimize_summary() {
    let text = eglu(["optimize", &fixture("mixtral-batched_mm.block.pt2"), "--device", "h200"]).success().stdout;
    expect![[r#"
        mixtral-batched_mm.block for h200: 31 ops became 8, 18 kernels became 6

        fused
          kind   node   rule                ops  launches saved  traffic saved
          route  route  router                4               3        1.0 KiB
          moe    moe    mixture-of-experts   18               9        4.7 MiB
    "#]]
    .assert_eq(&text);
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

//! Graphs that rules of norms and losses refuse, each for one condition.

use super::{Refusal, refusal};

/// Norms and softmax by their parts.
pub fn of_norms() -> Vec<Refusal> {
    let mean = |x: &str, d: &str| format!("%m: {d}[6, 1] = reduce(%{x}) {{kind=mean, dims=[1], keepdim=true, dtype={d}}}\n");
    let rms = |square: &str, eps: &str| {
        format!(
            "%e: f32[6, 1] = input\n%x: f32[6, 4] = input\n%q: f32[6, 4] = {square}\n{}%s: f32[6, 1] = add(%m, {eps})\n\
             %r: f32[6, 1] = rsqrt(%s)\n%y: f32[6, 4] = mul(%x, %r)\n",
            mean("q", "f32")
        )
    };
    let layer = |x: &str, w: &str, b: &str| {
        format!("%y: (f32[6, 4], f32[6, 1], f32[6, 1]) = layer_norm({x}, {w}, {b}) {{eps=0.001, dtype=f32}}\n")
    };
    let narrowed =
        |name: &str, shape: &str| format!("%{name}d: f64{shape} = input\n%{name}: f32{shape} = cast(%{name}d) {{dtype=f32}}\n");
    let softmax = |rest: &str| {
        format!(
            "%x: f32[6, 4] = input\n%m: f32[1, 1] = reduce(%x) {{kind=amax, dims=[0, 1], keepdim=true, dtype=f32}}\n%c: f32[6, 4] = sub(%x, %m)\n\
             %e: f32[6, 4] = exp(%c)\n%s: f32[1, 1] = reduce(%e) {{kind=sum, dims=[0, 1], keepdim=true, dtype=f32}}\n{rest}"
        )
    };
    vec![
        refusal(
            "mean-from-sum",
            "accumulates",
            "%x: bf16[6, 4] = input\n%s: bf16[6] = reduce(%x) {kind=sum, dims=[1], keepdim=false, dtype=bf16}\n%y: bf16[6] = div(%s, 4)",
        ),
        refusal(
            "mean-from-sum",
            "same-type",
            "%x: f32[6, 4] = input\n%s: i64[6] = reduce(%x) {kind=sum, dims=[1], keepdim=false, dtype=i64}\n%y: f32[6] = div(%s, 4)",
        ),
        refusal("inverse-root", "same-type", "%x: i64[6] = input\n%s: f32[6] = sqrt(%x)\n%y: f32[6] = reciprocal(%s)"),
        refusal("rms-norm-of-product", "constant-epsilon", rms("mul(%x, %x)", "%e")),
        refusal("rms-norm-of-power", "constant-epsilon", rms("pow(%x, 2)", "%e")),
        refusal(
            "rms-norm-of-upcast",
            "widened",
            narrowed("x", "[6, 4]") + "%y: f32[6, 4] = rms_norm(%x, none) {eps=0.001, dtype=f32}",
        ),
        refusal(
            "rms-norm-weighted",
            "weight-of-last-dim",
            "%x: f32[6, 4] = input\n%w: f32[6, 1] = input\n%n: f32[6, 4] = rms_norm(%x, none) {eps=0.001, dtype=f32}\n%y: f32[6, 4] = mul(%n, %w)",
        ),
        refusal(
            "layer-norm-widened",
            "widened",
            format!(
                "%d: f64[6, 4] = input\n%x: f32[6, 4] = cast(%d) {{dtype=f32}}\n{}%c: f32[6, 4] = sub(%x, %m)\n\
                 %y: f32[6, 4] = rms_norm(%c, none) {{eps=0.001, dtype=f32}}",
                mean("d", "f32")
            ),
        ),
        refusal(
            "layer-norm-biased",
            "bias-of-last-dim",
            format!("%x: f32[6, 4] = input\n%b: f32[6, 1] = input\n{}%z: f32[6, 4] = add(%y, %b)", layer("%x", "none", "none")),
        ),
        refusal("layer-norm-of-upcast", "widened", narrowed("x", "[6, 4]") + &layer("%x", "none", "none")),
        refusal(
            "layer-norm-of-upcast-weight",
            "widened",
            format!("%x: f32[6, 4] = input\n{}{}", narrowed("w", "[4]"), layer("%x", "%w", "none")),
        ),
        refusal(
            "layer-norm-of-upcast-bias",
            "widened",
            format!("%x: f32[6, 4] = input\n%w: f32[4] = input\n{}{}", narrowed("b", "[4]"), layer("%x", "%w", "%b")),
        ),
        refusal("softmax-from-parts", "one-dim", softmax("%y: f32[6, 4] = div(%e, %s)")),
        refusal("log-softmax-from-parts", "one-dim", softmax("%l: f32[1, 1] = log(%s)\n%y: f32[6, 4] = sub(%c, %l)")),
    ]
}

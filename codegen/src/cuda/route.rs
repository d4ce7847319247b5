//! Routers and the weighted sum over a token's experts.

use super::{
    ctype,
    emitter::{Emitter, elements, flat, tensor},
    error::Emit,
    kernel::{Code, Header, Kernel},
};
use crate::Step;
use eglu_ir::ops::{Combine, Route, RouteScore};

/// One warp for each token: scores in f32, the k best one after another (ties go to the lowest expert), then their weights.
pub(super) fn route(emitter: &mut Emitter, step: &Step, op: &Route) -> Emit<()> {
    let (logits, weights, ids) = (tensor(step, 0)?, &step.outputs[0], &step.outputs[1]);
    let mut kernel = Kernel::new(format!("route_{}", logits.dtype));
    let from = kernel.read(logits)?;
    let (to, chosen) = (kernel.write(weights)?, kernel.write(ids)?);
    let tokens = logits.layout.shape[0].clone();
    let (count, experts) = (kernel.dim(&tokens), kernel.dim(&logits.layout.shape[1]));
    let row = kernel.offset(&["t".into()], &logits.layout.strides[..1]);
    let at = kernel.offset(&["e".into()], &logits.layout.strides[1..]);
    let logit = format!("(float)up({from}[{row} + {at}])");
    let statistics = match op.score {
        RouteScore::Softmax => {
            "AmaxState<float> top;\nfor (i64 e = lane; e < experts; e += 32) top.add(logit(e), e);\nwarp_merge(top);\n\
             SumState<float> sum;\nfor (i64 e = lane; e < experts; e += 32) sum.add(exp_(logit(e) - top.value), e);\nwarp_merge(sum);\n\
             const auto score = [&](i64 e) { return exp_(logit(e) - top.value) / sum.value; };\n"
        }
        RouteScore::TopKSoftmax => "const auto score = logit;\n",
        RouteScore::Sigmoid => "const auto score = [&](i64 e) { return sigmoid_(logit(e)); };\n",
    };
    // The weight of choice j from its score, once all are known.
    let (total, weight) = match (op.score, op.renormalize) {
        (RouteScore::TopKSoftmax, _) => {
            ("if (j == 0) best = value;\ntotal += exp_(value - best);\n", "exp_(score(e) - best) / total")
        }
        (_, true) => ("total += value;\n", "score(e) / total"),
        (_, false) => ("", "score(e)"),
    };
    let (k, stored) = (op.k, ctype::storage(op.dtype)?);
    let body = format!(
        "const i64 t = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nconst int lane = threadIdx.x % 32;\nconst i64 experts = {experts};\n\
         if (t >= {count}) return;\nconst auto logit = [&](i64 e) {{ return {logit}; }};\n{statistics}\
         float best = 0, total = 0;\nNarrow last{{}};\ni32 mine[{held}];\n#pragma unroll\nfor (int j = 0; j < {k}; j++) {{\n\
         Choice choice{{Narrow::last()}};\nfor (i64 e = lane; e < experts; e += 32) {{\n\
         const Narrow next = Narrow::make(~order_key(score(e)), e);\n\
         if ((j == 0 || last < next) && next < choice.entry) choice.entry = next;\n}}\nwarp_merge(choice);\nlast = choice.entry;\n\
         const float value = score(last.position());\n{total}if (lane == j % 32) mine[j / 32] = (i32)last.position();\n}}\n\
         #pragma unroll\nfor (int j = 0; j < {k}; j++) {{\nif (lane != j % 32) continue;\nconst i64 e = mine[j / 32];\n\
         {chosen}[t * {k} + j] = e;\n{to}[t * {k} + j] = cast<{stored}>({weight});\n}}\n",
        held = k.div_ceil(32).max(1),
    );
    let items = "struct Choice {\n    Narrow entry;\n    DEVICE void merge(const Choice& other) { if (other.entry < entry) entry = other.entry; }\n};\n";
    let headers = vec![Header::Math, Header::Warp, Header::Reduce, Header::Sort];
    emitter.launch(
        kernel,
        Code { headers, items: items.into(), body, threads: [256, 1], ..Code::default() },
        flat(tokens.ceil_div(8)),
    );
    Ok(())
}

/// `out[t] = Σ_j weights[t, j] · y[t·k + j]` in f32.
pub(super) fn combine(emitter: &mut Emitter, step: &Step, op: &Combine) -> Emit<()> {
    let (y, weights, out) = (tensor(step, 0)?, tensor(step, 1)?, &step.outputs[0]);
    let mut kernel = Kernel::new(format!("combine_{}", op.dtype));
    let (rows, scales, to) = (kernel.read(y)?, kernel.read(weights)?, kernel.write(out)?);
    let (width, choices) = (kernel.dim(&y.layout.shape[1]), kernel.dim(&weights.layout.shape[1]));
    let total = kernel.dim(&elements(out));
    let row = kernel.offset(&[format!("(t * {choices} + j)"), "h".into()], &y.layout.strides);
    let scale = kernel.offset(&["t".into(), "j".into()], &weights.layout.strides);
    let ty = if y.dtype.size() == 8 { "double" } else { "float" };
    let body = format!(
        "const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at >= {total}) return;\nconst i64 t = at / {width}, h = at % {width};\n\
         {ty} sum = 0;\nfor (i64 j = 0; j < {choices}; j++) sum += ({ty})up({scales}[{scale}]) * ({ty})up({rows}[{row}]);\n\
         {to}[at] = cast<{}>(sum);\n",
        ctype::storage(op.dtype)?
    );
    let code = Code { headers: vec![Header::Math], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(elements(out).ceil_div(256)));
    Ok(())
}

//! Routers and the weighted sum over a token's experts.

use super::{
    ctype,
    emitter::{Emitter, elements, flat, optional, tensor},
    error::Emit,
    kernel::{Code, Header, Kernel, divisible},
    program::{self, Results},
};
use crate::{Step, TensorRef};
use eglu_ir::{
    DType, Dim,
    ops::{Combine, Route, RouteScore},
};

/// What a warp does for one token: scores in f32, the k best one after another (ties go to the lowest expert), then their weights.
pub(super) struct Choice<'a> {
    op: &'a Route,
    logits: DType,
    experts: &'a Dim,
    bias: Option<&'a TensorRef>,
    weights: &'a TensorRef,
    ids: &'a TensorRef,
}

impl<'a> Choice<'a> {
    /// The choice of a router's step, from logits of this dtype for so many experts.
    pub fn of(step: &'a Step, op: &'a Route, logits: DType, experts: &'a Dim) -> Choice<'a> {
        Choice { op, logits, experts, bias: optional(step, 1), weights: &step.outputs[0], ids: &step.outputs[1] }
    }

    /// Headers that its text needs.
    pub fn headers() -> Vec<Header> {
        vec![Header::Math, Header::Warp, Header::Reduce, Header::Sort]
    }

    /// Functions and types that its text needs.
    pub fn items(&self) -> Emit<String> {
        let entry = "struct Choice {\n    Narrow entry;\n    DEVICE void merge(const Choice& other) { if (other.entry < entry) entry = other.entry; }\n};\n";
        Ok(format!("{entry}{}", program::function("weigh", &self.op.weigh, Results::Stored)?))
    }

    /// Statements for token `t`, by lane `lane`. `logit` is an expression of `e`, an expert; `each` is done with every expert `e` that is
    /// chosen, by one lane.
    pub fn text(&self, kernel: &mut Kernel, logit: &str, each: &str) -> Emit<String> {
        let (op, bias_dtype) = (self.op, self.bias.map(|bias| bias.dtype));
        let choice = match self.bias {
            Some(bias) => {
                let offset = kernel.offset(&["e".into()], &bias.layout.strides);
                let sum = format!("score(e) + (float)up({}[{offset}])", kernel.read(bias)?);
                rounded(&sum, op.choice_dtype(self.logits, bias_dtype))?
            }
            None => "score(e)".into(),
        };
        let (to, chosen) = (kernel.write(self.weights)?, kernel.write(self.ids)?);
        let value_dtype = op.value_dtype(self.logits, bias_dtype);
        let held = self.experts.as_const().filter(|&experts| experts <= MOST_HELD && op.k <= 32);
        let choose =
            held.map_or_else(|| chosen_by_rank(op, value_dtype), |experts| chosen_in_registers(op, experts, value_dtype))?;
        Ok(format!(
            "const i64 experts = {experts};\nconst auto logit = [&](i64 e) {{ return (float)up({logit}); }};\n{}\
             const auto biased = [&](i64 e) {{ return {choice}; }};\n{}{choose}\
             #pragma unroll\nfor (int j = 0; j < {k}; j++) {{\nif (lane != j % 32) continue;\nconst i64 e = mine[j / 32];\n\
             {chosen}[t * {k} + j] = e;\n{each}{} weight;\nweigh({}, {}, weight);\n{to}[t * {k} + j] = weight;\n}}\n",
            scores_of(op)?,
            choice_of(op, self.experts, op.choice_dtype(self.logits, bias_dtype))?,
            ctype::storage(self.weights.dtype)?,
            if held.is_some() { "value".into() } else { value_of(op, value_dtype)? },
            rounded("total", value_dtype)?,
            experts = kernel.dim(self.experts),
            k = op.k,
        ))
    }
}

/// A warp for each token.
pub(super) fn route(emitter: &mut Emitter, step: &Step, op: &Route) -> Emit<()> {
    let logits = tensor(step, 0)?;
    let choice = Choice::of(step, op, logits.dtype, &logits.layout.shape[1]);
    let mut kernel = Kernel::new(format!("route_{}", logits.dtype));
    let from = kernel.read(logits)?;
    let tokens = logits.layout.shape[0].clone();
    let count = kernel.dim(&tokens);
    let at = kernel.offset(&["t".into(), "e".into()], &logits.layout.strides);
    let choose = choice.text(&mut kernel, &format!("{from}[{at}]"), "")?;
    let overlaps = emitter.target.arch >= 90;
    let wait = if overlaps { format!("wait_for_kernel_before();\nread_from_here({from});\n") } else { String::new() };
    let body = format!(
        "{wait}const i64 t = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nconst int lane = threadIdx.x % 32;\nif (t >= {count}) return;\n{choose}"
    );
    let mut headers = Choice::headers();
    headers.extend(overlaps.then_some(Header::Hopper));
    emitter.launch(
        kernel,
        Code { headers, items: choice.items()?, body, threads: [256, 1], overlaps, ..Code::default() },
        flat(tokens.ceil_div(8)),
    );
    Ok(())
}

/// Up to so many experts a warp keeps what they are chosen by in registers.
const MOST_HELD: i64 = 1024;

/// Statements that leave expert j in `mine[0]` of lane j, with its `value`, and the values' `total`. No key of a number is 0.
fn chosen_in_registers(op: &Route, experts: i64, dtype: DType) -> Emit<String> {
    let sum = |name: &str, value: &str| {
        let add = format!("{name} += __shfl_sync(0xffffffffu, {value}, j);\n");
        format!("float {name} = 0;\n#pragma unroll\nfor (int j = 0; j < {}; j++) {add}", op.k)
    };
    let value = match op.score {
        RouteScore::TopKSoftmax => format!(
            "const float grown = exp_(logit(mine[0]) - __shfl_sync(0xffffffffu, logit(mine[0]), 0));\n{}const float value = {};\n",
            sum("all", "grown"),
            rounded("grown / all", dtype)?
        ),
        _ => format!("const i64 e = mine[0];\nconst float value = {};\n", value_of(op, dtype)?),
    };
    Ok(format!(
        "u32 keys[{held}];\n#pragma unroll\nfor (int i = 0; i < {held}; i++) keys[i] = i * 32 + lane < experts ? order_key(by(i * 32 + lane)) : 0u;\n\
         i32 mine[1] = {{0}};\n#pragma unroll 1\nfor (int j = 0; j < {k}; j++) {{\nu32 best = 0, at = {held} * 32;\n\
         #pragma unroll\nfor (int i = 0; i < {held}; i++) best = keys[i] > best ? keys[i] : best;\nbest = __reduce_max_sync(0xffffffffu, best);\n\
         #pragma unroll\nfor (int i = {held} - 1; i >= 0; i--) if (keys[i] == best) at = i * 32 + lane;\nat = __reduce_min_sync(0xffffffffu, at);\n\
         #pragma unroll\nfor (int i = 0; i < {held}; i++) if (at == i * 32 + lane) keys[i] = 0;\nif (lane == j) mine[0] = (i32)at;\n}}\n\
         {value}{}",
        sum("total", "value"),
        held = experts.div_euclid(32) + i64::from(experts % 32 > 0),
        k = op.k,
    ))
}

/// The same by ranks, any number of experts and choices: expert j is `mine[j / 32]` of lane j % 32.
fn chosen_by_rank(op: &Route, dtype: DType) -> Emit<String> {
    let (values, total) = values_of(op, dtype)?;
    Ok(format!(
        "float best = 0, total = 0;\nNarrow last{{}};\ni32 mine[{held}];\n#pragma unroll\nfor (int j = 0; j < {k}; j++) {{\n\
         Choice choice{{Narrow::last()}};\nfor (i64 e = lane; e < experts; e += 32) {{\n\
         const Narrow next = Narrow::make(~order_key(by(e)), e);\n\
         if ((j == 0 || last < next) && next < choice.entry) choice.entry = next;\n}}\nwarp_merge(choice);\nlast = choice.entry;\n\
         {values}if (lane == j % 32) mine[j / 32] = (i32)last.position();\n}}\n{total}",
        held = op.k.div_ceil(32).max(1),
        k = op.k,
    ))
}

/// The f32 expression as a value that was stored in `dtype`.
fn rounded(value: &str, dtype: DType) -> Emit<String> {
    Ok(match dtype {
        DType::F32 => value.into(),
        _ => format!("up(cast<{}>({value}))", ctype::storage(dtype)?),
    })
}

/// Statements that define `score(e)`.
fn scores_of(op: &Route) -> Emit<String> {
    let define = |value: String| format!("const auto score = [&](i64 e) {{ return {value}; }};\n");
    Ok(match op.score {
        RouteScore::Softmax => format!(
            "AmaxState<float> top;\nfor (i64 e = lane; e < experts; e += 32) top.add(logit(e), e);\nwarp_merge(top);\n\
             SumState<float> sum;\nfor (i64 e = lane; e < experts; e += 32) sum.add(exp_(logit(e) - top.value), e);\nwarp_merge(sum);\n{}",
            define(rounded("exp_(logit(e) - top.value) / sum.value", op.scores)?)
        ),
        RouteScore::Sigmoid => define(rounded("sigmoid_(logit(e))", op.scores)?),
        RouteScore::TopKSoftmax | RouteScore::TopKSigmoid => "const auto score = logit;\n".into(),
    })
}

/// Statements that define `by(e)`, what experts are chosen by: with groups, a warp ranks them first and a bit for each says whether it stays.
fn choice_of(op: &Route, experts: &Dim, dtype: DType) -> Emit<String> {
    let (Some(groups), Some(experts)) = (op.groups(), experts.as_const()) else { return Ok("const auto by = biased;\n".into()) };
    let width = experts / groups.count as i64;
    let held = groups.count.div_ceil(32);
    // The best of a group, kept in descending order while its experts pass by.
    let insert = "float next = biased(g * {width} + i);\n#pragma unroll\nfor (int b = 0; b < {best}; b++) {\n\
         if (i > b ? order_key(next) > order_key(top[b]) : i == b) {\nconst float less = top[b];\ntop[b] = next;\nnext = less;\n}\n}\n";
    let insert = insert.replace("{width}", &format!("{width}LL")).replace("{best}", &groups.best.to_string());
    Ok(format!(
        "float sums[{held}];\n#pragma unroll\nfor (int h = 0; h < {held}; h++) {{\nconst int g = h * 32 + lane;\n\
         if (g >= {count}) continue;\nfloat top[{best}] = {{}};\nfor (int i = 0; i < {width}; i++) {{\n{insert}}}\nfloat sum = 0;\n\
         #pragma unroll\nfor (int b = 0; b < {best}; b++) sum += top[b];\nsums[h] = {sum};\n}}\n\
         u32 kept[{held}] = {{}};\nNarrow reached{{}};\nfor (int j = 0; j < {keep}; j++) {{\nChoice choice{{Narrow::last()}};\n\
         #pragma unroll\nfor (int h = 0; h < {held}; h++) {{\nconst int g = h * 32 + lane;\nif (g >= {count}) continue;\n\
         const Narrow next = Narrow::make(~order_key(sums[h]), g);\n\
         if ((j == 0 || reached < next) && next < choice.entry) choice.entry = next;\n}}\nwarp_merge(choice);\nreached = choice.entry;\n\
         #pragma unroll\nfor (int h = 0; h < {held}; h++) if (reached.position() / 32 == h) kept[h] |= 1u << reached.position() % 32;\n}}\n\
         const auto by = [&](i64 e) {{\nconst i64 g = e / {width};\nu32 bits = 0;\n\
         #pragma unroll\nfor (int h = 0; h < {held}; h++) if (g / 32 == h) bits = kept[h];\n\
         return bits >> g % 32 & 1 ? biased(e) : {masked};\n}};\n",
        count = groups.count,
        best = groups.best,
        keep = groups.kept,
        sum = rounded("sum", dtype)?,
        masked = ctype::literal(op.masked, DType::F32)?,
    ))
}

/// The value of expert `e`, once all are chosen.
fn value_of(op: &Route, dtype: DType) -> Emit<String> {
    Ok(match op.score {
        RouteScore::Softmax | RouteScore::Sigmoid => if op.gathered { "score(e)" } else { "by(e)" }.into(),
        RouteScore::TopKSigmoid => rounded("sigmoid_(logit(e))", dtype)?,
        // The softmax's own sum.
        RouteScore::TopKSoftmax => rounded("exp_(logit(e) - best) / all", dtype)?,
    })
}

/// What is summed up for each choice as it is found, and what is done once all are known.
fn values_of(op: &Route, dtype: DType) -> Emit<(String, String)> {
    let sum = |value: &str| format!("total += {value};\n");
    let value = value_of(op, dtype)?;
    Ok(match op.score {
        RouteScore::TopKSoftmax => {
            let first = "if (j == 0) best = logit(last.position());\ntotal += exp_(logit(last.position()) - best);\n";
            // The sum of the values follows that of the softmax.
            let after = format!(
                "const float all = total;\ntotal = 0;\n#pragma unroll\nfor (int j = 0; j < {}; j++) {{\n\
                 const i64 e = __shfl_sync(0xffffffffu, mine[j / 32], j % 32);\n{}}}\n",
                op.k,
                sum(&value)
            );
            (first.into(), after)
        }
        _ => (format!("{{\nconst i64 e = last.position();\n{}}}\n", sum(&value)), String::new()),
    })
}

/// `out[t] = Σ_j weights[t, j] · y[t·k + j]` in f32.
pub(super) fn combine(emitter: &mut Emitter, step: &Step, op: &Combine) -> Emit<()> {
    let (y, weights, out) = (tensor(step, 0)?, tensor(step, 1)?, &step.outputs[0]);
    let mut kernel = Kernel::new(format!("combine_{}", op.dtype));
    let (rows, scales, to) = (kernel.read(y)?, kernel.read(weights)?, kernel.write(out)?);
    let (columns, choices) = (&y.layout.shape[1], &weights.layout.shape[1]);
    // Neighbouring columns move together where they lie so.
    let widest = 16 / y.dtype.size().max(1) as i64;
    let aligned = [&y.layout.strides[0], &y.layout.offset, columns].iter().all(|dim| divisible(dim, widest));
    let together = if aligned && y.layout.strides[1].is(1) && y.dtype.size() <= 4 { widest } else { 1 };
    let (width, total) = (kernel.dim(columns), kernel.dim(&elements(out)));
    let count = kernel.dim(choices);
    let row = kernel.offset(&[format!("(t * {count} + j)"), "h".into()], &y.layout.strides);
    let scale = kernel.offset(&["t".into(), "j".into()], &weights.layout.strides);
    let ty = if y.dtype.size() == 8 { "double" } else { "float" };
    let (stored, target) = (ctype::storage(y.dtype)?, ctype::storage(op.dtype)?);
    // A known number of rows is asked for all at once.
    let unroll = if choices.as_const().is_some_and(|n| n <= 16) { "#pragma unroll\n" } else { "" };
    let body = format!(
        "const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * {together};\nif (at >= {total}) return;\nconst i64 t = at / {width}, h = at % {width};\n\
         {ty} sum[{together}] = {{}};\n{unroll}for (i64 j = 0; j < {count}; j++) {{\nconst {ty} weight = ({ty})up({scales}[{scale}]);\n\
         const Pack<{stored}, {together}> row = *(const Pack<{stored}, {together}>*)&{rows}[{row}];\n\
         #pragma unroll\nfor (int e = 0; e < {together}; e++) sum[e] += weight * ({ty})up(row.at[e]);\n}}\n\
         Pack<{target}, {together}> result;\n#pragma unroll\nfor (int e = 0; e < {together}; e++) result.at[e] = cast<{target}>(sum[e]);\n\
         *(Pack<{target}, {together}>*)({to} + at) = result;\n",
    );
    let code = Code { headers: vec![Header::Math], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(elements(out).ceil_div(256 * together)));
    Ok(())
}

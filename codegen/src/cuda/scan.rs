//! Running sums and histograms.

use super::{
    ctype,
    emitter::{Emitter, elements, flat, tensor},
    error::Emit,
    kernel::{Code, Header, Kernel},
    lines::Lines,
    loops::Loop,
};
use crate::Step;
use eglu_ir::{
    Dim,
    ops::{Cumsum, Histc},
    types::numel,
};

/// A block for each line, 1024 elements at a time; short lines take one thread.
pub(super) fn cumsum(emitter: &mut Emitter, step: &Step, op: &Cumsum) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let lines = Lines::new(&[x, y], op.dim);
    let mut kernel = Kernel::new(format!("cumsum_{}", op.dtype));
    let (from, to) = (kernel.read(x)?, kernel.write(y)?);
    let (ty, stored) = (ctype::opmath(ctype::accumulator(op.dtype))?, ctype::storage(op.dtype)?);
    let starts = lines.starts(&mut kernel)?;
    let (source, target) = (lines.element(&mut kernel, 0, &from, "r"), lines.element(&mut kernel, 1, &to, "r"));
    let (length, count) = (kernel.dim(&lines.length), kernel.dim(&lines.count));
    let value = format!("({ty})up(cast<{stored}>(up({source})))");
    let short = lines.length.as_const().is_some_and(|n| n <= 32);
    let (body, grid) = if short {
        let body = format!(
            "const i64 line = (i64)blockIdx.x * 256 + threadIdx.x;\nif (line >= {count}) return;\n{starts}{ty} sum = 0;\n\
             for (i64 r = 0; r < {length}; r++) {{\nsum += {value};\n{target} = cast<{stored}>(sum);\n}}\n"
        );
        (body, lines.count.ceil_div(256))
    } else {
        let body = format!(
            "__shared__ {ty} sums[8], carried;\nconst i64 line = blockIdx.x;\n{starts}{ty} carry = 0;\n\
             for (i64 base = 0; base < {length}; base += 1024) {{\n\
             const i64 first = base + threadIdx.x * 4;\n{ty} part[4], sum = 0;\n\
             #pragma unroll\nfor (int e = 0; e < 4; e++) {{\nconst i64 r = first + e;\nif (r < {length}) sum += {value};\npart[e] = sum;\n}}\n\
             const {ty} through = block_scan<256>(sum, sums);\nconst {ty} before = carry + (through - sum);\n\
             #pragma unroll\nfor (int e = 0; e < 4; e++) {{\nconst i64 r = first + e;\n\
             if (r < {length}) {target} = cast<{stored}>(before + part[e]);\n}}\n\
             if (threadIdx.x == 255) carried = through;\n__syncthreads();\ncarry += carried;\n__syncthreads();\n}}\n"
        );
        (body, lines.count.clone())
    };
    let code = Code { headers: vec![Header::Math, Header::Scan], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(grid));
    Ok(())
}

/// Counts in 64-bit scratch by integer atomics (their order does not matter), then stores them in the dtype of x.
pub(super) fn histc(emitter: &mut Emitter, step: &Step, op: &Histc) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let bins = Dim::from(op.bins as i64);
    // The counts, then the bounds as f64.
    let scratch = emitter.scratch("histc", (bins.clone() + Dim::from(2)) * Dim::from(8));
    let total = elements(x);
    let walk = Loop::new(&x.layout.shape, &[x.layout.strides.to_vec()]);
    let (low, high) = (op.min.as_f64(), op.max.as_f64());

    let mut kernel = Kernel::new(format!("histc_range_{}", x.dtype));
    let from = kernel.read(x)?;
    let counts = kernel.scratch("u64", scratch);
    let (split, names) = kernel.split("at", "i", &walk.shape);
    let offset = kernel.offset(&names, &walk.strides[0]);
    let n = kernel.dim(&total);
    // Equal bounds mean those of the data (torch.histc).
    let bounds = if low == high {
        format!(
            "__shared__ alignas(16) char raw[32 * sizeof(AminState<double>)];\nAminState<double> low;\nAmaxState<double> high;\n\
             for (i64 at = threadIdx.x; at < {n}; at += 1024) {{\n{split}const double value = (double)up({from}[{offset}]);\n\
             low.add(value, at);\nhigh.add(value, at);\n}}\nblock_merge<1024>(low, (AminState<double>*)raw);\n\
             block_merge<1024>(high, (AmaxState<double>*)raw);\ndouble from = low.value, to = high.value;\n\
             if (from == to) {{ from -= 1; to += 1; }}\n"
        )
    } else {
        format!(
            "const double from = {}, to = {};\n",
            ctype::literal(eglu_ir::Scalar::Float(low), eglu_ir::DType::F64)?,
            ctype::literal(eglu_ir::Scalar::Float(high), eglu_ir::DType::F64)?
        )
    };
    let body = format!(
        "for (i64 b = threadIdx.x; b < {b}; b += 1024) {counts}[b] = 0;\n{bounds}\
         if (threadIdx.x == 0) {{\n{counts}[{b}] = (u64)__double_as_longlong(from);\n{counts}[{b} + 1] = (u64)__double_as_longlong(to);\n}}\n",
        b = op.bins
    );
    let headers = vec![Header::Math, Header::Warp, Header::Reduce];
    emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(Dim::from(1)));

    let mut kernel = Kernel::new(format!("histc_count_{}", x.dtype));
    let from = kernel.read(x)?;
    let counts = kernel.scratch("u64", scratch);
    let (split, names) = kernel.split("at", "i", &walk.shape);
    let offset = kernel.offset(&names, &walk.strides[0]);
    let n = kernel.dim(&total);
    let body = format!(
        "const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at >= {n}) return;\n{split}\
         const double low = __longlong_as_double((i64){counts}[{b}]), high = __longlong_as_double((i64){counts}[{b} + 1]);\n\
         const double value = (double)up({from}[{offset}]);\nif (!(value >= low && value <= high)) return;\n\
         i64 bin = (i64)((value - low) * {b} / (high - low));\nif (bin >= {b}) bin = {b} - 1;\natomicAdd({counts} + bin, 1ull);\n",
        b = op.bins
    );
    let code = Code { headers: vec![Header::Math], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(total.ceil_div(256)));

    let mut kernel = Kernel::new(format!("histc_store_{}", x.dtype));
    let counts = kernel.scratch("const u64", scratch);
    let to = kernel.write(y)?;
    let n = kernel.dim(&numel(&y.layout.shape));
    let body = format!(
        "const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at < {n}) {to}[at] = cast<{}>({counts}[at]);\n",
        ctype::storage(y.dtype)?
    );
    emitter.launch(kernel, Code { body, threads: [256, 1], ..Code::default() }, flat(bins.ceil_div(256)));
    Ok(())
}

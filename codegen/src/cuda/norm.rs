//! Softmax and RMSNorm: a warp or a block for each row.

use super::{
    ctype,
    emitter::{Emitter, flat, optional, tensor},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel},
    lines::Lines,
};
use crate::Step;
use eglu_ir::{
    DType, Dim,
    ops::{RmsNorm, Softmax},
};

/// How a row is walked: by one warp of eight, or by the whole block.
struct Walk {
    begin: String,
    first: &'static str,
    step: u32,
    merge: &'static str,
    grid: Dim,
}

fn walk(kernel: &mut Kernel, lines: &Lines) -> Walk {
    let short = lines.length.as_const().is_some_and(|n| n <= 1024);
    let count = kernel.dim(&lines.count);
    if short {
        let begin = format!("const i64 line = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nif (line >= {count}) return;\n");
        Walk { begin, first: "threadIdx.x % 32", step: 32, merge: "warp_merge", grid: lines.count.ceil_div(8) }
    } else {
        let begin = "const i64 line = blockIdx.x;\n".to_string();
        Walk { begin, first: "threadIdx.x", step: 256, merge: "merge_all", grid: lines.count.clone() }
    }
}

/// `merge_all(state)` for a block of 256.
const MERGE_ALL: &str = "template <class S>\nDEVICE void merge_all(S& state) {\n    __shared__ alignas(16) char raw[8 * sizeof(S)];\n    \
                         block_merge<256>(state, (S*)raw);\n}\n";

fn finish(emitter: &mut Emitter, kernel: Kernel, body: String, grid: Dim) {
    let headers = vec![Header::Math, Header::Warp, Header::Reduce];
    let code = Code { headers, items: MERGE_ALL.into(), body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(grid));
}

/// Softmax along one dim, in the opmath of the result's dtype.
pub(super) fn softmax(emitter: &mut Emitter, step: &Step, op: &Softmax) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let lines = Lines::new(&[x, y], op.dim);
    let mut kernel = Kernel::new(format!("{}softmax_{}", if op.log { "log_" } else { "" }, op.dtype));
    let (from, to) = (kernel.read(x)?, kernel.write(y)?);
    let (ty, stored) = (ctype::opmath(op.dtype)?, ctype::storage(op.dtype)?);
    let walk = walk(&mut kernel, &lines);
    let starts = lines.starts(&mut kernel)?;
    let (source, target) = (lines.element(&mut kernel, 0, &from, "r"), lines.element(&mut kernel, 1, &to, "r"));
    let length = kernel.dim(&lines.length);
    let value = format!("up(cast<{stored}>(up({source})))");
    let each = format!("for (i64 r = {}; r < {length}; r += {})", walk.first, walk.step);
    let result = if op.log { "value - top.value - log_sum" } else { "exp_(value - top.value) / sum.value" };
    let log_sum = if op.log { format!("const {ty} log_sum = log_(sum.value);\n") } else { String::new() };
    let body = format!(
        "{}{starts}AmaxState<{ty}> top;\n{each} top.add({value}, r);\n{merge}(top);\n\
         SumState<{ty}> sum;\n{each} sum.add(exp_({value} - top.value), r);\n{merge}(sum);\n{log_sum}\
         {each} {{\nconst {ty} value = {value};\n{target} = cast<{stored}>({result});\n}}\n",
        walk.begin,
        merge = walk.merge,
    );
    finish(emitter, kernel, body, walk.grid);
    Ok(())
}

/// RMSNorm over the last dim.
pub(super) fn rms_norm(emitter: &mut Emitter, step: &Step, op: &RmsNorm) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let Some(last) = x.layout.shape.len().checked_sub(1) else { return Err(Unsupported::new("x must have at least one dim")) };
    let lines = Lines::new(&[x, y], last);
    let mut kernel = Kernel::new(format!("rms_norm_{}", op.dtype));
    let (from, to) = (kernel.read(x)?, kernel.write(y)?);
    let compute = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (ty, stored) = (ctype::opmath(compute)?, ctype::storage(op.dtype)?);
    let weight = match optional(step, 1) {
        Some(w) => {
            let pointer = kernel.read(w)?;
            format!(" * ({ty})up({pointer}[{}])", kernel.offset(&["r".into()], &w.layout.strides))
        }
        None => String::new(),
    };
    let walk = walk(&mut kernel, &lines);
    let starts = lines.starts(&mut kernel)?;
    let (source, target) = (lines.element(&mut kernel, 0, &from, "r"), lines.element(&mut kernel, 1, &to, "r"));
    let length = kernel.dim(&lines.length);
    let each = format!("for (i64 r = {}; r < {length}; r += {})", walk.first, walk.step);
    let body = format!(
        "{}{starts}SumState<{ty}> sum;\n{each} {{\nconst {ty} value = ({ty})up({source});\nsum.add(value * value, r);\n}}\n{}(sum);\n\
         const {ty} scale = 1 / sqrt_(sum.value / ({ty}){length} + {});\n\
         {each} {target} = cast<{stored}>(({ty})up({source}) * scale{weight});\n",
        walk.begin,
        walk.merge,
        ctype::literal(op.eps, compute)?,
    );
    finish(emitter, kernel, body, walk.grid);
    Ok(())
}

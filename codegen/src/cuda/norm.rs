//! Softmax, RMSNorm and LayerNorm: a warp or a block for each row, which stays in registers where it fits.

use super::{
    ctype,
    emitter::{Emitter, flat, optional, tensor},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel, divisible},
    lines::Lines,
};
use crate::{Step, TensorRef};
use eglu_ir::{
    DType, Dim,
    ops::{LayerNorm, RmsNorm, Softmax},
};

/// The most values that a thread keeps of its row.
const HELD: i64 = 32;

/// How a row is walked.
struct Walk {
    /// Statements that set `line` and `lane`.
    begin: String,
    /// Threads that share a row.
    threads: i64,
    /// Neighbouring elements that a thread takes at once.
    width: i64,
    /// Values that a thread keeps, if the row's length is known and short enough.
    held: Option<i64>,
    merge: &'static str,
    grid: Dim,
    length: String,
}

impl Walk {
    fn new(kernel: &mut Kernel, lines: &Lines, width: i64) -> Walk {
        let short = lines.length.as_const().is_some_and(|n| n <= 1024);
        let (count, length) = (kernel.dim(&lines.count), kernel.dim(&lines.length));
        let threads = if short { 32 } else { 256 };
        let held = lines.length.as_const().map(|n| (n + threads * width - 1) / (threads * width) * width).filter(|&n| n <= HELD);
        let (begin, merge, grid) = if short {
            let begin = "const i64 line = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nconst int lane = threadIdx.x % 32;\n";
            (format!("{begin}if (line >= {count}) return;\n"), "warp_merge", lines.count.ceil_div(8))
        } else {
            ("const i64 line = blockIdx.x;\nconst int lane = threadIdx.x;\n".to_string(), "merge_all", lines.count.clone())
        };
        Walk { begin, threads, width, held, merge, grid, length }
    }

    /// A loop over the groups of this thread: `body` sees `first`, the position of the group's first element, and `i`, the group's number.
    fn groups(&self, body: &str) -> String {
        let (threads, width, length) = (self.threads, self.width, &self.length);
        match self.held {
            Some(held) => format!(
                "#pragma unroll\nfor (int i = 0; i < {}; i++) {{\nconst i64 first = (i64)(i * {threads} + lane) * {width};\n\
                 if (first >= {length}) break;\n{body}}}\n",
                held / width
            ),
            None => format!("for (i64 first = lane * {width}; first < {length}; first += {threads} * {width}) {{\n{body}}}\n"),
        }
    }
}

/// Elements that move as one access along the lines of every operand.
fn width(lines: &Lines, operands: &[&TensorRef], dim: usize) -> i64 {
    let largest = operands.iter().map(|t| t.dtype.size()).max().unwrap_or(16);
    let width = (16 / largest) as i64;
    let fits = operands.iter().all(|t| {
        let outer = t.layout.strides.iter().enumerate().filter(|&(i, _)| i != dim);
        t.layout.strides[dim].is(1) && divisible(&t.layout.offset, width) && outer.map(|(_, s)| s).all(|s| divisible(s, width))
    });
    if fits && divisible(&lines.length, width) { width } else { 1 }
}

/// `merge_all(state)` for a block of 256.
const MERGE_ALL: &str = "template <class S>\nDEVICE void merge_all(S& state) {\n    __shared__ alignas(16) char raw[8 * sizeof(S)];\n    \
                         block_merge<256>(state, (S*)raw);\n}\n";

/// Statements of a loop over a row: around each group, and for each element, where `value` is the element and `r` its position.
#[derive(Default)]
struct Body<'a> {
    before: &'a str,
    each: &'a str,
    after: &'a str,
}

/// One input and one output walked along `dim`.
struct Row<'a> {
    lines: Lines,
    walk: Walk,
    /// Types that values are computed in and that elements are stored as.
    ty: &'static str,
    stored: &'static str,
    x: &'a TensorRef,
    from: String,
    to: String,
}

impl<'a> Row<'a> {
    fn new(kernel: &mut Kernel, x: &'a TensorRef, y: &TensorRef, dim: usize, compute: DType) -> Emit<Row<'a>> {
        let lines = Lines::new(&[x, y], dim);
        let (from, to) = (kernel.read(x)?, kernel.write(y)?);
        let walk = Walk::new(kernel, &lines, width(&lines, &[x, y], dim));
        Ok(Row { lines, walk, ty: ctype::opmath(compute)?, stored: ctype::storage(y.dtype)?, x, from, to })
    }

    /// A loop over the row's elements in groups. The first loop of a kernel reads memory, later ones what it kept.
    fn each(&self, kernel: &mut Kernel, convert: &dyn Fn(&str) -> String, first: bool, body: &Body<'_>) -> Emit<String> {
        let (width, ty) = (self.walk.width, self.ty);
        let element = |kernel: &mut Kernel, at: &str| self.lines.element(kernel, 0, &self.from, at);
        let keeps = self.walk.held.is_some();
        let (load, value) = if keeps && !first {
            (String::new(), format!("held[i * {width} + e]"))
        } else if width > 1 {
            let pack = format!("Pack<{}, {width}>", ctype::storage(self.x.dtype)?);
            (format!("const {pack} pack = *(const {pack}*)&{};\n", element(kernel, "first")), convert("up(pack.at[e])"))
        } else {
            (String::new(), convert(&format!("up({})", element(kernel, "first"))))
        };
        let keep = if keeps && first { format!("held[i * {width} + e] = value;\n") } else { String::new() };
        let Body { before, each, after } = body;
        Ok(self.walk.groups(&format!(
            "{before}{load}#pragma unroll\nfor (int e = 0; e < {width}; e++) {{\nconst i64 r = first + e;\n\
             const {ty} value = {value};\n{keep}{each}}}\n{after}"
        )))
    }

    /// The last loop: `result`, an expression of `value` and `r`, becomes the output.
    fn store(&self, kernel: &mut Kernel, convert: &dyn Fn(&str) -> String, result: &str) -> Emit<String> {
        let (width, stored) = (self.walk.width, self.stored);
        let target = self.lines.element(kernel, 1, &self.to, "first");
        let body = Body {
            before: &format!("Pack<{stored}, {width}> out;\n"),
            each: &format!("out.at[e] = cast<{stored}>({result});\n"),
            after: &format!("*(Pack<{stored}, {width}>*)&{target} = out;\n"),
        };
        self.each(kernel, convert, false, &body)
    }

    fn finish(self, emitter: &mut Emitter, mut kernel: Kernel, body: &str) -> Emit<()> {
        let starts = self.lines.starts(&mut kernel)?;
        let held = self.walk.held.map_or(String::new(), |held| format!("{} held[{held}];\n", self.ty));
        let headers = vec![Header::Math, Header::Warp, Header::Reduce];
        let body = format!("{}{starts}{held}{body}", self.walk.begin);
        let code = Code { headers, items: MERGE_ALL.into(), body, threads: [256, 1], ..Code::default() };
        emitter.launch(kernel, code, flat(self.walk.grid));
        Ok(())
    }
}

/// Softmax along one dim, in the opmath of the result's dtype.
pub(super) fn softmax(emitter: &mut Emitter, step: &Step, op: &Softmax) -> Emit<()> {
    let mut kernel = Kernel::new(format!("{}softmax_{}", if op.log { "log_" } else { "" }, op.dtype));
    let row = Row::new(&mut kernel, tensor(step, 0)?, &step.outputs[0], op.dim, op.dtype)?;
    let (ty, stored, merge) = (row.ty, row.stored, row.walk.merge);
    let convert = |x: &str| format!("up(cast<{stored}>({x}))");
    let top = row.each(&mut kernel, &convert, true, &Body { each: "top.add(value, r);\n", ..Body::default() })?;
    let sum =
        row.each(&mut kernel, &convert, false, &Body { each: "sum.add(exp_(value - top.value), r);\n", ..Body::default() })?;
    let (log_sum, result) = if op.log {
        (format!("const {ty} log_sum = log_(sum.value);\n"), "value - top.value - log_sum")
    } else {
        (String::new(), "exp_(value - top.value) / sum.value")
    };
    let store = row.store(&mut kernel, &convert, result)?;
    let body = format!("AmaxState<{ty}> top;\n{top}{merge}(top);\nSumState<{ty}> sum;\n{sum}{merge}(sum);\n{log_sum}{store}");
    row.finish(emitter, kernel, &body)
}

/// RMSNorm over the last dim.
pub(super) fn rms_norm(emitter: &mut Emitter, step: &Step, op: &RmsNorm) -> Emit<()> {
    let x = tensor(step, 0)?;
    let Some(last) = x.layout.shape.len().checked_sub(1) else { return Err(Unsupported::new("x must have at least one dim")) };
    let compute = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut kernel = Kernel::new(format!("rms_norm_{}", op.dtype));
    let row = Row::new(&mut kernel, x, &step.outputs[0], last, compute)?;
    let (ty, merge, length) = (row.ty, row.walk.merge, row.walk.length.clone());
    let weight = match optional(step, 1) {
        Some(w) => {
            let pointer = kernel.read(w)?;
            format!(" * ({ty})up({pointer}[{}])", kernel.offset(&["r".into()], &w.layout.strides))
        }
        None => String::new(),
    };
    let convert = |x: &str| format!("({ty}){x}");
    let sum = row.each(&mut kernel, &convert, true, &Body { each: "sum.add(value * value, r);\n", ..Body::default() })?;
    let store = row.store(&mut kernel, &convert, &format!("value * scale{weight}"))?;
    let body = format!(
        "SumState<{ty}> sum;\n{sum}{merge}(sum);\nconst {ty} scale = 1 / sqrt_(sum.value / ({ty}){length} + {});\n{store}",
        ctype::literal(op.eps, compute)?,
    );
    row.finish(emitter, kernel, &body)
}

/// LayerNorm over the last dim: the mean, then the squares of what is above and below it.
pub(super) fn layer_norm(emitter: &mut Emitter, step: &Step, op: &LayerNorm) -> Emit<()> {
    let x = tensor(step, 0)?;
    let Some(last) = x.layout.shape.len().checked_sub(1) else { return Err(Unsupported::new("x must have at least one dim")) };
    let compute = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut kernel = Kernel::new(format!("layer_norm_{}", op.dtype));
    let row = Row::new(&mut kernel, x, &step.outputs[0], last, compute)?;
    let (ty, merge, length) = (row.ty, row.walk.merge, row.walk.length.clone());
    let mut factor = |i: usize, sign: &str| match optional(step, i) {
        Some(w) => {
            let pointer = kernel.read(w)?;
            Ok(format!(" {sign} ({ty})up({pointer}[{}])", kernel.offset(&["r".into()], &w.layout.strides)))
        }
        None => Ok(String::new()),
    };
    let (weight, bias) = (factor(1, "*")?, factor(2, "+")?);
    let convert = |x: &str| format!("({ty}){x}");
    let sum = row.each(&mut kernel, &convert, true, &Body { each: "sum.add(value, r);\n", ..Body::default() })?;
    let squares = "squares.add((value - mean) * (value - mean), r);\n";
    let squares = row.each(&mut kernel, &convert, false, &Body { each: squares, ..Body::default() })?;
    let store = row.store(&mut kernel, &convert, &format!("(value - mean) * scale{weight}{bias}"))?;
    let body = format!(
        "SumState<{ty}> sum;\n{sum}{merge}(sum);\nconst {ty} mean = sum.value / ({ty}){length};\nSumState<{ty}> squares;\n\
         {squares}{merge}(squares);\nconst {ty} scale = 1 / sqrt_(squares.value / ({ty}){length} + {});\n{store}",
        ctype::literal(op.eps, compute)?,
    );
    row.finish(emitter, kernel, &body)
}

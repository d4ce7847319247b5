//! Sort and top-k.

use super::{
    emitter::{Emitter, flat, tensor},
    error::Emit,
    kernel::{Code, Header, Kernel},
    lines::Lines,
};
use crate::Step;
use eglu_ir::{
    DType, Dim,
    ops::{Sort, TopK},
};

/// The most entries that one block sorts in shared memory.
const CHUNK: i64 = 2048;

/// Sorted runs that one pass merges.
const FAN: i64 = 16;

/// Passes before the last, at most: with them a last pass merges runs of 8M entries.
const PASSES: u32 = 3;

/// The entry type that holds the keys of a dtype, and its bytes.
fn entry(dtype: DType) -> (&'static str, i64) {
    if dtype.opmath().size() <= 4 { ("Narrow", 8) } else { ("Wide", 16) }
}

/// Entries that a block sorts: all of a short line, else [`CHUNK`].
fn chunk(length: &Dim) -> i64 {
    length.as_const().map_or(CHUNK, |n| (n.max(1) as u64).next_power_of_two().clamp(64, CHUNK as u64) as i64)
}

/// The body that loads a chunk of entries by `make` (an expression of `r`), sorts it, and stores it by `store` (statements of `r` and `entry`).
pub(super) fn sort_chunk(entry: &str, chunk: i64, length: &str, make: &str, store: &str) -> String {
    let half = chunk / 2;
    format!(
        "extern __shared__ __align__(16) char raw[];\n{entry}* const entries = ({entry}*)raw;\n\
         for (int e = threadIdx.x; e < {chunk}; e += {half}) {{\nconst i64 r = first + e;\n\
         entries[e] = r < {length} ? {make} : {entry}::last();\n}}\nsort_shared<{chunk}>(entries);\n\
         for (int e = threadIdx.x; e < {chunk}; e += {half}) {{\nconst i64 r = first + e;\nif (r >= {length}) break;\n\
         const {entry} entry = entries[e];\n{store}}}\n"
    )
}

/// Lines of entries sorted in chunks, on the way to being sorted whole.
pub(super) struct Runs {
    /// `Narrow` or `Wide`.
    pub entry: &'static str,
    pub chunk: i64,
    pub length: Dim,
    pub lines: Dim,
    /// Two scratch arrays of `lines · length` entries; the chunks are in the first.
    pub arrays: [usize; 2],
}

impl Runs {
    pub fn new(emitter: &mut Emitter, name: &str, entry: (&'static str, i64), length: &Dim, lines: &Dim) -> Runs {
        let size = lines.clone() * length.clone() * Dim::from(entry.1);
        let arrays = [emitter.scratch(&format!("{name}_runs"), size.clone()), emitter.scratch(&format!("{name}_merged"), size)];
        let (length, lines) = (length.clone(), lines.clone());
        Runs { entry: entry.0, chunk: chunk(&length), length, lines, arrays }
    }

    /// Merges runs, [`FAN`] at a time, until one more pass can finish, and gives statements for that pass: they set `entry` and its rank `r`
    /// in the line `line` for thread `at` of `lines · length`.
    pub fn merge(&self, emitter: &mut Emitter, kernel: &mut Kernel) -> String {
        let total = self.lines.clone() * self.length.clone();
        let mut run = self.chunk;
        let mut passes = Vec::new();
        for pass in 0..PASSES {
            // A pass runs where what it makes is still shorter than a line; with a known length that is known here.
            let when = Dim::min(&(self.length.clone() - Dim::from(1)).floor_div(&Dim::from(run * FAN)), &Dim::from(1));
            if when.as_const().is_some_and(|when| when <= 0) {
                break;
            }
            let mut kernel = Kernel::new("merge_runs");
            let from = kernel.scratch(&format!("const {}", self.entry), self.arrays[pass as usize % 2]);
            let to = kernel.scratch(self.entry, self.arrays[(pass as usize + 1) % 2]);
            let (length, all) = (kernel.dim(&self.length), kernel.dim(&total));
            let body = format!(
                "const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at >= {all}) return;\nconst i64 start = at / {length} * {length};\n\
                 {to}[start + rank_in_runs({from} + start, {length}, at - start, {run}, {FAN})] = {from}[at];\n"
            );
            // No line is empty where a pass runs.
            let grid = total.ceil_div(256) * Dim::max(&when, &Dim::from(0));
            emitter.launch(kernel, Code { headers: vec![Header::Sort], body, threads: [256, 1], ..Code::default() }, flat(grid));
            run *= FAN;
            passes.push(run);
        }
        let arrays = self.arrays.map(|array| kernel.scratch(&format!("const {}", self.entry), array));
        let (length, entry) = (kernel.dim(&self.length), self.entry);
        let mut text = format!("const {entry}* sorted = {};\ni64 run = {};\n", arrays[0], self.chunk);
        for (pass, run) in passes.iter().enumerate() {
            text += &format!("if ({length} > {run}) {{\nsorted = {};\nrun = {run};\n}}\n", arrays[(pass + 1) % 2]);
        }
        text + &format!(
            "const i64 line = at / {length};\nsorted += line * {length};\nconst {entry} entry = sorted[at % {length}];\n\
             const i64 r = rank_in_runs(sorted, {length}, at % {length}, run, {length});\n"
        )
    }
}

/// Stable sort along one dim: lines of up to [`CHUNK`] elements in one launch, longer ones in passes.
pub(super) fn sort(emitter: &mut Emitter, step: &Step, op: &Sort) -> Emit<()> {
    let (x, values, positions) = (tensor(step, 0)?, &step.outputs[0], &step.outputs[1]);
    let lines = Lines::new(&[x, values, positions], op.dim);
    let (entry, bytes) = entry(x.dtype);
    let chunk = chunk(&lines.length);
    let whole = lines.length.as_const().is_some_and(|n| n <= chunk);
    let chunks = lines.length.ceil_div(chunk);
    let runs = (!whole).then(|| Runs::new(emitter, "sort", (entry, bytes), &lines.length, &lines.count));

    let mut kernel = Kernel::new(format!("sort_{}", x.dtype));
    let from = kernel.read(x)?;
    let mut targets = Vec::new();
    match &runs {
        Some(runs) => targets.push(kernel.scratch(entry, runs.arrays[0])),
        None => targets.extend([kernel.write(values)?, kernel.write(positions)?]),
    }
    let starts = lines.starts(&mut kernel)?;
    let length = kernel.dim(&lines.length);
    let source = lines.element(&mut kernel, 0, &from, "r");
    let key = format!("{}order_key(up({source}))", if op.descending { "~" } else { "" });
    let make = format!("{entry}::make({key}, r)");
    let store = match &targets[..] {
        [sorted] => format!("{sorted}[line * {length} + r] = entry;\n"),
        _ => store_result(&mut kernel, &lines, &from, &targets, "r"),
    };
    let per_line = kernel.dim(&chunks);
    let body = format!(
        "const i64 line = blockIdx.x / {per_line};\nconst i64 first = blockIdx.x % {per_line} * {chunk};\n{starts}{}",
        sort_chunk(entry, chunk, &length, &make, &store)
    );
    let code = Code {
        headers: vec![Header::Sort],
        body,
        threads: [(chunk / 2) as u32, 1],
        shared_bytes: (chunk * bytes) as u32,
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(lines.count.clone() * chunks));

    let Some(runs) = runs else { return Ok(()) };
    let mut kernel = Kernel::new(format!("sort_merge_{}", x.dtype));
    let from = kernel.read(x)?;
    let targets = [kernel.write(values)?, kernel.write(positions)?];
    let merge = runs.merge(emitter, &mut kernel);
    let total = lines.count.clone() * lines.length.clone();
    let starts = lines.starts(&mut kernel)?;
    let all = kernel.dim(&total);
    let store = store_result(&mut kernel, &lines, &from, &targets, "r");
    let body = format!("const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at >= {all}) return;\n{merge}{starts}{store}");
    let code = Code { headers: vec![Header::Sort], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(total.ceil_div(256)));
    Ok(())
}

/// Stores the value and the position of `entry` at its rank. Values come from x, as keys forget the sign of zero.
fn store_result(kernel: &mut Kernel, lines: &Lines, from: &str, targets: &[String], rank: &str) -> String {
    let source = lines.element(kernel, 0, from, "position");
    let value = lines.element(kernel, 1, &targets[0], rank);
    let place = lines.element(kernel, 2, &targets[1], rank);
    format!("const i64 position = entry.position();\n{value} = {source};\n{place} = position;\n")
}

/// The k best of each line, one after another: the smallest entry past the last one taken. Ties go to the lowest position.
pub(super) fn top_k(emitter: &mut Emitter, step: &Step, op: &TopK) -> Emit<()> {
    let (x, values, positions) = (tensor(step, 0)?, &step.outputs[0], &step.outputs[1]);
    let lines = Lines::new(&[x, values, positions], op.dim);
    let (entry, _) = entry(x.dtype);
    let mut kernel = Kernel::new(format!("top_k_{}", x.dtype));
    let from = kernel.read(x)?;
    let targets = [kernel.write(values)?, kernel.write(positions)?];
    let starts = lines.starts(&mut kernel)?;
    let (length, count) = (kernel.dim(&lines.length), kernel.dim(&lines.count));
    let source = lines.element(&mut kernel, 0, &from, "r");
    let key = format!("{}order_key(up({source}))", if op.largest { "~" } else { "" });
    let short = lines.length.as_const().is_some_and(|n| n <= 1024);
    let (begin, first, stride, merge, lead, grid) = if short {
        let begin = format!("const i64 line = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nif (line >= {count}) return;\n");
        (begin, "threadIdx.x % 32", 32, "warp_merge(best)", "threadIdx.x % 32 == 0", lines.count.ceil_div(8))
    } else {
        let begin = format!("__shared__ {entry} shared[8];\nconst i64 line = blockIdx.x;\n");
        (begin, "threadIdx.x", 256, "block_merge<256>(best, (Best*)shared)", "threadIdx.x == 0", lines.count.clone())
    };
    let store = store_result(&mut kernel, &lines, &from, &targets, "j");
    let items = format!(
        "struct Best {{\n    {entry} entry;\n    DEVICE void merge(const Best& other) {{ if (other.entry < entry) entry = other.entry; }}\n}};\n"
    );
    let body = format!(
        "{begin}{starts}{entry} last{{}};\nfor (int j = 0; j < {k}; j++) {{\nBest best{{{entry}::last()}};\n\
         for (i64 r = {first}; r < {length}; r += {stride}) {{\nconst {entry} next = {entry}::make({key}, r);\n\
         if ((j == 0 || last < next) && next < best.entry) best.entry = next;\n}}\n{merge};\nconst {entry} entry = last = best.entry;\n\
         if ({lead}) {{\n{store}}}\n}}\n",
        k = op.k
    );
    let code = Code { headers: vec![Header::Warp, Header::Sort], items, body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(grid));
    Ok(())
}

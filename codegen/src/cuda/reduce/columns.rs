//! Lines whose elements are far apart while neighbouring lines are neighbours in memory: a thread takes a group of neighbouring lines, the
//! threads of a block along y share their elements, and blocks along y split them further.

use super::{
    super::{
        ctype,
        emitter::Emitter,
        error::Emit,
        kernel::{Code, Header, Kernel, divisible},
    },
    chain::{Chain, Source, Stage},
    walk::{Pointers, Walk, more_than, splits, widest},
};
use crate::TensorRef;
use eglu_ir::{Dim, types::numel};

/// Groups of lines and threads that share a group, of one block.
const THREADS: [i64; 2] = [32, 8];
/// Bytes under way at once in a thread, and the most elements of a line.
const UNDER_WAY: [i64; 2] = [128, 16];
/// Blocks of a multiprocessor.
const RESIDENTS: u32 = 3;
/// Shared memory that a block's threads merge in, bytes.
const MERGED: i64 = 32 << 10;

/// The text of the kernel's body.
struct Text<'a> {
    chain: &'a Chain,
    walk: &'a Walk,
    kernel: &'a mut Kernel,
    pointers: &'a Pointers,
    /// Lines of a group.
    width: i64,
    /// Groups are known to be complete and to start on their own size.
    always_whole: bool,
    /// Elements of a line that a thread has under way at once.
    deep: i64,
    length: String,
}

/// Emits the kernel for lines of up to `most` elements; `walk` goes element by element, and its innermost kept dim has neighbours in some
/// input.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain, walk: &Walk, most: i64) -> Emit<()> {
    let Some((inner, outer)) = walk.kept.shape.split_last() else { return Ok(()) };
    let beside = |i: usize| walk.kept.strides[i].last().is_some_and(|step| step.is(1));
    let outputs = chain.finish.as_ref().map_or(&[][..], |finish| &finish.outputs);
    let written = chain.inputs.len() + chain.lines.len();
    let moving = (0..chain.inputs.len()).filter(|&i| beside(i)).map(|i| chain.inputs[i].dtype.size());
    let width = widest(moving.chain(outputs.iter().map(|t| t.dtype.size())).collect::<Vec<_>>().into_iter());
    let width = lines_of_thread(chain, width, walk, most);
    let repeats = |i: usize| walk.kept.strides[i].last().is_some_and(|step| step.is(0));
    let of_group = |(i, t): (usize, &TensorRef)| t.dtype.size() as i64 * if repeats(i) { 1 } else { width };
    let bytes: i64 = chain.inputs.iter().enumerate().map(of_group).sum();
    let deep = (UNDER_WAY[0] / bytes.max(1)).clamp(2, UNDER_WAY[1]);
    // Sums are by halves.
    let deep = 1 << deep.ilog2();
    let groups = numel(outer) * inner.ceil_div(width);
    let length = numel(&walk.reduced.shape);
    let blocks = groups.ceil_div(THREADS[0]);
    let splits = if chain.passes() == 1 {
        splits(RESIDENTS * emitter.target.multiprocessors(), &blocks, &length.floor_div(&Dim::from(THREADS[1] * deep)))
    } else {
        Dim::from(1)
    };

    let mut kernel = Kernel::new(chain.name.clone());
    let pointers = walk.pointers(&mut kernel, chain)?;
    let length = kernel.dim(&length);
    let (inner_name, groups_name) = (kernel.dim(inner), kernel.dim(&groups));
    let mut text = Text { chain, walk, kernel: &mut kernel, pointers: &pointers, width, always_whole: false, deep, length };

    let mut body = format!(
        "const i64 at_group = (i64)blockIdx.x * {} + threadIdx.x;\nconst bool valid = at_group < {groups_name};\n\
         const i64 group = valid ? at_group : 0;\nconst i64 inner_groups = ({inner_name} + {}) / {width};\n\
         const i64 over = group / inner_groups, column = group % inner_groups * {width};\n\
         const int columns = {inner_name} - column < {width} ? (int)({inner_name} - column) : {width};\n",
        THREADS[0],
        width - 1
    );
    let (split, mut names) = text.kernel.split("over", "i", outer);
    names.push("column".into());
    body += &split;
    for (i, strides) in walk.kept.strides.iter().enumerate() {
        body += &format!("const i64 b{i} = {};\n", text.kernel.offset(&names, strides));
    }
    body += &text.whole(inner, written)?;
    if splits.is(1) {
        body += "const i64 first = 0, last = ";
        body += &format!("{};\n", text.length);
    } else {
        // All but the last have whole steps of the loop.
        let (length, step) = (&text.length, THREADS[1] * deep);
        body += &format!(
            "const i64 steps = {length} / {step}, first = steps * blockIdx.y / gridDim.y * {step};\n\
             const i64 last = blockIdx.y + 1 == gridDim.y ? {length} : steps * (blockIdx.y + 1) / gridDim.y * {step};\n"
        );
    }
    body += &text.captures()?;
    for pass in 0..chain.stages.len() {
        body += &text.stage(pass)?;
        if pass == 0 && !splits.is(1) {
            let many = more_than(&splits, 1);
            let bytes = groups.clone() * splits.clone() * many * Dim::from(width * chain.state_bytes());
            let partial = emitter.scratch("partial", bytes);
            body += &text.partials(partial, &groups_name);
        }
        body += &text.results(pass)?;
    }
    body += &text.end()?;
    let headers = vec![Header::Math, Header::Warp, Header::Reduce, Header::Keys, Header::Lines, Header::Columns];
    let residents = if chain.passes() == 1 && chain.stages[0].kinds.len() * chain.inputs.len() <= 2 { RESIDENTS } else { 0 };
    let threads = THREADS.map(|n| n as u32);
    let code = Code { headers, items: chain.items(most, false)?, body, threads, residents, ..Code::default() };
    emitter.launch(kernel, code, [blocks, splits, Dim::from(1)]);
    Ok(())
}

/// Neighbouring lines of a thread, at most `width`: every one has its states in registers, and a warp should be busy where lines are few.
fn lines_of_thread(chain: &Chain, width: i64, walk: &Walk, most: i64) -> i64 {
    let lines = numel(&walk.kept.shape).as_const().unwrap_or(i64::MAX);
    let mut width = width.min(if chain.passes() > 1 { 4 } else { 8 });
    while width > 4 && (width * chain.state_registers(most) > 16 || width * THREADS[0] > lines) {
        width /= 2;
    }
    width
}

impl Text<'_> {
    /// Statements that set `whole`: groups are complete and start on their own size in every operand that has neighbouring lines.
    fn whole(&mut self, inner: &Dim, written: usize) -> Emit<String> {
        let (walk, chain, width) = (self.walk, self.chain, self.width);
        let outputs = chain.finish.as_ref().map_or(&[][..], |finish| &finish.outputs);
        let mut conditions: Vec<Dim> = vec![inner.clone()];
        let operands = (0..chain.inputs.len()).filter(|&i| self.moves(i)).map(|i| (i, &chain.inputs[i]));
        for (i, tensor) in operands.chain(outputs.iter().enumerate().map(|(o, tensor)| (written + o, tensor))) {
            let outer = walk.kept.strides[i].split_last().map_or(&[][..], |(_, outer)| outer);
            conditions.extend(outer.iter().chain(&walk.reduced.strides[i]).chain([&tensor.layout.offset]).cloned());
        }
        conditions.retain(|dim| !divisible(dim, width));
        conditions.dedup();
        self.always_whole = conditions.is_empty();
        let text: Vec<String> = conditions.iter().map(|dim| format!("{} % {width} == 0", self.kernel.dim(dim))).collect();
        Ok(format!("const bool whole = {};\n", if text.is_empty() { "true".into() } else { text.join(" && ") }))
    }

    /// True if neighbouring lines are neighbours in this input.
    fn moves(&self, input: usize) -> bool {
        self.walk.kept.strides[input].last().is_some_and(|step| step.is(1))
    }

    /// True if all lines of a group read the same elements of this input, such as a row's mean: each is loaded once.
    fn repeats(&self, input: usize) -> bool {
        self.walk.kept.strides[input].last().is_some_and(|step| step.is(0))
    }

    /// Element `k` under way of line `e` of the group.
    fn element(&self, input: usize) -> String {
        if self.repeats(input) { format!("up(h{input}[k])") } else { format!("up(h{input}[k].at[e])") }
    }

    /// What holds a group's lines in words, where it does, and the input that it takes them from.
    fn held(&self, stage: &Stage, i: usize) -> Emit<Option<(String, usize)>> {
        Ok(stage.across(i, self.width)?.filter(|&(_, input)| !self.repeats(input)))
    }

    /// The step of an operand from a line to the next.
    fn step(&mut self, operand: usize) -> String {
        match self.walk.kept.strides[operand].last() {
            Some(step) => self.kernel.dim(&step.clone()),
            None => "0".into(),
        }
    }

    /// Captures of the group's lines.
    fn captures(&mut self) -> Emit<String> {
        let mut text = String::new();
        for (i, line) in self.chain.lines.iter().enumerate() {
            let operand = self.chain.inputs.len() + i;
            let (step, name) = (self.step(operand), &self.pointers.lines[i]);
            text += &format!(
                "{0} c{i}s[{1}];\n#pragma unroll\nfor (int e = 0; e < {1}; e++) c{i}s[e] = up({name}[b{operand} + (e < columns ? e : 0) * {step}]);\n",
                ctype::opmath(line.dtype)?,
                self.width
            );
        }
        Ok(text)
    }

    /// A parameter's value for line `e` of the group.
    fn value(&self, source: Source, element: &dyn Fn(usize) -> String) -> String {
        match source {
            Source::Element(input) => element(input),
            // Chains that read positions go along lines.
            Source::Position => String::new(),
            Source::Line(line) => format!("c{line}s[e]"),
            Source::Stat(stat) => format!("up(stat{stat}s[e])"),
        }
    }

    /// Loads of the elements `start`, `start + 8`, … of this pass into `h…[k]`, `deep` of them; those before `last` if `partial`. Where groups
    /// are not `known` to be whole or not, they may be either.
    fn loads(&mut self, pass: usize, deep: i64, known: Option<bool>, partial: bool) -> Emit<String> {
        let (width, [_, share]) = (self.width, THREADS);
        let (split, names) = self.kernel.split("r", "j", &self.walk.reduced.shape);
        let (mut declared, mut loads) = (String::new(), String::new());
        for i in (0..self.chain.inputs.len()).filter(|&i| self.chain.reads(pass, i)) {
            let (ty, x) = (ctype::storage(self.chain.inputs[i].dtype)?, &self.pointers.inputs[i]);
            let offset = self.kernel.offset(&names, &self.walk.reduced.strides[i]);
            if self.repeats(i) {
                declared += &format!("{ty} h{i}[{deep}];\n");
                loads += &format!("h{i}[k] = {x}[b{i} + {offset}];\n");
                continue;
            }
            declared += &format!("Pack<{ty}, {width}> h{i}[{deep}];\n");
            let step = self.step(i);
            let single = format!(
                "{{\n#pragma unroll\nfor (int e = 0; e < {width}; e++) if (e < columns) h{i}[k].at[e] = {x}[b{i} + {offset} + e * {step}];\n}}\n"
            );
            let group = format!("load_pack(h{i}[k], {x} + b{i} + {offset});\n");
            loads += &match known {
                _ if !self.moves(i) => single,
                Some(true) => group,
                Some(false) => single,
                None => format!("if (whole) {group}else {single}"),
            };
        }
        let only = if partial { "if (r < last) " } else { "" };
        Ok(format!(
            "{declared}#pragma unroll\nfor (int k = 0; k < {deep}; k++) {{\nconst i64 r = start + k * {share};\n{only}{{\n{split}{loads}}}\n}}\n"
        ))
    }

    /// Adds, and the merge of the threads that share lines: each ends with the merge of all.
    fn stage(&mut self, s: usize) -> Emit<String> {
        let width = self.width;
        let [across, share] = THREADS;
        // Elements that come one by one take a register each.
        let slow = (16 / width).clamp(1, self.deep);
        let (mut holds, mut gives) = (String::new(), String::new());
        for i in 0..self.chain.stages[s].kinds.len() {
            if let Some((hold, _)) = self.held(&self.chain.stages[s], i)? {
                holds += &format!("{hold} hold{s}_{i};\n");
                gives += &format!(
                    "hold{s}_{i}.settle({share});\n#pragma unroll\nfor (int e = 0; e < {width}; e++) hold{s}_{i}.give(e, state{s}[e].s{i});\n"
                );
            }
        }
        let mut text = format!("{holds}i64 start = first + threadIdx.y;\n{}", self.adds(s, self.deep, Some(true))?);
        if !self.always_whole {
            text += &self.adds(s, slow, Some(false))?;
        }
        text += &self.adds(s, 1, None)?;
        text += &gives;
        // Where no later pass reads it, line `e` is merged by the threads that have its results to store.
        let once = self.chain.passes() == 1;
        let together = if once { (MERGED / (across * share * self.chain.state_bytes())).clamp(1, width) } else { 1 };
        let only = if once { format!("if (threadIdx.y != (from + e) % {share}) continue;\n") } else { String::new() };
        Ok(format!(
            "State{s} state{s}[{width}];\nif (valid) {{\n{text}}}\n{{\n\
             __shared__ alignas(16) char raw[{share}][{together}][{across} * sizeof(State{s})];\n\
             #pragma unroll\nfor (int from = 0; from < {width}; from += {together}) {{\n__syncthreads();\n\
             #pragma unroll\nfor (int e = 0; e < {together}; e++) ((State{s}*)raw[threadIdx.y][e])[threadIdx.x] = state{s}[from + e];\n\
             __syncthreads();\n#pragma unroll\nfor (int e = 0; e < {together}; e++) {{\n{only}\
             state{s}[from + e] = ((State{s}*)raw[0][e])[threadIdx.x];\n\
             for (int y = 1; y < {share}; y++) state{s}[from + e].merge(((State{s}*)raw[y][e])[threadIdx.x]);\n}}\n}}\n}}\n"
        ))
    }

    /// The loop that adds `deep` elements of each line at once from `start` on, as long as there are so many.
    fn adds(&mut self, s: usize, deep: i64, known: Option<bool>) -> Emit<String> {
        let (stage, width, [_, share]) = (&self.chain.stages[s], self.width, THREADS);
        let element = |i: usize| self.element(i);
        let mut args: Vec<String> = stage.args.iter().map(|&source| self.value(source, &element)).collect();
        let (mut declared, mut together, mut adds) = (String::new(), String::new(), String::new());
        for (i, &(_, dtype)) in stage.prologue.results.iter().enumerate() {
            declared += &format!("{} p{i}[{deep}];\n", ctype::opmath(dtype)?);
            args.push(format!("p{i}[k]"));
            match self.held(stage, i)? {
                Some((_, input)) => together += &format!("hold{s}_{i}.add(h{input}, start, {share});\n"),
                None => adds += &format!("add_values(state{s}[e].s{i}, p{i}, start, {share});\n"),
            }
        }
        let prologue = format!("#pragma unroll\nfor (int k = 0; k < {deep}; k++) prologue{s}({});\n", args.join(", "));
        let when = match known {
            Some(true) if !self.always_whole => "whole && ",
            Some(false) => "!whole && ",
            _ => "",
        };
        Ok(format!(
            "for (; {when}start + {} < last; start += {}) {{\n{}{together}{}}}\n",
            share * (deep - 1),
            share * deep,
            self.loads(s, deep, known, false)?,
            match adds.is_empty() {
                true => String::new(),
                false => format!("#pragma unroll\nfor (int e = 0; e < {width}; e++) {{\n{declared}{prologue}{adds}}}\n"),
            }
        ))
    }

    /// Each split's states to scratch memory; the block that comes last merges them.
    fn partials(&mut self, scratch: usize, groups: &str) -> String {
        let (parts, counter) = (self.kernel.scratch("State0", scratch), self.kernel.counters());
        let (width, [_, share]) = (self.width, THREADS);
        let at = |split: &str| format!("parts[(({split}) * {width} + e) * {groups} + group]");
        format!(
            "if (gridDim.y > 1) {{\nState0* const parts = {parts};\n#pragma unroll\nfor (int e = 0; e < {width}; e++)\n\
             if (valid && threadIdx.y == e % {share}) {} = state0[e];\nif (!comes_last({counter} + blockIdx.x, gridDim.y)) return;\n\
             #pragma unroll\nfor (int e = 0; e < {width}; e++) {{\nif (threadIdx.y != e % {share}) continue;\nState0 total;\n\
             for (int split = 0; split < gridDim.y; split += 8) {{\nState0 some[8];\n#pragma unroll\nfor (int k = 0; k < 8; k++) \
             if (split + k < gridDim.y) some[k] = fresh(&{});\n#pragma unroll\nfor (int k = 0; k < 8; k++) total.merge(some[k]);\n}}\n\
             state0[e] = total;\n}}\n}}\n",
            at("(i64)blockIdx.y"),
            at("(i64)(split + k)")
        )
    }

    /// Turns merged states into stats. Where later passes read them, every thread has those of all its lines.
    fn results(&mut self, s: usize) -> Emit<String> {
        let (chain, width, [_, share]) = (self.chain, self.width, THREADS);
        let (stage, first) = (&chain.stages[s], chain.first_stat(s));
        let last = s + 1 == chain.passes();
        let mut args = Vec::new();
        for (i, &dtype) in stage.epilogue.params.iter().take(stage.kinds.len()).enumerate() {
            args.push(format!("cast<{}>(state{s}[e].s{i}.result({}))", ctype::opmath(dtype)?, self.length));
        }
        args.extend(stage.captures.iter().map(|&source| self.value(source, &|_| String::new())));
        let (mut declared, mut stores) = (String::new(), String::new());
        for (i, &(_, dtype)) in stage.epilogue.results.iter().enumerate() {
            declared += &format!("{} stat{}s[{width}];\n", ctype::storage(dtype)?, first + i);
            args.push(format!("stat{}s[e]", first + i));
            if let Some(y) = &self.pointers.stats[s][i] {
                stores += &format!("{y}[line] = stat{}s[e];\n", first + i);
            }
        }
        let inner = self.walk.kept.shape.last().map_or("1".into(), |inner| self.kernel.dim(inner));
        let only = if last { format!("if (threadIdx.y != e % {share}) continue;\n") } else { String::new() };
        Ok(format!(
            "{declared}#pragma unroll\nfor (int e = 0; e < {width}; e++) {{\n{only}epilogue{s}({});\n\
             if (valid && e < columns && threadIdx.y == e % {share}) {{\nconst i64 line = over * {inner} + column + e;\n{stores}}}\n}}\n",
            args.join(", ")
        ))
    }

    /// The elementwise end.
    fn end(&mut self) -> Emit<String> {
        let Some(finish) = &self.chain.finish else { return Ok(String::new()) };
        let width = self.width;
        let element = |i: usize| self.element(i);
        let mut args: Vec<String> = finish.args.iter().map(|&source| self.value(source, &element)).collect();
        let (split, names) = self.kernel.split("r", "j", &self.walk.reduced.shape);
        let (mut declared, mut stores) = (String::new(), String::new());
        for (o, output) in finish.outputs.iter().enumerate() {
            let (ty, y) = (ctype::storage(output.dtype)?, &self.pointers.outputs[o]);
            let operand = self.chain.inputs.len() + self.chain.lines.len() + o;
            let offset = self.kernel.offset(&names, &self.walk.reduced.strides[operand]);
            let step = self.step(operand);
            declared += &format!("{} o{o}[{width}];\n", ctype::opmath(output.dtype)?);
            args.push(format!("o{o}[e]"));
            let single = format!(
                "{{\n#pragma unroll\nfor (int e = 0; e < {width}; e++) if (e < columns) {y}[b{operand} + {offset} + e * {step}] = cast<{ty}>(o{o}[e]);\n}}\n"
            );
            stores += &if step == "1LL" {
                format!("if (whole) store_pack({y} + b{operand} + {offset}, packed<{ty}>(o{o}));\nelse {single}")
            } else {
                single
            };
        }
        let (deep, [_, share]) = (self.deep, THREADS);
        Ok(format!(
            "if (valid) for (i64 start = first + threadIdx.y; start < last; start += {}) {{\n{}\
             #pragma unroll\nfor (int k = 0; k < {deep}; k++) {{\nconst i64 r = start + k * {share};\nif (r < last) {{\n\
             {split}{declared}#pragma unroll\nfor (int e = 0; e < {width}; e++) finish({});\n{stores}}}\n}}\n}}\n",
            share * deep,
            self.loads(self.chain.stages.len(), deep, None, true)?,
            args.join(", ")
        ))
    }
}

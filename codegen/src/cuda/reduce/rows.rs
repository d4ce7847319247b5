//! Lines whose elements are neighbours: a few threads, a warp, a block, several blocks or a cluster for each, whichever the sizes of a run call
//! for. Each form is a kernel of its own, and its grid is empty where another is the one to run.

use super::{
    super::{
        ctype,
        emitter::Emitter,
        error::Emit,
        kernel::{Code, Header, Kernel},
    },
    chain::Chain,
    walk::{self, Pointers, Walk, at_most, more_than},
};
use eglu_ir::{Dim, types::numel};

const THREADS: i64 = 256;
/// Groups of elements that a thread has under way at once.
const IN_FLIGHT: i64 = 4;
/// Groups that a thread of a cluster keeps of its line.
const CLUSTER_KEPT: i64 = 16;
const CLUSTER: i64 = 8;

/// The threads that share a line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// A power of two up to a warp, each with one group; `IN_FLIGHT` lines at once.
    Lanes,
    Warp,
    /// A block, or several of them where `splits` allows.
    Block,
    Cluster,
}

/// One form of the kernel.
struct Form<'a> {
    chain: &'a Chain,
    walk: &'a Walk,
    share: Share,
    /// Groups that a thread keeps of its line; 0 where the line is walked once.
    kept: i64,
}

/// Emits the forms that some size calls for.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain, walk: &Walk) -> Emit<()> {
    let (rows, length, width) = (numel(&walk.kept.shape), numel(&walk.reduced.shape), walk.width);
    let one = Dim::from(1);
    let multiprocessors = i64::from(emitter.target.multiprocessors());
    let many = more_than(&rows, 2 * 8 * multiprocessors - 1);
    let once = chain.passes() == 1;
    let clusters = emitter.target.arch >= 90;
    let short = at_most(&length, 32 * width);
    let longer = one.clone() - short.clone();
    let warp_kept = 8;
    let block_kept = 8;
    let (to_warp, to_block) = match once {
        true => (at_most(&length, 1024 * width) * many, one.clone()),
        false => (
            at_most(&length, 32 * warp_kept * width),
            if clusters { at_most(&length, THREADS * block_kept * width) } else { one.clone() },
        ),
    };
    let in_warp = longer.clone() * to_warp.clone();
    let in_block = longer.clone() * (one.clone() - to_warp.clone()) * to_block.clone();
    let in_cluster = longer * (one.clone() - to_warp) * (one - to_block);
    // Of a known length, no more than it has.
    let kept = |threads: i64, most: i64| match (once, length.as_const()) {
        (true, _) => 0,
        (false, Some(n)) => (n + threads * width - 1).div_euclid(threads * width).clamp(1, most),
        (false, None) => most,
    };
    let residents = Dim::from(8 * multiprocessors);
    for (share, kept, when) in [
        (Share::Lanes, 1, short),
        (Share::Warp, kept(32, warp_kept), in_warp),
        (Share::Block, kept(THREADS, block_kept), in_block),
        (Share::Cluster, kept(THREADS * CLUSTER, CLUSTER_KEPT), in_cluster),
    ] {
        if when.is(0) {
            continue;
        }
        let form = Form { chain, walk, share, kept };
        let grid = match share {
            Share::Lanes => {
                let lanes = Dim::min(&length.ceil_div(width), &Dim::from(32)) * Dim::from(2) + Dim::from(1);
                Dim::min(&(rows.clone() * lanes).ceil_div(THREADS * IN_FLIGHT), &residents)
            }
            Share::Warp => Dim::min(&rows.ceil_div(THREADS / 32), &residents),
            Share::Block => rows.clone(),
            Share::Cluster => rows.clone() * Dim::from(CLUSTER),
        };
        let splits = match share {
            Share::Block if once => {
                let most = length.floor_div(&Dim::from(width * THREADS * IN_FLIGHT));
                walk::splits(emitter.target.multiprocessors(), &rows, &most)
            }
            _ => Dim::from(1),
        };
        form.emit(emitter, &rows, &length, grid * when, splits)?;
    }
    Ok(())
}

impl Form<'_> {
    fn emit(&self, emitter: &mut Emitter, rows: &Dim, length: &Dim, grid: Dim, splits: Dim) -> Emit<()> {
        let (chain, walk) = (self.chain, self.walk);
        let mut kernel = Kernel::new(chain.name.clone());
        let pointers = walk.pointers(&mut kernel, chain)?;
        let (rows_name, length_name) = (kernel.dim(rows), kernel.dim(length));
        let mut text = Text { form: self, kernel: &mut kernel, pointers: &pointers, length: &length_name };
        let mut headers = vec![Header::Math, Header::Warp, Header::Reduce, Header::Lines];
        let body = match self.share {
            Share::Lanes => text.lanes(&rows_name)?,
            Share::Warp => {
                let (bases, line) = (text.bases()?, text.line("32")?);
                format!(
                    "const int lane = threadIdx.x % 32;\nfor (i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32; row < {rows_name}; \
                     row += (i64)gridDim.x * 8) {{\n{bases}{line}}}\n"
                )
            }
            Share::Block if splits.is(1) => {
                format!("const i64 row = blockIdx.x;\nconst int lane = threadIdx.x;\n{}{}", text.bases()?, text.line("256")?)
            }
            Share::Block => {
                let bytes = rows.clone() * splits.clone() * more_than(&splits, 1);
                let partial = emitter.scratch("partial", bytes * Dim::from(chain.state_bytes()));
                let (partials, counter) = (text.kernel.scratch("State0", partial), text.kernel.counters());
                text.split(&partials, &counter)?
            }
            Share::Cluster => {
                headers.push(Header::Cluster);
                format!(
                    "const i64 row = blockIdx.x / {CLUSTER};\nconst int lane = blockIdx.x % {CLUSTER} * 256 + threadIdx.x;\n{}{}\
                     cluster_barrier();\n",
                    text.bases()?,
                    text.line(&format!("{}", CLUSTER * THREADS))?
                )
            }
        };
        let cluster = if self.share == Share::Cluster { CLUSTER as u32 } else { 0 };
        let code = Code { headers, items: chain.items()?, body, threads: [THREADS as u32, 1], cluster, ..Code::default() };
        emitter.launch(kernel, code, [grid, splits, Dim::from(1)]);
        Ok(())
    }
}

/// The text of one kernel's body.
struct Text<'a> {
    form: &'a Form<'a>,
    kernel: &'a mut Kernel,
    pointers: &'a Pointers,
    length: &'a str,
}

impl Text<'_> {
    fn walk(&self) -> &Walk {
        self.form.walk
    }

    /// Statements that say where line `row` starts in each operand, what its captures are, and how it divides into groups.
    fn bases(&mut self) -> Emit<String> {
        let (walk, width) = (self.form.walk, self.form.walk.width);
        let (mut text, names) = self.kernel.split("row", "i", &walk.kept.shape);
        for (i, strides) in walk.kept.strides.iter().enumerate() {
            text += &format!("const i64 b{i} = {};\n", self.kernel.offset(&names, strides));
        }
        text += &self.pointers.captures(self.form.chain)?;
        Ok(text
            + &match &walk.ragged {
                Some((operand, offset)) => {
                    let (offset, length) = (self.kernel.dim(offset), self.length);
                    format!(
                        "i64 head = -(b{operand} + {offset}) & {};\nhead = head < {length} ? head : {length};\n\
                         const i64 packs = ({length} - head) / {width}, tail = head + packs * {width};\n",
                        width - 1
                    )
                }
                None => format!("const i64 packs = {} / {width};\n", self.length),
            })
    }

    /// Statements that set `r`, the position of group `q`, and the indices there.
    fn position(&mut self) -> (String, Vec<String>) {
        let (walk, width) = (self.form.walk, self.form.walk.width);
        let r = match (&walk.ragged, width) {
            (Some(_), _) => format!("head + q * {width}"),
            (None, 1) => "q".into(),
            (None, _) => format!("q * {width}"),
        };
        let (split, names) = self.kernel.split("r", "j", &walk.reduced.shape);
        (format!("const i64 r = {r};\n{split}"), names)
    }

    /// The adds of pass `s` for group `q`, or its stores where it is the last pass; `kept(i)` names the group of an input that is kept.
    fn group(&mut self, pass: usize, kept: &dyn Fn(usize) -> Option<String>) -> Emit<String> {
        let (position, names) = self.position();
        let (chain, walk) = (self.form.chain, self.form.walk);
        let mut text = position;
        for i in 0..chain.inputs.len() {
            if chain.reads(pass, i) && kept(i).is_none() {
                text += &self.load(i, &names, &format!("g{i}"), true)?;
            }
        }
        let pack = |i: usize| walk.moves(i).then(|| kept(i).unwrap_or_else(|| format!("g{i}")));
        let element = |i: usize| match pack(i) {
            Some(pack) => format!("up({pack}.at[e])"),
            None => format!("up(g{i})"),
        };
        let body = match pass < chain.stages.len() {
            true => chain.add(pass, &format!("state{pass}"), walk.width, &pack, &element)?,
            false => self.stores(&names, &element)?,
        };
        Ok(text + &body)
    }

    /// Loads the group (or the one element that repeats) of an input at the indices `names`.
    fn load(&mut self, input: usize, names: &[String], to: &str, declare: bool) -> Emit<String> {
        let (x, walk) = (&self.pointers.inputs[input], self.form.walk);
        let (ty, width) = (ctype::storage(self.form.chain.inputs[input].dtype)?, walk.width);
        let offset = self.kernel.offset(names, &walk.reduced.strides[input]);
        Ok(if walk.loose.contains(&input) {
            let declared = if declare { format!("Pack<{ty}, {width}> {to};\n") } else { String::new() };
            format!("{declared}#pragma unroll\nfor (int e = 0; e < {width}; e++) {to}.at[e] = {x}[b{input} + {offset} + e];\n")
        } else if walk.moves(input) {
            let declared = if declare { format!("const Pack<{ty}, {width}> ") } else { String::new() };
            format!("{declared}{to} = load_pack<{ty}, {width}>({x} + b{input} + {offset});\n")
        } else {
            format!("const {ty} {to} = {x}[b{input} + {offset}];\n")
        })
    }

    /// Stores what the end makes of a group.
    fn stores(&mut self, names: &[String], element: &dyn Fn(usize) -> String) -> Emit<String> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let Some(finish) = &chain.finish else { return Ok(String::new()) };
        let mut args: Vec<String> = finish.args.iter().map(|&source| chain.value(source, element)).collect();
        let (mut declared, mut stores) = (String::new(), String::new());
        for (o, output) in finish.outputs.iter().enumerate() {
            let (ty, y) = (ctype::storage(output.dtype)?, &self.pointers.outputs[o]);
            let operand = chain.inputs.len() + chain.lines.len() + o;
            let offset = self.kernel.offset(names, &walk.reduced.strides[operand]);
            declared += &format!("Pack<{ty}, {}> o{o};\n", walk.width);
            args.push(format!("o{o}.at[e]"));
            stores += &if walk.stores_groups {
                format!("store_pack({y} + b{operand} + {offset}, o{o});\n")
            } else {
                let step = walk.reduced.strides[operand].last().map_or("1".into(), |stride| self.kernel.dim(stride));
                format!(
                    "#pragma unroll\nfor (int e = 0; e < {}; e++) {y}[b{operand} + {offset} + e * {step}] = o{o}.at[e];\n",
                    walk.width
                )
            };
        }
        Ok(format!("{declared}#pragma unroll\nfor (int e = 0; e < {}; e++) finish({});\n{stores}", walk.width, args.join(", ")))
    }

    /// The elements before the first whole group and after the last: nothing where there are none.
    fn edges(&mut self, pass: usize, threads: &str, when: &str) -> Emit<String> {
        if self.walk().ragged.is_none() {
            return Ok(String::new());
        }
        let (chain, walk) = (self.form.chain, self.form.walk);
        let names = vec!["r".to_string()];
        let mut offsets = Vec::new();
        for strides in &walk.reduced.strides {
            offsets.push(self.kernel.offset(&names, strides));
        }
        let element = |i: usize| format!("up({}[b{i} + {}])", self.pointers.inputs[i], offsets[i]);
        let (state, adds, merge) = if pass < chain.stages.len() {
            let adds = chain.add(pass, &format!("edge{pass}"), 1, &|_| None, &element)?;
            // Merged, since these elements come out of order.
            (format!("State{pass} edge{pass};\n"), adds, format!("state{pass}.merge(edge{pass});\n"))
        } else if let Some(finish) = &chain.finish {
            let mut args: Vec<String> = finish.args.iter().map(|&source| chain.value(source, &element)).collect();
            for (o, y) in self.pointers.outputs.iter().enumerate() {
                let operand = chain.inputs.len() + chain.lines.len() + o;
                args.push(format!("{y}[b{operand} + {}]", offsets[operand]));
            }
            (String::new(), format!("finish({});\n", args.join(", ")), String::new())
        } else {
            return Ok(String::new());
        };
        let length = self.length;
        let e = if adds.contains("[e]") { "const int e = 0;\n" } else { "" };
        let adds = adds.replace("for (int e = 0; e < 1; e++) ", "").replace("#pragma unroll\n", "");
        Ok(format!(
            "{state}for (i64 at = lane; {when}at < head + ({length} - tail); at += {threads}) {{\n\
             const i64 r = at < head ? at : at - head + tail;\n{e}{adds}}}\n{merge}"
        ))
    }

    /// A line of several passes, or one pass over all of it: `lane` of `threads` threads.
    fn line(&mut self, threads: &str) -> Emit<String> {
        let chain = self.form.chain;
        if self.form.kept == 0 {
            let once = self.once("0", "packs", threads, "")?;
            return Ok(once + &self.merged(0)? + &self.results(0, "lane == 0")?);
        }
        let (keep, rest) = (self.keep(threads)?, self.rest(threads));
        let mut text = keep;
        let walk = self.form.walk;
        for pass in 0..chain.passes() {
            let held = |i: usize| (chain.keeps(i) && walk.moves(i)).then(|| format!("h{i}[k]"));
            let (inside, beyond, edges) =
                (self.group(pass, &held)?, self.group(pass, &|_| None)?, self.edges(pass, threads, "")?);
            if pass < chain.stages.len() {
                text += &format!("State{pass} state{pass};\n");
            }
            text += &format!(
                "#pragma unroll\nfor (int k = 0; k < {}; k++) {{\nconst i64 q = lane + k * {threads};\nif (q < packs) {{\n{inside}}}\n}}\n",
                self.form.kept
            );
            if rest {
                text +=
                    &format!("for (i64 q = lane + {} * {threads}; q < packs; q += {threads}) {{\n{beyond}}}\n", self.form.kept);
            }
            text += &edges;
            if pass < chain.stages.len() {
                text += &(self.merged(pass)? + &self.results(pass, "lane == 0")?);
            }
        }
        Ok(text)
    }

    /// True if a line may be longer than what is kept of it.
    fn rest(&self, threads: &str) -> bool {
        let (kept, width) = (self.form.kept, self.walk().width);
        let most = threads.parse::<i64>().map(|threads| threads * kept * width);
        numel(&self.walk().reduced.shape).as_const().zip(most.ok()).is_none_or(|(length, most)| length > most)
    }

    /// Loads what is kept of the line.
    fn keep(&mut self, threads: &str) -> Emit<String> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let (position, names) = self.position();
        let (mut declared, mut loads) = (String::new(), String::new());
        for i in (0..chain.inputs.len()).filter(|&i| chain.keeps(i)) {
            let ty = ctype::storage(chain.inputs[i].dtype)?;
            if walk.moves(i) {
                declared += &format!("Pack<{ty}, {}> h{i}[{}];\n", walk.width, self.form.kept);
                loads += &self.load(i, &names, &format!("h{i}[k]"), false)?;
            }
        }
        Ok(format!(
            "{declared}#pragma unroll\nfor (int k = 0; k < {}; k++) {{\nconst i64 q = lane + k * {threads};\nif (q < packs) {{\n{position}{loads}}}\n}}\n",
            self.form.kept
        ))
    }

    /// Adds the groups `first..last` to `state0`, several loads under way at once, and the edges `when` ("… && ") holds.
    fn once(&mut self, first: &str, last: &str, threads: &str, when: &str) -> Emit<String> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let (position, names) = self.position();
        let (mut declared, mut loads) = (String::new(), String::new());
        for i in 0..chain.inputs.len() {
            if walk.moves(i) {
                let ty = ctype::storage(chain.inputs[i].dtype)?;
                declared += &format!("Pack<{ty}, {}> h{i}[{IN_FLIGHT}];\n", walk.width);
                loads += &self.load(i, &names, &format!("h{i}[k]"), false)?;
            }
        }
        let adds = self.group(0, &|i| walk.moves(i).then(|| format!("h{i}[k]")))?;
        let each = format!("#pragma unroll\nfor (int k = 0; k < {IN_FLIGHT}; k++) {{\nconst i64 q = start + k * {threads};\n");
        Ok(format!(
            "State0 state0;\ni64 start = {first} + lane;\nfor (; start + {} * {threads} < {last}; start += {IN_FLIGHT} * {threads}) {{\n\
             {declared}{each}{position}{loads}}}\n{each}{adds}}}\n}}\n\
             {declared}{each}if (q < {last}) {{\n{position}{loads}}}\n}}\n{each}if (q < {last}) {{\n{adds}}}\n}}\n{}",
            IN_FLIGHT - 1,
            self.edges(0, threads, when)?
        ))
    }

    /// Merges the states of a pass over the threads of the line.
    fn merged(&self, pass: usize) -> Emit<String> {
        Ok(match self.form.share {
            Share::Lanes => format!("lanes_merge(state{pass}, lanes);\n"),
            Share::Warp => format!("warp_merge(state{pass});\n"),
            Share::Block => format!("merge_block<{THREADS}>(state{pass});\n"),
            Share::Cluster => format!("merge_cluster<{THREADS}, {CLUSTER}, {pass}>(state{pass});\n"),
        })
    }

    /// Turns the merged state into stats, and stores those that are results where `leads` holds.
    fn results(&mut self, pass: usize, leads: &str) -> Emit<String> {
        let chain = self.form.chain;
        let mut text = chain.epilogue(pass, &format!("state{pass}"), self.length)?;
        let first = chain.first_stat(pass);
        let stores: String = self.pointers.stats[pass]
            .iter()
            .enumerate()
            .filter_map(|(i, y)| y.as_ref().map(|y| format!("{y}[row] = stat{};\n", first + i)))
            .collect();
        if !stores.is_empty() {
            text += &format!("if ({leads}) {{\n{stores}}}\n");
        }
        Ok(text)
    }

    /// Lines of few elements: a power of two of threads for each, and several lines at once.
    fn lanes(&mut self, rows: &str) -> Emit<String> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let (width, length) = (walk.width, self.length.to_string());
        let lanes = match numel(&walk.reduced.shape).as_const() {
            // The edges of a ragged line are elements by themselves.
            Some(n) if walk.ragged.is_some() => format!("constexpr int lanes = {};\n", lanes_of(n.min((n / width).max(8)))),
            Some(n) => format!("constexpr int lanes = {};\n", lanes_of(n / width)),
            None => {
                let wanted = if walk.ragged.is_some() {
                    format!("({length} / {width} > 8 ? {length} / {width} : 8)")
                } else {
                    format!("{length} / {width}")
                };
                format!("int lanes = 1;\nwhile (lanes < 32 && lanes < {wanted} && lanes < {length}) lanes *= 2;\n")
            }
        };
        let bases = self.bases()?;
        let (position, names) = self.position();
        let (mut declared, mut loads) = (String::new(), String::new());
        for i in (0..chain.inputs.len()).filter(|&i| walk.moves(i)) {
            let ty = ctype::storage(chain.inputs[i].dtype)?;
            declared += &format!("Pack<{ty}, {width}> h{i}[{IN_FLIGHT}];\n");
            loads += &self.load(i, &names, &format!("h{i}[k]"), false)?;
        }
        let start = format!(
            "#pragma unroll\nfor (int k = 0; k < {IN_FLIGHT}; k++) {{\nconst i64 at_row = first + threadIdx.x / lanes + k * groups;\n\
             const bool valid = at_row < {rows};\nconst i64 row = valid ? at_row : 0;\n{bases}const i64 q = lane;\n"
        );
        let mut passes = String::new();
        for pass in 0..chain.passes() {
            let body = self.group(pass, &|i| walk.moves(i).then(|| format!("h{i}[k]")))?;
            let edges = self.edges(pass, "lanes", "")?;
            let reduces = pass < chain.stages.len();
            if reduces {
                passes += &format!("State{pass} state{pass};\n");
            }
            passes += &format!("if (valid && q < packs) {{\n{body}}}\n");
            if !edges.is_empty() {
                passes += &format!("if (valid) {{\n{edges}}}\n");
            }
            if reduces {
                passes += &(self.merged(pass)? + &self.results(pass, "valid && lane == 0")?);
            }
        }
        Ok(format!(
            "{lanes}const int lane = threadIdx.x % lanes;\nconst i64 groups = (i64)gridDim.x * ({THREADS} / lanes);\n\
             for (i64 first = (i64)blockIdx.x * ({THREADS} / lanes); first < {rows}; first += groups * {IN_FLIGHT}) {{\n\
             {declared}{start}if (valid && q < packs) {{\n{position}{loads}}}\n}}\n{start}{passes}}}\n}}\n"
        ))
    }

    /// A part of a line for each block along y; the block that comes last merges the parts.
    fn split(&mut self, partials: &str, counter: &str) -> Emit<String> {
        let bases = self.bases()?;
        // The first block takes the edges.
        let once = self.once("first", "last", "256", "blockIdx.y == 0 && ")?;
        Ok(format!(
            "const i64 row = blockIdx.x;\nconst int lane = threadIdx.x;\n{bases}\
             const i64 first = packs * blockIdx.y / gridDim.y, last = packs * (blockIdx.y + 1) / gridDim.y;\n{once}\
             if (gridDim.y > 1) {{\nState0* const parts = {partials} + row * gridDim.y;\nmerge_block<{THREADS}>(state0);\n\
             if (lane == 0) parts[blockIdx.y] = state0;\nif (!comes_last({counter} + row, gridDim.y)) return;\n\
             state0 = State0();\nfor (int i = lane; i < gridDim.y; i += {THREADS}) state0.merge(fresh(parts + i));\n}}\n{}{}",
            self.merged(0)?,
            self.results(0, "lane == 0")?
        ))
    }
}

/// The least power of two of at least `n` threads, up to a warp.
fn lanes_of(n: i64) -> i64 {
    (n.clamp(1, 32) as u64).next_power_of_two() as i64
}

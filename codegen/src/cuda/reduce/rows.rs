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
/// Blocks of a cluster, and threads of each.
const CLUSTER: [i64; 2] = [8, 512];
/// Groups that a thread of a warp, and of a block, keeps in registers of a line that is walked more than once.
const KEPT: [i64; 2] = [16, 8];
/// Bytes of a longer line that a block keeps in shared memory: three such blocks fit a multiprocessor of Hopper, one an older one.
const SHARED: [i64; 2] = [64 << 10, 96 << 10];

/// The threads that share a line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// A power of two below a warp.
    Lanes(i64),
    Warp,
    /// A block of so many threads, or several of them where `splits` allows.
    Block(i64),
    Cluster,
}

/// One form of the kernel.
struct Form<'a> {
    chain: &'a Chain,
    walk: &'a Walk,
    share: Share,
    /// Groups of a line that a thread has at once; kept from pass to pass.
    groups: i64,
    /// Bytes of shared memory where they are kept; else it is registers.
    shared: i64,
    /// Lines that a thread has at once.
    lines: i64,
}

/// The forms by ascending length: the threads of a line, the groups of elements that each has of it, the most groups of a line, and the
/// bytes of shared memory.
fn forms(chain: &Chain, walk: &Walk, clusters: bool) -> Vec<(Share, i64, i64, i64)> {
    let once = chain.passes() == 1;
    let eight = if once { 8 } else { 4 };
    let mut forms = vec![(Share::Lanes(1), 2, 2, 0), (Share::Lanes(2), 4, 8, 0), (Share::Lanes(8), eight, 8 * eight, 0)];
    if once {
        let stage = &chain.stages[0];
        let wide = walk.width > 4 && stage.prologue.results.iter().any(|(_, dtype)| dtype.opmath().size() > 4);
        let under_way = if stage.kinds.len() * chain.inputs.len() > 2 || walk.width > 8 || wide { 4 } else { 8 };
        forms.extend([(Share::Warp, 4, 1024, 0), (Share::Block(THREADS), under_way, i64::MAX, 0)]);
    } else {
        forms.extend([(Share::Warp, KEPT[0], 32 * KEPT[0], 0), (Share::Block(THREADS), KEPT[1], THREADS * KEPT[1], 0)]);
        let kept = (0..chain.inputs.len()).filter(|&i| chain.keeps(i) && walk.moves(i));
        let bytes: i64 = kept.map(|i| chain.inputs[i].dtype.size() as i64 * walk.width).sum();
        let groups = |threads: i64, shared: i64| (shared / (threads * bytes.max(1))).max(1);
        let [few, many] = SHARED;
        let own = groups(512, few);
        if clusters {
            forms.extend([(Share::Block(512), own, 512 * own, few), (Share::Cluster, groups(CLUSTER[1], few), i64::MAX, few)]);
        } else {
            forms.push((Share::Block(1024), groups(1024, many), i64::MAX, many));
        }
    }
    forms
}

/// Emits the forms that some size calls for.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain, walk: &Walk) -> Emit<()> {
    let (rows, length, width) = (numel(&walk.kept.shape), numel(&walk.reduced.shape), walk.width);
    let multiprocessors = emitter.target.multiprocessors();
    let once = chain.passes() == 1;
    // 1 where no form so far is the one to run.
    let mut open = Dim::from(1);
    for (share, groups, most, shared) in forms(chain, walk, emitter.target.arch >= 90) {
        let mut when = if most == i64::MAX { Dim::from(1) } else { at_most(&length, most * width) };
        if once && share == Share::Warp {
            // Few long lines go to blocks.
            when = when * more_than(&rows, 16 * i64::from(multiprocessors) - 1);
        }
        let runs = open.clone() * when.clone();
        open = open * (Dim::from(1) - when);
        if runs.is(0) {
            continue;
        }
        // Of a known length, no more than it has.
        let groups = match (share, length.as_const()) {
            (_, Some(n)) if !once || matches!(share, Share::Lanes(_)) => {
                (n + share.threads() * width - 1).div_euclid(share.threads() * width).clamp(1, groups)
            }
            _ => groups,
        };
        let lines = if let Share::Lanes(_) = share { (4 / groups).max(1) } else { 1 };
        let form = Form { chain, walk, share, groups, shared, lines };
        let grid = match share {
            Share::Lanes(lanes) => rows.ceil_div(THREADS / lanes * lines),
            Share::Warp => rows.ceil_div(THREADS / 32),
            Share::Block(_) => rows.clone(),
            Share::Cluster => rows.clone() * Dim::from(CLUSTER[0]),
        };
        let splits = match share {
            Share::Block(_) if once => {
                let most = length.floor_div(&Dim::from(width * THREADS * groups));
                walk::splits(4 * multiprocessors, &rows, &most)
            }
            _ => Dim::from(1),
        };
        form.emit(emitter, &rows, &length, grid * runs, splits)?;
    }
    Ok(())
}

impl Share {
    /// Threads of a line.
    fn threads(self) -> i64 {
        match self {
            Share::Lanes(lanes) => lanes,
            Share::Warp => 32,
            Share::Block(threads) => threads,
            Share::Cluster => CLUSTER[0] * CLUSTER[1],
        }
    }

    /// Threads of a block.
    fn block(self) -> i64 {
        match self {
            Share::Block(threads) => threads,
            Share::Cluster => CLUSTER[1],
            _ => THREADS,
        }
    }
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
            Share::Lanes(lanes) => text.lanes(&rows_name, lanes)?,
            Share::Warp => format!(
                "const int lane = threadIdx.x % 32;\nconst i64 row = (i64)blockIdx.x * {} + threadIdx.x / 32;\n\
                 if (row >= {rows_name}) return;\n{}{}",
                THREADS / 32,
                text.bases()?,
                text.line()?
            ),
            Share::Block(_) if splits.is(1) => {
                format!("const i64 row = blockIdx.x;\nconst int lane = threadIdx.x;\n{}{}", text.bases()?, text.line()?)
            }
            Share::Block(_) => {
                let bytes = rows.clone() * splits.clone() * more_than(&splits, 1);
                let partial = emitter.scratch("partial", bytes * Dim::from(chain.state_bytes()));
                let (partials, counter) = (text.kernel.scratch("State0", partial), text.kernel.counters());
                text.split(&partials, &counter)?
            }
            Share::Cluster => {
                headers.push(Header::Cluster);
                let [blocks, threads] = CLUSTER;
                format!(
                    "const i64 row = blockIdx.x / {blocks};\nconst int lane = blockIdx.x % {blocks} * {threads} + threadIdx.x;\n{}{}\
                     cluster_barrier();\n",
                    text.bases()?,
                    text.line()?
                )
            }
        };
        let residents = match self.share {
            Share::Block(THREADS) if chain.passes() == 1 => 4,
            Share::Warp if chain.passes() > 1 => 2,
            _ => 0,
        };
        let cluster = if self.share == Share::Cluster { CLUSTER[0] as u32 } else { 0 };
        let threads = [self.share.block() as u32, 1];
        let shared_bytes = self.shared as u32;
        let code = Code { headers, items: chain.items()?, body, threads, shared_bytes, residents, cluster };
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
    fn edges(&mut self, pass: usize, when: &str) -> Emit<String> {
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
        let (length, threads) = (self.length, self.form.share.threads());
        let e = if adds.contains("[e]") { "const int e = 0;\n" } else { "" };
        let adds = adds.replace("for (int e = 0; e < 1; e++) ", "").replace("#pragma unroll\n", "");
        Ok(format!(
            "{state}for (i64 at = lane; {when}at < head + ({length} - tail); at += {threads}) {{\n\
             const i64 r = at < head ? at : at - head + tail;\n{e}{adds}}}\n{merge}"
        ))
    }

    /// A line in one pass, or in several that keep what they read.
    fn line(&mut self) -> Emit<String> {
        let (chain, walk, threads) = (self.form.chain, self.form.walk, self.form.share.threads());
        if chain.passes() == 1 {
            let once = self.once("0", "packs", "")?;
            return Ok(once + &self.merged(0)? + &self.results(0, "lane == 0")?);
        }
        let Form { groups, shared, .. } = *self.form;
        let rest = numel(&walk.reduced.shape).as_const().is_none_or(|length| length > threads * groups * walk.width);
        let at = if shared > 0 { format!("[k * {} + threadIdx.x]", self.form.share.block()) } else { "[k]".into() };
        let unroll = if shared > 0 { "#pragma unroll 2" } else { "#pragma unroll" };
        let each = format!(
            "{unroll}\nfor (int k = 0; k < {groups}; k++) {{\nif (k * {threads} >= packs) break;\nconst i64 q = lane + k * {threads};\nif (q < packs) {{\n"
        );
        let mut text = self.keep(&at, &each)?;
        for pass in 0..chain.passes() {
            let held = |i: usize| (chain.keeps(i) && walk.moves(i)).then(|| format!("h{i}{at}"));
            let (inside, beyond, edges) = (self.group(pass, &held)?, self.group(pass, &|_| None)?, self.edges(pass, "")?);
            let reduces = pass < chain.stages.len();
            if reduces {
                text += &chain.begin(pass, walk.width)?;
            }
            if shared == 0 {
                text += &self.reread(pass, groups);
            }
            text += &format!("{each}{inside}}}\n}}\n");
            if rest {
                text += &format!("for (i64 q = lane + {groups} * {threads}; q < packs; q += {threads}) {{\n{beyond}}}\n");
            }
            if reduces {
                text += &chain.settle(pass, walk.width);
            }
            text += &edges;
            if reduces {
                text += &(self.merged(pass)? + &self.results(pass, "lane == 0")?);
            }
        }
        Ok(text)
    }

    /// Arrays of the groups that a thread has at once, and the loads of one: `at` is its place in them.
    fn groups(&mut self, count: i64, at: &str, which: &dyn Fn(usize) -> bool) -> Emit<[String; 2]> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let (mut loads, names) = self.position();
        let mut declared = String::new();
        for i in (0..chain.inputs.len()).filter(|&i| walk.moves(i) && which(i)) {
            declared += &format!("Pack<{}, {}> h{i}[{count}];\n", ctype::storage(chain.inputs[i].dtype)?, walk.width);
            loads += &self.load(i, &names, &format!("h{i}[{at}]"), false)?;
        }
        Ok([declared, loads])
    }

    /// Before a later pass over what is kept.
    fn reread(&self, pass: usize, count: i64) -> String {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let kept = (0..chain.inputs.len()).filter(|&i| pass > 0 && chain.keeps(i) && walk.moves(i));
        kept.map(|i| format!("#pragma unroll\nfor (int k = 0; k < {count}; k++) reread(h{i}[k]);\n")).collect()
    }

    /// Loads what is kept of the line.
    fn keep(&mut self, at: &str, each: &str) -> Emit<String> {
        let (chain, walk, Form { groups, shared, share, .. }) = (self.form.chain, self.form.walk, self.form);
        if *shared == 0 {
            let [declared, loads] = self.groups(*groups, "k", &|i| chain.keeps(i))?;
            return Ok(format!("{declared}{each}{loads}}}\n}}\n"));
        }
        let (mut loads, names) = self.position();
        let (mut declared, mut place) = (String::from("alignas(16) extern __shared__ char kept[];\n"), 0);
        for i in (0..chain.inputs.len()).filter(|&i| chain.keeps(i) && walk.moves(i)) {
            let (ty, width) = (ctype::storage(chain.inputs[i].dtype)?, walk.width);
            declared += &format!("Pack<{ty}, {width}>* const h{i} = (Pack<{ty}, {width}>*)(kept + {place});\n");
            place += groups * share.block() * chain.inputs[i].dtype.size() as i64 * width;
            let offset = self.kernel.offset(&names, &walk.reduced.strides[i]);
            loads += &if walk.loose.contains(&i) {
                self.load(i, &names, &format!("h{i}{at}"), false)?
            } else {
                format!("keep_pack<{ty}, {width}>(h{i}{at}, {} + b{i} + {offset});\n", self.pointers.inputs[i])
            };
        }
        Ok(format!("{declared}{each}{loads}}}\n}}\nkept_all();\n"))
    }

    /// Adds the groups `first..last` to `state0`, several loads under way at once, and the edges where `when` ("… && ") holds.
    fn once(&mut self, first: &str, last: &str, when: &str) -> Emit<String> {
        let (chain, walk, groups, threads) = (self.form.chain, self.form.walk, self.form.groups, self.form.share.threads());
        let [declared, loads] = self.groups(groups, "k", &|_| true)?;
        let adds = self.group(0, &|i| walk.moves(i).then(|| format!("h{i}[k]")))?;
        let each = format!("#pragma unroll\nfor (int k = 0; k < {groups}; k++) {{\nconst i64 q = start + k * {threads};\n");
        Ok(format!(
            "{}i64 start = {first} + lane;\nfor (; start + {} * {threads} < {last}; start += {groups} * {threads}) {{\n\
             {declared}{each}{loads}}}\n{each}{adds}}}\n}}\n\
             {{\n{declared}{each}if (q < {last}) {{\n{loads}}}\n}}\n{each}if (q < {last}) {{\n{adds}}}\n}}\n}}\n{}{}",
            chain.begin(0, walk.width)?,
            groups - 1,
            chain.settle(0, walk.width),
            self.edges(0, when)?
        ))
    }

    /// Merges the states of a pass over the threads of the line.
    fn merged(&self, pass: usize) -> Emit<String> {
        Ok(match self.form.share {
            Share::Lanes(lanes) => format!("merge_lanes<{lanes}>(state{pass});\n"),
            Share::Warp => format!("merge_lanes<32>(state{pass});\n"),
            Share::Block(threads) => format!("merge_block<{threads}>(state{pass});\n"),
            Share::Cluster => format!("merge_cluster<{}, {}, {pass}>(state{pass});\n", CLUSTER[1], CLUSTER[0]),
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

    /// Short lines: few threads for each, and several lines at once.
    fn lanes(&mut self, rows: &str, lanes: i64) -> Emit<String> {
        let (chain, walk, Form { groups, lines, .. }) = (self.form.chain, self.form.walk, self.form);
        let bases = self.bases()?;
        let at = format!("u * {groups} + k");
        let [declared, loads] = self.groups(groups * lines, &at, &|_| true)?;
        let across = THREADS / lanes;
        let start = format!(
            "#pragma unroll\nfor (int u = 0; u < {lines}; u++) {{\nconst i64 at_row = (i64)blockIdx.x * {} + u * {across} + threadIdx.x / {lanes};\n\
             const bool valid = at_row < {rows};\nconst i64 row = valid ? at_row : 0;\n{bases}",
            across * lines
        );
        let each = format!(
            "#pragma unroll\nfor (int k = 0; k < {groups}; k++) {{\nif (k * {lanes} >= packs) break;\nconst i64 q = lane + k * {lanes};\n\
             if (valid && q < packs) {{\n"
        );
        let mut passes = String::new();
        for pass in 0..chain.passes() {
            let body = self.group(pass, &|i| walk.moves(i).then(|| format!("h{i}[{at}]")))?;
            let edges = self.edges(pass, "valid && ")?;
            let reduces = pass < chain.stages.len();
            if reduces {
                passes += &chain.begin(pass, walk.width)?;
            }
            passes += &format!("{each}{body}}}\n}}\n");
            if reduces {
                passes += &chain.settle(pass, walk.width);
            }
            passes += &edges;
            if reduces {
                passes += &(self.merged(pass)? + &self.results(pass, "valid && lane == 0")?);
            }
        }
        Ok(format!("const int lane = threadIdx.x % {lanes};\n{declared}{start}{each}{loads}}}\n}}\n}}\n{start}{passes}}}\n"))
    }

    /// A part of a line for each block along y; the block that comes last merges the parts.
    fn split(&mut self, partials: &str, counter: &str) -> Emit<String> {
        let bases = self.bases()?;
        // The first block takes the edges.
        let once = self.once("first", "last", "blockIdx.y == 0 && ")?;
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

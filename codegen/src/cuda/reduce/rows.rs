//! The text of kernels over lines whose elements are neighbours, in each of their forms.

use super::{
    super::{ctype, error::Emit, kernel::Kernel},
    forms::{CLUSTER, Form, Ring, Share, THREADS},
    walk::Pointers,
};

/// The text of one kernel's body.
pub(super) struct Text<'a> {
    pub form: &'a Form<'a>,
    pub kernel: &'a mut Kernel,
    pub pointers: &'a Pointers,
    pub length: &'a str,
}

impl Text<'_> {
    /// Statements that say where line `row` starts in each operand, what its captures are, and how it divides into groups.
    pub fn bases(&mut self) -> Emit<String> {
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
                        "Index head = (Index)(-(b{operand} + {offset}) & {});\nhead = head < {length} ? head : {length};\n\
                         const Index packs = ({length} - head) / {width}, tail = head + packs * {width};\n",
                        width - 1
                    )
                }
                None => format!("const Index packs = {} / {width};\n", self.length),
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
        (format!("const Index r = {r};\n{split}"), names)
    }

    /// The adds of pass `s` for group `q`, or its stores where it is the last pass; `kept(i)` names the group of an input that is kept.
    pub(super) fn group(&mut self, pass: usize, kept: &dyn Fn(usize) -> Option<String>) -> Emit<String> {
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
            true => chain.add(pass, &format!("state{pass}"), (walk.width, self.form.keyed()), &pack, &element)?,
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
            let declared = if declare { format!("Pack<{ty}, {width}> {to};\n") } else { String::new() };
            format!("{declared}load_pack({to}, {x} + b{input} + {offset});\n")
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
            declared += &format!("{} o{o}[{}];\n", ctype::opmath(output.dtype)?, walk.width);
            args.push(format!("o{o}[e]"));
            stores += &if walk.stores_groups {
                format!("store_pack({y} + b{operand} + {offset}, packed<{ty}>(o{o}));\n")
            } else {
                let step = walk.reduced.strides[operand].last().map_or("1".into(), |stride| self.kernel.dim(stride));
                format!(
                    "#pragma unroll\nfor (int e = 0; e < {}; e++) {y}[b{operand} + {offset} + e * {step}] = cast<{ty}>(o{o}[e]);\n",
                    walk.width
                )
            };
        }
        Ok(format!("{declared}#pragma unroll\nfor (int e = 0; e < {}; e++) finish({});\n{stores}", walk.width, args.join(", ")))
    }

    /// The elements before the first whole group and after the last: nothing where there are none.
    pub(super) fn edges(&mut self, pass: usize, when: &str) -> Emit<String> {
        if self.form.walk.ragged.is_none() {
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
            let adds = chain.add(pass, &format!("edge{pass}"), (1, self.form.keyed()), &|_| None, &element)?;
            // Merged, since these elements come out of order.
            (format!("State{pass} edge{pass};\n"), adds, format!("state{pass}.merge(edge{pass});\n"))
        } else if let Some(finish) = &chain.finish {
            let mut args: Vec<String> = finish.args.iter().map(|&source| chain.value(source, &element)).collect();
            let (mut declared, mut stores) = (String::new(), String::new());
            for (o, (y, output)) in self.pointers.outputs.iter().zip(&finish.outputs).enumerate() {
                let operand = chain.inputs.len() + chain.lines.len() + o;
                declared += &format!("{} o{o};\n", ctype::opmath(output.dtype)?);
                args.push(format!("o{o}"));
                stores += &format!("{y}[b{operand} + {}] = cast<{}>(o{o});\n", offsets[operand], ctype::storage(output.dtype)?);
            }
            (String::new(), format!("{declared}finish({});\n{stores}", args.join(", ")), String::new())
        } else {
            return Ok(String::new());
        };
        let (length, threads) = (self.length, self.form.share.threads());
        let e = if adds.contains("[e]") || adds.contains(" + e)") { "const int e = 0;\n" } else { "" };
        let adds = adds.replace("for (int e = 0; e < 1; e++) ", "").replace("#pragma unroll\n", "");
        Ok(format!(
            "if ({when}head + ({length} - tail) > 0) {{\n{state}#pragma unroll 1\n\
             for (Index at = lane; at < head + ({length} - tail); at += {threads}) {{\n\
             const Index r = at < head ? at : at - head + tail;\n{e}{adds}}}\n{merge}}}\n"
        ))
    }

    /// A line in one pass.
    pub fn line(&mut self) -> Emit<String> {
        let once = self.once("0", "packs", "")?;
        Ok(once + &self.merged(0)? + &self.results(0, "lane == 0")?)
    }

    /// Every pass over a line in shared memory; `each` is the head of the loop over the groups of this thread that are there, and `at` a
    /// group's place.
    fn passes(&mut self, each: &str, at: &str) -> Emit<String> {
        let (chain, walk, threads) = (self.form.chain, self.form.walk, self.form.share.threads());
        let mut text = String::new();
        for pass in 0..chain.passes() {
            let held = |i: usize| (walk.keeps(chain, i)).then(|| format!("k{i}"));
            let mut copies = String::new();
            for i in (0..chain.inputs.len()).filter(|&i| chain.reads(pass, i) && held(i).is_some()) {
                copies += &format!("const Pack<{}, {}> k{i} = h{i}{at};\n", ctype::storage(chain.inputs[i].dtype)?, walk.width);
            }
            let (inside, outside, edges) = (self.group(pass, &held)?, self.group(pass, &|_| None)?, self.edges(pass, "")?);
            let reduces = pass < chain.stages.len();
            if reduces {
                text += &chain.begin(pass, self.form.steps(), self.form.keyed())?;
            }
            text += &format!("{each}{copies}{inside}}}\n");
            if !self.form.holds_all() {
                text += &format!(
                    "for (Index q = lane + {}; q < packs; q += {threads}) {{\n{outside}}}\n",
                    self.form.groups * threads
                );
            }
            if reduces {
                text += &chain.settle(pass, self.form.steps(), self.form.keyed())?;
            }
            text += &edges;
            if reduces {
                text += &(self.merged(pass)? + &self.results(pass, "lane == 0")?);
            }
        }
        Ok(text)
    }

    /// One line after the other, each in several passes; the next ones are on their way to shared memory meanwhile.
    pub fn ring(&mut self, rows: &str) -> Emit<String> {
        let (chain, walk, Form { groups, share, ring, .. }) = (self.form.chain, self.form.walk, self.form);
        let Some(Ring { stages, .. }) = *ring else { return Ok(String::new()) };
        let (block, threads, bases) = (share.block(), share.threads(), self.bases()?);
        // What does not fit is read again in each pass.
        let end = if self.form.holds_all() { "packs".into() } else { format!("min(packs, (Index){})", groups * threads) };
        let each = format!("#pragma unroll 2\nfor (Index k = 0, q = lane; q < {end}; k++, q += {threads}) {{\n");
        let (lane, start, step) = match share {
            Share::Warp => {
                let warps = block / 32;
                let start = format!("(i64)blockIdx.x * {warps} + threadIdx.x / 32");
                ("threadIdx.x % 32".into(), start, format!("(i64)gridDim.x * {warps}"))
            }
            Share::Cluster => {
                let blocks = share.threads() / block;
                let lane = format!("blockIdx.x % {blocks} * {block} + threadIdx.x");
                (lane, format!("blockIdx.x / {blocks}"), format!("gridDim.x / {blocks}"))
            }
            _ => ("threadIdx.x".to_string(), "blockIdx.x".to_string(), "gridDim.x".to_string()),
        };
        let mut text = format!(
            "alignas(16) extern __shared__ char kept[];\nconst int lane = {lane};\nconst i64 start = {start}, step = {step};\n"
        );
        let (mut loads, names) = self.position();
        let (mut here, mut place) = (String::new(), 0);
        for i in (0..chain.inputs.len()).filter(|&i| walk.keeps(chain, i)) {
            let (ty, width) = (ctype::storage(chain.inputs[i].dtype)?, walk.width);
            text += &format!("Pack<{ty}, {width}>* const ring{i} = (Pack<{ty}, {width}>*)(kept + {place}) + threadIdx.x;\n");
            place += stages * groups * block * chain.inputs[i].dtype.size() as i64 * width;
            here += &format!("Pack<{ty}, {width}>* const h{i} = ring{i} + stage * {};\n", groups * block);
            let (offset, slot) = (self.kernel.offset(&names, &walk.reduced.strides[i]), format!("h{i}[k * {block}]"));
            loads += &if walk.loose.contains(&i) {
                self.load(i, &names, &slot, false)?
            } else {
                format!("keep_pack<{ty}, {width}>({slot}, {} + b{i} + {offset});\n", self.pointers.inputs[i])
            };
        }
        // Blocks write to each other's memory once all have begun, and until all have ended.
        let barrier = if *share == Share::Cluster { "cluster_barrier();\n" } else { "" };
        text += &format!(
            "const auto keep = [&](i64 row, int stage) {{\nif (row < {rows}) {{\n{bases}{here}{each}{loads}}}\n}}\nkeep_line();\n}};\n\
             for (int stage = 0; stage < {0}; stage++) keep(start + stage * step, stage);\n{barrier}int stage = 0, turn = 0;\n\
             for (i64 row = start; row < {rows}; row += step) {{\n\
             keep(row + {0} * step, stage == 0 ? {0} : stage - 1);\nkept_but<{0}>();\n{bases}{here}",
            stages - 1
        );
        text += &self.passes(&each, &format!("[k * {block}]"))?;
        text += &format!("stage = stage == {} ? 0 : stage + 1;\nturn ^= 1;\n}}\n{barrier}", stages - 1);
        Ok(text)
    }

    /// Arrays of the groups that a thread has at once, and the loads of one: `at` is its place in them.
    pub(super) fn groups(&mut self, count: i64, at: &str, which: &dyn Fn(usize) -> bool) -> Emit<[String; 2]> {
        let (chain, walk) = (self.form.chain, self.form.walk);
        let (mut loads, names) = self.position();
        let mut declared = String::new();
        for i in (0..chain.inputs.len()).filter(|&i| walk.moves(i) && which(i)) {
            declared += &format!("Pack<{}, {}> h{i}[{count}];\n", ctype::storage(chain.inputs[i].dtype)?, walk.width);
            loads += &self.load(i, &names, &format!("h{i}[{at}]"), false)?;
        }
        Ok([declared, loads])
    }

    /// Adds the groups `first..last` to `state0`, several loads under way at once, and the edges where `when` ("… && ") holds.
    fn once(&mut self, first: &str, last: &str, when: &str) -> Emit<String> {
        let (chain, walk, groups, threads) = (self.form.chain, self.form.walk, self.form.groups, self.form.share.threads());
        let [declared, loads] = self.groups(groups, "k", &|_| true)?;
        let adds = self.group(0, &|i| walk.moves(i).then(|| format!("h{i}[k]")))?;
        let each = format!("#pragma unroll\nfor (int k = 0; k < {groups}; k++) {{\nconst Index q = start + k * {threads};\n");
        Ok(format!(
            "{}Index start = {first} + lane;\nfor (; start + {} * {threads} < {last}; start += {groups} * {threads}) {{\n\
             {declared}{each}{loads}}}\n{each}{adds}}}\n}}\n\
             {{\n{declared}{each}if (q < {last}) {{\n{loads}}}\n}}\nconst Index same = unknown({last});\n{each}if (q < same) {{\n{adds}}}\n}}\n}}\n{}{}",
            chain.begin(0, self.form.steps(), self.form.keyed())?,
            groups - 1,
            chain.settle(0, self.form.steps(), self.form.keyed())?,
            self.edges(0, when)?
        ))
    }

    /// Merges the states of a pass over the threads of the line.
    fn merged(&self, pass: usize) -> Emit<String> {
        // A kernel that takes one line merges once for each pass.
        let turn = if self.form.ring.is_some() { "turn" } else { "0" };
        Ok(match self.form.share {
            Share::Thread => String::new(),
            Share::Lanes(lanes) => format!("merge_lanes<{lanes}>(state{pass});\n"),
            Share::Warp => format!("merge_lanes<32>(state{pass});\n"),
            Share::Block(threads) => format!("merge_block<{threads}>(state{pass}, {turn});\n"),
            Share::Cluster => format!("merge_cluster<{}, {}>(state{pass}, {turn});\n", CLUSTER[1], CLUSTER[0]),
        })
    }

    /// Turns the merged state into stats, and stores those that are results where `leads` holds.
    pub(super) fn results(&mut self, pass: usize, leads: &str) -> Emit<String> {
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
    pub fn lanes(&mut self, rows: &str, lanes: i64) -> Emit<String> {
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
        let each = |packs: &str| {
            format!(
                "#pragma unroll\nfor (int k = 0; k < {groups}; k++) {{\nconst Index q = lane + k * {lanes};\nif (valid && q < {packs}) {{\n"
            )
        };
        let (first, then) = (each("packs"), each("same"));
        let mut passes = String::new();
        for pass in 0..chain.passes() {
            let body = self.group(pass, &|i| walk.moves(i).then(|| format!("h{i}[{at}]")))?;
            let edges = self.edges(pass, "valid && ")?;
            let reduces = pass < chain.stages.len();
            if reduces {
                passes += &chain.begin(pass, self.form.steps(), self.form.keyed())?;
            }
            passes += &format!("{then}{body}}}\n}}\n");
            if reduces {
                passes += &chain.settle(pass, self.form.steps(), self.form.keyed())?;
            }
            passes += &edges;
            if reduces {
                passes += &(self.merged(pass)? + &self.results(pass, "valid && lane == 0")?);
            }
        }
        Ok(format!(
            "const int lane = threadIdx.x % {lanes};\n{declared}{start}{first}{loads}}}\n}}\n}}\n\
             {start}const Index same = unknown(packs);\n{passes}}}\n"
        ))
    }

    /// A part of a line for each block along y; the block that comes last merges the parts.
    pub fn split(&mut self, partials: &str, counter: &str) -> Emit<String> {
        let bases = self.bases()?;
        // The first block takes the edges.
        let once = self.once("first", "last", "blockIdx.y == 0 && ")?;
        Ok(format!(
            "const i64 row = blockIdx.x;\nconst int lane = threadIdx.x;\n{bases}\
             const Index first = (i64)packs * blockIdx.y / gridDim.y, last = (i64)packs * (blockIdx.y + 1) / gridDim.y;\n{once}\
             if (gridDim.y > 1) {{\nState0* const parts = {partials} + row * gridDim.y;\nmerge_block<{THREADS}>(state0, 0);\n\
             if (lane == 0) parts[blockIdx.y] = state0;\nif (!comes_last({counter} + row, gridDim.y)) return;\n\
             state0 = State0();\nfor (int i = lane; i < gridDim.y; i += {THREADS}) state0.merge(fresh(parts + i));\n}}\n{}{}",
            self.merged(0)?,
            self.results(0, "lane == 0")?
        ))
    }
}

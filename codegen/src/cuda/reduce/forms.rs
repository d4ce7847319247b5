//! Lines whose elements are neighbours, by their number and length: a few threads, a warp, a block, several blocks or a cluster for each,
//! whichever the sizes of a run call for. Each form is a kernel of its own, and its grid is empty where another is the one to run.

use super::{
    super::{
        Target,
        emitter::Emitter,
        error::{Emit, Unsupported},
        kernel::{Code, Header, Kernel},
    },
    chain::Chain,
    rows::Text,
    walk::{self, Walk, at_most, more_than},
};
use eglu_ir::{Dim, types::numel};

pub(super) const THREADS: i64 = 256;
/// Blocks of a multiprocessor, of those that take a line in one pass.
const RESIDENTS: u32 = 4;
/// Blocks of a cluster, and threads of each.
pub(super) const CLUSTER: [i64; 2] = [8, 512];
/// Threads that keep a longer line in shared memory, and the groups of each: a warp, then blocks.
const RINGS: [[i64; 2]; 4] = [[32, 8], [128, 8], [256, 8], [512, 8]];
/// The most threads of a multiprocessor that keep lines, where one operand is kept and where there are several: they have 40 registers each, and 64.
const KEEPING: [i64; 2] = [1536, 1024];
/// Shared memory that a block takes besides lines.
const OVERHEAD: i64 = 3 << 10;
/// Lines that those threads take one after the other.
const IN_TURN: i64 = 4;

/// The threads that share a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Share {
    /// One, which takes elements in their order.
    Thread,
    /// A power of two below a warp.
    Lanes(i64),
    Warp,
    /// A block of so many threads, or several of them where `splits` allows.
    Block(i64),
    Cluster,
}

/// One form of the kernel.
pub(super) struct Form<'a> {
    pub chain: &'a Chain,
    pub walk: &'a Walk,
    pub share: Share,
    /// Groups of a line that a thread has at once; kept from pass to pass.
    pub groups: i64,
    /// Where lines are kept in shared memory, which a block fills for lines to come while it works on one.
    pub ring: Option<Ring>,
    /// Lines that a thread has at once.
    pub lines: i64,
    /// The most elements of a line.
    pub most: i64,
}

/// Lines in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ring {
    /// Lines, or a block's parts of lines, that it holds.
    pub stages: i64,
    /// Bytes of each.
    pub bytes: i64,
    /// Blocks of a multiprocessor.
    pub residents: i64,
}

/// How lines up to a length are walked.
#[derive(Clone, Copy)]
struct Rung {
    share: Share,
    /// Groups that a thread has at once.
    groups: i64,
    /// The most groups of a line.
    most: i64,
    /// Lines are kept in shared memory.
    keeps: bool,
}

impl Rung {
    const fn new(share: Share, groups: i64, most: i64) -> Rung {
        Rung { share, groups, most, keeps: false }
    }
}

/// Lines of up to so many groups that a few threads take, by ascending length: as many threads as groups, so that neighbours read what lies
/// together.
fn short(once: bool) -> Vec<Rung> {
    let most = if once { 64 } else { 32 };
    let lanes = [1, 2, 4, 8, 16].into_iter().filter(|&lanes| once || lanes <= 8);
    let alone = lanes.map(|lanes| Rung::new(Share::Lanes(lanes), 1, lanes));
    alone.chain([Rung::new(Share::Lanes(8), most / 8, most)]).collect()
}

/// Longer lines, by ascending length.
fn long(chain: &Chain, walk: &Walk, target: Target) -> Vec<Rung> {
    if chain.passes() == 1 {
        let stage = &chain.stages[0];
        let wide = walk.width > 4 && stage.prologue.results.iter().any(|(_, dtype)| dtype.opmath().size() > 4);
        let under_way = if stage.kinds.len() * chain.inputs.len() > 2 || wide { 4 } else { 8 };
        let block = |most| Rung::new(Share::Block(THREADS), under_way, most);
        let mut rungs = vec![Rung::new(Share::Warp, under_way, 1024), block(i64::MAX)];
        if chain.holds_positions() {
            // Positions take 32 bits where that is enough.
            rungs.insert(1, block(i64::from(i32::MAX) / walk.width));
        }
        return rungs;
    }
    // A block holds one line at least.
    let most = (i64::from(target.shared_bytes()) - OVERHEAD) / kept_bytes(chain, walk).max(1);
    let kept = |share: Share, groups: i64| {
        let groups = groups.min(most / share.block()).max(1);
        Rung { share, groups, most: share.threads() * groups, keeps: true }
    };
    let mut rungs: Vec<Rung> =
        Vec::from(RINGS.map(|[threads, groups]| kept(if threads == 32 { Share::Warp } else { Share::Block(threads) }, groups)));
    match rungs.last_mut() {
        Some(last) if target.arch < 90 => last.most = i64::MAX,
        _ => rungs.extend([kept(Share::Cluster, 4), Rung { most: i64::MAX, ..kept(Share::Cluster, 8) }]),
    }
    rungs
}

/// Bytes of one group of what is kept of a line.
fn kept_bytes(chain: &Chain, walk: &Walk) -> i64 {
    let kept = (0..chain.inputs.len()).filter(|&i| walk.keeps(chain, i));
    kept.map(|i| chain.inputs[i].dtype.size() as i64 * walk.width).sum()
}

impl Ring {
    /// As many blocks as shared memory holds, up to so many `threads`, and then lines of each: `total` is the most that one block may have of it.
    fn new(share: Share, bytes: i64, total: i64, threads: i64) -> Ring {
        let bytes = bytes.max(1);
        // A multiprocessor has 1 KiB more, and keeps as much of each block for itself; merges take up to 2 KiB.
        let all = total + (1 << 10);
        let residents = (all / (bytes + OVERHEAD)).clamp(1, threads / share.block());
        let own = all / residents - OVERHEAD;
        Ring { stages: (own / bytes).clamp(1, 4), bytes, residents }
    }
}

/// Emits the forms that some size calls for.
pub(super) fn emit(emitter: &mut Emitter, chain: &Chain) -> Emit<()> {
    let walk = &Walk::along_lines(chain);
    let (rows, length) = (numel(&walk.kept.shape), numel(&walk.reduced.shape));
    let once = chain.passes() == 1;
    let up_to = |groups: i64, walk: &Walk| at_most(&length, groups * walk.width);
    let mut below = Dim::from(0);
    let shortest = short(once);
    let most_short = shortest[shortest.len() - 1];
    // Short lines that start and end on groups have forms of their own: the others pay for their edges.
    let (whole, is_whole) = match Walk::whole_lines(chain).filter(|_| once) {
        Some((whole, when)) => (whole, when),
        None => (walk.clone(), Dim::from(1)),
    };
    for rung in shortest {
        let here = up_to(rung.most, &whole);
        rung.emit(emitter, chain, &whole, (here.clone() - below) * is_whole.clone())?;
        below = here;
    }
    let ragged = up_to(most_short.most, walk) - below * is_whole.clone();
    if !is_whole.is(1) {
        most_short.emit(emitter, chain, walk, ragged)?;
    }
    below = up_to(most_short.most, walk);
    for rung in long(chain, walk, emitter.target) {
        let mut here = if rung.most == i64::MAX { Dim::from(1) } else { up_to(rung.most, walk) } - below.clone();
        if once && rung.share == Share::Warp {
            // Few long lines go to blocks.
            here = here * more_than(&rows, 16 * i64::from(emitter.target.multiprocessors()) - 1);
        }
        below = below + here.clone();
        rung.emit(emitter, chain, walk, here)?;
    }
    Ok(())
}

impl Rung {
    /// Emits its kernel, which runs where `when` is 1.
    fn emit(self, emitter: &mut Emitter, chain: &Chain, walk: &Walk, when: Dim) -> Emit<()> {
        if when.is(0) {
            return Ok(());
        }
        let Rung { share, groups, most, keeps } = self;
        let (rows, length, width) = (numel(&walk.kept.shape), numel(&walk.reduced.shape), walk.width);
        let multiprocessors = emitter.target.multiprocessors();
        let once = chain.passes() == 1;
        // Of a known length, no more than it has.
        let groups = match (share, length.as_const()) {
            (_, Some(n)) if !once || matches!(share, Share::Lanes(_)) => {
                (n + share.threads() * width - 1).div_euclid(share.threads() * width).clamp(1, groups)
            }
            _ => groups,
        };
        let lines = if let Share::Lanes(_) = share { (4 / groups).max(1) } else { 1 };
        let ring = keeps.then(|| {
            let several = (0..chain.inputs.len()).filter(|&i| walk.keeps(chain, i)).count() > 1;
            let bytes = kept_bytes(chain, walk) * groups * share.block();
            Ring::new(share, bytes, i64::from(emitter.target.shared_bytes()), KEEPING[usize::from(several)])
        });
        let most = length.as_const().unwrap_or(most.saturating_mul(width));
        let form = Form { chain, walk, share, groups, ring, lines, most };
        let grid = match (share, ring) {
            (Share::Thread, _) => rows.ceil_div(THREADS),
            (Share::Lanes(lanes), _) => rows.ceil_div(THREADS / lanes * lines),
            (Share::Warp, None) => rows.ceil_div(THREADS / 32),
            (_, Some(ring)) => {
                // Those that take a line, and the blocks of one.
                let (takers, blocks) = match share {
                    Share::Warp => (rows.ceil_div(THREADS / 32), 1),
                    Share::Cluster => (rows.clone(), CLUSTER[0]),
                    _ => (rows.clone(), 1),
                };
                // Several rounds of blocks: multiprocessors are not equally far from memory, and who is done early takes more of them.
                let at_once = Dim::from(i64::from(multiprocessors) * ring.residents / blocks);
                Dim::max(&Dim::min(&takers, &at_once), &takers.ceil_div(IN_TURN)) * Dim::from(blocks)
            }
            (Share::Block(_), None) => rows.clone(),
            (Share::Cluster, None) => return Err(Unsupported::new("a cluster keeps its lines in shared memory")),
        };
        let splits = match share {
            Share::Block(_) if once => {
                let most = length.floor_div(&Dim::from(width * THREADS * groups));
                walk::splits(RESIDENTS * multiprocessors, &rows, &most)
            }
            _ => Dim::from(1),
        };
        form.emit(emitter, [&rows, &length], [grid * when, splits])
    }
}

/// Emits one kernel, a thread of which takes the elements of a line in their order.
pub(super) fn in_order(emitter: &mut Emitter, chain: &Chain) -> Emit<()> {
    let walk = Walk::along_lines(chain);
    // Elements before the first group come out of order.
    let walk = if walk.ragged.is_some() { Walk::single(chain) } else { walk };
    let (rows, length) = (numel(&walk.kept.shape), numel(&walk.reduced.shape));
    let form = Form { chain, walk: &walk, share: Share::Thread, groups: 4, ring: None, lines: 1, most: super::IN_ORDER };
    form.emit(emitter, [&rows, &length], [rows.ceil_div(THREADS), Dim::from(1)])
}

impl Share {
    /// Threads of a line.
    pub fn threads(self) -> i64 {
        match self {
            Share::Thread => 1,
            Share::Lanes(lanes) => lanes,
            Share::Warp => 32,
            Share::Block(threads) => threads,
            Share::Cluster => CLUSTER[0] * CLUSTER[1],
        }
    }

    /// Threads of a block.
    pub fn block(self) -> i64 {
        match self {
            Share::Block(threads) => threads,
            Share::Cluster => CLUSTER[1],
            _ => THREADS,
        }
    }
}

impl Form<'_> {
    /// True if the threads of a line have all of it at once, however long it is.
    pub fn holds_all(&self) -> bool {
        self.most <= self.groups * self.share.threads() * self.walk.width
    }

    /// True if a place in a line has 16 bits, below a number in a key; there is a key for no place.
    pub fn keyed(&self) -> bool {
        self.most < 1 << 16
    }

    /// Elements of a group, and from one that a thread has to its next one.
    pub fn steps(&self) -> (i64, i64) {
        (self.walk.width, self.walk.width * self.share.threads())
    }

    /// Emits the kernel; the grid is along x, and along y, where blocks share lines.
    fn emit(&self, emitter: &mut Emitter, [rows, length]: [&Dim; 2], [grid, splits]: [Dim; 2]) -> Emit<()> {
        let (chain, walk) = (self.chain, self.walk);
        let mut kernel = Kernel::new(chain.name.clone());
        let pointers = walk.pointers(&mut kernel, chain)?;
        let (rows_name, length_name) = (kernel.dim(rows), format!("(Index){}", kernel.dim(length)));
        let mut text = Text { form: self, kernel: &mut kernel, pointers: &pointers, length: &length_name };
        let mut headers = vec![Header::Math, Header::Warp, Header::Reduce, Header::Keys, Header::Lines];
        let body = match self.share {
            _ if self.ring.is_some() => text.ring(&rows_name)?,
            Share::Thread => format!(
                "const int lane = 0;\nconst i64 row = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (row >= {rows_name}) return;\n{}{}",
                text.bases()?,
                text.line()?
            ),
            Share::Lanes(lanes) if chain.passes() == 1 => text.short(&rows_name, lanes)?,
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
            Share::Cluster => return Err(Unsupported::new("a cluster keeps its lines in shared memory")),
        };
        if self.share == Share::Cluster {
            headers.push(Header::Cluster);
        }
        let residents = match (self.share, self.ring) {
            (_, Some(ring)) => ring.residents as u32,
            (Share::Block(THREADS), _) if chain.passes() == 1 => RESIDENTS,
            _ => 0,
        };
        let cluster = if self.share == Share::Cluster { CLUSTER[0] as u32 } else { 0 };
        let threads = [self.share.block() as u32, 1];
        let shared_bytes = self.ring.map_or(0, |ring| ring.stages * ring.bytes) as u32;
        let items = chain.items(self.most, self.keyed())?;
        let code = Code { headers, items, body, threads, shared_bytes, residents, cluster, ..Code::default() };
        emitter.launch(kernel, code, [grid, splits, Dim::from(1)]);
        Ok(())
    }
}

//! Lines whose elements are neighbours, by their number and length: a few threads, a warp, a block, several blocks or a cluster for each,
//! whichever the sizes of a run call for. Each form is a kernel of its own, and its grid is empty where another is the one to run.

use super::{
    super::{
        emitter::Emitter,
        error::Emit,
        kernel::{Code, Header, Kernel},
    },
    chain::Chain,
    rows::Text,
    walk::{self, Walk, at_most, more_than},
};
use eglu_ir::{Dim, types::numel};

pub(super) const THREADS: i64 = 256;
/// Blocks of a cluster, and threads of each.
pub(super) const CLUSTER: [i64; 2] = [8, 512];
/// Groups that a thread of a warp, and of a block, keeps in registers of a line that is walked more than once.
const KEPT: [i64; 2] = [16, 8];
/// Bytes of a longer line that a block keeps in shared memory: three such blocks fit a multiprocessor of Hopper, one an older one.
const SHARED: [i64; 2] = [64 << 10, 96 << 10];

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
    /// Bytes of shared memory where they are kept; else it is registers.
    pub shared: i64,
    /// Lines that a thread has at once.
    pub lines: i64,
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
            Share::Thread => rows.ceil_div(THREADS),
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

/// Emits one kernel, a thread of which takes the elements of a line in their order.
pub(super) fn in_order(emitter: &mut Emitter, chain: &Chain) -> Emit<()> {
    let walk = Walk::along_lines(chain);
    // Elements before the first group come out of order.
    let walk = if walk.ragged.is_some() { Walk::single(chain) } else { walk };
    let (rows, length) = (numel(&walk.kept.shape), numel(&walk.reduced.shape));
    let form = Form { chain, walk: &walk, share: Share::Thread, groups: 4, shared: 0, lines: 1 };
    form.emit(emitter, &rows, &length, rows.ceil_div(THREADS), Dim::from(1))
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
    fn emit(&self, emitter: &mut Emitter, rows: &Dim, length: &Dim, grid: Dim, splits: Dim) -> Emit<()> {
        let (chain, walk) = (self.chain, self.walk);
        let mut kernel = Kernel::new(chain.name.clone());
        let pointers = walk.pointers(&mut kernel, chain)?;
        let (rows_name, length_name) = (kernel.dim(rows), kernel.dim(length));
        let mut text = Text { form: self, kernel: &mut kernel, pointers: &pointers, length: &length_name };
        let mut headers = vec![Header::Math, Header::Warp, Header::Reduce, Header::Lines];
        let body = match self.share {
            Share::Thread => format!(
                "const int lane = 0;\nconst i64 row = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (row >= {rows_name}) return;\n{}{}",
                text.bases()?,
                text.line()?
            ),
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
        let items = chain.items()?;
        let code = Code { headers, items, body, threads, shared_bytes, residents, cluster, ..Code::default() };
        emitter.launch(kernel, code, [grid, splits, Dim::from(1)]);
        Ok(())
    }
}

//! Rows in expert order: the small kernels before an expert product.

use super::super::{
    emitter::{Emitter, elements, flat},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel},
    loops::Loop,
};
use super::ordered::{self, Key};
use crate::TensorRef;
use eglu_ir::Dim;

/// Ids that one block of the counting kernels takes (`dispatch_ids` in the device library).
const IDS_PER_BLOCK: i64 = 4096;
/// Blocks of the cluster that orders rows: as many as any device has room for.
const CLUSTER: u32 = 8;
/// Each of its 32 warps counts every group in shared memory, of which a block has 48 KB without asking.
const MOST_IN_CLUSTER: i64 = 320;

/// Where the dispatch left its results: positions in the plan's scratch.
pub(super) struct Dispatched {
    /// `i32[S]`: which id comes at each place of the expert order; `None` where rows stay in place.
    pub order: Option<usize>,
    /// `i32[1]`: number of row tiles.
    pub tile_count: usize,
    /// `RowTile[…]`.
    pub tiles: usize,
    /// `i32[blocks, experts + 1]`, whose first line says where each expert's rows start in the expert order; `None` like `order`. Without
    /// rows there are no lines.
    pub starts: Option<usize>,
}

/// The most rows of a tile and the step in which a group's tiles are made equal (0: they are not), and 1 where such tiles are the ones to
/// list, else 0.
pub(super) type Height = ((i64, i64), Dim);

/// An upper bound of the number of row tiles: each group wastes less than one, and one more group holds the rows that no expert takes.
pub(super) fn most_tiles(rows: &Dim, groups: i64, tile: i64) -> Dim {
    rows.floor_div(&Dim::from(tile)) + Dim::from(groups + 1)
}

fn tile_list(emitter: &mut Emitter, rows: &Dim, groups: i64, heights: &[Height]) -> (usize, usize) {
    let lowest = heights.iter().map(|((tile, _), _)| *tile).min().unwrap_or(1);
    let bytes = most_tiles(rows, groups, lowest) * Dim::from(12);
    (emitter.scratch("tile_count", Dim::from(4)), emitter.scratch("tiles", bytes))
}

/// Rows ordered by expert, for every product of those ids.
pub(in super::super) struct Order {
    /// The ids: where they lie, and the number of experts.
    ids: Key,
    /// How many rows of each block of ids are each expert's; `None` where one launch does it all.
    counts: Option<usize>,
    starts: usize,
    order: usize,
    lists: Vec<List>,
}

impl Order {
    /// The list of such tiles. Without heights it is any that is made at every number of rows: the starts come with it.
    fn list(&self, heights: &[Height], dropped: bool) -> Option<&List> {
        let same = |list: &&List| match heights {
            [] => list.is_always_there(),
            _ => list.heights == heights && list.dropped == dropped,
        };
        self.lists.iter().find(same)
    }
}

/// Row tiles of an order.
struct List {
    heights: Vec<Height>,
    /// Whether dropped rows have tiles.
    dropped: bool,
    tile_count: usize,
    tiles: usize,
}

impl List {
    /// At every number of rows one of the heights is listed.
    fn is_always_there(&self) -> bool {
        self.heights.iter().fold(Dim::from(0), |sum, (_, when)| sum + when.clone()).is(1)
    }
}

/// Orders the rows by their ids, unless a product before has, and lists their tiles. With `list_dropped` the rows outside `0..experts` get
/// tiles of expert -1, else none. Without heights no tiles are asked for, but the starts alone.
pub(super) fn by_ids(
    emitter: &mut Emitter,
    ids: &TensorRef,
    experts: i64,
    heights: &[Height],
    list_dropped: bool,
) -> Emit<Dispatched> {
    if experts >= 1024 {
        return Err(Unsupported::new(format!("{experts} experts are more than the 1023 that one dispatch orders")));
    }
    let key = ordered::key(ids, experts);
    // Without counts further lists come by a cluster, which not all orders that a router made leave to it.
    let extends =
        |order: &Order| order.counts.is_some() || experts <= MOST_IN_CLUSTER || order.list(heights, list_dropped).is_some();
    let is_known = |order: &Order| order.ids == key && extends(order);
    let known = emitter.orders.iter().position(is_known);
    let at = known.map_or_else(|| new_order(emitter, ids, key), Ok)?;
    let (counts, starts, order) = (emitter.orders[at].counts, emitter.orders[at].starts, emitter.orders[at].order);
    let (tile_count, tiles) = match emitter.orders[at].list(heights, list_dropped) {
        Some(list) => (list.tile_count, list.tiles),
        None => {
            let heights = if heights.is_empty() { &[((128, 0), Dim::from(1))] } else { heights };
            let (tile_count, tiles) = tile_list(emitter, &elements(ids), experts, heights);
            emitter.orders[at].lists.push(List { heights: heights.to_vec(), dropped: list_dropped, tile_count, tiles });
            for (height, when) in heights {
                let listed = Listed { experts, height: *height, list_dropped, starts, tile_count, tiles };
                match counts {
                    Some(counts) => plan(emitter, ids, &listed, counts, when),
                    None => dispatch_in_cluster(emitter, ids, &listed, order, when)?,
                }
            }
            (tile_count, tiles)
        }
    };
    if known.is_none() && counts.is_some() {
        visit_ids(emitter, ids, "expert_order", &|kernel, total| {
            let starts = kernel.scratch("const i32", starts);
            format!("place_ids<{experts}>(id_at, {total}, {starts}, {});\n", kernel.scratch("i32", order))
        })?;
    }
    counts.into_iter().chain([starts, order, tile_count, tiles]).for_each(|scratch| emitter.keep(scratch));
    Ok(Dispatched { order: Some(order), tile_count, tiles, starts: Some(starts) })
}

/// Makes room for the order of these ids and a list of its tiles, which the caller's kernel fills.
pub(super) fn made_by_router(emitter: &mut Emitter, ids: &TensorRef, experts: i64, heights: &[Height]) -> Dispatched {
    let rows = elements(ids);
    let starts = emitter.scratch("expert_starts", Dim::from(4 * (experts + 1)));
    let order = emitter.scratch("expert_order", rows.clone() * Dim::from(4));
    let (tile_count, tiles) = tile_list(emitter, &rows, experts, heights);
    let lists = vec![List { heights: heights.to_vec(), dropped: false, tile_count, tiles }];
    emitter.orders.push(Order { ids: ordered::key(ids, experts), counts: None, starts, order, lists });
    Dispatched { order: Some(order), tile_count, tiles, starts: Some(starts) }
}

/// Makes room for an order, and counts the rows of each expert if that takes a kernel of its own; returns the position among the emitter's
/// orders.
fn new_order(emitter: &mut Emitter, ids: &TensorRef, key: Key) -> Emit<usize> {
    let (rows, experts) = (elements(ids), key.3);
    let in_cluster = emitter.target.arch >= 90 && experts <= MOST_IN_CLUSTER;
    let lines = if in_cluster { Dim::from(1) } else { rows.ceil_div(IDS_PER_BLOCK) };
    let line_bytes = Dim::from(4 * (experts + 1));
    let counts = (!in_cluster).then(|| emitter.scratch("expert_counts", lines.clone() * line_bytes.clone()));
    let starts = emitter.scratch("expert_starts", lines * line_bytes);
    let order = emitter.scratch("expert_order", rows * Dim::from(4));
    if let Some(counts) = counts {
        visit_ids(emitter, ids, "expert_count", &|kernel, total| {
            format!("count_ids<{experts}>(id_at, {total}, {});\n", kernel.scratch("i32", counts))
        })?;
    }
    emitter.orders.push(Order { ids: key, counts, starts, order, lists: Vec::new() });
    Ok(emitter.orders.len() - 1)
}

/// A list of tiles to make.
struct Listed {
    experts: i64,
    height: (i64, i64),
    list_dropped: bool,
    starts: usize,
    tile_count: usize,
    tiles: usize,
}

/// The kernel between counting and placing: starts and tiles from the counts.
fn plan(emitter: &mut Emitter, ids: &TensorRef, listed: &Listed, counts: usize, when: &Dim) {
    let Listed { experts, height: (tile, step), list_dropped, starts, tile_count, tiles } = *listed;
    let mut kernel = Kernel::new("expert_plan");
    let (count, start) = (kernel.scratch("const i32", counts), kernel.scratch("i32", starts));
    let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
    let blocks = kernel.dim(&elements(ids).ceil_div(IDS_PER_BLOCK));
    let body = format!("plan_tiles<{experts}, {tile}, {step}, {list_dropped}>({count}, {blocks}, {start}, {all}, {list});\n");
    let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
    emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(when.clone()));
}

/// Everything in one launch, of a cluster of blocks; for up to [`MOST_IN_CLUSTER`] experts.
fn dispatch_in_cluster(emitter: &mut Emitter, ids: &TensorRef, listed: &Listed, order: usize, when: &Dim) -> Emit<()> {
    let Listed { experts, height: (tile, step), list_dropped, starts, tile_count, tiles } = *listed;
    let mut kernel = Kernel::new("expert_dispatch");
    let (from, id_at) = read_ids(&mut kernel, ids)?;
    let (total, order) = (kernel.dim(&elements(ids)), kernel.scratch("i32", order));
    let starts = kernel.scratch("i32", starts);
    let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
    let body = format!(
        "wait_for_kernel_before();\nread_from_here({from});\n{id_at}\
         dispatch_in_cluster<{experts}, {CLUSTER}, {tile}, {step}, {list_dropped}>(id_at, {total}, {order}, {starts}, {all}, {list});\n"
    );
    let headers = vec![Header::Math, Header::Scan, Header::Rows, Header::Dispatch, Header::Hopper, Header::DispatchCluster];
    let code = Code { headers, body, threads: [1024, 1], cluster: CLUSTER, overlaps: true, ..Code::default() };
    emitter.launch(kernel, code, flat(when.clone() * Dim::from(i64::from(CLUSTER))));
    Ok(())
}

/// A kernel over all ids; `call` gets how many there are, and `id_at` reads one.
fn visit_ids(emitter: &mut Emitter, ids: &TensorRef, name: &str, call: &dyn Fn(&mut Kernel, &str) -> String) -> Emit<()> {
    let rows = elements(ids);
    let mut kernel = Kernel::new(name);
    let (_, id_at) = read_ids(&mut kernel, ids)?;
    let total = kernel.dim(&rows);
    let body = id_at + &call(&mut kernel, &total);
    let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
    let grid = flat(rows.ceil_div(IDS_PER_BLOCK));
    emitter.launch(kernel, Code { headers, body, threads: [256, 1], ..Code::default() }, grid);
    Ok(())
}

/// The pointer to the ids, and a statement that defines `id_at`, which reads one.
fn read_ids(kernel: &mut Kernel, ids: &TensorRef) -> Emit<(String, String)> {
    let walk = Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]);
    let from = kernel.read(ids)?;
    let (split, names) = kernel.split("at", "i", &walk.shape);
    let offset = kernel.offset(&names, &walk.strides[0]);
    let id_at = format!("const auto id_at = [&](i64 at) {{\n{split}return {from}[{offset}];\n}};\n");
    Ok((from, id_at))
}

/// Tiles of rows that lie in groups already, `offsets[g]` being the end of group g.
pub(super) fn by_offsets(
    emitter: &mut Emitter,
    offsets: &TensorRef,
    groups: i64,
    rows: &Dim,
    heights: &[Height],
) -> Emit<Dispatched> {
    let (tile_count, tiles) = tile_list(emitter, rows, groups, heights);
    for ((tile, step), when) in heights {
        let mut kernel = Kernel::new("group_tiles");
        let from = kernel.read(offsets)?;
        let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
        let offset = kernel.offset(&["g".into()], &offsets.layout.strides);
        let (most, rows) = (kernel.dim(&most_tiles(rows, groups, *tile)), kernel.dim(rows));
        let body = format!(
            "tiles_of_offsets<{tile}, {step}>([&](int g) {{ return (i64){from}[{offset}]; }}, {groups}, {rows}, {most}, {all}, {list});\n"
        );
        let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
        emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(when.clone()));
    }
    Ok(Dispatched { order: None, tile_count, tiles, starts: None })
}

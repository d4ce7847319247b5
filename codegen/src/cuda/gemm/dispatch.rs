//! Rows in expert order: the small kernels before an expert product.

use super::super::{
    emitter::{Emitter, elements, flat},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel},
    loops::Loop,
};
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

/// Orders the rows by their ids. With `list_dropped` the rows outside `0..experts` get tiles of expert -1, else none.
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
    let rows = elements(ids);
    if emitter.target.arch >= 90 && experts <= MOST_IN_CLUSTER {
        return by_ids_in_cluster(emitter, ids, experts, heights, list_dropped);
    }
    let blocks = rows.ceil_div(IDS_PER_BLOCK);
    let counts = emitter.scratch("expert_counts", blocks.clone() * Dim::from(4 * (experts + 1)));
    let starts = emitter.scratch("expert_starts", blocks.clone() * Dim::from(4 * (experts + 1)));
    let order = emitter.scratch("expert_order", rows.clone() * Dim::from(4));
    let (tile_count, tiles) = tile_list(emitter, &rows, experts, heights);
    let walk = Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]);

    let visit = |emitter: &mut Emitter, name: &str, call: &dyn Fn(&mut Kernel, &str) -> String| -> Emit<()> {
        let mut kernel = Kernel::new(name);
        let from = kernel.read(ids)?;
        let (split, names) = kernel.split("at", "i", &walk.shape);
        let offset = kernel.offset(&names, &walk.strides[0]);
        let total = kernel.dim(&rows);
        let call = call(&mut kernel, &total);
        let body = format!("const auto id_at = [&](i64 at) {{\n{split}return {from}[{offset}];\n}};\n{call}");
        let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
        emitter.launch(kernel, Code { headers, body, threads: [256, 1], ..Code::default() }, flat(blocks.clone()));
        Ok(())
    };
    visit(emitter, "expert_count", &|kernel, total| {
        format!("count_ids<{experts}>(id_at, {total}, {});\n", kernel.scratch("i32", counts))
    })?;
    for ((tile, step), when) in heights {
        let mut kernel = Kernel::new("expert_plan");
        let (count, start) = (kernel.scratch("const i32", counts), kernel.scratch("i32", starts));
        let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
        let blocks = kernel.dim(&blocks);
        let body = format!("plan_tiles<{experts}, {tile}, {step}, {list_dropped}>({count}, {blocks}, {start}, {all}, {list});\n");
        let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
        emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(when.clone()));
    }
    visit(emitter, "expert_order", &|kernel, total| {
        let starts = kernel.scratch("const i32", starts);
        format!("place_ids<{experts}>(id_at, {total}, {starts}, {});\n", kernel.scratch("i32", order))
    })?;
    Ok(Dispatched { order: Some(order), tile_count, tiles, starts: Some(starts) })
}

/// [`by_ids`] for up to [`MOST_IN_CLUSTER`] experts in one launch, of a cluster of blocks.
fn by_ids_in_cluster(
    emitter: &mut Emitter,
    ids: &TensorRef,
    experts: i64,
    heights: &[Height],
    list_dropped: bool,
) -> Emit<Dispatched> {
    let rows = elements(ids);
    let order = emitter.scratch("expert_order", rows.clone() * Dim::from(4));
    let (tile_count, tiles) = tile_list(emitter, &rows, experts, heights);
    let walk = Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]);
    let starts = emitter.scratch("expert_starts", Dim::from(4 * (experts + 1)));
    for ((tile, step), when) in heights {
        let mut kernel = Kernel::new("expert_dispatch");
        let from = kernel.read(ids)?;
        let (split, names) = kernel.split("at", "i", &walk.shape);
        let offset = kernel.offset(&names, &walk.strides[0]);
        let (total, order) = (kernel.dim(&rows), kernel.scratch("i32", order));
        let starts = kernel.scratch("i32", starts);
        let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
        let body = format!(
            "wait_for_kernel_before();\nread_from_here({from});\nconst auto id_at = [&](i64 at) {{\n{split}return {from}[{offset}];\n}};\n\
             dispatch_in_cluster<{experts}, {CLUSTER}, {tile}, {step}, {list_dropped}>(id_at, {total}, {order}, {starts}, {all}, {list});\n"
        );
        let headers = vec![Header::Math, Header::Scan, Header::Rows, Header::Dispatch, Header::Hopper, Header::DispatchCluster];
        let code = Code { headers, body, threads: [1024, 1], cluster: CLUSTER, overlaps: true, ..Code::default() };
        emitter.launch(kernel, code, flat(when.clone() * Dim::from(i64::from(CLUSTER))));
    }
    Ok(Dispatched { order: Some(order), tile_count, tiles, starts: Some(starts) })
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

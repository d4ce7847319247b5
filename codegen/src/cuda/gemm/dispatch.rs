//! Rows in expert order: the small kernels before an expert product.

use super::super::{
    emitter::{Emitter, elements, flat},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel},
    loops::Loop,
};
use crate::{BufferId, TensorRef};
use eglu_ir::Dim;

/// Ids that one block of the counting kernels takes (`dispatch_ids` in the device library).
const IDS_PER_BLOCK: i64 = 4096;

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

/// Rows of a tile, and 1 where tiles of that height are the ones to list, else 0.
pub(super) type Height = (i64, Dim);

/// An upper bound of the number of row tiles: each group wastes less than one, and one more group holds the rows that no expert takes.
pub(super) fn most_tiles(rows: &Dim, groups: i64, tile: i64) -> Dim {
    rows.floor_div(&Dim::from(tile)) + Dim::from(groups + 1)
}

fn tile_list(emitter: &mut Emitter, rows: &Dim, groups: i64, heights: &[Height]) -> (usize, usize) {
    let lowest = heights.iter().map(|(tile, _)| *tile).min().unwrap_or(1);
    let bytes = most_tiles(rows, groups, lowest) * Dim::from(12);
    (emitter.scratch("tile_count", Dim::from(4)), emitter.scratch("tiles", bytes))
}

/// Rows ordered by expert, for every product of those ids.
pub(in super::super) struct Order {
    /// The ids: where they lie, and the number of experts.
    ids: (BufferId, Dim, Loop, i64),
    counts: usize,
    starts: usize,
    order: usize,
    /// Lists of row tiles, by their heights and whether dropped rows have tiles: the number of tiles, and the tiles.
    lists: Vec<(Vec<Height>, bool, usize, usize)>,
}

/// Orders the rows by their ids, unless a product before has, and lists their tiles. With `list_dropped` the rows outside `0..experts` get tiles of expert -1,
/// else none.
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
    let walk = Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]);
    let key = (ids.buffer, ids.layout.offset.clone(), walk, experts);
    let known = emitter.orders.iter().position(|order| order.ids == key);
    let at = known.map_or_else(|| new_order(emitter, ids, key), Ok)?;
    let (counts, starts, order) = (emitter.orders[at].counts, emitter.orders[at].starts, emitter.orders[at].order);
    // Where no tiles are asked for, any list will do: with it come the starts.
    let any = heights.is_empty();
    let heights = if any { &[(128, Dim::from(1))] } else { heights };
    let same = |list: &&(Vec<Height>, bool, usize, usize)| any || (list.0 == heights && list.1 == list_dropped);
    let (tile_count, tiles) = match emitter.orders[at].lists.iter().find(same) {
        Some(&(_, _, tile_count, tiles)) => (tile_count, tiles),
        None => {
            let list = tile_list(emitter, &elements(ids), experts, heights);
            emitter.orders[at].lists.push((heights.to_vec(), list_dropped, list.0, list.1));
            for (tile, when) in heights {
                let mut kernel = Kernel::new("expert_plan");
                let (count, start) = (kernel.scratch("const i32", counts), kernel.scratch("i32", starts));
                let (all, entries) = (kernel.scratch("i32", list.0), kernel.scratch("RowTile", list.1));
                let blocks = kernel.dim(&elements(ids).ceil_div(IDS_PER_BLOCK));
                let body =
                    format!("plan_tiles<{experts}, {tile}, {list_dropped}>({count}, {blocks}, {start}, {all}, {entries});\n");
                let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
                emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(when.clone()));
            }
            list
        }
    };
    if known.is_none() {
        visit_ids(emitter, ids, "expert_order", &|kernel, id_at, total| {
            let starts = kernel.scratch("const i32", starts);
            format!("place_ids<{experts}>({id_at}, {total}, {starts}, {});\n", kernel.scratch("i32", order))
        })?;
    }
    [counts, starts, order, tile_count, tiles].into_iter().for_each(|scratch| emitter.keep(scratch));
    Ok(Dispatched { order: Some(order), tile_count, tiles, starts: Some(starts) })
}

/// Counts the rows of each expert, and makes room for their order; returns the position among the emitter's orders.
fn new_order(emitter: &mut Emitter, ids: &TensorRef, key: (BufferId, Dim, Loop, i64)) -> Emit<usize> {
    let (rows, experts) = (elements(ids), key.3);
    let blocks = rows.ceil_div(IDS_PER_BLOCK);
    let counts = emitter.scratch("expert_counts", blocks.clone() * Dim::from(4 * (experts + 1)));
    let starts = emitter.scratch("expert_starts", blocks * Dim::from(4 * (experts + 1)));
    let order = emitter.scratch("expert_order", rows * Dim::from(4));
    visit_ids(emitter, ids, "expert_count", &|kernel, id_at, total| {
        format!("count_ids<{experts}>({id_at}, {total}, {});\n", kernel.scratch("i32", counts))
    })?;
    emitter.orders.push(Order { ids: key, counts, starts, order, lists: Vec::new() });
    Ok(emitter.orders.len() - 1)
}

/// A kernel over all ids; `call` gets how to read one, and how many there are.
fn visit_ids(emitter: &mut Emitter, ids: &TensorRef, name: &str, call: &dyn Fn(&mut Kernel, &str, &str) -> String) -> Emit<()> {
    let walk = Loop::new(&ids.layout.shape, &[ids.layout.strides.to_vec()]);
    let rows = elements(ids);
    let mut kernel = Kernel::new(name);
    let from = kernel.read(ids)?;
    let (split, names) = kernel.split("at", "i", &walk.shape);
    let offset = kernel.offset(&names, &walk.strides[0]);
    let total = kernel.dim(&rows);
    let call = call(&mut kernel, "id_at", &total);
    let body = format!("const auto id_at = [&](i64 at) {{\n{split}return {from}[{offset}];\n}};\n{call}");
    let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
    let grid = flat(rows.ceil_div(IDS_PER_BLOCK));
    emitter.launch(kernel, Code { headers, body, threads: [256, 1], ..Code::default() }, grid);
    Ok(())
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
    for (tile, when) in heights {
        let mut kernel = Kernel::new("group_tiles");
        let from = kernel.read(offsets)?;
        let (all, list) = (kernel.scratch("i32", tile_count), kernel.scratch("RowTile", tiles));
        let offset = kernel.offset(&["g".into()], &offsets.layout.strides);
        let (most, rows) = (kernel.dim(&most_tiles(rows, groups, *tile)), kernel.dim(rows));
        let body = format!(
            "tiles_of_offsets<{tile}>([&](int g) {{ return (i64){from}[{offset}]; }}, {groups}, {rows}, {most}, {all}, {list});\n"
        );
        let headers = vec![Header::Scan, Header::Rows, Header::Dispatch];
        emitter.launch(kernel, Code { headers, body, threads: [1024, 1], ..Code::default() }, flat(when.clone()));
    }
    Ok(Dispatched { order: None, tile_count, tiles, starts: None })
}

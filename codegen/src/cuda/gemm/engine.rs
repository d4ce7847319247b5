//! Which kernel a dense product runs, by how many rows it has.

use super::{
    super::emitter::Target,
    bulk,
    dense::Dense,
    main_loop::{MainLoop, RowCount},
    product::{Product, Walked},
    stream::Stream,
};
use eglu_ir::{Dim, types::numel};

/// A kernel of dense products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Large tiles in Hopper's main loop.
    Dense(Dense),
    /// Few rows: the other operand streams.
    Stream(Stream),
    /// One tile a block, on every device and for every dtype.
    Blocks(MainLoop),
}

/// Numbers of rows up to which a kernel of its own runs where the number is a symbol.
const STEPS: [i64; 4] = [16, 32, 64, 128];

/// Products of fewer columns leave most of a wgmma tile empty.
const FEW_COLUMNS: i64 = 64;

/// Clusters of the large tile that keep a device busy enough: three quarters of what runs at once.
const BUSY: i64 = 50;

/// The kernels of a product, each with a factor of its grid: 1 where it runs and else 0.
pub(super) fn cases(target: Target, product: &Product<'_>, walked: &Walked) -> Vec<(Engine, Dim)> {
    let (dtype, lanes, columns) = (product.a.dtype, product.bs.len(), walked.columns.as_const());
    let blocks = |case: RowCount| (Engine::Blocks(MainLoop::choose(target, dtype, lanes, case.rows, columns)), case.when);
    let few_columns = columns.is_some_and(|columns| columns <= FEW_COLUMNS);
    let walks = match bulk::walks(target, product, walked) {
        Ok(walks) if !few_columns => walks,
        _ => return RowCount::cases(dtype, &walked.rows, 1).into_iter().map(blocks).collect(),
    };
    // What is not known is taken for large.
    let (columns, batches) = (columns.unwrap_or(4096), numel(&walked.batches.shape).as_const().unwrap_or(16));
    let depth = product.depth().as_const().unwrap_or(4096);
    let dense = Dense::choose(walks, lanes);
    let stream = |rows: i64| Stream::choose(walks, lanes, rows, columns, depth, batches).map(Engine::Stream);
    let block = |rows: Option<i64>| Engine::Blocks(MainLoop::choose(target, dtype, lanes, rows, Some(columns)));
    let of = |rows: i64| match dense {
        Some(dense) if rows > 64 && dense.tiles(rows, columns) * batches >= BUSY => Engine::Dense(dense),
        Some(dense) if rows > 64 => stream(rows).unwrap_or(Engine::Dense(dense)),
        _ => stream(rows).unwrap_or_else(|| block(Some(rows))),
    };
    if let Some(rows) = walked.rows.as_const() {
        return vec![(of(rows), Dim::from(1))];
    }
    // Up to each number of rows the kernel for that many; beyond what the large tile needs to be busy, the large tile.
    let most =
        (1..).map(|tiles| tiles * 256).find(|&rows| dense.is_none_or(|dense| dense.tiles(rows, columns) * batches >= BUSY));
    let most = most.unwrap_or(256).clamp(256, 8192) - 256;
    let mut limits: Vec<i64> = STEPS.to_vec();
    limits.extend((most > 128).then_some(most));
    let beyond = |limit: i64| Dim::min(&walked.rows.floor_div(&Dim::from(limit + 1)), &Dim::from(1));
    let mut cases: Vec<(Engine, Dim)> = vec![];
    let mut from = Dim::from(1);
    for limit in limits {
        let after = beyond(limit);
        let (engine, when) = (of(limit), from - after.clone());
        from = after;
        match cases.last_mut() {
            Some((last, condition)) if *last == engine => *condition = condition.clone() + when,
            _ => cases.push((engine, when)),
        }
    }
    let large = dense.map_or_else(|| block(None), Engine::Dense);
    match cases.last_mut() {
        Some((last, condition)) if *last == large => *condition = condition.clone() + from,
        _ => cases.push((large, from)),
    }
    cases
}

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

/// Numbers of rows up to which a kernel of its own may run where the number is a symbol.
const LIMITS: [i64; 7] = [16, 64, 128, 256, 512, 1024, 2048];

/// Of products of no more columns it matters how many rows are many: large tiles may leave most multiprocessors idle.
const NARROW: i64 = 512;

/// What stands for a large number of rows.
const MANY: i64 = 4096;

/// Products of so few columns leave most of a wgmma tile empty.
const FEW_COLUMNS: i64 = 64;

/// The kernels of a product, each with a factor of its grid: 1 where it runs and else 0.
pub(super) fn cases(target: Target, product: &Product<'_>, walked: &Walked) -> Vec<(Engine, Dim)> {
    let (dtype, lanes, columns) = (product.a.dtype, product.bs.len(), walked.columns.as_const());
    let blocks = |case: RowCount| (Engine::Blocks(MainLoop::choose(target, dtype, lanes, case.rows, columns)), case.when);
    let few_columns = columns.is_some_and(|columns| columns <= FEW_COLUMNS);
    let walks = match bulk::walks(target, product, walked) {
        Ok(walks) if product.folds.is_empty() => walks,
        _ => return RowCount::cases(dtype, &walked.rows, 1).into_iter().map(blocks).collect(),
    };
    // What is not known is taken for large.
    let (columns, batches) = (columns.unwrap_or(4096), numel(&walked.batches.shape).as_const().unwrap_or(16));
    let depth = product.depth().as_const().unwrap_or(4096);
    let block = |rows: Option<i64>| Engine::Blocks(MainLoop::choose(target, dtype, lanes, rows, Some(columns)));
    let fastest = |rows: i64| {
        let sizes = [rows, columns, depth];
        let dense =
            [256, 128].into_iter().filter_map(|width| Dense::new(walks, lanes, width)).filter(|_| rows > 64 && !few_columns);
        let dense = dense.map(|dense| if rows <= 128 { dense.widened() } else { dense });
        let dense = dense.map(|dense| (dense.clocks(sizes, batches), Engine::Dense(dense)));
        let stream = Stream::choose(walks, lanes, sizes, batches);
        let stream = stream.map(|stream| (stream.clocks(sizes, batches), Engine::Stream(stream)));
        dense.chain(stream).min_by_key(|(clocks, _)| *clocks).map_or_else(|| block(Some(rows)), |(_, engine)| engine)
    };
    let large = match Dense::new(walks, lanes, 256) {
        Some(dense) if columns > NARROW => Engine::Dense(dense),
        _ => fastest(MANY),
    };
    if let Some(rows) = walked.rows.as_const() {
        return vec![(fastest(rows), Dim::from(1))];
    }
    let mut cases: Vec<(Engine, Dim)> = vec![];
    let mut add = |engine: Engine, when: Dim| match cases.last_mut() {
        Some((last, condition)) if *last == engine => *condition = condition.clone() + when,
        _ => cases.push((engine, when)),
    };
    let mut from = Dim::from(1);
    for limit in LIMITS {
        let beyond = Dim::min(&walked.rows.floor_div(&Dim::from(limit + 1)), &Dim::from(1));
        add(fastest(limit), from - beyond.clone());
        from = beyond;
    }
    add(large, from);
    cases
}

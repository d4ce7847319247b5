//! A router in one launch on Hopper: the product that gives its logits, the choice of experts and, where a block follows, its rows in expert
//! order and their tiles (`gemm_stream.cuh`, `router.cuh`).

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat, tensor, tensors},
        error::{Emit, Unsupported},
        kernel::{Code, Header, Kernel},
        program::{self, Results},
        route::Choice,
    },
    block_way,
    bulk::{self, Box, MULTIPROCESSORS, ceil_div},
    dispatch::{self, Dispatched},
    epilogue::Place,
    instruction,
    operand::Walk,
    ordered,
    product::{Product, Walked, transposed},
    router_tile::RouterTile,
    widened::Widened,
};
use crate::{Arg, Plan, Source, Step, TensorRef};
use eglu_ir::{Dim, Op, Program, ops::Route};
use std::collections::HashMap;

/// Most experts: eight pieces of 64.
const MOST_EXPERTS: i64 = 512;
/// Most experts of a token.
const MOST_CHOICES: usize = 16;

/// The routers of a plan whose logits nobody else reads: by the router's step, that of the product.
#[derive(Debug, Default)]
pub(in super::super) struct Routers(HashMap<usize, usize>);

impl Routers {
    /// Finds them. Products of what was widened for them read what it was before.
    pub fn find(plan: &Plan, widened: &Widened) -> Routers {
        let lives = plan.lifetimes();
        let reads = |step: &Step, buffer| step.inputs.iter().any(|arg| matches!(arg, Arg::Tensor(x) if x.buffer == buffer));
        let mut found = Routers::default();
        for (at, step) in plan.steps.iter().enumerate() {
            let (Op::Route(_), Some(Arg::Tensor(logits))) = (&step.op, step.inputs.first()) else { continue };
            let Some(product) = plan.steps.iter().position(|s| s.outputs.iter().any(|y| y.buffer == logits.buffer)) else {
                continue;
            };
            let alone = plan.steps.iter().filter(|s| reads(s, logits.buffer)).count() == 1
                && plan.outputs.iter().all(|output| output.tensor.buffer != logits.buffer);
            let maker = &plan.steps[product];
            // What the product reads must still be there.
            let stays = |x: &TensorRef| {
                plan.buffers[x.buffer].source != Source::Step || lives[x.buffer].is_some_and(|(_, last)| last >= at)
            };
            let mut operands: Vec<&TensorRef> = maker.inputs.iter().filter_map(as_tensor).collect();
            if let Some(narrow) = widened.operands(product) {
                operands = narrow.iter().collect();
            }
            let one_product = match &maker.op {
                Op::MatMul(_) => true,
                Op::Contract(op) => op.lanes == 1 && op.folds.is_empty() && op.packed == 0,
                _ => false,
            };
            let whole = maker.outputs.len() == 1 && maker.outputs[0].layout.shape.last() == logits.layout.shape.last();
            if alone && one_product && whole && logits.layout.is_dense() && operands.into_iter().all(stays) {
                found.0.insert(at, product);
            }
        }
        found
    }

    /// The product of the router at this step.
    pub fn product(&self, router: usize) -> Option<usize> {
        self.0.get(&router).copied()
    }

    /// Whether the product at this step is left to its router.
    pub fn waits(&self, step: usize) -> bool {
        self.0.values().any(|&product| product == step)
    }
}

/// Emits product and router as one, or says that they are to be two.
pub(in super::super) fn router(emitter: &mut Emitter, plan: &Plan, [maker, at]: [usize; 2]) -> Emit<bool> {
    let (step, route) = (&plan.steps[maker], &plan.steps[at]);
    let Op::Route(op) = &route.op else { return Ok(false) };
    let program = match &step.op {
        Op::Contract(op) => (*op.program).clone(),
        _ => Program::identity(tensor(step, 0)?.dtype, step.outputs[0].dtype),
    };
    let operands = tensors(step, 0)?;
    let [a, b] = emitter.unwidened_at(maker).unwrap_or_else(|| [operands[0].clone(), operands[1].clone()]);
    let mut product = Product::new("router", a, vec![transposed(&b)], operands[2..].to_vec(), &program);
    let walked = Walked::new(step, &mut product)?;
    let (Ok(walks), Some(experts), Some(depth)) =
        (bulk::walks(emitter.target, &product, &walked), walked.columns.as_const(), product.depth().as_const())
    else {
        return Ok(false);
    };
    let fits = walks[0] == Walk::KMajor
        && walked.batches.shape.is_empty()
        && (1..=MOST_EXPERTS).contains(&experts)
        && (1..=MOST_CHOICES).contains(&op.k);
    if !fits {
        return Ok(false);
    }
    let tiles = RouterTile::cases(walks[1], [experts, depth], step.outputs[0].dtype.size() as i64, &walked.rows);
    if tiles.is_empty() {
        return Ok(false);
    }
    let router =
        Router { step, route, op, product: &product, walked: &walked, experts, listed: listed(emitter, plan, at, experts)? };
    for (tile, when) in tiles {
        router.emit(emitter, tile, when)?;
    }
    Ok(true)
}

fn as_tensor(arg: &Arg) -> Option<&TensorRef> {
    match arg {
        Arg::Tensor(tensor) => Some(tensor),
        _ => None,
    }
}

/// The order that the router is to make, and what its tiles are.
struct Listed {
    dispatched: Dispatched,
    /// Most rows of a tile, and the step in which a group's tiles are made equal.
    height: Dim,
    step: Dim,
    /// 1 where there is an order to make, else 0.
    when: Dim,
}

/// What the block that reads this router's ids wants, if there is one.
fn listed(emitter: &mut Emitter, plan: &Plan, at: usize, experts: i64) -> Emit<Option<Listed>> {
    let ids = &plan.steps[at].outputs[1];
    let key = ordered::key(ids, experts);
    let reads =
        |step: &&Step| matches!(step.op, Op::Moe(_)) && tensor(step, 7).is_ok_and(|ids| ordered::key(ids, experts) == key);
    let Some(block) = plan.steps[at + 1..].iter().find(reads) else { return Ok(None) };
    let heights = block_way::tiles(emitter, block)?;
    if heights.is_empty() {
        return Ok(None);
    }
    let sum = |of: &dyn Fn(&dispatch::Height) -> Dim| heights.iter().fold(Dim::from(0), |sum, height| sum + of(height));
    let [height, step] = [
        sum(&|((height, _), when)| when.clone() * Dim::from(*height)),
        sum(&|((_, step), when)| when.clone() * Dim::from(*step)),
    ];
    let when = sum(&|(_, when)| when.clone());
    let dispatched = dispatch::made_by_router(emitter, ids, experts, &heights);
    Ok(Some(Listed { dispatched, height, step, when }))
}

struct Router<'a> {
    step: &'a Step,
    route: &'a Step,
    op: &'a Route,
    product: &'a Product<'a>,
    walked: &'a Walked,
    experts: i64,
    listed: Option<Listed>,
}

impl Router<'_> {
    /// Emits the kernel; it runs where `when` is 1.
    fn emit(&self, emitter: &mut Emitter, tile: RouterTile, when: Dim) -> Emit<()> {
        let (dtype, experts) = (self.product.a.dtype, self.experts);
        let RouterTile { rows, groups, parts, splits, stages, walk, .. } = tile;
        let (own, width, threads) = (tile.own_rows(), tile.width(), tile.threads());
        let mut kernel = Kernel::new(format!("router_{dtype}_{rows}x{experts}_by_{splits}"));
        let height = ceil_div(width, ceil_div(width, 256));
        let (a, bs) = bulk::operands(&mut kernel, self.product, self.walked, [Walk::KMajor, walk], [rows, height]);
        let of_a = Box { call: "load_tile", to: "a", at: 0, origin: "m0", first: 0, height: rows };
        let of_b = (0..width).step_by(height as usize);
        let of_b = of_b.map(|at| Box { call: "load_tile", to: "b", at, origin: "n0", first: at, height }.text(walk, &bs[0], "0"));
        let load = of_a.text(Walk::KMajor, &a, "0") + &of_b.collect::<String>();
        let [m, depth] = [&self.walked.rows, self.product.depth()].map(|dim| kernel.dim(dim));

        let pitch = tile.pitch();
        // Rows count from the run's first.
        let place = Place::dense("logits".into(), format!("-(m0 + first) * {pitch}LL"), &Dim::from(pitch));
        let epilogue = self.product.storing_to(vec![place], &mut kernel, self.walked, &[], 1)?;
        let visit = epilogue.visit(&mut kernel, 1)?;
        let logits = self.step.outputs[0].dtype;
        let columns = Dim::from(experts);
        let choice = Choice::of(self.route, self.op, logits, &columns);
        let each = if self.listed.is_some() { "run.add(r, (int)e);\n" } else { "" };
        let choose = choice.text(&mut kernel, &format!("logits[r * {pitch} + e]"), each)?;
        let (declare, clear, count, order) = self.order(emitter, &mut kernel, tile)?;
        let waits = kernel.reads_from_here();
        let consumers = groups * 128;
        let prefetch = bulk::prefetch(consumers, [&a].into_iter().chain(&bs));
        let (rank, sync, send) = match splits {
            1 => ("0", "", ""),
            _ => ("cluster_rank()", "cluster_sync();\n", "cluster_sync();\ntile.send(ring, rank);\ncluster_sync();\n"),
        };
        let next = match self.listed {
            Some(_) => format!(
                "// A tile for each cluster, or as many as it can take.\nconst bool several = tiles > gridDim.x / {splits};\n\
                 for (u32 t = tiles == 1 ? 0 : router_claim<{splits}>(counters, rank); t < tiles;\n\
                 t = several ? router_claim<{splits}>(counters, rank) : tiles)"
            ),
            None => format!("for (u32 t = blockIdx.x / {splits}; t < tiles; t += gridDim.x / {splits})"),
        };
        // Blocks of a cluster write to each other only once all have begun.
        let start = if splits > 1 && self.listed.is_some() { "if (tiles > 1) cluster_sync();\n" } else { "" };
        let body = format!(
            "using Shape = StreamShape<{}, Product, {rows}, {groups}, {parts}, 1, {splits}, {stages}, {}>;\n\
             extern __shared__ char shared[];\n{prefetch}StreamRing<Shape> ring(shared);\nconst u32 rank = {rank};\n\
             const u32 tiles = (u32)(({m} + {}) / {rows});\n{start}wait_for_kernel_before();\n{waits}\
             // Behind the ring and its barriers.\n\
             {logit}* const logits = ({logit}*)(shared + (ring.base - shared_address(shared)) + {stages} * (Shape::stage_bytes + 16));\n\
             {declare}const int n0 = 0, lane = threadIdx.x % 32;\n\
             const int steps = (int)(({depth} + 63) / 64), from = steps * rank / {splits}, end = steps * (rank + 1) / {splits};\n\
             {next} {{\nconst int m0 = t * {rows}, first = rank * {own}, rows = (int){m} - m0;\n{clear}\
             if (threadIdx.x >= {consumers}) {{\nif (threadIdx.x == {consumers}) {{\n\
             stream_produce(ring, from, end, [&](u32 a, u32 b, u32 full, int k) {{\n{load}}});\n}}\n__syncwarp();\n{sync}{sync}}} else {{\n\
             StreamTile<Shape> tile;\ntile.multiply(ring, end - from);\n{send}tile.each(ring, rank, {visit});\n}}\n\
             // Sums are read before the copy engine brings the next tile there.\nfence_shared_for_tensor_cores();\n__syncthreads();\n\
             for (int r = threadIdx.x / 32; r < {own} && first + r < {rows} && first + r < rows; r += {}) {{\n\
             const i64 t = m0 + first + r;\n{choose}}}\n__syncthreads();\n{count}}}\n{order}",
            ctype::storage(dtype)?,
            walk == Walk::KMajor,
            rows - 1,
            threads / 32,
            logit = ctype::storage(logits)?,
        );
        let items = instruction::product("Product", dtype, rows as usize, [walk == Walk::RowMajor, false])?
            + &program::function("epilogue", self.product.program, Results::Stored)?
            + &choice.items()?;
        let mut headers = Choice::headers();
        headers.extend([Header::Rows, Header::Mma, Header::Hopper, Header::GemmStream, Header::Router]);
        let code = Code {
            headers,
            items,
            body,
            threads: [threads, 1],
            shared_bytes: tile.shared_bytes(),
            residents: 1,
            cluster: if splits == 1 { 0 } else { splits as u32 },
            overlaps: true,
        };
        let clusters = Dim::min(&self.walked.rows.ceil_div(rows), &Dim::from(MULTIPROCESSORS.div_euclid(splits)));
        emitter.launch(kernel, code, flat(clusters * Dim::from(splits) * when));
        Ok(())
    }

    /// What making the order takes: declarations, what comes before a tile, what after it, and after all of them.
    fn order(&self, emitter: &mut Emitter, kernel: &mut Kernel, tile: RouterTile) -> Emit<(String, String, String, String)> {
        let Some(Listed { dispatched, height, step, when }) = &self.listed else { return Ok(Default::default()) };
        let (Some(order), Some(starts)) = (dispatched.order, dispatched.starts) else {
            return Err(Unsupported::new("a router's order has no place"));
        };
        let (experts, own, k, threads) = (self.experts, tile.own_rows(), self.op.k, tile.threads());
        let lines = emitter.scratch("router_counts", self.walked.rows.ceil_div(own) * Dim::from(2 * experts));
        let (lines, order, starts) = (kernel.scratch("u16", lines), kernel.scratch("i32", order), kernel.scratch("i32", starts));
        let (all, list) = (kernel.scratch("i32", dispatched.tile_count), kernel.scratch("RowTile", dispatched.tiles));
        let (counters, ids) = (kernel.counters(), kernel.write(&self.route.outputs[1])?);
        let [m, height, step, when] = [&self.walked.rows, height, step, when].map(|dim| kernel.dim(dim));
        let declare = format!(
            "const RouterCounters counters({counters});\nusing Run = RouterRun<{experts}, {own}>;\n__shared__ Run run;\n\
             // A few tokens' rows are ordered by those who read them.\nconst bool orders = {when} > 0;\n"
        );
        let count = format!(
            "if (orders && first < {} && first < rows) router_count<Run, {experts}>(counters, run, {lines} + (i64)(m0 + first) / {own} * {experts});\n",
            tile.rows
        );
        let finish = format!(
            "if (orders) router_order<{experts}, {k}, {own}, {threads}>(counters, run, {lines}, {m}, {ids}, {order}, {starts}, \
             {{(i32){height}, (i32){step}, {all}, {list}}});\nif (orders || tiles > 1) router_leave(counters);\n"
        );
        Ok((declare, "run.clear();\n".into(), count, finish))
    }
}

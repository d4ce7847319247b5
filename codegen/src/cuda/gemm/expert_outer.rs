//! Weight gradients by expert: a product of two tall matrices for each expert, over that expert's rows.

use super::{
    super::{
        ctype,
        emitter::{Emitter, elements, flat, tensor},
        error::{Emit, Unsupported},
        kernel::{Code, Kernel, divisible},
        program::{self, Results},
    },
    dispatch::{self, Dispatched},
    epilogue::{Epilogue, Place},
    main_loop::MainLoop,
    operand::Walk,
    outer_column, outer_wgmma,
};
use crate::{Step, TensorRef};
use eglu_ir::{Dim, ops::ExpertOuter};

/// `Σ a[s]ᵀ · b[s]` over each expert's rows; experts without rows give zeros.
pub(in super::super) fn expert_outer(emitter: &mut Emitter, step: &Step, op: &ExpertOuter) -> Emit<()> {
    let (a, b, ids) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?);
    let experts = op.experts.as_const().ok_or_else(|| Unsupported::new("the number of experts must be known"))?;
    let dispatched = dispatch::by_ids(emitter, ids, experts, &[], false)?;
    if outer_column::fits([a, b]) {
        return outer_column::emit(emitter, step, op, experts, &dispatched);
    }
    match outer_wgmma::refuses(emitter.target, [a, b]) {
        Ok(()) => outer_wgmma::emit(emitter, step, op, experts, &dispatched),
        Err(why) => blocks(emitter, step, op, experts, &dispatched, why),
    }
}

/// A block to each tile of each expert's matrix; it walks that expert's rows, in their order, so that sums are the same in every run.
fn blocks(emitter: &mut Emitter, step: &Step, op: &ExpertOuter, experts: i64, dispatched: &Dispatched, why: &str) -> Emit<()> {
    let (a, b, ids, output) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?, &step.outputs[0]);
    let (rows, columns) = (&a.layout.shape[1], &b.layout.shape[1]);
    let main = MainLoop::choose(emitter.target, a.dtype, 1, rows.as_const(), columns.as_const());
    let (bm, bn) = main.tile();
    let (Some(order), Some(starts)) = (dispatched.order, dispatched.starts) else {
        return Err(Unsupported::new("rows that stay in place have no experts"));
    };

    let mut kernel = Kernel::new(format!("expert_outer_{}", main.label(a.dtype)));
    let (order, starts) = (kernel.scratch("const i32", order), kernel.scratch("const i32", starts));
    let (from_a, from_b, to) = (kernel.read(a)?, kernel.read(b)?, kernel.write(output)?);
    let (m, n, total) = (kernel.dim(rows), kernel.dim(columns), kernel.dim(&elements(ids)));
    let ty = ctype::storage(a.dtype)?;
    let stride = [a, b].map(|x| kernel.dim(&x.layout.strides[1]));
    // In the expert order an expert's rows are neighbours.
    let [first_a, first_b] = [a, b].map(|x| match emitter.is_ordered(x) {
        true => format!("start * {} + ", kernel.dim(&x.layout.strides[0])),
        false => String::new(),
    });
    let mut text = format!(
        "// Not by wgmma: {why}.\nconst i64 tiles_m = ({m} + {bm} - 1) / {bm}, tiles_n = ({n} + {bn} - 1) / {bn};\n\
         const i64 expert = blockIdx.x / (tiles_m * tiles_n);\n\
         const TileIndex at = banded_tile(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);\n\
         const i64 m0 = at.m * {bm}, n0 = at.n * {bn}, rows = {m} - m0;\n\
         // Without ids nothing was written there.\n\
         const i32 start = {total} == 0 ? 0 : {starts}[expert];\nconst i64 depth = {total} == 0 ? 0 : {starts}[expert + 1] - start;\n\
         const PlainRows<{ty}> rows_a{{{from_a} + {first_a}m0 * {sa}, {sa}, rows}};\n\
         const PlainRows<{ty}> rows_b0{{{from_b} + {first_b}n0 * {sb}, {sb}, {n} - n0}};\n",
        sa = stride[0],
        sb = stride[1],
    );
    let walks = [a, b].map(|x| walk(main, x));
    let depths = [(a, op.a_repeat), (b, op.b_repeat)].map(|(x, repeat)| {
        let list = if emitter.is_ordered(x) { "nullptr".into() } else { format!("{order} + start") };
        format!("GatheredDepth{{{}, {list}, {repeat}}}", kernel.dim(&x.layout.strides[0]))
    });
    text += &main.multiply_along(a.dtype, walks, "PlainRows", "GatheredDepth", &depths)?;
    let matrix = kernel.dim(&(rows.clone() * columns.clone()));
    let onto = onto(step);
    let program = op.program(a.dtype, onto.is_some());
    let captures = onto.map(|onto| place_of(&mut kernel, onto, "expert")).transpose()?.into_iter().collect();
    let place = Place::dense(to, format!("expert * {matrix}"), columns);
    let epilogue = Epilogue {
        program: &program,
        captures,
        outputs: vec![place],
        columns: columns.clone(),
        row: "m0 + m".into(),
        place: None,
        dropped: None,
        empty: None,
        run: 2,
        staged: None,
        parts: &[],
        folded: None,
    };
    text += &epilogue.store(&mut kernel, 1)?;
    let code = Code {
        headers: main.headers(),
        items: program::function("epilogue", &program, Results::Stored)?,
        body: text,
        threads: [main.threads(), 1],
        shared_bytes: main.shared_bytes(1),
        residents: main.residents(1),
        ..Code::default()
    };
    let grid = rows.ceil_div(bm) * columns.ceil_div(bn) * Dim::from(experts);
    emitter.launch(kernel, code, flat(grid));
    Ok(())
}

/// What the sums are added to.
pub(super) fn onto(step: &Step) -> Option<&TensorRef> {
    tensor(step, 3).ok()
}

/// Where an expert's matrix of `x[E, M, N]` is read.
pub(super) fn place_of(kernel: &mut Kernel, x: &TensorRef, expert: &str) -> Emit<Place> {
    let [apart, row, column] = [0, 1, 2].map(|i| x.layout.strides[i].clone());
    let origin = divisible(&apart, 4).then(|| (x.buffer, x.layout.offset.clone()));
    let base = format!("{expert} * {}", kernel.dim(&apart));
    Ok(Place { pointer: kernel.read(x)?, base, row_stride: row, column_stride: column, absent: None, origin, ordered: false })
}

/// How tiles of `x[S, N]` travel, N being the rows of the product: rows of x are picked, so only whole ones are contiguous.
fn walk(main: MainLoop, x: &TensorRef) -> Walk {
    match main.walk(&x.layout.strides[1], &x.layout.strides[0], &[&x.layout.offset]) {
        Walk::KMajor if matches!(main, MainLoop::Mma { .. }) => Walk::Strided,
        walk => walk,
    }
}

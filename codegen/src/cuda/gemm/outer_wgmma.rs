//! Weight gradients by expert in Hopper's main loop.

use super::{
    super::{
        Memory, TensorMap, ctype,
        emitter::{Emitter, Target, elements, flat, tensor},
        error::Emit,
        kernel::{Code, Header, Kernel, byte_offset, divisible},
        program::{self, Results},
    },
    dispatch::Dispatched,
    epilogue::{Epilogue, Place},
    expert_outer::{onto, place_of},
    instruction,
    wgmma::resident_grid,
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, ops::ExpertOuter};

/// Rows and columns of a block's tile.
const TILE: (i64, i64) = (128, 256);
/// Rows of the operands in a stage.
const DEPTH: u32 = 64;
const STAGES: u32 = 4;
/// Staging buffers of a warp.
const BUFFERS: u32 = 2;
/// A producer warpgroup and two consumers.
const THREADS: u32 = 384;

/// Why another main loop must do, if so.
pub(super) fn refuses(target: Target, [a, b]: [&TensorRef; 2]) -> Result<(), &'static str> {
    let aligned =
        |x: &TensorRef| [&x.layout.strides[0], &x.layout.offset, &x.layout.shape[1]].iter().all(|dim| divisible(dim, 8));
    let few = |x: &TensorRef| x.layout.shape[1].as_const().is_some_and(|n| n <= 64);
    if target.arch < 90 {
        Err("the target has no warpgroup products")
    } else if !matches!(a.dtype, DType::Bf16 | DType::F16) {
        Err("operands are not 16 bits wide")
    } else if few(a) || few(b) {
        Err("few rows or columns would leave most of a tile empty")
    } else if ![a, b].iter().all(|x| x.layout.strides[1].is(1) && aligned(x)) {
        Err("rows do not lie in multiples of 16 bytes")
    } else {
        Ok(())
    }
}

/// Emits the kernel: blocks stay for all tiles of all experts.
pub(super) fn emit(emitter: &mut Emitter, step: &Step, op: &ExpertOuter, experts: i64, dispatched: &Dispatched) -> Emit<()> {
    let (a, b, ids, output) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?, &step.outputs[0]);
    let ty = ctype::storage(a.dtype)?;
    let (rows, columns) = (&a.layout.shape[1], &b.layout.shape[1]);
    let mut kernel = Kernel::new(format!("expert_outer_{}_wgmma_{}x{}", a.dtype, TILE.0, TILE.1));
    let order = dispatched.order.map(|order| kernel.scratch("const i32", order)).unwrap_or_default();
    let starts = dispatched.starts.map(|starts| kernel.scratch("const i32", starts)).unwrap_or_default();
    let operands = [(a, op.a_repeat), (b, op.b_repeat)]
        .map(|(x, repeat)| -> Emit<String> {
            let (from, stride, width) = (kernel.read(x)?, kernel.dim(&x.layout.strides[0]), kernel.dim(&x.layout.shape[1]));
            Ok(match emitter.is_ordered(x) {
                true => {
                    let map = kernel.tensor_map(map_of_rows(x));
                    format!("OuterRows<{ty}, 0>{{{from}, {stride}, (int){width}, &{map}}}")
                }
                false => format!("OuterRows<{ty}, {repeat}>{{{from}, {stride}, (int){width}, nullptr}}"),
            })
        })
        .into_iter()
        .collect::<Emit<Vec<_>>>()?;
    let (m, n, total) = (kernel.dim(rows), kernel.dim(columns), kernel.dim(&elements(ids)));

    let onto = onto(step);
    let program = op.program(a.dtype, onto.is_some());
    let captures = onto.map(|onto| place_of(&mut kernel, onto, "work.expert")).transpose()?.into_iter().collect();
    let staged = matches!(op.dtype, DType::Bf16 | DType::F16) && divisible(columns, 8);
    let map = staged.then(|| kernel.tensor_map(map_of_results(output, experts)));
    let matrix = kernel.dim(&(rows.clone() * columns.clone()));
    let place = Place::dense(kernel.write(output)?, format!("work.expert * {matrix}"), columns);
    let epilogue = Epilogue {
        program: &program,
        captures,
        outputs: vec![place],
        columns: columns.clone(),
        row: "work.m0 + m".into(),
        place: None,
        dropped: None,
        empty: Some("work.depth <= 0"),
        run: 2,
        staged: staged.then_some(0),
        parts: &[],
        folded: None,
    };
    let visit = epilogue.visit(&mut kernel, 1)?;
    let (open, close, finish) = match &map {
        Some(map) => (
            "tile.open_staging();\n",
            format!("tile.close_staging({map}, work.n0 + pass * 64, work.m0, (int)work.expert);\n"),
            "tile.finish_staging();\n",
        ),
        None => ("", String::new(), ""),
    };
    let body = format!(
        "using Shape = OuterShape<{ty}, Product, {bn}, {STAGES}, {BUFFERS}>;\nextern __shared__ char shared[];\n\
         const DenseRing<Shape> ring(shared);\nwait_for_kernel_before();\nread_from_here({order});\nread_from_here({starts});\n\
         const u32 tiles_m = (u32)(({m} + {bm} - 1) / {bm}), tiles_n = (u32)(({n} + {bn} - 1) / {bn}), total = {experts} * tiles_m * tiles_n;\n\
         const auto work_at = [&](u32 t) {{ return outer_work<Shape>(t, tiles_m, tiles_n, {starts}, {total} > 0); }};\n\
         if (threadIdx.x < 128) {{\ngive_registers<72>();\nouter_produce(ring, {}, {}, {order}, total, work_at);\n}} else {{\n\
         take_registers<208>();\nDenseTile<Shape> tile(ring);\nouter_consume<Shape>(total, work_at, [&](const OuterWork& work) {{\n\
         const int rows = (int){m} - work.m0, n0 = work.n0;\ntile.multiply(work.depth, rows);\nif (rows <= tile.first) return;\n\
         #pragma unroll\nfor (int pass = 0; pass < Shape::BN / 64; pass++) {{\nif (n0 + pass * 64 >= {n}) break;\n\
         {open}tile.each(pass, {visit});\n{close}}}\n}});\n{finish}}}\n",
        operands[0],
        operands[1],
        bm = TILE.0,
        bn = TILE.1,
    );
    let items = instruction::product("Product", a.dtype, TILE.1 as usize, [true; 2])?
        + &program::function("epilogue", &program, Results::Stored)?;
    let stage = (TILE.0 + TILE.1) as u32 * DEPTH * 2;
    let code = Code {
        headers: vec![Header::Math, Header::Rows, Header::Mma, Header::Hopper, Header::GemmDense, Header::GemmOuter],
        items,
        body,
        threads: [THREADS, 1],
        // Stages from a multiple of 1024, staging buffers of 2 KB for each of eight warps, then two barriers for each stage.
        shared_bytes: 1024 + STAGES * (stage + 16) + 8 * BUFFERS * 2048,
        overlaps: true,
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(resident_grid(emitter.target)));
    Ok(())
}

/// The map of an operand's rows, in boxes of a stage's rows by 64 columns.
fn map_of_rows(x: &TensorRef) -> TensorMap {
    let (rows, columns) = (&x.layout.shape[0], &x.layout.shape[1]);
    let row = x.layout.strides[0].clone() * Dim::from(x.dtype.size() as i64);
    TensorMap {
        memory: Memory::Buffer(x.buffer),
        offset: byte_offset(x),
        dtype: x.dtype,
        dims: vec![columns.clone(), rows.clone(), Dim::from(1)],
        strides: vec![row.clone(), row],
        tile: vec![64, DEPTH, 1],
        follows: true,
    }
}

/// The map of the matrices `[E, M, N]`, in boxes of a warp's 16 rows by 64 columns.
fn map_of_results(y: &TensorRef, experts: i64) -> TensorMap {
    let (rows, columns) = (&y.layout.shape[1], &y.layout.shape[2]);
    let row = columns.clone() * Dim::from(y.dtype.size() as i64);
    TensorMap {
        memory: Memory::Buffer(y.buffer),
        offset: byte_offset(y),
        dtype: y.dtype,
        dims: vec![columns.clone(), rows.clone(), Dim::from(experts)],
        strides: vec![row.clone(), row * rows.clone()],
        tile: vec![64, 16, 1],
        follows: true,
    }
}

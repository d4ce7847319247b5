//! Weight gradients by expert with a single column, such as a bias's: sums over each expert's rows, at the speed of memory.

use super::{
    super::{
        ctype,
        emitter::{Emitter, elements, flat, tensor},
        error::Emit,
        kernel::{Code, Header, Kernel, divisible},
        program::{self, Results},
    },
    dispatch::Dispatched,
    expert_outer::onto,
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, Dim, ops::ExpertOuter};

/// Columns of a that a thread sums, threads beside each other, and threads that share the rows.
const SHAPE: [i64; 3] = [8, 8, 32];
/// Rows that a thread has under way at once.
const DEEP: i64 = 4;

/// True if the rows of `a` can be read 16 bytes at a time, and `b` has one column.
pub(super) fn fits([a, b]: [&TensorRef; 2]) -> bool {
    let layout = &a.layout;
    let aligned = [&layout.strides[0], &layout.offset, &layout.shape[1]].iter().all(|dim| divisible(dim, SHAPE[0]));
    matches!(a.dtype, DType::Bf16 | DType::F16) && b.layout.shape[1].is(1) && layout.strides[1].is(1) && aligned
}

/// Emits the kernel: a block to some columns of an expert. Rows are added in an order that the sizes alone decide.
pub(super) fn emit(emitter: &mut Emitter, step: &Step, op: &ExpertOuter, experts: i64, dispatched: &Dispatched) -> Emit<()> {
    let (a, b, ids, output) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 2)?, &step.outputs[0]);
    let [width, across, share] = SHAPE;
    let block = width * across;
    let (ty, of_result) = (ctype::storage(a.dtype)?, ctype::storage(op.dtype)?);
    let mut kernel = Kernel::new(format!("expert_outer_{}_column", a.dtype));
    let order = dispatched.order.map(|order| kernel.scratch("const i32", order)).unwrap_or_default();
    let starts = dispatched.starts.map(|starts| kernel.scratch("const i32", starts)).unwrap_or_default();
    let (from_a, from_b, to) = (kernel.read(a)?, kernel.read(b)?, kernel.write(output)?);
    let [step_a, step_b] = [a, b].map(|x| kernel.dim(&x.layout.strides[0]));
    let columns = &a.layout.shape[1];
    let (n, total) = (kernel.dim(columns), kernel.dim(&elements(ids)));
    let row_of =
        |x: &TensorRef, repeat: usize| if emitter.is_ordered(x) { "place".to_string() } else { format!("row / {repeat}") };
    let (row_a, row_b) = (row_of(a, op.a_repeat), row_of(b, op.b_repeat));
    let onto = onto(step);
    let program = op.program(a.dtype, onto.is_some());
    let read = match onto {
        Some(onto) => {
            let (from, at) = (kernel.read(onto)?, ["(i64)expert".to_string(), format!("((i64)slab * {block} + t)")]);
            format!(", up({from}[{}])", kernel.offset(&at, &onto.layout.strides[..2]))
        }
        None => String::new(),
    };
    let body = format!(
        "const u32 slabs = (u32)(({n} + {block} - 1) / {block}), expert = blockIdx.x / slabs, slab = blockIdx.x % slabs;\n\
         // Without ids nothing was written there.\n\
         const int first = {total} == 0 ? 0 : {starts}[expert], last = {total} == 0 ? 0 : {starts}[expert + 1];\n\
         const i64 column = (i64)slab * {block} + threadIdx.x * {width};\nfloat sums[{width}] = {{}};\n\
         if (column < {n}) for (int start = first + threadIdx.y; start < last; start += {share} * {DEEP}) {{\n\
         Pack<{ty}, {width}> rows[{DEEP}];\nfloat factors[{DEEP}];\n#pragma unroll\nfor (int k = 0; k < {DEEP}; k++) {{\n\
         const bool there = start + k * {share} < last;\nconst int place = there ? start + k * {share} : start, row = {order}[place];\n\
         rows[k] = *(const Pack<{ty}, {width}>*)({from_a} + {row_a} * {step_a} + column);\n\
         factors[k] = there ? up({from_b}[{row_b} * {step_b}]) : 0.0f;\nif (!there) rows[k] = {{}};\n}}\n\
         #pragma unroll\nfor (int k = 0; k < {DEEP}; k++)\n#pragma unroll\nfor (int e = 0; e < {width}; e++) \
         sums[e] += up(rows[k].at[e]) * factors[k];\n}}\n\
         __shared__ float shared[{share}][{block}];\n#pragma unroll\nfor (int e = 0; e < {width}; e++) shared[threadIdx.y][threadIdx.x * {width} + e] = sums[e];\n\
         __syncthreads();\nconst int t = threadIdx.y * {across} + threadIdx.x;\nif (t >= {block} || (i64)slab * {block} + t >= {n}) return;\n\
         float sum = 0.0f;\nfor (int y = 0; y < {share}; y++) sum += shared[y][t];\n{of_result} result;\nepilogue(sum{read}, result);\n\
         {to}[(i64)expert * {n} + (i64)slab * {block} + t] = result;\n",
    );
    let code = Code {
        headers: vec![Header::Math, Header::Rows],
        items: program::function("epilogue", &program, Results::Stored)?,
        body,
        threads: [across as u32, share as u32],
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(columns.ceil_div(block) * Dim::from(experts)));
    Ok(())
}

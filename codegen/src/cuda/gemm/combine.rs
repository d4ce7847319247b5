//! The end of a mixture-of-experts block: the weighted sum of each token's rows.

use super::super::{
    ctype,
    emitter::{Emitter, elements, flat, tensor},
    error::Emit,
    kernel::{Code, Kernel, divisible},
};
use crate::{Step, TensorRef};
use eglu_ir::{DType, ops::Moe};

/// The sum over each token's experts in f32; rows whose id names no expert were never written and count for nothing.
pub(super) fn combine(
    emitter: &mut Emitter,
    step: &Step,
    op: &Moe,
    ids: &TensorRef,
    weights: &TensorRef,
    rows: usize,
    experts: i64,
) -> Emit<()> {
    let (x, out) = (tensor(step, 0)?, &step.outputs[0]);
    let columns = out.layout.shape[1].clone();
    let width: i64 = if divisible(&columns, 8) && x.dtype.size() == 2 { 8 } else { 1 };
    let mut kernel = Kernel::new(format!("moe_combine_{}", op.dtype));
    let (stored, target) = (ctype::storage(x.dtype)?, ctype::storage(op.dtype)?);
    let ty = if x.dtype == DType::F64 { "double" } else { "float" };
    let from = kernel.scratch(&format!("const {stored}"), rows);
    let (id, scale, to) = (kernel.read(ids)?, kernel.read(weights)?, kernel.write(out)?);
    let total = elements(out);
    let (n, all) = (kernel.dim(&columns), kernel.dim(&total));
    let choices = kernel.dim(&ids.layout.shape[1]);
    let id_at = kernel.offset(&["t".into(), "j".into()], &ids.layout.strides);
    let scale_at = kernel.offset(&["t".into(), "j".into()], &weights.layout.strides);
    let body = format!(
        "const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * {width};\nif (at >= {all}) return;\nconst i64 t = at / {n}, h = at % {n};\n\
         {ty} sum[{width}] = {{}};\n#pragma unroll\nfor (i64 j = 0; j < {choices}; j++) {{\nconst i64 expert = (i64){id}[{id_at}];\n\
         if (expert < 0 || expert >= {experts}) continue;\nconst {ty} weight = ({ty})up({scale}[{scale_at}]);\n\
         const Pack<{stored}, {width}> row = *(const Pack<{stored}, {width}>*)({from} + (t * {choices} + j) * {n} + h);\n\
         #pragma unroll\nfor (int e = 0; e < {width}; e++) sum[e] += weight * ({ty})up(row.at[e]);\n}}\n\
         Pack<{target}, {width}> result;\n#pragma unroll\nfor (int e = 0; e < {width}; e++) result.at[e] = cast<{target}>(sum[e]);\n\
         *(Pack<{target}, {width}>*)({to} + at) = result;\n"
    );
    let code = Code { body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(total.ceil_div(256 * width)));
    Ok(())
}

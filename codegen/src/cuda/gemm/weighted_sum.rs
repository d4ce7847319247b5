//! The end of a mixture-of-experts block: each token's rows by its scores, summed up.

use super::super::{
    ctype,
    emitter::{Emitter, elements, flat},
    error::Emit,
    kernel::{Code, Header, Kernel, divisible},
};
use crate::TensorRef;
use eglu_ir::DType;

/// The sum over each token's experts in f32; rows whose id names no expert were never written and count for nothing.
pub(super) struct WeightedSum<'a> {
    /// The dtype of the rows, which lie dense, each where its id stands.
    pub rows: DType,
    /// `[T, k]`.
    pub ids: &'a TensorRef,
    /// `[T, k]`.
    pub weights: &'a TensorRef,
    /// `[T, H]`.
    pub out: &'a TensorRef,
    /// The dtype of the result.
    pub dtype: DType,
    pub experts: i64,
}

impl WeightedSum<'_> {
    /// Neighbouring columns that one thread sums up at a time.
    pub fn width(&self) -> i64 {
        if divisible(&self.out.layout.shape[1], 8) && self.rows.size() == 2 { 8 } else { 1 }
    }

    /// Statements that make the elements of the result from `at` on, of the rows at `from`; and the pointers that they read besides.
    pub fn text(&self, kernel: &mut Kernel, from: &str) -> Emit<(String, [String; 2])> {
        let WeightedSum { ids, weights, experts, .. } = self;
        let (width, ty) = (self.width(), if self.rows == DType::F64 { "double" } else { "float" });
        let (stored, target) = (ctype::storage(self.rows)?, ctype::storage(self.dtype)?);
        let (id, scale, to) = (kernel.read(ids)?, kernel.read(weights)?, kernel.write(self.out)?);
        let (n, choices) = (kernel.dim(&self.out.layout.shape[1]), kernel.dim(&ids.layout.shape[1]));
        let id_at = kernel.offset(&["t".into(), "j".into()], &ids.layout.strides);
        let scale_at = kernel.offset(&["t".into(), "j".into()], &weights.layout.strides);
        let text = format!(
            "const i64 t = at / {n}, h = at % {n};\n\
             {ty} sum[{width}] = {{}};\n#pragma unroll\nfor (i64 j = 0; j < {choices}; j++) {{\nconst i64 expert = (i64){id}[{id_at}];\n\
             if (expert < 0 || expert >= {experts}) continue;\nconst {ty} weight = ({ty})up({scale}[{scale_at}]);\n\
             const Pack<{stored}, {width}> row = *(const Pack<{stored}, {width}>*)({from} + (t * {choices} + j) * {n} + h);\n\
             #pragma unroll\nfor (int e = 0; e < {width}; e++) sum[e] += weight * ({ty})up(row.at[e]);\n}}\n\
             Pack<{target}, {width}> result;\n#pragma unroll\nfor (int e = 0; e < {width}; e++) result.at[e] = cast<{target}>(sum[e]);\n\
             *(Pack<{target}, {width}>*)({to} + at) = result;\n"
        );
        Ok((text, [id, scale]))
    }

    /// A kernel of its own for the rows in this scratch memory.
    pub fn emit(&self, emitter: &mut Emitter, rows: usize) -> Emit<()> {
        let mut kernel = Kernel::new(format!("moe_combine_{}", self.dtype));
        let from = kernel.scratch(&format!("const {}", ctype::storage(self.rows)?), rows);
        let (text, [id, scale]) = self.text(&mut kernel, &from)?;
        let (width, total) = (self.width(), elements(self.out));
        let all = kernel.dim(&total);
        let overlaps = emitter.target.arch >= 90;
        let wait: String = [&from, &id, &scale].map(|pointer| format!("read_from_here({pointer});\n")).concat();
        let (headers, wait) =
            if overlaps { (vec![Header::Hopper], format!("wait_for_kernel_before();\n{wait}")) } else { (vec![], String::new()) };
        let body =
            format!("{wait}const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * {width};\nif (at >= {all}) return;\n{text}");
        let code = Code { headers, body, threads: [256, 1], overlaps, ..Code::default() };
        emitter.launch(kernel, code, flat(total.ceil_div(256 * width)));
        Ok(())
    }
}

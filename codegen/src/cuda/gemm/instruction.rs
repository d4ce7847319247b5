//! Text of warpgroup product instructions: the accumulators are operands of one instruction, and so are spelled out.

use super::super::{ctype, error::Emit};
use eglu_ir::DType;

/// A struct of this name whose `add(d, a, b, onto)` adds the product of a (64 × 16) and bᵀ (`columns` × 16), both described in shared memory,
/// to d, or to 0 without `onto` (PTX ISA, `wgmma.mma_async`): accumulators that other instructions set would serialise the products.
/// `transposed` says which of a and b have contiguous rows, not a contiguous K.
pub(super) fn product(name: &str, dtype: DType, columns: usize, transposed: [bool; 2]) -> Emit<String> {
    ctype::storage(dtype)?;
    let (kind, count) = (if dtype == DType::F16 { "f16" } else { "bf16" }, columns / 2);
    let list = |item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let (registers, operands) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+f\"(d[{i}])")));
    let [a, b] = transposed.map(u8::from);
    Ok(format!(
        "struct {name} {{\nstatic DEVICE void add(float (&d)[{count}], u64 a, u64 b, int onto) {{\n\
         asm volatile(\"{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{}, 0;\\n\"\n\
         \"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{registers}}}, %{count}, %{}, add, 1, 1, {a}, {b};\\n}}\"\n\
         : {operands} : \"l\"(a), \"l\"(b), \"r\"(onto));\n}}\n}};\n",
        count + 2,
        count + 1
    ))
}

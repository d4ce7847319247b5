//! Writes at indices, in an order that does not depend on scheduling: sources are sorted by destination, and one thread takes all that meet.

use super::{
    ctype, elementwise,
    emitter::{Emitter, flat, tensor, tensors},
    error::Emit,
    indexing::Picked,
    kernel::{Code, Header, Kernel, broadcast_strides},
    order::{Runs, sort_chunk},
};
use crate::{Step, TensorRef};
use eglu_ir::{
    Dim, Program,
    ops::{IndexPut, ScatterAdd},
    types::numel,
};

/// What a scatter writes where.
struct Scatter<'a> {
    /// Extents over which indices vary, then those along which whole runs of elements move.
    picked: Vec<Dim>,
    rest: Vec<Dim>,
    /// Each index tensor, its strides over `picked`, and extent and stride of what it indexes in the output.
    indices: Vec<(&'a TensorRef, Vec<Dim>, Dim, Dim)>,
    /// Strides over `picked` and `rest`.
    source: (&'a TensorRef, Vec<Dim>, Vec<Dim>),
    target: (Vec<Dim>, Vec<Dim>),
    accumulate: bool,
}

/// `x` with values put, or added, at the indices; where several meet without accumulation, the last stays.
pub(super) fn index_put(emitter: &mut Emitter, step: &Step, op: &IndexPut) -> Emit<()> {
    let (values, indices, y) = (tensor(step, 1)?, tensors(step, 2)?, &step.outputs[0]);
    let place = Picked::new(&y.layout, &op.axes, &indices);
    let part = |all: &[Dim]| -> (Vec<Dim>, Vec<Dim>) {
        let (before, after) = (&all[..place.picked.start], &all[place.picked.end..]);
        (all[place.picked.clone()].to_vec(), before.iter().chain(after).cloned().collect())
    };
    let (picked, rest) = part(&place.shape);
    let source = part(&broadcast_strides(values, &place.shape));
    let indices = indices
        .iter()
        .zip(&place.indices)
        .zip(&op.axes)
        .map(|((&index, strides), &axis)| (index, part(strides).0, y.layout.shape[axis].clone(), y.layout.strides[axis].clone()))
        .collect();
    let target = part(&place.rest);
    let scatter = Scatter { picked, rest, indices, source: (values, source.0, source.1), target, accumulate: op.accumulate };
    emit(emitter, step, "index_put", &scatter)
}

/// `x` with `src` added along one dim.
pub(super) fn scatter_add(emitter: &mut Emitter, step: &Step, op: &ScatterAdd) -> Emit<()> {
    let (index, src, y) = (tensor(step, 1)?, tensor(step, 2)?, &step.outputs[0]);
    let mut along = y.layout.strides.to_vec();
    along[op.dim] = Dim::from(0);
    let scatter = Scatter {
        picked: index.layout.shape.to_vec(),
        rest: Vec::new(),
        indices: vec![(index, index.layout.strides.to_vec(), y.layout.shape[op.dim].clone(), y.layout.strides[op.dim].clone())],
        source: (src, src.layout.strides.to_vec(), Vec::new()),
        target: (along, Vec::new()),
        accumulate: true,
    };
    emit(emitter, step, "scatter_add", &scatter)
}

fn emit(emitter: &mut Emitter, step: &Step, name: &str, scatter: &Scatter<'_>) -> Emit<()> {
    let (x, y) = (tensor(step, 0)?, &step.outputs[0]);
    let copy = Program::identity(x.dtype, y.dtype);
    elementwise::apply(emitter, &format!("{name}_copy_{}", y.dtype), &copy, &y.layout.shape, &[x], &[y])?;

    // Destinations and sources below 2^32 fit one word.
    let small = |dim: &Dim| dim.as_const().is_some_and(|n| n < 1 << 32);
    let count = numel(&scatter.picked);
    let (entry, bytes) = if small(&count) && small(&numel(&y.layout.shape)) { ("Narrow", 8) } else { ("Wide", 16) };
    let runs = Runs::new(emitter, name, (entry, bytes), &count, &Dim::from(1));
    let ordered = emitter.scratch(&format!("{name}_order"), count.clone() * Dim::from(bytes));
    let chunk = runs.chunk;
    let chunks = count.ceil_div(chunk);

    let mut kernel = Kernel::new(format!("{name}_sort"));
    let (split, names) = kernel.split("r", "i", &scatter.picked);
    let mut destination = vec![kernel.offset(&names, &scatter.target.0)];
    for (index, strides, extent, stride) in &scatter.indices {
        let pointer = kernel.read(index)?;
        let at = kernel.offset(&names, strides);
        destination.push(format!("wrap_index((i64){pointer}[{at}], {}) * {}", kernel.dim(extent), kernel.dim(stride)));
    }
    let to = kernel.scratch(entry, runs.arrays[0]);
    let length = kernel.dim(&count);
    let make = format!("[&] {{\n{split}return {entry}::make((u64)({}), r);\n}}()", destination.join(" + "));
    let body = format!(
        "const i64 first = (i64)blockIdx.x * {chunk};\n{}",
        sort_chunk(entry, chunk, &length, &make, &format!("{to}[r] = entry;\n"))
    );
    let code = Code {
        headers: vec![Header::Sort],
        body,
        threads: [(chunk / 2) as u32, 1],
        shared_bytes: (chunk * bytes) as u32,
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(chunks));

    let mut kernel = Kernel::new(format!("{name}_rank"));
    let to = kernel.scratch(entry, ordered);
    let merge = runs.merge(emitter, &mut kernel);
    let length = kernel.dim(&count);
    let body =
        format!("const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;\nif (at >= {length}) return;\n{merge}{to}[r] = entry;\n");
    let code = Code { headers: vec![Header::Sort], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(count.ceil_div(256)));
    write(emitter, step, name, scatter, entry, ordered)
}

/// The thread at the first source of a destination walks all of its sources, in their order.
fn write(emitter: &mut Emitter, step: &Step, name: &str, scatter: &Scatter<'_>, entry: &str, ordered: usize) -> Emit<()> {
    let y = &step.outputs[0];
    let (values, over_picked, over_rest) = &scatter.source;
    let (count, inner) = (numel(&scatter.picked), numel(&scatter.rest));
    let mut kernel = Kernel::new(format!("{name}_{}", y.dtype));
    let from = kernel.read(values)?;
    let order = kernel.scratch(&format!("const {entry}"), ordered);
    let to = kernel.write(y)?;
    let (length, row) = (kernel.dim(&count), kernel.dim(&inner));
    let total = kernel.dim(&(count.clone() * inner.clone()));
    let (split_rest, rest_names) = kernel.split("q", "j", &scatter.rest);
    let (split_source, source_names) = kernel.split("source", "i", &scatter.picked);
    let base = kernel.offset(&rest_names, over_rest);
    let value = format!("{from}[base + {}]", kernel.offset(&source_names, over_picked));
    let target = kernel.offset(&rest_names, &scatter.target.1);
    let (ty, stored) = (ctype::opmath(ctype::accumulator(y.dtype))?, ctype::storage(y.dtype)?);
    let (start, each, end) = if scatter.accumulate {
        let each = format!("sum += ({ty})up({value});\n");
        (format!("{ty} sum = ({ty})up({to}[at]);\n"), each, format!("{to}[at] = cast<{stored}>(sum);\n"))
    } else {
        (format!("{stored} last = {to}[at];\n"), format!("last = {value};\n"), format!("{to}[at] = last;\n"))
    };
    let body = format!(
        "const i64 t = (i64)blockIdx.x * 256 + threadIdx.x;\nif (t >= {total}) return;\n\
         const i64 p = t / {row}, q = t % {row};\nconst u64 key = {order}[p].key();\n\
         if (p > 0 && {order}[p - 1].key() == key) return;\n{split_rest}const i64 base = {base};\nconst i64 at = (i64)key + {target};\n{start}\
         for (i64 next = p; next < {length} && {order}[next].key() == key; next++) {{\nconst i64 source = {order}[next].position();\n\
         {split_source}{each}}}\n{end}"
    );
    let code = Code { headers: vec![Header::Sort], body, threads: [256, 1], ..Code::default() };
    emitter.launch(kernel, code, flat((count * inner).ceil_div(256)));
    Ok(())
}

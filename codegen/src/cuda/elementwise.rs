//! One thread for each group of neighbouring output elements.

use super::{
    ctype,
    emitter::{Emitter, flat},
    error::Emit,
    kernel::{Code, Header, Kernel, broadcast_strides},
    loops::Loop,
    program::{self, Results},
};
use crate::TensorRef;
use eglu_ir::{Dim, Program, types::numel};

const THREADS: u32 = 256;

/// Applies `program` to operands broadcast to `shape`; outputs have that shape, at any strides.
pub(super) fn apply(
    emitter: &mut Emitter,
    entry: &str,
    program: &Program,
    shape: &[Dim],
    reads: &[&TensorRef],
    writes: &[&TensorRef],
) -> Emit<()> {
    let strides: Vec<Vec<Dim>> = reads.iter().chain(writes).map(|t| broadcast_strides(t, shape)).collect();
    let walk = Loop::new(shape, &strides);
    let sizes: Vec<_> = reads.iter().chain(writes).map(|t| Some((t.dtype.size(), t.layout.offset.clone()))).collect();
    let width = walk.vector_width(&sizes);

    let mut kernel = Kernel::new(entry);
    let from = reads.iter().map(|t| kernel.read(t)).collect::<Emit<Vec<_>>>()?;
    let to = writes.iter().map(|t| kernel.write(t)).collect::<Emit<Vec<_>>>()?;
    let mut one = Element { kernel: &mut kernel, walk: &walk, reads, writes, from: &from, to: &to };
    let count = numel(&walk.shape);
    let total = one.kernel.dim(&count);
    let body = if width > 1 { one.grouped(&total, width)? } else { one.single(&total)? };
    let items = program::function("apply", program, Results::Stored)?;
    let code = Code { headers: vec![Header::Math], items, body, threads: [THREADS, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(count.ceil_div(i64::from(THREADS) * width)));
    Ok(())
}

struct Element<'a> {
    kernel: &'a mut Kernel,
    walk: &'a Loop,
    reads: &'a [&'a TensorRef],
    writes: &'a [&'a TensorRef],
    from: &'a [String],
    to: &'a [String],
}

impl Element<'_> {
    /// The element offset of every operand at the index called `at`.
    fn offsets(&mut self, at: &str) -> (String, Vec<String>) {
        let (mut text, names) = self.kernel.split(at, "i", &self.walk.shape);
        let mut offsets = Vec::new();
        for (operand, strides) in self.walk.strides.iter().enumerate() {
            let offset = self.kernel.offset(&names, strides);
            text += &format!("const i64 o{operand} = {offset};\n");
            offsets.push(format!("o{operand}"));
        }
        (text, offsets)
    }

    fn call(&self, reads: Vec<String>, writes: Vec<String>) -> String {
        format!("apply({});\n", reads.into_iter().chain(writes).collect::<Vec<_>>().join(", "))
    }

    fn single(&mut self, total: &str) -> Emit<String> {
        let (split, offsets) = self.offsets("at");
        let reads = self.from.iter().zip(&offsets).map(|(x, o)| format!("up({x}[{o}])")).collect();
        let writes = self.to.iter().zip(&offsets[self.from.len()..]).map(|(y, o)| format!("{y}[{o}]")).collect();
        let call = self.call(reads, writes);
        Ok(format!("const i64 at = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (at >= {total}) return;\n{split}{call}"))
    }

    /// Groups of `width` elements move as one access; a last, shorter group goes element by element.
    fn grouped(&mut self, total: &str, width: i64) -> Emit<String> {
        let (split, offsets) = self.offsets("at");
        let inner = |operand: usize| usize::from(self.walk.strides[operand].last().is_some_and(|s| s.is(1)));
        let (mut loads, mut stores, mut packed, mut plain) = (String::new(), String::new(), Vec::new(), Vec::new());
        for (i, (x, tensor)) in self.from.iter().zip(self.reads).enumerate() {
            let (ty, o) = (ctype::storage(tensor.dtype)?, &offsets[i]);
            if inner(i) == 1 {
                loads += &format!("const Pack<{ty}, {width}> p{i} = *(const Pack<{ty}, {width}>*)({x} + {o});\n");
                packed.push(format!("up(p{i}.at[e])"));
                plain.push(format!("up({x}[{o} + e])"));
            } else {
                loads += &format!("const {ty} p{i} = {x}[{o}];\n");
                packed.push(format!("up(p{i})"));
                plain.push(format!("up({x}[{o}])"));
            }
        }
        let (mut packed_out, mut plain_out) = (Vec::new(), Vec::new());
        for (j, (y, tensor)) in self.to.iter().zip(self.writes).enumerate() {
            let (ty, o) = (ctype::storage(tensor.dtype)?, &offsets[self.from.len() + j]);
            loads += &format!("Pack<{ty}, {width}> q{j};\n");
            stores += &format!("*(Pack<{ty}, {width}>*)({y} + {o}) = q{j};\n");
            packed_out.push(format!("q{j}.at[e]"));
            plain_out.push(format!("{y}[{o} + e]"));
        }
        let (fast, slow) = (self.call(packed, packed_out), self.call(plain, plain_out));
        Ok(format!(
            "const i64 at = ((i64)blockIdx.x * {THREADS} + threadIdx.x) * {width};\nif (at >= {total}) return;\n{split}\
             if (at + {width} <= {total}) {{\n{loads}#pragma unroll\nfor (int e = 0; e < {width}; e++) {fast}{stores}}} else {{\n\
             for (int e = 0; at + e < {total}; e++) {slow}}}\n"
        ))
    }
}

//! Gathers, joins and inverse permutations.

use super::{
    ctype, elementwise,
    emitter::{Emitter, elements, flat, tensor, tensors},
    error::Emit,
    kernel::{Code, Header, Kernel, broadcast_strides},
    loops::Loop,
};
use crate::{Layout, Step, TensorRef};
use eglu_ir::{
    Dim, Program, Shape,
    ops::{Axes, Cat, Gather, Index},
    types::numel,
};

const THREADS: i64 = 256;

/// How `x[indices]` walks: the shape of the place that the indices pick, and strides over it.
pub(super) struct Picked {
    /// The result's shape (`infer`'s rule: adjacent indexed dims are replaced in place, separated ones go to the front).
    pub shape: Vec<Dim>,
    /// Strides of x's unindexed dims over that shape, 0 over the picked ones.
    pub rest: Vec<Dim>,
    /// Strides of each index tensor over that shape, 0 over the rest.
    pub indices: Vec<Vec<Dim>>,
    /// Which dims of the shape the indices picked.
    pub picked: std::ops::Range<usize>,
}

impl Picked {
    pub fn new(x: &Layout, axes: &Axes, indices: &[&TensorRef]) -> Picked {
        let mut shape: Vec<Dim> = Vec::new();
        for index in indices {
            let more = index.layout.shape.len().saturating_sub(shape.len());
            shape.splice(0..0, vec![Dim::from(1); more]);
            let skip = shape.len() - index.layout.shape.len();
            for (have, extent) in shape[skip..].iter_mut().zip(&index.layout.shape) {
                if have.is(1) {
                    *have = extent.clone();
                }
            }
        }
        let adjacent = axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let front = if adjacent { axes[0] } else { 0 };
        let rest: Vec<usize> = (0..x.shape.len()).filter(|i| !axes.contains(i)).collect();
        let (count, zero) = (shape.len(), || Dim::from(0));
        let around = |middle: Vec<Dim>, outer: &dyn Fn(usize) -> Dim| -> Vec<Dim> {
            let (before, after) = rest.split_at(front);
            before.iter().map(|&i| outer(i)).chain(middle).chain(after.iter().map(|&i| outer(i))).collect()
        };
        Picked {
            rest: around(vec![zero(); count], &|i| x.strides[i].clone()),
            indices: indices.iter().map(|t| around(broadcast_strides(t, &shape), &|_| zero())).collect(),
            shape: around(shape, &|i| x.shape[i].clone()),
            picked: front..front + count,
        }
    }
}

/// `x[indices]`.
pub(super) fn index(emitter: &mut Emitter, step: &Step, op: &Index) -> Emit<()> {
    let (x, indices) = (tensor(step, 0)?, tensors(step, 1)?);
    let picked = Picked::new(&x.layout, &op.axes, &indices);
    let along: Vec<(Dim, Dim)> =
        op.axes.iter().map(|&axis| (x.layout.shape[axis].clone(), x.layout.strides[axis].clone())).collect();
    lookup(
        emitter,
        step,
        "index",
        &Lookup { x, shape: &picked.shape, rest: picked.rest, indices, strides: picked.indices, along },
    )
}

/// `x[…, index, …]` along one dim.
pub(super) fn gather(emitter: &mut Emitter, step: &Step, op: &Gather) -> Emit<()> {
    let (x, index) = (tensor(step, 0)?, tensor(step, 1)?);
    let mut rest = x.layout.strides.to_vec();
    rest[op.dim] = Dim::from(0);
    let along = vec![(x.layout.shape[op.dim].clone(), x.layout.strides[op.dim].clone())];
    let strides = vec![index.layout.strides.to_vec()];
    let shape: Vec<Dim> = index.layout.shape.to_vec();
    lookup(emitter, step, "gather", &Lookup { x, shape: &shape, rest, indices: vec![index], strides, along })
}

/// One element of x for each element of the output.
struct Lookup<'a> {
    x: &'a TensorRef,
    shape: &'a [Dim],
    /// Strides of x over the shape, apart from what the indices add.
    rest: Vec<Dim>,
    indices: Vec<&'a TensorRef>,
    strides: Vec<Vec<Dim>>,
    /// Extent and stride in x of what each index tensor indexes.
    along: Vec<(Dim, Dim)>,
}

fn lookup(emitter: &mut Emitter, step: &Step, name: &str, what: &Lookup<'_>) -> Emit<()> {
    let y = &step.outputs[0];
    let mut strides = vec![y.layout.strides.to_vec(), what.rest.clone()];
    strides.extend(what.strides.iter().cloned());
    let walk = Loop::new(what.shape, &strides);
    let size = y.dtype.size();
    let mut sizes = vec![Some((size, y.layout.offset.clone())), Some((size, what.x.layout.offset.clone()))];
    sizes.resize(strides.len(), None);
    // Rows that the indices pick must start on a whole access, too.
    let aligned = |width: i64| what.along.iter().all(|(_, stride)| super::kernel::divisible(stride, width));
    let repeats = walk.strides[1].last().is_some_and(|s| s.is(0));
    let width = Some(walk.vector_width(&sizes)).filter(|&w| aligned(w) && !repeats).unwrap_or(1);

    let mut kernel = Kernel::new(format!("{name}_{}", y.dtype));
    let (from, to) = (kernel.read(what.x)?, kernel.write(y)?);
    let count = numel(&walk.shape);
    let total = kernel.dim(&count);
    let (mut body, names) = kernel.split("at", "i", &walk.shape);
    body += &format!("i64 from = {};\n", kernel.offset(&names, &walk.strides[1]));
    for ((index, strides), (extent, stride)) in what.indices.iter().zip(&walk.strides[2..]).zip(&what.along) {
        let pointer = kernel.read(index)?;
        let at = kernel.offset(&names, strides);
        body += &format!("from += wrap_index((i64){pointer}[{at}], {}) * {};\n", kernel.dim(extent), kernel.dim(stride));
    }
    let ty = ctype::storage(y.dtype)?;
    let target = kernel.offset(&names, &walk.strides[0]);
    // A last group that is not whole cannot occur unless the loop has one dim, where y is dense to its end.
    body += &if width > 1 {
        format!(
            "if (at + {width} <= {total}) {{\n*(Pack<{ty}, {width}>*)({to} + {target}) = *(const Pack<{ty}, {width}>*)({from} + from);\n\
             }} else {{\nfor (int e = 0; at + e < {total}; e++) {to}[{target} + e] = {from}[from + e];\n}}\n"
        )
    } else {
        format!("{to}[{target}] = {from}[from];\n")
    };
    let body =
        format!("const i64 at = ((i64)blockIdx.x * {THREADS} + threadIdx.x) * {width};\nif (at >= {total}) return;\n{body}");
    let code = Code { body, threads: [THREADS as u32, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(count.ceil_div(THREADS * width)));
    Ok(())
}

/// Copies each operand into its slice of the output.
pub(super) fn cat(emitter: &mut Emitter, step: &Step, op: &Cat) -> Emit<()> {
    let y = &step.outputs[0];
    let mut start = Dim::from(0);
    for x in tensors(step, 0)? {
        let extent = x.layout.shape[op.dim].clone();
        let end = start.clone() + extent;
        let slice = TensorRef { layout: y.layout.slice(op.dim, &start, &end, 1), ..y.clone() };
        let shape: Shape = x.layout.shape.clone();
        let copy = Program::identity(x.dtype, y.dtype);
        elementwise::apply(emitter, &format!("cat_{}", y.dtype), &copy, &shape, &[x], &[&slice])?;
        start = end;
    }
    Ok(())
}

/// `out[perm[i]] = i`.
pub(super) fn inverse_permutation(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (perm, y) = (tensor(step, 0)?, &step.outputs[0]);
    let mut kernel = Kernel::new("inverse_permutation");
    let (from, to) = (kernel.read(perm)?, kernel.write(y)?);
    let count = elements(perm);
    let total = kernel.dim(&count);
    let source = kernel.offset(&["at".into()], &perm.layout.strides);
    let body = format!(
        "const i64 at = (i64)blockIdx.x * {THREADS} + threadIdx.x;\nif (at < {total}) {to}[wrap_index((i64){from}[{source}], {total})] = at;\n"
    );
    let code = Code { headers: vec![Header::Math], body, threads: [THREADS as u32, 1], ..Code::default() };
    emitter.launch(kernel, code, flat(count.ceil_div(THREADS)));
    Ok(())
}

//! Reductions over any dims, with a pointwise prologue and epilogue.

use super::{
    ctype,
    emitter::{Emitter, flat, tensor, tensors},
    error::{Emit, Unsupported},
    kernel::{Code, Header, Kernel, broadcast_strides, divisible, without},
    loops::Loop,
    program::{self, Results},
};
use crate::{Step, TensorRef};
use eglu_ir::{
    DType, Dim, Program, Ref, Shape,
    ops::{MapReduce, Reduce, ReduceKind, infer::broadcast},
    program::InstrOp,
    types::numel,
};

/// How the threads of a block share outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// One thread for an output: short reductions.
    Thread,
    /// One warp for an output: rows of a few hundred contiguous elements.
    Warp,
    /// One block for an output.
    Block,
    /// 32 neighbouring outputs by 8 threads each: the reduced dims are not the contiguous ones.
    Column,
}

/// What one thread does.
#[derive(Clone, Copy, Debug)]
struct Threads {
    share: Share,
    /// Neighbouring elements taken at once.
    width: i64,
}

/// A plain reduction: a [`MapReduce`] that maps nothing.
pub(super) fn reduce(emitter: &mut Emitter, step: &Step, op: &Reduce) -> Emit<()> {
    let x = tensor(step, 0)?.dtype;
    let (value, reduced) = match op.kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => (op.dtype, op.dtype),
        ReduceKind::Amax | ReduceKind::Amin => (x, x),
        ReduceKind::Any | ReduceKind::All => (x, DType::Bool),
        ReduceKind::Argmax | ReduceKind::Argmin => (x, DType::I64),
    };
    // Elements become the result's dtype first, unless they are only compared (torch.sum's `dtype`).
    let mut prologue = Program::new([x]);
    let element = if value == x { Ref::Param(0) } else { prologue.push(InstrOp::Cast, [Ref::Param(0)], value) };
    prologue.results.push((element, value));
    let epilogue = Program::identity(reduced, op.dtype);
    let name = format!("{:?}", op.kind).to_lowercase();
    emit(emitter, step, &name, &Reduction { prologue: &prologue, kinds: &[op.kind], dims: &op.dims, epilogue: &epilogue })
}

/// Several reductions of one pass.
pub(super) fn map_reduce(emitter: &mut Emitter, step: &Step, op: &MapReduce) -> Emit<()> {
    let reduction = Reduction { prologue: &op.prologue, kinds: &op.kinds, dims: &op.dims, epilogue: &op.epilogue };
    emit(emitter, step, "map_reduce", &reduction)
}

struct Reduction<'a> {
    prologue: &'a Program,
    kinds: &'a [ReduceKind],
    dims: &'a [usize],
    epilogue: &'a Program,
}

fn emit(emitter: &mut Emitter, step: &Step, name: &str, reduction: &Reduction<'_>) -> Emit<()> {
    let operands = tensors(step, 0)?;
    let (inputs, captures) = operands.split_at(reduction.prologue.params.len());
    let full = inputs
        .iter()
        .try_fold(Shape::new(), |shape, t| broadcast(&shape, &t.layout.shape))
        .map_err(|e| Unsupported::new(e.to_string()))?;
    let kept_dims: Vec<usize> = (0..full.len()).filter(|i| !reduction.dims.contains(i)).collect();
    let reduced_dims: Vec<usize> = (0..full.len()).filter(|i| reduction.dims.contains(i)).collect();

    let all: Vec<Vec<Dim>> = inputs.iter().map(|t| broadcast_strides(t, &full)).collect();
    let ones: Vec<Dim> =
        full.iter().enumerate().map(|(i, d)| if kept_dims.contains(&i) { d.clone() } else { 1.into() }).collect();
    let kept_shape = without(&full, &reduced_dims);
    // Outputs are dense over the kept dims, whether or not the reduced ones stay as ones.
    let dense: Vec<Dim> = crate::Layout::dense(kept_shape.iter().cloned().collect()).strides.into_iter().collect();
    let kept_strides: Vec<Vec<Dim>> = all
        .iter()
        .map(|s| without(s, &reduced_dims))
        .chain(captures.iter().map(|t| without(&broadcast_strides(t, &ones), &reduced_dims)))
        .chain([dense])
        .collect();
    let kept = Loop::new(&kept_shape, &kept_strides);
    let reduced_strides: Vec<Vec<Dim>> = all.iter().map(|s| without(s, &kept_dims)).collect();
    let reduced = Loop::new(&without(&full, &kept_dims), &reduced_strides);
    let share = share(&kept, &reduced);
    let width = if matches!(share, Share::Warp | Share::Block) { width(inputs, &kept, &reduced) } else { 1 };

    let mut kernel = Kernel::new(format!("{name}_{}", step.outputs[0].dtype));
    let threads = Threads { share, width };
    let body = body(&mut kernel, step, reduction, inputs, captures, &kept, &reduced, threads)?;
    let items = items(reduction)?;
    let threads = if share == Share::Column { [32, 8] } else { [256, 1] };
    let headers = vec![Header::Math, Header::Warp, Header::Reduce];
    let outputs = numel(&kept.shape);
    let per_block = match share {
        Share::Thread => 256,
        Share::Warp => 8,
        Share::Block => 1,
        Share::Column => 32,
    };
    emitter.launch(kernel, Code { headers, items, body, threads, ..Code::default() }, flat(outputs.ceil_div(per_block)));
    Ok(())
}

fn share(kept: &Loop, reduced: &Loop) -> Share {
    let length = numel(&reduced.shape).as_const();
    let contiguous = reduced.strides.iter().any(|s| s.last().is_some_and(|s| s.is(1)));
    match length {
        Some(n) if n <= if contiguous { 8 } else { 64 } => Share::Thread,
        _ if !contiguous && !kept.shape.is_empty() => Share::Column,
        Some(n) if n <= 1024 => Share::Warp,
        _ => Share::Block,
    }
}

/// How many neighbouring elements of a row move as one access.
fn width(inputs: &[&TensorRef], kept: &Loop, reduced: &Loop) -> i64 {
    let largest = inputs.iter().map(|t| t.dtype.size()).max().unwrap_or(16);
    let width = (16 / largest) as i64;
    let [length] = &reduced.shape[..] else { return 1 };
    let fits = inputs.iter().enumerate().all(|(i, t)| {
        reduced.strides[i][0].is(0)
            || (reduced.strides[i][0].is(1)
                && divisible(&t.layout.offset, width)
                && kept.strides[i].iter().all(|s| divisible(s, width)))
    });
    if fits && divisible(length, width) { width } else { 1 }
}

/// The state of each reduction and the functions of the two programs.
fn items(reduction: &Reduction<'_>) -> Emit<String> {
    let mut text = program::function("prologue", reduction.prologue, Results::Opmath)?
        + &program::function("epilogue", reduction.epilogue, Results::Stored)?;
    let (mut fields, mut merges) = (String::new(), String::new());
    for (i, (kind, &(_, dtype))) in reduction.kinds.iter().zip(&reduction.prologue.results).enumerate() {
        let value = match kind {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => ctype::accumulator(dtype),
            _ => dtype,
        };
        fields += &format!("    {kind:?}State<{}> s{i};\n", ctype::opmath(value)?);
        merges += &format!("        s{i}.merge(other.s{i});\n");
    }
    text += &format!("struct State {{\n{fields}    DEVICE void merge(const State& other) {{\n{merges}    }}\n}};\n");
    Ok(text)
}

#[allow(clippy::too_many_arguments)]
fn body(
    kernel: &mut Kernel,
    step: &Step,
    reduction: &Reduction<'_>,
    inputs: &[&TensorRef],
    captures: &[&TensorRef],
    kept: &Loop,
    reduced: &Loop,
    threads: Threads,
) -> Emit<String> {
    let Threads { share, width } = threads;
    let from = inputs.iter().map(|t| kernel.read(t)).collect::<Emit<Vec<_>>>()?;
    let captured = captures.iter().map(|t| kernel.read(t)).collect::<Emit<Vec<_>>>()?;
    let to = step.outputs.iter().map(|t| kernel.write(t)).collect::<Emit<Vec<_>>>()?;
    let (outputs, length) = (kernel.dim(&numel(&kept.shape)), kernel.dim(&numel(&reduced.shape)));

    let (split_kept, kept_names) = kernel.split("out", "i", &kept.shape);
    let mut text = split_kept;
    for (i, strides) in kept.strides.iter().enumerate() {
        text += &format!("const i64 b{i} = {};\n", kernel.offset(&kept_names, strides));
    }
    let (mut loads, mut add, mut args) = (String::new(), String::new(), Vec::new());
    if width > 1 {
        for (i, (x, tensor)) in from.iter().zip(inputs).enumerate() {
            if reduced.strides[i][0].is(0) {
                args.push(format!("up({x}[b{i}])"));
                continue;
            }
            let pack = format!("Pack<{}, {width}>", ctype::storage(tensor.dtype)?);
            loads += &format!("const {pack} g{i} = *(const {pack}*)({x} + b{i} + first);\n");
            args.push(format!("up(g{i}.at[e])"));
        }
    } else {
        let (split_reduced, reduced_names) = kernel.split("r", "j", &reduced.shape);
        add = split_reduced;
        for (i, (x, strides)) in from.iter().zip(&reduced.strides).enumerate() {
            args.push(format!("up({x}[b{i} + {}])", kernel.offset(&reduced_names, strides)));
        }
    }
    let mut adds = String::new();
    for (i, &(_, dtype)) in reduction.prologue.results.iter().enumerate() {
        add += &format!("{} p{i};\n", ctype::opmath(dtype)?);
        args.push(format!("p{i}"));
        adds += &format!("state.s{i}.add(p{i}, r);\n");
    }
    add += &format!("prologue({});\n{adds}", args.join(", "));

    let mut finish = Vec::new();
    for (i, &dtype) in reduction.epilogue.params.iter().take(reduction.kinds.len()).enumerate() {
        finish.push(format!("({})state.s{i}.result({length})", ctype::opmath(dtype)?));
    }
    finish.extend(captured.iter().enumerate().map(|(i, c)| format!("up({c}[b{}])", from.len() + i)));
    finish.extend(to.iter().map(|y| format!("{y}[b{}]", from.len() + captured.len())));
    let finish = format!("epilogue({});\n", finish.join(", "));

    let each = |first: &str, step: &str| match width {
        1 => format!("State state;\n#pragma unroll 4\nfor (i64 r = {first}; r < {length}; r += {step}) {{\n{add}}}\n"),
        _ => format!(
            "State state;\n#pragma unroll 4\nfor (i64 first = (i64)({first}) * {width}; first < {length}; first += {step} * {width}) {{\n{loads}\
             #pragma unroll\nfor (int e = 0; e < {width}; e++) {{\nconst i64 r = first + e;\n{add}}}\n}}\n"
        ),
    };
    Ok(match share {
        Share::Thread => format!(
            "const i64 out = (i64)blockIdx.x * 256 + threadIdx.x;\nif (out >= {outputs}) return;\n{text}{}{finish}",
            each("0", "1")
        ),
        Share::Warp => format!(
            "const i64 out = (i64)blockIdx.x * 8 + threadIdx.x / 32;\nif (out >= {outputs}) return;\n{text}{}\
             warp_merge(state);\nif (threadIdx.x % 32 == 0) {finish}",
            each("threadIdx.x % 32", "32")
        ),
        Share::Block => format!(
            "__shared__ alignas(16) char raw[8 * sizeof(State)];\nState* const shared = (State*)raw;\nconst i64 out = blockIdx.x;\n{text}{}block_merge<256>(state, shared);\n\
             if (threadIdx.x == 0) {finish}",
            each("threadIdx.x", "256")
        ),
        Share::Column => format!(
            "__shared__ alignas(16) char raw[8][32 * sizeof(State)];\nconst i64 column = (i64)blockIdx.x * 32 + threadIdx.x;\n\
             const i64 out = column < {outputs} ? column : 0;\n{text}{}((State*)raw[threadIdx.y])[threadIdx.x] = state;\n\
             __syncthreads();\nif (threadIdx.y != 0 || column >= {outputs}) return;\n\
             for (int y = 1; y < 8; y++) state.merge(((State*)raw[y])[threadIdx.x]);\n{finish}",
            each("threadIdx.y", "8")
        ),
    })
}

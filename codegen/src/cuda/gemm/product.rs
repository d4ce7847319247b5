//! Dense and batched products with an epilogue.

use super::{
    super::{
        emitter::{Emitter, flat, optional, tensor, tensors},
        error::{Emit, Unsupported},
        kernel::{Code, Kernel, broadcast_strides},
        loops::Loop,
        program::{self, Results},
    },
    epilogue::{Epilogue, Place, with_biases},
    main_loop::MainLoop,
};
use crate::{Layout, Step, TensorRef};
use eglu_ir::{
    Dim, Program, Shape,
    ops::{Contract, DenseGlu},
    types::numel,
};

/// `a[…, M, K]` times each transposed `b[…, N, K]`, then a program.
struct Product<'a> {
    name: &'static str,
    a: TensorRef,
    bs: Vec<TensorRef>,
    captures: Vec<&'a TensorRef>,
    program: &'a Program,
}

/// `a · b`.
pub(in super::super) fn matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (a, b) = (tensor(step, 0)?, tensor(step, 1)?);
    let program = Program::identity(a.dtype, step.outputs[0].dtype);
    emit(emitter, step, Product { name: "matmul", a: a.clone(), bs: vec![transposed(b)], captures: vec![], program: &program })
}

/// Products that share `a`, with an epilogue.
pub(in super::super) fn contract(emitter: &mut Emitter, step: &Step, op: &Contract) -> Emit<()> {
    let operands = tensors(step, 0)?;
    let (bs, captures) = operands[1..].split_at(op.lanes);
    let bs = bs.iter().map(|b| transposed(b)).collect();
    emit(
        emitter,
        step,
        Product { name: "contract", a: operands[0].clone(), bs, captures: captures.to_vec(), program: &op.program },
    )
}

/// A dense gated linear unit: two lanes.
pub(in super::super) fn dense_glu(emitter: &mut Emitter, step: &Step, op: &DenseGlu) -> Emit<()> {
    let (x, gate, up) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 3)?);
    let biases = [optional(step, 2), optional(step, 4)];
    let program = with_biases(&op.program, &biases.map(|bias| bias.map(|b| b.dtype)));
    let captures = biases.into_iter().flatten().collect();
    let product = Product { name: "dense_glu", a: x.clone(), bs: vec![gate.clone(), up.clone()], captures, program: &program };
    emit(emitter, step, product)
}

fn transposed(b: &TensorRef) -> TensorRef {
    let rank = b.layout.shape.len();
    let dims: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    TensorRef { layout: b.layout.permute(&dims), ..b.clone() }
}

/// Strides over `batch` of a view whose last two dims are matrices.
fn batch_strides(tensor: &TensorRef, batch: &[Dim]) -> Vec<Dim> {
    let (outer, _) = tensor.layout.shape.split_at(tensor.layout.shape.len() - 2);
    let strides = tensor.layout.strides[..outer.len()].iter().cloned().collect();
    let lead = Layout { shape: outer.iter().cloned().collect(), strides, offset: Dim::from(0) };
    lead.expand(&Shape::from_iter(batch.iter().cloned())).strides.into_iter().collect()
}

fn emit(emitter: &mut Emitter, step: &Step, mut product: Product<'_>) -> Emit<()> {
    let mut shape: Vec<Dim> = step.outputs[0].layout.shape.to_vec();
    if product.a.layout.shape.len() == 1 {
        product.a.layout.shape.insert(0, Dim::from(1));
        product.a.layout.strides.insert(0, Dim::from(0));
        shape.insert(0, Dim::from(1));
    }
    let Some([rows, columns]) = shape.last_chunk::<2>().cloned() else {
        return Err(Unsupported::new("a product has at least two dims"));
    };
    let batch: Vec<Dim> = shape[..shape.len() - 2].to_vec();
    let lanes = product.bs.len();
    let dtype = product.a.dtype;
    let rank = shape.len();

    // Strides over (batch…, rows) of everything that has rows, and over the batch of the bs.
    let dense: Vec<Dim> = Layout::dense(shape.iter().cloned().collect()).strides.into_iter().collect();
    let with_rows = |strides: &[Dim]| strides[..rank - 1].to_vec();
    let mut a_strides = batch_strides(&product.a, &batch);
    a_strides.push(product.a.layout.strides[product.a.layout.strides.len() - 2].clone());
    let capture_strides: Vec<Vec<Dim>> = product.captures.iter().map(|c| broadcast_strides(c, &shape)).collect();
    let b_strides: Vec<Vec<Dim>> = product.bs.iter().map(|b| batch_strides(b, &batch)).collect();
    let shared_b = b_strides.iter().flatten().all(|stride| stride.is(0));

    // Batches that share every b are further rows, as far as the other operands walk them as one.
    let mut operands = vec![a_strides];
    operands.extend(capture_strides.iter().map(|s| with_rows(s)));
    operands.push(with_rows(&dense));
    let outer: Vec<Dim> = batch.iter().cloned().chain([rows.clone()]).collect();
    let (mut walk, rows, b_walk) = if shared_b {
        let mut walk = Loop::new(&outer, &operands);
        if walk.shape.is_empty() {
            walk.shape.push(Dim::from(1));
            walk.strides.iter_mut().for_each(|s| s.push(Dim::from(0)));
        }
        let rows = walk.shape.pop().unwrap_or(Dim::from(1));
        let zeros = vec![vec![Dim::from(0); walk.shape.len()]; lanes];
        (walk, rows, zeros)
    } else {
        let heads: Vec<Vec<Dim>> = operands.iter().map(|s| s[..s.len() - 1].to_vec()).chain(b_strides).collect();
        let mut walk = Loop::new(&batch, &heads);
        let b_walk = walk.strides.split_off(operands.len());
        for (strides, operand) in walk.strides.iter_mut().zip(&operands) {
            strides.extend(operand.last().cloned());
        }
        (walk, rows, b_walk)
    };
    let row_strides: Vec<Dim> = walk.strides.iter_mut().map(|s| s.pop().unwrap_or(Dim::from(0))).collect();

    let main = MainLoop::choose(emitter.target, dtype, lanes, &rows, &columns);
    let (bm, bn) = main.tile();
    let mut kernel = Kernel::new(format!("{}_{}", product.name, main.label(dtype)));
    let a = kernel.read(&product.a)?;
    let bs = product.bs.iter().map(|b| kernel.read(b)).collect::<Emit<Vec<_>>>()?;
    let captures = product.captures.iter().map(|c| kernel.read(c)).collect::<Emit<Vec<_>>>()?;
    let outputs = step.outputs.iter().map(|y| kernel.write(y)).collect::<Emit<Vec<_>>>()?;

    let depth = kernel.dim(&product.a.layout.shape[product.a.layout.shape.len() - 1]);
    let (m, n) = (kernel.dim(&rows), kernel.dim(&columns));
    let (split, names) = kernel.split("batch", "i", &walk.shape);
    let ty = super::super::ctype::storage(dtype)?;
    let mut text = format!(
        "const i64 depth = {depth};\nconst i64 tiles_m = ({m} + {bm} - 1) / {bm}, tiles_n = ({n} + {bn} - 1) / {bn};\n\
         const i64 batch = blockIdx.x / (tiles_m * tiles_n);\n\
         const TileIndex at = banded_tile(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);\n\
         const i64 m0 = at.m * {bm}, n0 = at.n * {bn}, rows = {m} - m0;\n{split}"
    );
    let a_row = kernel.dim(&row_strides[0]);
    let a_base = kernel.offset(&names, &walk.strides[0]);
    text += &format!("PlainRows<{ty}> rows_a{{{a} + {a_base} + m0 * {a_row}, {a_row}, rows}};\n");
    let k_of = |tensor: &TensorRef| tensor.layout.strides[tensor.layout.strides.len() - 1].clone();
    let row_of = |tensor: &TensorRef| tensor.layout.strides[tensor.layout.strides.len() - 2].clone();
    let mut k_strides = vec![kernel.dim(&k_of(&product.a))];
    let bases = |tensor: &'_ TensorRef, strides: &'_ [Dim]| -> Vec<Dim> {
        strides.iter().cloned().chain([tensor.layout.offset.clone()]).collect()
    };
    let walk_of = |row: &Dim, k: &Dim, bases: Vec<Dim>| main.walk(row, k, &bases.iter().collect::<Vec<_>>());
    let walk_a = walk_of(&row_strides[0], &k_of(&product.a), bases(&product.a, &walk.strides[0]));
    let mut walk_b = None;
    for (l, (pointer, b)) in bs.iter().zip(&product.bs).enumerate() {
        let (row, base) = (kernel.dim(&row_of(b)), kernel.offset(&names, &b_walk[l]));
        text += &format!("PlainRows<{ty}> rows_b{l}{{{pointer} + {base} + n0 * {row}, {row}, {n} - n0}};\n");
        k_strides.push(kernel.dim(&k_of(b)));
        let own = walk_of(&row_of(b), &k_of(b), bases(b, &b_walk[l]));
        walk_b = Some(walk_b.map_or(own, |walk: super::operand::Walk| walk.join(own)));
    }
    let walks = [walk_a, walk_b.unwrap_or(walk_a)];
    text += &main.multiply(dtype, walks, "PlainRows", &k_strides)?;

    let last = walk.strides.len() - 1;
    let place = |kernel: &mut Kernel, pointer: &str, operand: usize, column_stride: Dim| Place {
        pointer: pointer.into(),
        base: kernel.offset(&names, &walk.strides[operand]),
        row_stride: row_strides[operand].clone(),
        column_stride,
    };
    let epilogue = Epilogue {
        program: product.program,
        captures: captures
            .iter()
            .enumerate()
            .map(|(i, pointer)| place(&mut kernel, pointer, i + 1, capture_strides[i][rank - 1].clone()))
            .collect(),
        outputs: outputs.iter().map(|pointer| place(&mut kernel, pointer, last, Dim::from(1))).collect(),
        columns: columns.clone(),
        row: "m0 + m".into(),
        dropped: None,
    };
    text += &epilogue.store(&mut kernel, lanes)?;
    let items = program::function("epilogue", product.program, Results::Stored)?;
    let (threads, shared_bytes) = ([main.threads(), 1], main.shared_bytes(lanes));
    let grid = numel(&walk.shape) * rows.ceil_div(bm) * columns.ceil_div(bn);
    emitter.launch(
        kernel,
        Code { headers: main.headers(), items, body: text, threads, shared_bytes, residents: main.residents(lanes), cluster: 0 },
        flat(grid),
    );
    Ok(())
}

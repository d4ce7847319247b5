//! Dense and batched products with an epilogue.

use super::{
    super::{
        ctype,
        emitter::{Emitter, flat, optional, tensor, tensors},
        error::{Emit, Unsupported},
        kernel::{Code, Header, Kernel, broadcast_strides},
        loops::Loop,
        program::{self, Results},
    },
    engine::{self, Engine},
    epilogue::{Epilogue, Place, with_biases},
    fold::{self, Fold, Folding},
    main_loop::MainLoop,
    operand::Walk,
};
use crate::{Layout, Step, TensorRef};
use eglu_ir::{
    Dim, Program, Shape,
    ops::{Contract, DenseGlu},
    types::numel,
};

/// `a[…, M, K]` times each transposed `b[…, N, K]`, then a program.
pub(super) struct Product<'a> {
    pub name: &'static str,
    pub a: TensorRef,
    pub bs: Vec<TensorRef>,
    pub captures: Vec<&'a TensorRef>,
    pub program: &'a Program,
    /// Results that share the first output, and whether their columns alternate.
    pub packed: usize,
    pub interleaved: bool,
    /// Reductions of the last results.
    pub folds: Vec<Fold>,
}

/// `a · b`, of what they were before they were widened if that is all that was done to them.
pub(in super::super) fn matmul(emitter: &mut Emitter, step: &Step) -> Emit<()> {
    let (a, b) = (tensor(step, 0)?, tensor(step, 1)?);
    let program = Program::identity(a.dtype, step.outputs[0].dtype);
    let [a, b] = emitter.unwidened().unwrap_or_else(|| [a.clone(), b.clone()]);
    emit(emitter, step, Product::new("matmul", a, vec![transposed(&b)], vec![], &program))
}

/// Products that share `a`, with an epilogue.
pub(in super::super) fn contract(emitter: &mut Emitter, step: &Step, op: &Contract) -> Emit<()> {
    let operands = tensors(step, 0)?;
    let (bs, captures) = operands[1..].split_at(op.lanes);
    let bs = bs.iter().map(|b| transposed(b)).collect();
    let program = fold::unrounded(&op.program, op.folds.len());
    let product = Product::new("contract", operands[0].clone(), bs, captures.to_vec(), &program);
    emit(emitter, step, Product { packed: op.packed, interleaved: op.interleaved, folds: fold::folds(op), ..product })
}

/// A dense gated linear unit: two lanes.
pub(in super::super) fn dense_glu(emitter: &mut Emitter, step: &Step, op: &DenseGlu) -> Emit<()> {
    let (x, gate, up) = (tensor(step, 0)?, tensor(step, 1)?, tensor(step, 3)?);
    let biases = [optional(step, 2), optional(step, 4)];
    let program = with_biases(&op.program, &biases.map(|bias| bias.map(|b| b.dtype)));
    let captures = biases.into_iter().flatten().collect();
    emit(emitter, step, Product::new("dense_glu", x.clone(), vec![gate.clone(), up.clone()], captures, &program))
}

pub(super) fn transposed(b: &TensorRef) -> TensorRef {
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

/// How a product walks its batches, rows and columns. Operands are a, the captures, and the outputs (which are alike).
pub(super) struct Walked {
    /// The batches, with each operand's strides.
    pub batches: Loop,
    /// Strides of each b over the batches.
    pub b_strides: Vec<Vec<Dim>>,
    pub rows: Dim,
    /// Each operand's stride over the rows.
    pub row_strides: Vec<Dim>,
    pub columns: Dim,
    /// Each capture's stride over the columns.
    pub column_strides: Vec<Dim>,
}

impl Walked {
    pub fn new(step: &Step, product: &mut Product<'_>) -> Emit<Walked> {
        let mut shape = product.shape(step);
        if product.a.layout.shape.len() == 1 {
            product.a.layout.shape.insert(0, Dim::from(1));
            product.a.layout.strides.insert(0, Dim::from(0));
            shape.insert(0, Dim::from(1));
        }
        let Some([rows, columns]) = shape.last_chunk::<2>().cloned() else {
            return Err(Unsupported::new("a product has at least two dims"));
        };
        let batch: Vec<Dim> = shape[..shape.len() - 2].to_vec();
        let over_rows = |strides: &[Dim]| strides[..shape.len() - 1].to_vec();
        let mut a = batch_strides(&product.a, &batch);
        a.push(row_stride(&product.a));
        let captures: Vec<Vec<Dim>> = product.captures.iter().map(|c| broadcast_strides(c, &shape)).collect();
        let dense: Vec<Dim> = Layout::dense(shape.iter().cloned().collect()).strides.into_iter().collect();
        let operands: Vec<Vec<Dim>> =
            [a].into_iter().chain(captures.iter().map(|s| over_rows(s))).chain([over_rows(&dense)]).collect();
        let b_strides: Vec<Vec<Dim>> = product.bs.iter().map(|b| batch_strides(b, &batch)).collect();

        let (mut batches, rows, b_strides) = if b_strides.iter().flatten().all(|stride| stride.is(0)) {
            // Batches that share every b are further rows, as far as the other operands walk them as one.
            let outer: Vec<Dim> = batch.iter().cloned().chain([rows]).collect();
            let mut walk = Loop::new(&outer, &operands);
            if walk.shape.is_empty() {
                walk.shape.push(Dim::from(1));
                walk.strides.iter_mut().for_each(|s| s.push(Dim::from(0)));
            }
            let rows = walk.shape.pop().unwrap_or(Dim::from(1));
            let zeros = vec![vec![Dim::from(0); walk.shape.len()]; product.bs.len()];
            (walk, rows, zeros)
        } else {
            let heads: Vec<Vec<Dim>> = operands.iter().map(|s| s[..s.len() - 1].to_vec()).chain(b_strides).collect();
            let mut walk = Loop::new(&batch, &heads);
            let b_strides = walk.strides.split_off(operands.len());
            for (strides, operand) in walk.strides.iter_mut().zip(&operands) {
                strides.extend(operand.last().cloned());
            }
            (walk, rows, b_strides)
        };
        let row_strides = batches.strides.iter_mut().map(|s| s.pop().unwrap_or(Dim::from(0))).collect();
        let column_strides = captures.iter().map(|s| s[shape.len() - 1].clone()).collect();
        Ok(Walked { batches, b_strides, rows, row_strides, columns, column_strides })
    }
}

pub(super) fn row_stride(matrix: &TensorRef) -> Dim {
    matrix.layout.strides[matrix.layout.strides.len() - 2].clone()
}

pub(super) fn k_stride(matrix: &TensorRef) -> Dim {
    matrix.layout.strides[matrix.layout.strides.len() - 1].clone()
}

impl<'a> Product<'a> {
    /// A product all of whose results are outputs.
    pub fn new(
        name: &'static str,
        a: TensorRef,
        bs: Vec<TensorRef>,
        captures: Vec<&'a TensorRef>,
        program: &'a Program,
    ) -> Product<'a> {
        Product { name, a, bs, captures, program, packed: 0, interleaved: false, folds: vec![] }
    }

    /// The extent of K.
    pub fn depth(&self) -> &Dim {
        &self.a.layout.shape[self.a.layout.shape.len() - 1]
    }

    /// The extents of the products. Where results are packed or reduced they are not those of the first output.
    fn shape(&self, step: &Step) -> Vec<Dim> {
        if self.packed == 0 && self.folds.len() < step.outputs.len() {
            return step.outputs[0].layout.shape.to_vec();
        }
        let lead = |tensor: &TensorRef| tensor.layout.shape[..tensor.layout.shape.len() - 2].to_vec();
        let (a, b) = (lead(&self.a), lead(&self.bs[0]));
        let rank = a.len().max(b.len());
        let at = |batch: &[Dim], i: usize| (i + batch.len()).checked_sub(rank).map_or(Dim::from(1), |i| batch[i].clone());
        let extent = |i: usize| if at(&a, i).is(1) { at(&b, i) } else { at(&a, i) };
        let [rows, columns] = [&self.a, &self.bs[0]].map(|x| x.layout.shape[x.layout.shape.len() - 2].clone());
        (0..rank).map(extent).chain([rows, columns]).collect()
    }

    /// Where each result that is stored goes, by batch.
    fn places(&self, kernel: &mut Kernel, step: &Step, walked: &Walked, batch: &[String]) -> Emit<Vec<Place>> {
        let pointers = self.stored(step).iter().map(|y| kernel.write(y)).collect::<Emit<Vec<_>>>()?;
        let last = walked.batches.strides.len() - 1;
        let first = kernel.offset(batch, &walked.batches.strides[last]);
        let row = &walked.row_strides[last];
        let mut places = Vec::new();
        for i in 0..self.packed {
            let count = Dim::from(self.packed as i64);
            let (lane, column_stride) = match self.interleaved {
                true => (i.to_string(), count.clone()),
                false => (kernel.dim(&(walked.columns.clone() * Dim::from(i as i64))), Dim::from(1)),
            };
            let (base, row_stride) = (format!("({first}) * {} + {lane}", self.packed), row.clone() * count);
            places.push(Place {
                pointer: pointers[0].clone(),
                base,
                row_stride,
                column_stride,
                absent: None,
                ordered: false,
                origin: None,
            });
        }
        places.extend(pointers[usize::from(self.packed > 0)..].iter().map(|pointer| Place {
            pointer: pointer.clone(),
            base: first.clone(),
            row_stride: row.clone(),
            column_stride: Dim::from(1),
            absent: None,
            ordered: false,
            origin: None,
        }));
        Ok(places)
    }

    /// The outputs that hold results as they are; those of reductions come after them.
    fn stored<'s>(&self, step: &'s Step) -> &'s [TensorRef] {
        &step.outputs[..step.outputs.len() - self.folds.len()]
    }

    /// The lambda that stores a run of columns of a `tile` at (`m0`, `n0`) of the batch at these indices. The tile stages output `staged`.
    pub fn epilogue(
        &self,
        kernel: &mut Kernel,
        step: &Step,
        walked: &Walked,
        batch: &[String],
        run: usize,
        staged: Option<usize>,
    ) -> Emit<String> {
        self.storing(kernel, step, walked, batch, run, staged)?.visit(kernel, self.bs.len())
    }

    /// What is done with such a tile.
    fn storing(
        &self,
        kernel: &mut Kernel,
        step: &Step,
        walked: &Walked,
        batch: &[String],
        run: usize,
        staged: Option<usize>,
    ) -> Emit<Epilogue<'_>> {
        let outputs = self.places(kernel, step, walked, batch)?;
        Ok(Epilogue { staged, ..self.storing_to(outputs, kernel, walked, batch, run)? })
    }

    /// The same with results that go to other places.
    pub fn storing_to(
        &self,
        outputs: Vec<Place>,
        kernel: &mut Kernel,
        walked: &Walked,
        batch: &[String],
        run: usize,
    ) -> Emit<Epilogue<'_>> {
        let captures = self.captures.iter().map(|c| kernel.read(c)).collect::<Emit<Vec<_>>>()?;
        let mut place = |pointer: &String, operand: usize, column_stride: Dim| Place {
            pointer: pointer.clone(),
            base: kernel.offset(batch, &walked.batches.strides[operand]),
            row_stride: walked.row_strides[operand].clone(),
            column_stride,
            absent: None,
            origin: None,
            ordered: false,
        };
        let epilogue = Epilogue {
            program: self.program,
            captures: captures.iter().enumerate().map(|(i, p)| place(p, i + 1, walked.column_strides[i].clone())).collect(),
            outputs,
            columns: walked.columns.clone(),
            row: "m0 + m".into(),
            place: None,
            dropped: None,
            empty: None,
            run,
            staged: None,
            parts: &[],
            folded: None,
        };
        Ok(epilogue)
    }
}

fn emit(emitter: &mut Emitter, step: &Step, mut product: Product<'_>) -> Emit<()> {
    let walked = Walked::new(step, &mut product)?;
    for (engine, when) in engine::cases(emitter.target, &product, &walked) {
        match engine {
            Engine::Dense(main) => main.emit(emitter, step, &product, &walked, when)?,
            Engine::Stream(main) => main.emit(emitter, step, &product, &walked, when)?,
            Engine::Blocks(main) => launch(emitter, step, &product, &walked, main, when)?,
        }
    }
    Ok(())
}

fn launch(emitter: &mut Emitter, step: &Step, product: &Product<'_>, walked: &Walked, main: MainLoop, when: Dim) -> Emit<()> {
    let (dtype, lanes) = (product.a.dtype, product.bs.len());
    let (ty, (bm, bn)) = (ctype::storage(dtype)?, main.tile());
    let mut kernel = Kernel::new(format!("{}_{}", product.name, main.label(dtype)));
    let a = kernel.read(&product.a)?;
    let bs = product.bs.iter().map(|b| kernel.read(b)).collect::<Emit<Vec<_>>>()?;
    let batches = &walked.batches;
    let depth = kernel.dim(product.depth());
    let (m, n) = (kernel.dim(&walked.rows), kernel.dim(&walked.columns));
    let (split, names) = kernel.split("batch", "i", &batches.shape);
    let mut text = format!(
        "const i64 depth = {depth};\nconst i64 tiles_m = ({m} + {bm} - 1) / {bm}, tiles_n = ({n} + {bn} - 1) / {bn};\n\
         const i64 batch = blockIdx.x / (tiles_m * tiles_n);\n\
         const TileIndex at = banded_tile(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);\n\
         const i64 m0 = at.m * {bm}, n0 = at.n * {bn}, rows = {m} - m0;\n{split}"
    );
    let bases = |tensor: &TensorRef, strides: &[Dim]| -> Vec<Dim> {
        strides.iter().cloned().chain([tensor.layout.offset.clone()]).collect()
    };
    let walk_of = |row: &Dim, k: &Dim, bases: Vec<Dim>| main.walk(row, k, &bases.iter().collect::<Vec<_>>());
    let (row, base) = (kernel.dim(&walked.row_strides[0]), kernel.offset(&names, &batches.strides[0]));
    text += &format!("PlainRows<{ty}> rows_a{{{a} + {base} + m0 * {row}, {row}, rows}};\n");
    let mut k_strides = vec![kernel.dim(&k_stride(&product.a))];
    let walk_a = walk_of(&walked.row_strides[0], &k_stride(&product.a), bases(&product.a, &batches.strides[0]));
    let mut walk_b: Option<Walk> = None;
    for (l, ((pointer, b), strides)) in bs.iter().zip(&product.bs).zip(&walked.b_strides).enumerate() {
        let (row, base) = (kernel.dim(&row_stride(b)), kernel.offset(&names, strides));
        text += &format!("PlainRows<{ty}> rows_b{l}{{{pointer} + {base} + n0 * {row}, {row}, {n} - n0}};\n");
        k_strides.push(kernel.dim(&k_stride(b)));
        let own = walk_of(&row_stride(b), &k_stride(b), bases(b, strides));
        walk_b = Some(walk_b.map_or(own, |walk| walk.join(own)));
    }
    text += &main.multiply(dtype, [walk_a, walk_b.unwrap_or(walk_a)], "PlainRows", &k_strides)?;

    let epilogue = product.storing(&mut kernel, step, walked, &names, 2, None)?;
    let (mut headers, mut shared_bytes) = (main.headers(), main.shared_bytes(lanes));
    if product.folds.is_empty() {
        text += &epilogue.store(&mut kernel, lanes)?;
    } else {
        let folding = Folding { emitter, kernel: &mut kernel, step, walked, main, batch: &names };
        text += &folding.store(epilogue, &product.folds, lanes)?;
        headers.extend([Header::Warp, Header::Reduce, Header::Lines]);
        shared_bytes = shared_bytes.max(fold::shared_bytes(main, &product.folds));
    }
    let grid = numel(&batches.shape) * walked.rows.ceil_div(bm) * walked.columns.ceil_div(bn) * when;
    let code = Code {
        headers,
        items: program::function("epilogue", product.program, Results::Stored)?,
        body: text,
        threads: [main.threads(), 1],
        shared_bytes,
        residents: main.residents(lanes),
        ..Code::default()
    };
    emitter.launch(kernel, code, flat(grid));
    Ok(())
}

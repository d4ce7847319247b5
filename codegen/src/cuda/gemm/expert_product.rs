//! One product by expert, whatever main loop it runs in.

use super::{
    super::{
        ctype,
        emitter::Emitter,
        error::Emit,
        kernel::{Header, Kernel, broadcast_strides, divisible},
    },
    dispatch::Dispatched,
    epilogue::{Epilogue, Fetched, Part, Place},
    expert_blocks, expert_clusters, expert_swapped,
    main_loop::MainLoop,
    swapped::Swapped,
    wgmma::Wgmma,
};
use crate::TensorRef;
use eglu_ir::{DType, Dim, Program, Ref};

/// What multiplies.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Engine {
    /// Hopper's main loop with its operands swapped.
    Swapped(Swapped),
    /// Hopper's main loop, in clusters of two blocks.
    Clusters(Wgmma),
    /// A block to a tile, and why it is not the other.
    Blocks(MainLoop, &'static str),
}

impl Engine {
    /// For names.
    pub fn label(self, dtype: DType) -> String {
        match self {
            Engine::Swapped(main) => main.label(dtype),
            Engine::Clusters(main) => main.label(dtype),
            Engine::Blocks(main, _) => main.label(dtype),
        }
    }

    /// The most rows of a tile of the dispatch, and the step in which tiles are made equal, or 0.
    pub fn tile(self) -> (i64, i64) {
        match self {
            Engine::Swapped(main) => main.tile(),
            Engine::Clusters(main) => (main.tile().0, 0),
            Engine::Blocks(main, _) => (main.tile().0, 0),
        }
    }
}

/// Rows on the left of an expert product.
pub(super) enum Rows<'a> {
    /// A tensor `[S, K]`, gathered: row of place p is `order[p] / divisor`.
    Gathered(&'a TensorRef, i64),
    /// A tensor `[S, K]` in the order of the tiles.
    Tensor(&'a TensorRef),
    /// Scratch `[S, K]` in the order of the tiles.
    Scratch(usize),
}

impl<'a> Rows<'a> {
    /// The rows of `x`, each of which stands for `repeat` ids.
    pub fn of(emitter: &Emitter, x: &'a TensorRef, repeat: i64) -> Rows<'a> {
        if emitter.is_ordered(x) { Rows::Tensor(x) } else { Rows::Gathered(x, repeat) }
    }
}

/// Where a row of the result goes.
pub(super) enum Target<'a> {
    Tensor(&'a TensorRef),
    Scratch(usize),
    /// Of several results the first `packed` share a tensor, side by side or interleaved; the others have one each.
    Tensors {
        outputs: &'a [TensorRef],
        packed: usize,
        interleaved: bool,
    },
}

/// A result whose columns are neighbours: element (r, c) is `pointer[base + r · width + c]`.
pub(super) struct ProductResult {
    pub ty: &'static str,
    pub pointer: String,
    pub base: String,
    pub width: String,
    /// Rows lie in expert order.
    pub ordered: bool,
}

/// `rows · w[e]ᵀ` for each lane, tile by tile of one expert's rows.
pub(super) struct ExpertProduct<'a> {
    pub name: &'static str,
    pub dtype: DType,
    pub depth: Dim,
    /// Upper bound of the number of rows.
    pub count: Dim,
    pub rows: Rows<'a>,
    /// `[E, N, K]`, a lane each.
    pub weights: Vec<TensorRef>,
    /// `[E, N]`, in the order of the program's captures; zero for rows that no expert takes.
    pub biases: Vec<&'a TensorRef>,
    /// Further captures, which broadcast against `[S, N]`.
    pub captures: Vec<&'a TensorRef>,
    pub program: &'a Program,
    /// Results that are reduced along their rows; the program's last.
    pub parts: Vec<Part>,
    pub target: Target<'a>,
    /// Results go back to where their ids stood, but for tensors in expert order.
    pub unordered: bool,
    pub dispatched: &'a Dispatched,
    pub engine: Engine,
    /// 1 where this launch is the one to run, else 0.
    pub when: Dim,
    pub zero_dropped: bool,
}

impl ExpertProduct<'_> {
    /// What its kernel includes besides its main loop.
    pub fn headers(&self) -> impl Iterator<Item = Header> {
        [Header::Warp, Header::Reduce].into_iter().filter(|_| !self.parts.is_empty())
    }

    /// Emits its kernel.
    pub fn emit(&self, emitter: &mut Emitter) -> Emit<()> {
        match self.engine {
            Engine::Swapped(main) => expert_swapped::emit(emitter, self, main),
            Engine::Clusters(main) => expert_clusters::emit(emitter, self, main),
            Engine::Blocks(main, why) => expert_blocks::emit(emitter, self, main, why),
        }
    }

    /// The number of columns of each lane.
    pub fn columns(&self) -> &Dim {
        &self.weights[0].layout.shape[1]
    }

    /// Statements that store a tile whose first row has the place `start` in the order of the tiles.
    pub fn store(&self, emitter: &Emitter, kernel: &mut Kernel, order: Option<&str>, start: &str) -> Emit<String> {
        let (epilogue, lanes) = (self.epilogue(emitter, kernel, order, start, 2)?, self.weights.len());
        if let Engine::Blocks(..) = self.engine {
            return epilogue.store(kernel, lanes);
        }
        let Fetched { declare, visit } = epilogue.fetched(kernel, lanes)?;
        Ok(format!("{declare}tile.each(fetch, {visit});\n"))
    }

    /// Its epilogue, for visits of `run` columns.
    pub fn epilogue(
        &self,
        emitter: &Emitter,
        kernel: &mut Kernel,
        order: Option<&str>,
        start: &str,
        run: usize,
    ) -> Emit<Epilogue<'_>> {
        let columns = self.columns().clone();
        let mut captures = Vec::new();
        for bias in &self.biases {
            let pointer = kernel.read(bias)?;
            let base = kernel.offset(&["expert".into()], &bias.layout.strides[..1]);
            let (row_stride, column_stride) = (Dim::from(0), bias.layout.strides[1].clone());
            // Every expert's row starts as the first does.
            let origin = divisible(&bias.layout.strides[0], 4).then(|| (bias.buffer, bias.layout.offset.clone()));
            captures.push(Place {
                pointer,
                base,
                row_stride,
                column_stride,
                absent: Some("work.expert < 0"),
                origin,
                ordered: false,
            });
        }
        for capture in &self.captures {
            let strides = broadcast_strides(capture, &[self.count.clone(), columns.clone()]);
            let [row_stride, column_stride] = [0, 1].map(|i| strides[i].clone());
            let (pointer, base) = (kernel.read(capture)?, "0".into());
            let origin = Some((capture.buffer, capture.layout.offset.clone()));
            let ordered = emitter.is_ordered(capture);
            captures.push(Place { pointer, base, row_stride, column_stride, absent: None, origin, ordered });
        }
        let outputs = self.places(emitter, kernel, &columns)?;
        let row = match order {
            Some(order) if self.unordered => format!("__ldg({order} + ({start} + m))"),
            _ => format!("{start} + m"),
        };
        let dropped = self.zero_dropped.then_some("work.expert < 0");
        let place = Some(format!("{start} + m"));
        Ok(Epilogue {
            program: self.program,
            captures,
            outputs,
            columns,
            row,
            place,
            dropped,
            empty: None,
            run,
            staged: None,
            parts: &self.parts,
            folded: None,
        })
    }

    /// The results, none of which are interleaved.
    pub fn results(&self, emitter: &Emitter, kernel: &mut Kernel) -> Emit<Vec<ProductResult>> {
        let places = self.places(emitter, kernel, self.columns())?;
        let result = |(place, &(_, dtype)): (Place, &(Ref, DType))| {
            let (ty, width) = (ctype::storage(dtype)?, kernel.dim(&place.row_stride));
            Ok(ProductResult { ty, pointer: place.pointer, base: place.base, width, ordered: place.ordered })
        };
        places.into_iter().zip(&self.program.results).map(result).collect()
    }

    /// Where each result goes.
    fn places(&self, emitter: &Emitter, kernel: &mut Kernel, columns: &Dim) -> Emit<Vec<Place>> {
        let dense = |pointer: String, ordered: bool| Place {
            pointer,
            ordered,
            base: "0".into(),
            row_stride: columns.clone(),
            column_stride: Dim::from(1),
            absent: None,
            origin: None,
        };
        let (outputs, packed, interleaved) = match self.target {
            Target::Tensor(y) => return Ok(vec![dense(kernel.write(y)?, emitter.is_ordered(y))]),
            Target::Scratch(s) => {
                return Ok(vec![dense(kernel.scratch(ctype::storage(self.program.results[0].1)?, s), false)]);
            }
            Target::Tensors { outputs, packed, interleaved } => (outputs, packed, interleaved),
        };
        let pointers =
            outputs.iter().map(|y| Ok((kernel.write(y)?, emitter.is_ordered(y)))).collect::<Emit<Vec<(String, bool)>>>()?;
        let mut places = Vec::new();
        for i in 0..packed {
            let count = Dim::from(packed as i64);
            let (base, column_stride) = match interleaved {
                true => (i.to_string(), count.clone()),
                false => (kernel.dim(&(columns.clone() * Dim::from(i as i64))), Dim::from(1)),
            };
            let ((pointer, ordered), row_stride) = (pointers[0].clone(), columns.clone() * count);
            places.push(Place { pointer, base, row_stride, column_stride, absent: None, origin: None, ordered });
        }
        places.extend(pointers[usize::from(packed > 0)..].iter().cloned().map(|(pointer, ordered)| dense(pointer, ordered)));
        Ok(places)
    }
}

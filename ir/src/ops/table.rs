//! The rows of the structured ops.

use super::{Attr, AttrError, AttrKind, Axes, Cost, Field, InferError, Lowering, OpDef, OperandType, Pointwise, Types};
use crate::{DType, Dim, Program, Scalar, Shape, TensorType};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

macro_rules! named {
    ($(#[$doc:meta])* $ty:ident { $($(#[$variant_doc:meta])* $variant:ident $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs)]
        pub enum $ty { $($(#[$variant_doc])* $variant,)+ }

        impl $ty {
            /// All variants.
            pub const ALL: &'static [$ty] = &[$($ty::$variant,)+];

            /// The name in the textual form.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $text,)+ }
            }

            /// The variant of that name.
            pub fn from_name(name: &str) -> Option<$ty> {
                Self::ALL.iter().copied().find(|variant| variant.name() == name)
            }
        }
    };
}

named! {
    /// What a reduction computes; semantics are PyTorch's function of the same name.
    ReduceKind {
        Sum "sum",
        Prod "prod",
        Mean "mean",
        Amax "amax",
        Amin "amin",
        Any "any",
        All "all",
        Argmax "argmax",
        Argmin "argmin",
    }
}

named! {
    /// How a router turns logits into scores.
    RouteScore {
        /// Softmax over all experts, then top-k (Mixtral, Qwen3-MoE, OLMoE).
        Softmax "softmax",
        /// Top-k of the logits, then softmax over the chosen (gpt-oss, GraniteMoE).
        TopKSoftmax "topk_softmax",
        /// Sigmoid of each logit, then top-k (DeepSeek-V3).
        Sigmoid "sigmoid",
        /// Top-k of the logits, then the sigmoid of the chosen (Cohere2-MoE).
        TopKSigmoid "topk_sigmoid",
    }
}

macro_rules! ops {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal ($($operand:literal),*) $lowering:ident
        { $($(#[doc = $field_doc:literal])* $field:ident: $ty:ty),* $(,)? };)+) => {
        $($(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name { $($(#[doc = $field_doc])* #[allow(missing_docs)] pub $field: $ty),* })+

        /// An op with its attributes: a row of the table.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            /// An elementwise op with broadcasting and promotion.
            Pointwise(Pointwise),
            $($(#[doc = $doc])+ $name($name),)+
        }

        /// An op without its attributes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum OpCode { Pointwise(Pointwise), $($name,)+ }

        impl Op {
            /// The row's name in the textual form.
            pub fn name(&self) -> &'static str {
                self.code().name()
            }

            /// The op without attributes.
            pub fn code(&self) -> OpCode {
                match self { Op::Pointwise(op) => OpCode::Pointwise(*op), $(Op::$name(_) => OpCode::$name,)+ }
            }

            /// Output types for these operands.
            pub fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError> {
                match self { Op::Pointwise(op) => op.infer(operands), $(Op::$name(op) => op.infer(operands),)+ }
            }

            /// The row, behind its trait.
            pub fn def(&self) -> &dyn OpDef {
                match self { Op::Pointwise(op) => op, $(Op::$name(op) => op,)+ }
            }

            /// The work of the op on these operands.
            pub fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
                self.def().cost(operands, outputs)
            }

            /// Attributes by name, in the order of the row.
            pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
                match self {
                    Op::Pointwise(_) => Vec::new(),
                    $(Op::$name(_op) => vec![$((stringify!($field), _op.$field.to_attr())),*],)+
                }
            }
        }

        impl OpCode {
            /// All rows, the pointwise ones first.
            pub fn all() -> impl Iterator<Item = OpCode> {
                Pointwise::ALL.iter().map(|&op| OpCode::Pointwise(op)).chain([$(OpCode::$name,)+])
            }

            /// The row's name in the textual form.
            pub fn name(self) -> &'static str {
                match self { OpCode::Pointwise(op) => op.name(), $(OpCode::$name => $text,)+ }
            }

            /// One line on what it computes.
            pub fn doc(self) -> &'static str {
                match self { OpCode::Pointwise(op) => op.doc(), $(OpCode::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// How the op reaches a device.
            pub fn lowering(self) -> Lowering {
                match self { OpCode::Pointwise(_) => Lowering::Pointwise, $(OpCode::$name => Lowering::$lowering,)+ }
            }

            /// Names of the operands; `?` marks optional ones, `*` a list.
            pub fn operands(self) -> &'static [&'static str] {
                match self { OpCode::Pointwise(op) => op.operands(), $(OpCode::$name => &[$($operand),*],)+ }
            }

            /// Names of the attributes, in the order of the row.
            pub fn fields(self) -> &'static [&'static str] {
                match self { OpCode::Pointwise(_) => &[], $(OpCode::$name => &[$(stringify!($field)),*],)+ }
            }

            /// Kinds of the attributes, in the order of the row.
            pub fn kinds(self) -> &'static [AttrKind] {
                match self { OpCode::Pointwise(_) => &[], $(OpCode::$name => &[$(<$ty as Field>::KIND),*],)+ }
            }

            /// The op with these attributes, in the order of the row.
            pub fn build(self, attrs: &[Attr]) -> Result<Op, AttrError> {
                let mut _given = attrs.iter();
                match self {
                    OpCode::Pointwise(op) => Ok(Op::Pointwise(op)),
                    $(OpCode::$name => Ok(Op::$name($name { $($field: {
                        let (op, name) = ($text, stringify!($field));
                        let attr = _given.next().ok_or(AttrError::Missing { op, name })?;
                        <$ty>::from_attr(attr).ok_or(AttrError::Kind { op, name, want: <$ty as Field>::NAME })?
                    }),* })),)+
                }
            }

            /// The row of that name.
            pub fn from_name(name: &str) -> Result<OpCode, AttrError> {
                OpCode::all().find(|code| code.name() == name).ok_or_else(|| AttrError::UnknownOp(name.into()))
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op {
                Op::$name(op)
            }
        })+
    };
}

impl From<Pointwise> for Op {
    fn from(op: Pointwise) -> Op {
        Op::Pointwise(op)
    }
}

ops! {
    /// The same elements, row-major, in another shape (`view`, `reshape`, `unsqueeze`, `squeeze`, `flatten`).
    Reshape "reshape" ("x") View { shape: Shape };
    /// Dims in another order: output dim i is input dim `dims[i]` (`permute`, `transpose`, `t`).
    Permute "permute" ("x") View { dims: Axes };
    /// Broadcasting to `shape`: extents of 1 repeat, new dims go in front.
    Expand "expand" ("x") View { shape: Shape };
    /// Elements `start, start + step, …` before `end` of one dim; bounds lie within the extent (`slice`, `select`, `chunk`, `split`).
    Slice "slice" ("x") View { dim: usize, start: Dim, end: Dim, step: i64 };

    /// `start + step · i` for i in 0..len, 1-d (`arange`).
    Iota "iota" () Generator { len: Dim, start: i64, step: i64, dtype: DType };
    /// Every element `value` (`full`, `ones`, `zeros`; `empty` is filled with zeros).
    Full "full" () Generator { shape: Shape, value: Scalar, dtype: DType };

    /// Conversion to `dtype` with PyTorch's rounding, truncation and saturation (`to`, `_to_copy`).
    Cast "cast" ("x") Pointwise { dtype: DType };
    /// The bytes of the elements, row-major, read as `dtype`; where that is of another size, the last dim grows or shrinks (`view.dtype`).
    Bitcast "bitcast" ("x") Kernel { dtype: DType };
    /// A pointwise program over broadcast operands; one output for each of its results.
    Map "map" ("x*") Pointwise { program: Arc<Program> };

    /// A reduction over `dims`; accumulates in the opmath of `dtype`.
    Reduce "reduce" ("x") Kernel { kind: ReduceKind, dims: Axes, keepdim: bool, dtype: DType };
    /// Reductions of one pass: `prologue` makes one value for each of `kinds`, reduced over `dims`; `epilogue` takes the reduced values
    /// (in opmath) and then captures that broadcast against the reduced shape, dims kept. Operands: those of the prologue, then captures.
    MapReduce "map_reduce" ("x*") Kernel { prologue: Arc<Program>, kinds: Vec<ReduceKind>, dims: Axes, keepdim: bool, epilogue: Arc<Program> };
    /// Reductions of lines in several passes, each of which may read what those before it gave, and an elementwise end: norms, softmax, variances,
    /// losses and their gradients. Operands broadcast to the full shape, of which `dims` are a line. Each program of `prologues` makes the values of one
    /// pass, reduced by the next of `kinds`; its parameters are one element of each operand, the element's position in its line (i32), and all values
    /// that earlier passes gave the line. The pass's program of `epilogues` makes what it gives: from the reduced values (in opmath), the operands that
    /// have one element for each line, and what earlier passes gave. `end` makes elements of the full shape, from a prologue's parameters. Results are
    /// the `kept` of the passes' values, each with the lines' dims kept, then those of `end`.
    ReduceChain "reduce_chain" ("x*") Kernel
        { dims: Axes, prologues: Vec<Arc<Program>>, kinds: Vec<ReduceKind>, epilogues: Vec<Arc<Program>>, kept: Axes, end: Arc<Program> };
    /// Running sum along a dim (`cumsum`).
    Cumsum "cumsum" ("x") Kernel { dim: usize, dtype: DType };
    /// Softmax along a dim, or its logarithm; `dtype` is that of the result.
    Softmax "softmax" ("x") Kernel { dim: usize, log: bool, dtype: DType };
    /// `x / sqrt(mean(x²) + eps) · weight` over the last dim (RMSNorm, Zhang & Sennrich 2019); `dtype` is that of the result.
    RmsNorm "rms_norm" ("x", "weight?") Kernel { eps: Scalar, dtype: DType };
    /// `(x - mean) / sqrt(variance + eps) · weight + bias` over the last dim, then each row's mean and `1 / sqrt(variance + eps)`, dims kept
    /// and in opmath (`native_layer_norm`); `dtype` is that of the first result.
    LayerNorm "layer_norm" ("x", "weight?", "bias?") Kernel { eps: Scalar, dtype: DType };

    /// `a[…, M, K] · b[…, K, N]`, leading dims broadcast (`matmul`, `mm`, `bmm`, `linear`).
    MatMul "matmul" ("a", "b") Kernel {};
    /// Rows `offs[e-1]..offs[e]` of `x[S, K]` times `w[E, K, N]`'s matrix e (`_grouped_mm`, 2-d × 3-d).
    GroupedMm "grouped_mm" ("x", "w", "offs") Kernel {};
    /// A matmul whose accumulators pass through `program`: `a[…, M, K]` times each of `lanes` matrices `b[…, K, N]`. The program takes the
    /// accumulators, then captures that broadcast against `[…, M, N]`. Operands: a, the bs, captures. Its first `packed` results share one output
    /// `[…, M, packed · N]`, side by side or `interleaved`; its last, one for each of `folds`, are not stored but reduced, in the opmath of the dtype they
    /// are stored in: over so many neighbouring columns as `groups` says, to `[…, M, N / groups]`, or, where that is 0, over all rows, to `[N]`; each
    /// other result is an output `[…, M, N]`.
    Contract "contract" ("a", "b*", "capture*") Kernel
        { lanes: usize, packed: usize, interleaved: bool, folds: Vec<ReduceKind>, groups: Axes, program: Arc<Program> };

    /// `y[n, o, p] = Σ x[n, c, p·stride + k·dilation - padding] · w[o, c, k]` over 1 to 3 spatial dims; filters of a group read its channels
    /// (`conv1d`, `conv2d`, `conv3d`).
    Convolution "convolution" ("x", "w") Kernel { stride: Axes, padding: Axes, dilation: Axes, groups: usize };
    /// A convolution's gradient by an input of these spatial extents; also the transposed convolution.
    ConvolutionInput "convolution_input" ("grad", "w") Kernel { extents: Shape, stride: Axes, padding: Axes, dilation: Axes, groups: usize };
    /// A convolution's gradient by a weight of these spatial extents.
    ConvolutionWeight "convolution_weight" ("x", "grad") Kernel { extents: Axes, stride: Axes, padding: Axes, dilation: Axes, groups: usize };

    /// Elements picked by index tensors, which broadcast together; `axes` says which dims they index (`index`, `embedding`).
    Index "index" ("x", "indices*") Kernel { axes: Axes };
    /// `x` with the elements at the indices replaced by `values`, or summed with them (`index_put`).
    IndexPut "index_put" ("x", "values", "indices*") Kernel { axes: Axes, accumulate: bool };
    /// `out[i][j] = x[index[i][j]][j]` along `dim` (`gather`).
    Gather "gather" ("x", "index") Kernel { dim: usize };
    /// `x` with `src` added at `index` along `dim` (`scatter_add`).
    ScatterAdd "scatter_add" ("x", "index", "src") Kernel { dim: usize };
    /// Tensors joined along a dim (`cat`).
    Cat "cat" ("x*") Kernel { dim: usize };
    /// Sorted values, and where each stood (`sort`); always stable.
    Sort "sort" ("x") Kernel { dim: usize, descending: bool };
    /// The k largest (or smallest) values in descending (ascending) order, and where each stood (`topk`).
    TopK "topk" ("x") Kernel { k: usize, dim: usize, largest: bool };
    /// Counts of the values in `bins` equal intervals of [min, max]; the last includes its end (`histc`).
    Histc "histc" ("x") Kernel { bins: usize, min: Scalar, max: Scalar };
    /// The inverse of a 1-d permutation.
    InversePermutation "inverse_permutation" ("perm") Kernel {};

    /// Row s of `x[S, K]` times the transposed matrix `w[E, N, K]` of its expert `ids[S]`, plus that expert's bias; rows whose id is E or more give zero.
    ExpertMatmul "expert_matmul" ("x", "w", "bias?", "ids") Kernel {};
    /// Products by expert with an epilogue: row s, which is row s / `repeat` of `x[S / repeat, K]`, times the transposed matrix of expert `ids[s]`
    /// in each of `lanes` weights `[E, N, K]`. The program takes the accumulators, then `tables` captures `[E, N]` at the row's expert, then
    /// captures that broadcast against `[S, N]`. Its first `packed` results share one output `[S, packed · N]`, side by side or `interleaved`;
    /// its last, one for each of `folds`, are not stored but reduced as by `contract`, over so many neighbouring columns as `groups` says, to
    /// `[S, N / groups]`; each other result is an output `[S, N]`. Where the id is E or more, accumulators and tables are zero. With `grouped` rows lie
    /// by expert, and in place of ids come the ends of the experts' rows, `offs[E]`; rows past the last are of no expert.
    ExpertContract "expert_contract" ("x", "ids", "w*", "capture*") Kernel {
        lanes: usize, tables: usize, repeat: usize, packed: usize, interleaved: bool, grouped: bool, folds: Vec<ReduceKind>, groups: Axes,
        program: Arc<Program>,
    };
    /// Weight gradients by expert: `out[e] = Σ a[s]ᵀ · b[s]` over the rows s whose `ids[s]` is e, for `ids[S]`; out is `[experts, N, K]`. Row s of a is
    /// row s / `a_repeat` of `a[S / a_repeat, N]`, and of b row s / `b_repeat` of `b[S / b_repeat, K]`. Sums are made in the operands' opmath and
    /// rounded once, to `dtype`. Ids of `experts` or more add nothing; experts without rows give zeros. Where `onto[experts, N, K]` of `dtype` is given,
    /// the rounded sums are added to it.
    ExpertOuter "expert_outer" ("a", "b", "ids", "onto?") Kernel { experts: Dim, a_repeat: usize, b_repeat: usize, dtype: DType };
    /// A gated linear unit's gating: a program of (gate, up) (Shazeer 2020).
    Glu "glu" ("gate", "up") Pointwise { program: Arc<Program> };
    /// `out[t] = Σ_j weights[t, j] · y[t·k + j]` for `y[T·k, H]` and `weights[T, k]`.
    Combine "combine" ("y", "weights") Kernel { dtype: DType };
    /// `program(x·gateᵀ + gate_bias, x·upᵀ + up_bias)` for `x[…, K]`, `gate[N, K]` and `up[N, K]`.
    DenseGlu "dense_glu" ("x", "gate", "gate_bias?", "up", "up_bias?") Kernel { program: Arc<Program> };
    /// A router: `logits[T, E]` to `weights[T, k]` and `ids[T, k]` (i64), best expert first. Scores are computed in f32 and stored as `scores`. The k
    /// experts whose score plus `bias[E]` is highest are chosen; with `groups` = [n, best, kept] among the `kept` of n groups of neighbours whose `best`
    /// highest sum up to most, the others counting as `masked`. `weigh` makes a weight of each chosen expert's value and of the sum of the values: its score if
    /// `gathered`, else what it was chosen by.
    Route "route" ("logits", "bias?") Kernel
        { score: RouteScore, scores: DType, k: usize, groups: Axes, masked: Scalar, gathered: bool, weigh: Arc<Program> };
    /// A mixture-of-experts block: for token t and j < k, `down(program(gate(x[t]), up(x[t])))` by the matrices of expert `ids[t, j]`, summed with
    /// `weights[t, j]`. Shapes: x [T, H], gate and up [E, I, H], down [E, H, I], biases [E, ·], ids and weights [T, k]. Ids of E or more add nothing.
    /// Without `up` the program is an activation of the gate alone.
    Moe "moe" ("x", "gate", "gate_bias?", "up?", "up_bias?", "down", "down_bias?", "ids", "weights") Kernel { program: Arc<Program>, dtype: DType };
}

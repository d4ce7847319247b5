//! The reference evaluator: PyTorch's result for every row of the op table, kept simple. It is the oracle of every test.
//!
//! Halves and 8-bit floats are computed in f32 and rounded once per op, f64 in f64, integers wrap to their width. Sums accumulate in f64.

mod chain;
mod convolution;
mod element;
mod epilogue;
mod experts;
mod float8;
mod fused;
mod graph;
mod indexing;
mod matmul;
mod norm;
mod order;
mod pointwise;
mod program;
mod reduce;
mod route;
mod strides;
mod values;
mod views;

pub(crate) use element::{decode, encode};
pub use graph::eval_graph;

use crate::{
    Bindings, DType, Op, Scalar, Tensor, TensorType,
    bind::BindError,
    dim::DimError,
    graph::GraphError,
    ops::{Attr, InferError, OperandType, Types},
    tensor::TensorError,
};
use std::{borrow::Cow, sync::Arc};

/// What an op is evaluated on.
#[derive(Clone, Copy, Debug)]
pub enum EvalOperand<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number, which promotes as PyTorch's wrapped numbers do.
    Scalar(Scalar),
    /// An optional operand that is not given.
    None,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EvalError {
    #[error(transparent)]
    Infer(#[from] InferError),
    #[error(transparent)]
    Dim(#[from] DimError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("{op} is not defined for {dtype}")]
    Unsupported { op: &'static str, dtype: DType },
    /// The elements themselves are at fault, such as an index out of range.
    #[error("{0}")]
    Data(String),
    #[error("node `{node}`: the weight `{path}` is not there: give a file that has it")]
    MissingWeight { node: Arc<str>, path: Arc<str> },
    #[error("node `{node}`: {what} is {got}, but the graph records {want}")]
    TypeMismatch { node: Arc<str>, what: String, want: Box<TensorType>, got: Box<TensorType> },
    #[error("node `{node}` ({op}): {source}")]
    Node { node: Arc<str>, op: &'static str, source: Box<EvalError> },
}

/// Evaluates one op. Types are inferred anew from the operands, so every shape or dtype mismatch is an error.
///
/// `bindings` gives values to the symbols of the op's attributes.
pub fn eval_op(op: &Op, operands: &[EvalOperand<'_>], bindings: &Bindings) -> Result<Vec<Tensor>, EvalError> {
    let op = concrete(op, bindings)?;
    let tensor_types: Vec<Option<TensorType>> = operands
        .iter()
        .map(|operand| match operand {
            EvalOperand::Tensor(tensor) => Some(tensor.ty()),
            _ => None,
        })
        .collect();
    let types: Vec<OperandType<'_>> = operands
        .iter()
        .zip(&tensor_types)
        .map(|(operand, ty)| match (operand, ty) {
            (_, Some(ty)) => OperandType::Tensor(ty),
            (EvalOperand::Scalar(scalar), _) => OperandType::Scalar(*scalar),
            _ => OperandType::None,
        })
        .collect();
    let outputs = op.infer(&types)?;
    let shapes = outputs.iter().map(|ty| ty.concrete(bindings)).collect::<Result<Vec<_>, _>>()?;
    dispatch(&op, &Call { operands, types: &types, outputs: &outputs, shapes: &shapes })
}

/// An op's operands, checked by inference, and what it gives.
struct Call<'a> {
    operands: &'a [EvalOperand<'a>],
    types: &'a [OperandType<'a>],
    outputs: &'a Types,
    shapes: &'a [Vec<usize>],
}

impl<'a> Call<'a> {
    /// The tensor at `i`; inference has checked that there is one.
    fn tensor(&self, i: usize) -> Result<&'a Tensor, EvalError> {
        self.optional(i).ok_or_else(|| EvalError::Data(format!("operand {i} must be a tensor")))
    }

    fn optional(&self, i: usize) -> Option<&'a Tensor> {
        match self.operands.get(i) {
            Some(EvalOperand::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    fn tensors(&self, range: impl Iterator<Item = usize>) -> Result<Vec<&'a Tensor>, EvalError> {
        range.map(|i| self.tensor(i)).collect()
    }

    fn count(&self) -> usize {
        self.operands.len()
    }

    fn shape(&self) -> &'a [usize] {
        &self.shapes[0]
    }

    fn dtype(&self) -> DType {
        self.outputs[0].dtype
    }
}

fn dispatch(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let one = |tensor: Result<Tensor, EvalError>| tensor.map(|tensor| vec![tensor]);
    match op {
        Op::Pointwise(op) => one(pointwise::eval(*op, call)),
        Op::Reshape(_) => one(Ok(call.tensor(0)?.reshaped(call.shape()))),
        Op::Permute(op) => one(views::permute(op, call)),
        Op::Expand(_) => one(views::expand(call)),
        Op::Slice(op) => one(views::slice(op, call)),
        Op::Iota(op) => one(views::iota(op, call)),
        Op::Full(op) => one(views::full(op, call)),
        Op::Bitcast(op) => one(Ok(Tensor::from_bytes(op.dtype, call.shape(), call.tensor(0)?.bytes())?)),
        Op::Cast(op) => one(values::cast(call.tensor(0)?, op.dtype)),
        Op::Map(op) => program::map(&op.program, call),
        Op::Glu(op) => program::map(&op.program, call),
        Op::Reduce(op) => one(reduce::reduce(op, call)),
        Op::MapReduce(op) => reduce::map_reduce(op, call),
        Op::ReduceChain(op) => chain::reduce_chain(op, call),
        Op::Cumsum(op) => one(reduce::cumsum(op, call)),
        Op::Softmax(op) => one(norm::softmax(op, call)),
        Op::RmsNorm(op) => one(norm::rms_norm(op, call)),
        Op::LayerNorm(op) => norm::layer_norm(op, call),
        Op::MatMul(_) => one(matmul::matmul(call)),
        Op::GroupedMm(_) => one(matmul::grouped_mm(call)),
        Op::Convolution(op) => one(convolution::forward(op, call)),
        Op::ConvolutionInput(op) => one(convolution::of_input(op, call)),
        Op::ConvolutionWeight(op) => one(convolution::of_weight(op, call)),
        Op::Contract(op) => matmul::contract(op, call),
        Op::ExpertMatmul(_) => one(matmul::expert_matmul(call)),
        Op::ExpertContract(op) => experts::expert_contract(op, call),
        Op::ExpertOuter(op) => one(experts::expert_outer(op, call)),
        Op::Index(op) => one(indexing::index(op, call)),
        Op::IndexPut(op) => one(indexing::index_put(op, call)),
        Op::Gather(op) => one(indexing::gather(op, call)),
        Op::ScatterAdd(op) => one(indexing::scatter_add(op, call)),
        Op::Cat(op) => one(indexing::cat(op, call)),
        Op::InversePermutation(_) => one(indexing::inverse_permutation(call)),
        Op::Sort(op) => order::sort(op, call),
        Op::TopK(op) => order::topk(op, call),
        Op::Histc(op) => one(order::histc(op, call)),
        Op::Combine(op) => one(fused::combine(op, call)),
        Op::DenseGlu(op) => one(fused::dense_glu(op, call)),
        Op::Route(op) => route::route(op, call),
        Op::Moe(op) => one(fused::moe(op, call)),
    }
}

/// The op with every symbolic attribute replaced by its value.
fn concrete<'a>(op: &'a Op, bindings: &Bindings) -> Result<Cow<'a, Op>, EvalError> {
    let mut attrs = op.attrs();
    let mut changed = false;
    for (_, attr) in &mut attrs {
        let dims = match attr {
            Attr::Dim(dim) => std::slice::from_mut(dim),
            Attr::Shape(shape) => shape.as_mut_slice(),
            _ => continue,
        };
        for dim in dims.iter_mut().filter(|dim| dim.as_const().is_none()) {
            *dim = dim.eval(bindings)?.into();
            changed = true;
        }
    }
    if !changed {
        return Ok(Cow::Borrowed(op));
    }
    let attrs: Vec<Attr> = attrs.into_iter().map(|(_, attr)| attr).collect();
    op.code().build(&attrs).map(Cow::Owned).map_err(|e| EvalError::Data(e.to_string()))
}

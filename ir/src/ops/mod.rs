//! The op table: every op is one row, with its attributes, inference, evaluation and cost.
//!
//! [`table`] lists the structured ops and [`pointwise`] the elementwise ones. A row's parts are methods of [`OpDef`], so an op
//! that lacks one does not compile.

mod attr;
pub mod convolution;
mod cost;
mod derivative;
mod functions;
pub mod infer;
pub mod pointwise;
mod route;
mod table;

pub use attr::{Attr, AttrError, AttrKind, Axes, Field};
pub use cost::Cost;
pub use derivative::Derivative;
pub use pointwise::{Pointwise, TypeRule};
pub use route::RouteGroups;
pub use table::*;

use crate::{DType, Scalar, TensorType};
use smallvec::SmallVec;

/// The type of an operand, as inference sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum OperandType<'a> {
    Tensor(&'a TensorType),
    Scalar(Scalar),
    None,
}

/// Types of an op's outputs.
pub type Types = SmallVec<[TensorType; 1]>;

/// Why an op does not apply to its operands: says what was found and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InferError(pub String);

impl InferError {
    /// An error that says `why`.
    pub fn new(why: impl Into<String>) -> InferError {
        InferError(why.into())
    }
}

/// How an op reaches a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// A view: folded into index expressions, no kernel unless a copy is needed.
    View,
    /// A leaf computed from indices alone, folded into its readers where they can.
    Generator,
    /// One element at a time.
    Pointwise,
    /// A kernel of its own: codegen has an arm for it.
    Kernel,
}

/// What every row of the table provides.
pub trait OpDef {
    /// Checks operands and gives output types, PyTorch's shape and promotion rules included.
    fn infer(&self, operands: &[OperandType<'_>]) -> Result<Types, InferError>;

    /// Work and least traffic. By default every operand is read once, every output written once, and an output element costs one operation.
    fn cost(&self, operands: &[OperandType<'_>], outputs: &[TensorType]) -> Cost {
        Cost::streaming(operands, outputs, 1)
    }
}

/// Checked access to operands by position, for [`OpDef::infer`].
pub(crate) struct Args<'a>(pub &'a [OperandType<'a>]);

impl<'a> Args<'a> {
    /// The tensor at `i`, called `what` in the error.
    pub fn tensor(&self, i: usize, what: &str) -> Result<&'a TensorType, InferError> {
        match self.0.get(i) {
            Some(OperandType::Tensor(ty)) => Ok(ty),
            _ => Err(InferError(format!("operand {i} ({what}) must be a tensor"))),
        }
    }

    /// The tensor at `i`, if one is given.
    pub fn optional(&self, i: usize) -> Option<&'a TensorType> {
        match self.0.get(i) {
            Some(OperandType::Tensor(ty)) => Some(ty),
            _ => None,
        }
    }
}

pub(crate) fn one(dtype: DType, shape: impl IntoIterator<Item = crate::Dim>) -> Types {
    SmallVec::from_iter([TensorType::new(dtype, shape)])
}

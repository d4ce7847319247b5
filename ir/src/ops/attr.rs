//! Attributes of ops in uniform shape: for the textual form, JSON and the e-graph, where each is a leaf.

use super::{ReduceKind, RouteScore};
use crate::{DType, Dim, Program, Scalar, Shape};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Dims of a tensor by position; never negative.
pub type Axes = SmallVec<[usize; 4]>;

/// One attribute's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Attr {
    Bool(bool),
    Int(i64),
    Axes(Axes),
    Scalar(Scalar),
    DType(DType),
    Dim(Dim),
    Shape(Shape),
    Reduce(ReduceKind),
    Score(RouteScore),
    Program(Arc<Program>),
    Programs(Vec<Arc<Program>>),
    Reduces(Vec<ReduceKind>),
}

/// Which variant of [`Attr`] an attribute has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AttrKind {
    Bool,
    Int,
    Axes,
    Scalar,
    DType,
    Dim,
    Shape,
    Reduce,
    Score,
    Program,
    Programs,
    Reduces,
}

/// Why attributes do not make an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum AttrError {
    #[error("there is no op called `{0}`")]
    UnknownOp(String),
    #[error("`{op}` needs the attribute `{name}`")]
    Missing { op: &'static str, name: &'static str },
    #[error("`{op}` has no attribute `{name}`")]
    Unknown { op: &'static str, name: String },
    #[error("`{op}`: the attribute `{name}` must be {want}")]
    Kind { op: &'static str, name: &'static str, want: &'static str },
}

/// A Rust type that an attribute may have in a row of the table.
pub trait Field: Sized {
    /// What to call the kind in messages.
    const NAME: &'static str;
    /// The variant of [`Attr`].
    const KIND: AttrKind;
    /// The attribute with this value.
    fn to_attr(&self) -> Attr;
    /// The value, if the attribute is of this kind.
    fn from_attr(attr: &Attr) -> Option<Self>;
}

macro_rules! fields {
    ($($ty:ty = $variant:ident, $kind:literal;)+) => {
        $(impl Field for $ty {
            const NAME: &'static str = $kind;
            const KIND: AttrKind = AttrKind::$variant;

            fn to_attr(&self) -> Attr {
                Attr::$variant(self.clone())
            }

            fn from_attr(attr: &Attr) -> Option<Self> {
                match attr {
                    Attr::$variant(value) => Some(value.clone()),
                    _ => None,
                }
            }
        })+
    };
}

fields! {
    bool = Bool, "true or false";
    i64 = Int, "an integer";
    Axes = Axes, "a list of dims";
    Scalar = Scalar, "a number";
    DType = DType, "a dtype";
    Dim = Dim, "an extent";
    Shape = Shape, "a shape";
    ReduceKind = Reduce, "a reduction";
    RouteScore = Score, "a routing score";
    Arc<Program> = Program, "a program";
    Vec<Arc<Program>> = Programs, "a list of programs";
    Vec<ReduceKind> = Reduces, "a list of reductions";
}

impl Field for usize {
    const NAME: &'static str = "an integer ≥ 0";
    const KIND: AttrKind = AttrKind::Int;

    fn to_attr(&self) -> Attr {
        Attr::Int(*self as i64)
    }

    fn from_attr(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Int(value) => usize::try_from(*value).ok(),
            _ => None,
        }
    }
}

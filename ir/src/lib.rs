//! The graph of eglu: dtypes, symbolic dims, the op table, type inference, the reference evaluator and the importers.
//!
//! A [`Graph`] holds immutable dense values. Views are ops that cost nothing; storage strides exist only at the
//! boundary, in weights and inputs. Every op is one row of one table ([`ops`]).

pub mod archive;
pub mod bind;
pub mod dim;
pub mod dtype;
pub mod eval;
pub mod graph;
pub mod import;
pub mod json;
pub mod moments;
pub mod narrow;
pub mod ops;
pub mod profile;
pub mod program;
pub mod reference;
pub mod scalar;
pub mod tensor;
pub mod text;
pub mod types;
pub mod verify;
pub mod weights;
pub mod whole;

pub use dim::{Bindings, Dim, Shape, SymbolRange};
pub use dtype::DType;
pub use graph::{Graph, GraphError, Node, NodeId, NodeKind, Operand, Output, OutputKind, Value};
pub use ops::{Op, OpCode};
pub use profile::DeviceProfile;
pub use program::{Instr, Program, Ref};
pub use scalar::Scalar;
pub use tensor::Tensor;
pub use types::TensorType;
pub use weights::Weights;

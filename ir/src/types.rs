//! The type of a value: dtype and shape.

use crate::{Bindings, DType, Dim, Shape, dim::DimError};
use serde::{Deserialize, Serialize};

/// Dtype and shape of a dense tensor value; 0-d tensors have an empty shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = Dim>) -> Self {
        TensorType { dtype, shape: shape.into_iter().collect() }
    }

    /// A type of fixed extents.
    pub fn fixed(dtype: DType, shape: &[i64]) -> Self {
        Self::new(dtype, shape.iter().map(|&d| Dim::from(d)))
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Dim {
        numel(&self.shape)
    }

    /// Bytes of the dense tensor.
    pub fn bytes(&self) -> Dim {
        self.numel() * Dim::from(self.dtype.size() as i64)
    }

    /// The shape for one choice of the symbolic dims.
    pub fn concrete(&self, bindings: &Bindings) -> Result<Vec<usize>, DimError> {
        self.shape.iter().map(|d| d.extent(bindings)).collect()
    }
}

/// The product of extents.
pub fn numel(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::from(1), |n, d| n * d.clone())
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
